"""Answers to a request, found in this process: under the library and the command line alike."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from tpplan.choices import Depth, Dtype, Optimize, Strategy
from tpplan.diagnostics import PlanError, Report
from tpplan.plan_files.document import ModelFacts, Plan, Proof, Target

if TYPE_CHECKING:
    from tpplan.planner.candidates import Candidate
    from tpplan.planner.repair import Repair
    from tpplan.request import Request
    from tpplan.subject import Subject


def check_request(request: Request, depth: str) -> Report:
    """The report on `request`, in this process."""
    from tpplan.planner.costs import with_memory
    from tpplan.planner.remedy import with_fixes
    from tpplan.request import open_request
    from tpplan.stages.judge import judge

    judgement = judge(open_request(request), Depth(depth))
    return with_memory(with_fixes(judgement), judgement)


def plan_request(request: Request, strategy: str, extend: bool) -> Plan:
    """The plan for `request`, made in this process."""
    return make_plan(request, strategy, extend)[0]


def passing_arguments(request: Request, strategy: str, extend: bool) -> dict:
    """Keyword arguments of the DistributedConfig of a plan that passes, found in this process."""
    return passing_subject(request, strategy, extend).sharding.arguments()


def passing_subject(request: Request, strategy: str = "replicate", extend: bool = False) -> Subject:
    """The subject of a plan that passes as it is, or of a model after its repair. Raises PlanError otherwise."""
    from tpplan.request import open_request
    from tpplan.stages.judge import judge

    if not request.is_plan:
        return _repair(request, strategy, extend).judgement.subject
    judgement = judge(open_request(request), Depth.NUMERICS)
    if not judgement.passed:
        raise PlanError(judgement.report())
    return judgement.subject


def make_plan(request: Request, strategy: str = "replicate", extend: bool = False) -> tuple[Plan, Repair]:
    """The plan for the request's model, and the repair that made it. Raises PlanError when nothing passes.

    extend: also find rules for what the plan leaves whole.
    """
    _check_name(request)
    repaired = _repair(request, strategy, extend)
    return _plan_of(request, repaired), repaired


def make_best_plan(
    request: Request, strategy: str, optimize: str | None, extend: bool = False
) -> tuple[Plan, Repair, list[Candidate]]:
    """As `make_plan`, with every strategy tried and its costs measured.

    optimize: which of those that pass becomes the plan; None: the one that `strategy` names. Raises PlanError.
    """
    from tpplan.planner.candidates import all_strategies, best

    _check_name(request)
    candidates = all_strategies(_model_to_plan(request, strategy), extend=extend)
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
    from tpplan.planner.candidates import all_sizes
    from tpplan.request import check_values, usage_error

    if depth not in (Depth.SHAPES, Depth.NUMERICS):
        raise usage_error(f"depth is {str(depth)!r}", fix="give shapes or numerics: static alone measures nothing")
    for size in tp_sizes:
        check_values(replace(request, tp_size=size))
    subject = _model_to_plan(replace(request, tp_size=1), strategy)
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


def _repair(request: Request, strategy: str, extend: bool = False) -> Repair:
    from tpplan.planner.extend import extended
    from tpplan.planner.repair import repair
    from tpplan.stages.proof import Bench

    subject = _model_to_plan(request, strategy)
    bench = Bench(subject)
    repaired = repair(subject, Strategy(strategy), Depth.NUMERICS, bench=bench)
    if extend:
        repaired = extended(repaired, Depth.NUMERICS, bench)
    if repaired.judgement.passed:
        return repaired
    raise PlanError(repaired.report())


def _model_to_plan(request: Request, strategy: str) -> Subject:
    from tpplan.request import open_request, usage_error

    if strategy not in tuple(Strategy):
        raise usage_error(f"strategy is {strategy!r}", fix=f"give one of {', '.join(Strategy)}")
    if request.is_plan:
        raise usage_error("a plan is made from a model", fix="give a directory, a config file or a hub id")
    return open_request(request)
