"""The library: check a model or plan, make a plan, get a DistributedConfig. The command line is a thin layer over it."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Unpack

from tpplan import answers
from tpplan.child import call_in_child
from tpplan.choices import Depth, Options
from tpplan.diagnostics import Report
from tpplan.plan_files.document import Plan

if TYPE_CHECKING:
    from transformers import DistributedConfig

ModelOrPlan = str | os.PathLike[str] | Plan


def check(
    model_or_plan: ModelOrPlan,
    tp_size: int | None = None,
    *,
    overrides: Mapping[str, str] | None = None,
    depth: str = "shapes",
    **options: Unpack[Options],
) -> Report:
    """The report on a model at a tp_size, or on a plan.

    model_or_plan: a directory or file with a config.json, a hub id, a plan file (.yaml), or a Plan. tp_size: number of
    ranks; a plan has its own. overrides: rule -> style, put over the model's own plan (models only). depth: `static`,
    `shapes` to run the real class without weights too, or `numerics` to compare a miniature's numbers as well.
    options: see `tpplan.choices.Options`.

    Raises InputError when the model or the plan cannot be read, PlanError when the installed packages do not serve.
    """
    from tpplan.request import Request, usage_error

    if depth not in tuple(Depth):
        raise usage_error(f"depth is {str(depth)!r}", fix=f"give one of {', '.join(Depth)}")
    request = Request(what=model_or_plan, tp_size=tp_size, overrides=overrides or {}, **options)
    if _group_is_taken():
        return call_in_child("check_request", request, depth)
    return answers.check_request(request, depth)


def plan(
    model: str | os.PathLike[str],
    tp_size: int,
    *,
    strategy: str = "replicate",
    extend: bool = False,
    name: str | None = None,
    **options: Unpack[Options],
) -> Plan:
    """A plan for `model` at `tp_size` that passes every stage, with no override where none is needed.

    strategy: what happens to a block that cannot be sharded, `replicate` or `gather`. extend: also find rules for the
    layers that the model's own plan leaves whole. name: what the plan calls the
    model, for example its hub id when `model` is a copy on disk. options: see `tpplan.choices.Options`.

    Raises PlanError when no plan passes; its report has the last evidence. Raises InputError as `check` does.
    """
    from tpplan.request import Request

    request = Request(what=model, name=name, tp_size=tp_size, **options)
    if _group_is_taken():
        return call_in_child("plan_request", request, strategy, extend)
    return answers.plan_request(request, strategy, extend)


def distributed_config(
    model_or_plan: ModelOrPlan,
    tp_size: int | None = None,
    *,
    strategy: str = "replicate",
    extend: bool = False,
    **options: Unpack[Options],
) -> DistributedConfig:
    """The transformers.DistributedConfig for `from_pretrained`: of a plan that passes, or of a model, repaired.

    A plan is taken as it is, whatever strategy and extend say. Arguments as in `check` and `plan`. Raises PlanError where no plan can work or the given one does not, InputError
    for what cannot be read.
    """
    from tpplan.request import Request

    request = Request(what=model_or_plan, tp_size=tp_size, **options)
    if _group_is_taken():
        arguments = call_in_child("passing_arguments", request, strategy, extend)
    else:
        arguments = answers.passing_arguments(request, strategy, extend)
    from transformers import DistributedConfig  # with torch, so after what can be refused without

    return DistributedConfig(**arguments)


def sizes(
    model: str | os.PathLike[str],
    tp_size: int | Sequence[int] = (),
    *,
    strategy: str = "replicate",
    depth: str = "shapes",
    **options: Unpack[Options],
) -> list[dict]:
    """For each tp_size what `tpplan sizes --format json` prints of it: the verdict after a repair where one is needed,
    and what it costs a rank, in bytes, collectives and FLOPs.

    tp_size: the size or sizes to judge; by default those that the device has on one host. depth: `shapes`, or `numerics`
    to compare a miniature's numbers at each size too. Other arguments as in `plan`; raises InputError as `check` does.
    """
    from tpplan.request import Request

    request = Request(what=model, **options)
    tp_sizes = (tp_size,) if isinstance(tp_size, int) else tuple(tp_size)
    if _group_is_taken():
        return call_in_child("sizes_request", request, tp_sizes, strategy, depth)
    return answers.sizes_request(request, tp_sizes, strategy, depth)


def verify(
    model_or_plan: ModelOrPlan,
    tp_size: int | None = None,
    *,
    strategy: str = "replicate",
    miniature: bool = False,
    timeout: float = 600,
    nnodes: int = 1,
    node_rank: int = 0,
    rdzv_endpoint: str | None = None,
    **options: Unpack[Options],
) -> Report:
    """The report of a real sharded load: tp_size ranks under torchrun load, run and generate.

    A plan is launched as it is, a model with its repaired plan. The ranks' logits, tokens and gradients are compared
    with the unsharded model where that fits into memory. miniature: launch a small model of the same structure even
    where there are weights. timeout: seconds for all processes together. nnodes, node_rank, rdzv_endpoint (`host:port`): as
    torchrun's, for a call on each of several hosts. Other arguments as in `check` and `plan`.

    Raises InputError for what cannot be read, PlanError for a model that no plan serves.
    """
    from tpplan.launch.verify import verify as launch
    from tpplan.request import Request

    request = Request(what=model_or_plan, tp_size=tp_size, **options)
    return launch(
        request,
        strategy=strategy,
        miniature=miniature,
        timeout=timeout,
        nnodes=nnodes,
        node_rank=node_rank,
        rdzv_endpoint=rdzv_endpoint,
    )


def _group_is_taken() -> bool:
    """Whether this process is a rank of a process group already; the stages need one of their own.

    Where torch is not loaded there is none, and it is not loaded for the answer: what cannot be read is said at once.
    """
    if "torch.distributed" not in sys.modules:
        return False
    from tpplan.model.ranks import group_is_taken

    return group_is_taken()
