"""The `fix` of a failure, proven before it is offered: a repair that passes, and sizes that work without one."""

from __future__ import annotations

from dataclasses import replace

from tpplan.checks.heads import dividing_sizes
from tpplan.checks.subject import Subject
from tpplan.choices import Depth
from tpplan.diagnostics import Report
from tpplan.judge import Judgement, judge
from tpplan.model.skeleton import Sharding
from tpplan.planner import Repair, repair
from tpplan.proposals import Attempt

REPAIRABLE = frozenset(
    {"TPP301", "TPP302", "TPP401", "TPP402", "TPP403", "TPP501", "TPP502", "TPP504", "TPP505", "TPP506"}
)
MAX_SIZES = 4


def with_fixes(judgement: Judgement) -> Report:
    """The judgement's report, with the action that mends a model which does not run at this tp_size."""
    report = judgement.report()
    if not any(diagnostic.code in REPAIRABLE and not diagnostic.fix for diagnostic in report.diagnostics):
        return report
    if not judgement.outcome:
        return report
    fix = _fix(judgement)
    return replace(
        report,
        diagnostics=tuple(
            replace(diagnostic, fix=fix) if diagnostic.code in REPAIRABLE and not diagnostic.fix else diagnostic
            for diagnostic in report.diagnostics
        ),
    )


def _fix(judgement: Judgement) -> str:
    depth = Depth.NUMERICS if "numerics" in judgement.stages else Depth.SHAPES
    plain = _without_overrides(judgement.subject)
    first = judgement if plain is judgement.subject else None
    repaired = repair(plain, depth=depth, first=first)
    sizes = working_sizes(plain)
    works = f"without a repair tp_size {_listed(sizes)} work{'s' * (len(sizes) == 1)}" if sizes else ""
    if repaired.judgement.passed:
        return "; ".join(part for part in (_command(plain, repaired), works) if part)
    return f"no override that tpplan knows makes it run at this tp_size; {works}" if works else ""


def working_sizes(subject: Subject) -> list[int]:
    """Sizes below tp_size at which the model runs as it is: each was run, the largest few only.

    Size 1 is not run again: a failure counts as one of sharding only after the unsharded model ran.
    """
    candidates = dividing_sizes(subject)
    sized = {
        size: replace(subject, sharding=replace(subject.sharding, tp_size=size)) for size in candidates[-MAX_SIZES:]
    }
    return [size for size, candidate in sized.items() if size == 1 or judge(candidate).passed]


def _without_overrides(subject: Subject) -> Subject:
    """The model at this tp_size with nothing but its own plan."""
    sharding = Sharding(tp_size=subject.sharding.tp_size)
    return subject if sharding == subject.sharding else replace(subject, sharding=sharding, file=None, facts=None)


def _command(subject: Subject, repaired: Repair) -> str:
    purpose = " --purpose training" if subject.training else ""
    command = f"tpplan plan {subject.spec.source.name} --tp-size {subject.sharding.tp_size}{purpose}"
    if not repaired.attempts:
        return f"the model's own plan runs; {command} writes it"
    changed: dict[str, Attempt] = {}
    for attempt in repaired.attempts:  # two steps on one block are one change of it
        before = changed.get(attempt.block, attempt)
        changed[attempt.block] = replace(attempt, overrides={**before.overrides, **attempt.overrides})
    blocks = ", ".join(f"{block or 'the model'} ({attempt.describe()})" for block, attempt in changed.items())
    return f"{command} writes a plan that passes: {blocks}"


def _listed(sizes: list[int]) -> str:
    shown = [str(size) for size in sizes]
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}"
