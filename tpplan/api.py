"""The library: check a model or plan, make a plan, get a DistributedConfig. The command line is a thin layer on it."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Unpack

from tpplan import engine, remembered
from tpplan.choices import Optimize, Options, Phase, PlanOptions, Trust, chosen
from tpplan.diagnostics import Report, Verdict
from tpplan.plan_files.document import Plan
from tpplan.request import inputs, make_request
from tpplan.schemas import filled
from tpplan.stages import table

if TYPE_CHECKING:
    from transformers import DistributedConfig

    from tpplan.answers import Candidate, Compiled, Found

Model = str | os.PathLike[str]
ModelOrPlan = Model | Plan


def check(
    model_or_plan: ModelOrPlan,
    tp_size: int | None = None,
    *,
    overrides: Mapping[str, str] | None = None,
    depth: str | None = None,
    **options: Unpack[PlanOptions],
) -> Report:
    """The report on a model at a tp_size, or on a plan.

    model_or_plan: a directory or file with a config.json, a hub id, a plan file (.yaml), or a Plan. tp_size: number of
    ranks; a plan has its own. overrides: rule -> style, put over the model's own plan (models only). depth: the name of
    the last stage to run, all of `tpplan.stages.table` if left out. options: see `tpplan.choices.PlanOptions`.

    Raises InputError when the model or the plan cannot be read, PlanError when the installed packages do not serve.
    """
    depth = engine.depth_named(depth or table.deepest())
    request = make_request(model_or_plan, tp_size, overrides=overrides, **options)
    return remembered.answer(engine.check, request, depth)


def check_all(
    models_or_plans: Sequence[ModelOrPlan],
    tp_size: int | None = None,
    *,
    depth: str | None = None,
    jobs: int | None = None,
    update: bool = False,
    progress: Callable[[str, float], None] | None = None,
    **options: Unpack[PlanOptions],
) -> list[Report]:
    """The reports of `check` on several models and plans, in their order: libraries are imported once for all.

    A directory that is no model stands for the plan files in it. tp_size: of the models; a plan has its own. jobs:
    processes at once, by default as many as there are processors. update: seal the plan files that pass, with
    what was proven now. progress: called with how many are done, as text and 0 to 1.

    What cannot be read has a report that says so. Raises InputError for an option that makes no sense, and for a plan
    file that cannot be written.
    """
    from tpplan import several
    from tpplan.plan_files import seal

    depth = engine.depth_named(depth or table.deepest())
    if update:
        engine.require_sealable(depth, options)
    single = len(models_or_plans) == 1
    requests = []
    for one in inputs(models_or_plans):
        request = make_request(one, tp_size, **options)
        requests.append(request if single or not request.is_plan else replace(request, tp_size=None))
    plans = [one.what for one in requests if isinstance(one.what, str) and one.is_plan] if update else []
    before = {path: seal.unproven(path) for path in plans}
    reports = several.check_each(requests, depth, jobs, progress)
    for report in reports:
        if update and report.plan is not None and report.verdict is Verdict.PASS:
            seal.update(report.plan, report, before[report.plan])
    return reports


def plan(
    model: Model,
    tp_size: int,
    *,
    strategy: str | None = None,
    extend: bool = False,
    name: str | None = None,
    **options: Unpack[Options],
) -> Plan:
    """A plan for `model` at `tp_size` that passes every stage, with no override where none is needed.

    strategy: what happens to a block that cannot be sharded, a name of `tpplan.planner.strategies`; left out, the first
    with which the plan fits its device. extend: also find rules for the layers that the model's own plan leaves
    replicated. name: what the plan calls the model, for example its hub id when `model` is a copy on disk. options: see
    `tpplan.choices.Options`.

    Raises PlanError when no plan passes; its report has the last evidence. Raises InputError as `check` does.
    """
    return find_plan(model, tp_size, strategy=strategy, extend=extend, name=name, **options).plan


def find_plan(
    model: Model,
    tp_size: int | None,
    *,
    strategy: str | None = None,
    extend: bool = False,
    name: str | None = None,
    compare: bool = False,
    optimize: Optimize | None = None,
    **options: Unpack[Options],
) -> Found:
    """As `plan`, with how the plan was found. compare: try and measure every strategy, not only the one followed.

    optimize: of all strategies, follow the one with the fewest bytes per rank, or the fewest collectives.
    """
    strategy = engine.strategy_named(strategy)
    request = make_request(model, tp_size, name=name, **options)
    if compare or optimize:
        return remembered.answer(engine.compare_strategies, request, strategy, optimize, extend)
    return remembered.answer(engine.make_plan, request, strategy, extend)


def distributed_config(
    model_or_plan: ModelOrPlan,
    tp_size: int | None = None,
    *,
    strategy: str | None = None,
    extend: bool = False,
    trust: str = Trust.SEAL,
    **options: Unpack[PlanOptions],
) -> DistributedConfig:
    """The transformers.DistributedConfig for `from_pretrained`: of a plan that passes, or of a model, repaired.

    A plan is taken as it is, whatever strategy and extend say. trust: a value of `tpplan.choices.Trust`; by default a
    plan whose seal holds is not proven again, its config is compared with the one at hand. Where the seal is broken,
    the stages run, which is logged. Other arguments as in `check` and `plan`.

    Raises PlanError where no plan can work or the given one does not, InputError for what cannot be read.
    """
    made = compiled(model_or_plan, tp_size, strategy=strategy, extend=extend, trust=trust, **options)
    from transformers import DistributedConfig  # with torch, so after what can be refused without

    return DistributedConfig(**made.arguments)


def compiled(
    model_or_plan: ModelOrPlan,
    tp_size: int | None = None,
    *,
    strategy: str | None = None,
    extend: bool = False,
    trust: str = Trust.SEAL,
    **options: Unpack[PlanOptions],
) -> Compiled:
    """What `distributed_config` is made from, and the script that `tpplan compile` prints."""
    strategy = engine.strategy_named(strategy)
    if chosen("trust", trust, Trust) is Trust.NEVER:
        options["cache"] = False
    request = make_request(model_or_plan, tp_size, **options)
    sealed = None if trust == Trust.NEVER else engine.compile_sealed(request)
    if sealed is not None:
        return sealed
    return remembered.answer(engine.compile_plan, request, strategy, extend)


def lowered(
    model_or_plan: ModelOrPlan,
    tp_size: int | None = None,
    *,
    phase: str = Phase.PREFILL,
    strategy: str | None = None,
    **options: Unpack[PlanOptions],
) -> bytes:
    """The program of rank 0 at full size, as torch_tpu lowers it: a portable artifact of StableHLO, which jax reads.

    Its arguments are the rank's inputs, weights and cache. phase: a value of `tpplan.choices.Phase`. Raises PlanError
    where the plan does not pass, and where there is no program, as without the packages of `tpplan[aot]`.
    """
    request = make_request(model_or_plan, tp_size, **options)
    phase = chosen("phase", phase, Phase)
    return engine.answer(engine.lowered, request, engine.strategy_named(strategy), phase)


def sizes(
    model: Model,
    tp_size: int | Sequence[int] = (),
    *,
    strategy: str | None = None,
    depth: str | None = None,
    **options: Unpack[Options],
) -> list[dict]:
    """For each tp_size what `tpplan sizes --format json` prints of it: the verdict after a repair where one is needed,
    and what it costs per rank, in bytes, collectives and FLOPs.

    tp_size: the size or sizes to judge; by default those that the device has on one host. depth: as in `check`, but for
    `static`, which measures nothing. Other arguments as in `plan`; raises InputError as `check` does.
    """
    return [one.to_dict() for one in size_candidates(model, tp_size, strategy=strategy, depth=depth, **options)]


def size_candidates(
    model: Model,
    tp_size: int | Sequence[int] = (),
    *,
    strategy: str | None = None,
    depth: str | None = None,
    **options: Unpack[Options],
) -> list[Candidate]:
    """What `sizes` gives, before it is made plain."""
    depth = engine.depth_named(depth or table.deepest(), measured=True)
    strategy = engine.strategy_named(strategy)
    request = make_request(model, None, **options)
    tp_sizes = (tp_size,) if isinstance(tp_size, int) else tuple(tp_size)
    return remembered.answer(engine.sizes, request, tp_sizes, strategy, depth)


def schema(name: str) -> dict[str, Any]:
    """The JSON Schema of plan files (`plan`), or of the JSON that a command prints: a value of SchemaName."""
    from tpplan.planner.strategies import STRATEGIES

    return filled(name, {"stage": table.names(), "strategy": STRATEGIES})


def verify(
    model_or_plan: ModelOrPlan,
    tp_size: int | None = None,
    *,
    strategy: str | None = None,
    miniature: bool = False,
    timeout: float = 600,
    nnodes: int = 1,
    node_rank: int = 0,
    rdzv_endpoint: str | None = None,
    progress: Callable[[str, float], None] | None = None,
    **options: Unpack[PlanOptions],
) -> Report:
    """The report of a check with a real sharded load as a stage: tp_size ranks under torchrun load, run, generate.

    A plan is launched as it is, a model with its repaired plan; one that fails the check is not launched. The ranks'
    logits, tokens and gradients are compared with the unsharded model where that fits into memory. miniature: launch a
    small model of the same structure even where there are weights. timeout: seconds for all processes together. nnodes,
    node_rank, rdzv_endpoint (`host:port`): as torchrun's, for a call on each of several hosts. progress: called several
    times a second with what runs and the part done, 0 to 1, unless this process is a rank itself. Other arguments as in
    `check` and `plan`.

    Raises InputError for what cannot be read.
    """
    from tpplan.launch.options import LaunchOptions

    strategy = engine.strategy_named(strategy)
    request = make_request(model_or_plan, tp_size, **options)
    launch = LaunchOptions(
        miniature=miniature,
        timeout=timeout,
        nnodes=nnodes,
        node_rank=node_rank,
        rdzv_endpoint=rdzv_endpoint,
        progress=progress,
    )
    return engine.answer(engine.verify, request, strategy, launch)
