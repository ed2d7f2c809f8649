"""The one engine under the library and the command line: judgements, repairs and plans, as plain values.

Every answer about a plan is made from its judgement here, so all of them say the same. A process that is a rank already
gets its answers from a child (`answer`).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from tpplan.answers import Candidate, Compiled, Found
from tpplan.child import call_in_child
from tpplan.choices import Dtype, Optimize, Phase, chosen, usage_error
from tpplan.diagnostics import PlanError, Report
from tpplan.plan_files.document import ModelFacts, Plan, Target
from tpplan.planner.strategies import STRATEGIES
from tpplan.request import Request, check_tp_size
from tpplan.stages import table

if TYPE_CHECKING:
    from tpplan.launch.options import LaunchOptions
    from tpplan.model.config import ModelSpec
    from tpplan.model.skeleton import Sharding
    from tpplan.planner.repair import Repair
    from tpplan.stages.bench import Bench
    from tpplan.stages.judge import Judgement
    from tpplan.subject import Subject

COMPILED = "aot"  # the stage that asks the compiler of a TPU
Given = ParamSpec("Given")
Answer = TypeVar("Answer")


def answer(function: Callable[Given, Answer], *args: Given.args, **kwargs: Given.kwargs) -> Answer:
    """What the function of this module returns, in a child where this process is a rank of a process group already.

    The stages need a group of their own. Where torch is not loaded there is none, and it is not loaded for the answer:
    what cannot be read is said at once.
    """
    if "torch.distributed" in sys.modules:
        from tpplan.model.ranks import group_is_taken

        if group_is_taken():
            found: Answer = call_in_child(function, *args, **kwargs)
            return found
    return function(*args, **kwargs)


def check(request: Request, depth: str) -> Report:
    """The report on a plan, or on a model with its own plan."""
    subject, bench = _opened(request)
    if depth == COMPILED:
        _require_generation(subject)
    return _judged(subject, depth, bench).report()


def make_plan(request: Request, strategy: str | None, extend: bool) -> Found:
    """The plan for the request's model, and how it was found. Raises PlanError when nothing passes.

    strategy: None for each in turn, until one fits. extend: also find rules for what the plan leaves replicated.
    """
    _check_name(request)
    subject, bench = _opened_model(request)
    return _found(request, _repaired(subject, strategy, extend, bench))


def compare_strategies(request: Request, strategy: str | None, optimize: Optimize | None, extend: bool) -> Found:
    """As `make_plan`, with every strategy tried and its costs measured.

    optimize: which that passes becomes the plan; None: the one that `strategy` names, else the first that passes.
    """
    from tpplan.planner.candidates import all_strategies, best

    _check_name(request)
    subject, bench = _opened_model(request)
    tried = all_strategies(subject, bench, extend=extend)
    candidates = tuple(candidate for _, candidate in tried)
    if optimize:
        wanted = best(candidates, optimize)
    else:
        named = [one for made, one in tried if strategy in (None, made.strategy)]
        wanted = next((one for one in named if one.report.exit_code == 0), named[0] if named else None)
    made, wanted = next((pair for pair in tried if pair[1] is wanted), tried[0])
    if wanted.report.exit_code:
        raise PlanError(wanted.report)
    return replace(_found(request, made), candidates=candidates, chosen=wanted)


def sizes(request: Request, tp_sizes: tuple[int, ...], strategy: str | None, depth: str) -> list[Candidate]:
    """A candidate for each tp_size. Raises InputError."""
    from tpplan.planner.candidates import all_sizes

    for size in tp_sizes:
        check_tp_size(size, str(request.what))
    subject, bench = _opened_model(replace(request, tp_size=1))
    if depth == COMPILED:
        _require_generation(subject)
    return all_sizes(subject, bench, tp_sizes, strategy, depth)


def compile_plan(request: Request, strategy: str | None, extend: bool) -> Compiled:
    """The DistributedConfig of a plan that passes as it is, or of a model after its repair. Raises PlanError."""
    subject = _passing(request, strategy, extend).subject
    return _compiled(subject.spec, subject.sharding)


def lowered(request: Request, strategy: str | None, phase: Phase) -> bytes:
    """The program of rank 0 as a portable artifact of StableHLO, of a plan that passes. Raises PlanError."""
    from tpplan.stages.aot import export

    return export(_passing(request, strategy, False).subject, phase)


def compile_sealed(request: Request) -> Compiled | None:
    """As `compile_plan`, for a plan whose seal holds, without running anything; None for any other."""
    from tpplan.opening import open_sealed

    opened = open_sealed(request)
    return _compiled(*opened) if opened else None


def verify(request: Request, strategy: str | None, options: LaunchOptions) -> Report:
    """The report on a plan, or on a model's repaired plan, with the stage on real ranks. Raises PlanError."""
    from tpplan.launch.options import check_usage
    from tpplan.launch.verify import launched

    subject, bench = _opened(request)
    check_usage(options, subject)
    judgement = _judged_or_repaired(request, subject, bench, strategy)
    return launched(judgement, options, dtype_is_asked_for=request.dtype is not None).report()


def depth_named(depth: str, *, measured: bool = False) -> str:
    """The depth of this name. measured: one at which the model runs. Raises InputError TPP130."""
    return chosen("depth", depth, table.depths()[1:] if measured else table.depths())


def _require_generation(subject: Subject) -> None:
    """Raise InputError TPP130 where the TPU's compiler is asked and the device is none that it compiles for."""
    from tpplan.targets import resolve

    if not resolve(subject.device).has_limits:
        said = f"the depth {COMPILED} is of a TPU, and the device is {subject.device}"
        raise usage_error(said, fix="name a generation, such as --device tpu-v6e", model=subject.spec.source.name)


def require_sealable(depth: str, options: Mapping[str, Any]) -> None:
    """Raise InputError TPP130 where a check of this depth, with these options, is no proof of what a plan says."""
    names = ("model", "auto_class", "device", "purpose", "dtype", "batch", "max_length", "trust_remote_code")
    given = next((name for name in names if options.get(name) not in (None, False)), None)
    if depth != table.deepest():
        raise usage_error(f"the stages up to {depth} prove too little for a seal", fix="leave --depth out")
    if given is not None:
        option = f"--{given.replace('_', '-')}"
        raise usage_error("a plan is sealed for what it says itself", fix=f"leave {option} out, or make a plan with it")


def strategy_named(strategy: str | None) -> str | None:
    """The strategy of this name, None for each in turn. Raises InputError TPP130."""
    return None if strategy is None else chosen("strategy", strategy, STRATEGIES)


def _judged(subject: Subject, depth: str, bench: Bench) -> Judgement:
    from tpplan.planner.remedy import with_fixes
    from tpplan.stages.judge import judge

    return with_fixes(judge(subject, depth, bench=bench), bench)


def _passing(request: Request, strategy: str | None, extend: bool) -> Judgement:
    """The judgement of a plan that passes as it is, or of a model after its repair. Raises PlanError otherwise."""
    judgement = _judged_or_repaired(request, *_opened(request), strategy, extend)
    if not judgement.passed:
        raise PlanError(judgement.report())
    return judgement


def _judged_or_repaired(
    request: Request, subject: Subject, bench: Bench, strategy: str | None, extend: bool = False
) -> Judgement:
    """A plan as it is, a model after its repair."""
    if request.is_plan:
        return _judged(subject, table.deepest(), bench)
    return _repaired(subject, strategy, extend, bench).judgement


def _repaired(subject: Subject, strategy: str | None, extend: bool, bench: Bench) -> Repair:
    """The repair of a model's plan, what is left against it with its fixes."""
    from tpplan.planner.remedy import with_fixes
    from tpplan.planner.solve import solve

    made = solve(subject, strategy, bench, extend=extend)
    return replace(made, judgement=with_fixes(made.judgement, bench))


def _found(request: Request, made: Repair) -> Found:
    """The plan that a repair ended with. Raises PlanError where it does not pass."""
    if not made.judgement.passed:
        raise PlanError(made.judgement.report())
    return Found(
        report=made.judgement.report(),
        plan=_plan_of(request, made),
        attempts=made.attempts,
        refused=made.refused,
        strategy=made.strategy,
    )


def _compiled(spec: ModelSpec, sharding: Sharding) -> Compiled:
    from tpplan.planner.compiled import as_python

    return Compiled(arguments=sharding.arguments(), python=as_python(spec, sharding))


def _plan_of(request: Request, made: Repair) -> Plan:
    from tpplan.model.internals import versions
    from tpplan.opening import facts
    from tpplan.plan_files.seal import proof_of, sealed

    subject = made.judgement.subject
    plan = Plan(
        model=ModelFacts(
            id=request.name or subject.spec.source.name, auto_class=subject.spec.auto_class, config=facts(subject)
        ),
        target=Target(
            tp_size=subject.sharding.tp_size,
            ep_size=subject.sharding.ep_size,
            device=str(subject.device),
            purpose="training" if subject.training else "inference",
            dtype=subject.spec.dtype if subject.spec.dtype in tuple(Dtype) else None,
        ),
        overrides=made.overrides,
        proven=proof_of(made.judgement.stages, versions(), made.strategy if made.overrides else None),
    )
    # A plan says neither for which batch and length its memory is enough, nor which code a model brings.
    unsaid = subject.batch or subject.max_length or subject.spec.runs_own_code
    return plan if unsaid else sealed(plan)


def _check_name(request: Request) -> None:
    try:
        str(request.name or request.what).encode("utf-8")
    except UnicodeEncodeError as error:
        raise usage_error("a plan cannot hold a name that is not UTF-8", fix="name the model with --id") from error


def _opened(request: Request) -> tuple[Subject, Bench]:
    from tpplan.opening import open_request
    from tpplan.stages.bench import Bench

    subject = open_request(request)
    return subject, Bench(subject)


def _opened_model(request: Request) -> tuple[Subject, Bench]:
    if request.is_plan:
        raise usage_error("a plan is made from a model", fix="give a directory, a config file or a hub id")
    return _opened(request)
