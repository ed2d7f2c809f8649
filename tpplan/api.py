"""The library: check a model or plan, make a plan, get a DistributedConfig. The command line is a thin layer over it."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Unpack

from tpplan.child import call_in_child
from tpplan.choices import Depth, Dtype, Optimize, Options, Strategy
from tpplan.diagnostics import PlanError, Report
from tpplan.plan_document import ModelFacts, Plan, Proof, Target

if TYPE_CHECKING:
    from transformers import DistributedConfig

    from tpplan.candidates import Candidate
    from tpplan.checks.subject import Subject
    from tpplan.planner import Repair
    from tpplan.request import Request

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
    return check_request(request, depth)


def plan(
    model: str | os.PathLike[str],
    tp_size: int,
    *,
    strategy: str = "replicate",
    name: str | None = None,
    **options: Unpack[Options],
) -> Plan:
    """A plan for `model` at `tp_size` that passes every stage, with no override where none is needed.

    strategy: what happens to a block that cannot be sharded, `replicate` or `gather`. name: what the plan calls the
    model, for example its hub id when `model` is a copy on disk. options: see `tpplan.choices.Options`.

    Raises PlanError when no plan passes; its report has the last evidence. Raises InputError as `check` does.
    """
    from tpplan.request import Request

    request = Request(what=model, name=name, tp_size=tp_size, **options)
    if _group_is_taken():
        return call_in_child("plan_request", request, strategy)
    return plan_request(request, strategy)


def distributed_config(
    model_or_plan: ModelOrPlan,
    tp_size: int | None = None,
    *,
    strategy: str = "replicate",
    **options: Unpack[Options],
) -> DistributedConfig:
    """The transformers.DistributedConfig for `from_pretrained`: of a plan that passes, or of a model, repaired.

    Arguments as in `check` and `plan`. Raises PlanError where no plan can work or the given one does not, InputError
    for what cannot be read.
    """
    from tpplan.request import Request

    request = Request(what=model_or_plan, tp_size=tp_size, **options)
    if _group_is_taken():
        arguments = call_in_child("passing_arguments", request, strategy)
    else:
        arguments = passing_arguments(request, strategy)
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

    tp_size: the size or sizes to judge; by default those that the device has on one host. depth: `shapes`, or `numerics` to compare
    a miniature's numbers at each size too. Other arguments as in `plan`; raises InputError as `check` does.
    """
    from tpplan.request import Request

    request = Request(what=model, **options)
    tp_sizes = (tp_size,) if isinstance(tp_size, int) else tuple(tp_size)
    if _group_is_taken():
        return call_in_child("sizes_request", request, tp_sizes, strategy, depth)
    return sizes_request(request, tp_sizes, strategy, depth)


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


def check_request(request: Request, depth: str) -> Report:
    """The report on `request`, in this process."""
    from tpplan.costs import with_memory
    from tpplan.judge import judge
    from tpplan.remedy import with_fixes
    from tpplan.request import open_request

    judgement = judge(open_request(request), Depth(depth))
    return with_memory(with_fixes(judgement), judgement)


def plan_request(request: Request, strategy: str) -> Plan:
    """The plan for `request`, made in this process."""
    return make_plan(request, strategy)[0]


def passing_arguments(request: Request, strategy: str) -> dict:
    """Keyword arguments of the DistributedConfig of a plan that passes, found in this process."""
    return passing_subject(request, strategy).sharding.arguments()


def passing_subject(request: Request, strategy: str = "replicate") -> Subject:
    """The subject of a plan that passes as it is, or of a model after its repair. Raises PlanError otherwise."""
    from tpplan.judge import judge
    from tpplan.request import open_request

    if not request.is_plan:
        return _repair(request, strategy).judgement.subject
    judgement = judge(open_request(request), Depth.NUMERICS)
    if not judgement.passed:
        raise PlanError(judgement.report())
    return judgement.subject


def make_plan(request: Request, strategy: str = "replicate") -> tuple[Plan, Repair]:
    """The plan for the request's model, and the repair that made it. Raises PlanError when nothing passes."""
    _check_name(request)
    repaired = _repair(request, strategy)
    return _plan_of(request, repaired), repaired


def make_best_plan(request: Request, strategy: str, optimize: str | None) -> tuple[Plan, Repair, list[Candidate]]:
    """As `make_plan`, with every strategy tried and its costs measured.

    optimize: which of those that pass becomes the plan; None: the one that `strategy` names. Raises PlanError.
    """
    from tpplan.candidates import all_strategies, best

    _check_name(request)
    candidates = all_strategies(_open_model(request, strategy))
    if optimize:
        chosen = best(candidates, Optimize(optimize))
    else:
        chosen = next((c for c in candidates if c.repair.strategy == strategy), candidates[0])
    chosen = chosen or candidates[0]
    if not chosen.repair.judgement.passed:
        raise PlanError(chosen.repair.report())
    return _plan_of(request, chosen.repair), chosen.repair, candidates


def sizes_request(request: Request, tp_sizes: tuple[int, ...], strategy: str, depth: str) -> list[dict]:
    """The candidates of `sizes` as plain values, found in this process."""
    return [candidate.to_dict() for candidate in candidates_by_size(request, tp_sizes, strategy, depth)]


def candidates_by_size(
    request: Request, tp_sizes: tuple[int, ...], strategy: str = "replicate", depth: str = "shapes"
) -> list[Candidate]:
    """A candidate for each size, found in this process. Raises InputError as `sizes` does."""
    from tpplan.candidates import all_sizes
    from tpplan.request import check_values, usage_error

    if depth not in (Depth.SHAPES, Depth.NUMERICS):
        raise usage_error(f"depth is {str(depth)!r}", fix="give shapes or numerics: static alone measures nothing")
    for size in tp_sizes:
        check_values(replace(request, tp_size=size))
    subject = _open_model(replace(request, tp_size=1), strategy)
    return all_sizes(subject, tp_sizes, Strategy(strategy), Depth(depth))


def _check_name(request: Request) -> None:
    from tpplan.request import usage_error

    try:
        str(request.name or request.what).encode("utf-8")
    except UnicodeEncodeError as error:
        raise usage_error("a plan cannot hold a name that is not UTF-8", fix="name the model with --id") from error


def _plan_of(request: Request, repaired: Repair) -> Plan:
    from tpplan.model.internals import versions
    from tpplan.request import facts

    subject = repaired.judgement.subject
    stages = {name: str(stage.status) for name, stage in repaired.judgement.stages.items()}
    return Plan(
        model=ModelFacts(
            id=request.name or subject.spec.source.name, auto_class=subject.spec.auto_class, config=facts(subject)
        ),
        target=Target(
            tp_size=subject.sharding.tp_size,
            ep_size=subject.sharding.ep_size,
            device=subject.device,
            purpose="training" if subject.training else "inference",
            dtype=subject.spec.dtype if subject.spec.dtype in tuple(Dtype) else None,
        ),
        overrides=repaired.overrides,
        proven=Proof(
            stages=stages,
            versions={name: version for name, version in versions().items() if name in ("torch", "transformers")},
            strategy=str(repaired.strategy) if repaired.overrides else None,
        ),
    )


def _repair(request: Request, strategy: str) -> Repair:
    from tpplan.planner import repair

    repaired = repair(_open_model(request, strategy), Strategy(strategy), Depth.NUMERICS)
    if repaired.judgement.passed:
        return repaired
    raise PlanError(repaired.report())


def _open_model(request: Request, strategy: str) -> Subject:
    from tpplan.request import open_request, usage_error

    if strategy not in tuple(Strategy):
        raise usage_error(f"strategy is {strategy!r}", fix=f"give one of {', '.join(Strategy)}")
    if request.is_plan:
        raise usage_error("a plan is made from a model", fix="give a directory, a config file or a hub id")
    return open_request(request)


def _group_is_taken() -> bool:
    """Whether this process is a rank of a process group already; the stages need one of their own.

    Where torch is not loaded there is none, and it is not loaded for the answer: what cannot be read is said at once.
    """
    if "torch.distributed" not in sys.modules:
        return False
    from tpplan.model.ranks import group_is_taken

    return group_is_taken()
