"""The `fix` of a failure, run before it is offered: a repair that passes, and sizes that work without one.

Both are run to the depth that the check was asked for, and the words say how far that is.
"""

from __future__ import annotations

from dataclasses import replace

from tpplan.checks.experts import expert_sizes
from tpplan.checks.heads import dividing_sizes
from tpplan.choices import Depth
from tpplan.diagnostics import Report
from tpplan.model.skeleton import Sharding
from tpplan.planner.proposals import REPAIRABLE, Attempt
from tpplan.planner.repair import Repair, repair
from tpplan.stages.judge import Judgement, judge
from tpplan.subject import Subject
from tpplan.units import joined

EXPERT_CODES = frozenset({"TPP310", "TPP311"})
MAX_SIZES = 4
# Running as one of so many ranks costs time in their number, and a repair is a run for each proposal: above this only
# `tpplan plan` looks for one.
MAX_RANKS_FOR_REPAIR = 256


def with_fixes(judgement: Judgement) -> Report:
    """The judgement's report, with the action that mends a model which does not run at this tp_size."""
    report = judgement.report()
    if "shapes" not in judgement.stages:  # a static check runs nothing, for a fix neither
        return report
    if _lacks_fix(report, EXPERT_CODES):
        return _with_fix(report, EXPERT_CODES, _fix_of_expert_ranks(judgement))
    # Where nothing ran, nothing that runs can be offered.
    if not _lacks_fix(report, REPAIRABLE) or not judgement.outcome or judgement.outcome.not_run:
        return report
    return _with_fix(report, REPAIRABLE, _fix(judgement))


def _lacks_fix(report: Report, codes: frozenset[str]) -> bool:
    return any(diagnostic.code in codes and not diagnostic.fix for diagnostic in report.diagnostics)


def _with_fix(report: Report, codes: frozenset[str], fix: str) -> Report:
    diagnostics = tuple(
        replace(diagnostic, fix=fix) if diagnostic.code in codes and not diagnostic.fix else diagnostic
        for diagnostic in report.diagnostics
    )
    return replace(report, diagnostics=diagnostics)


def _fix(judgement: Judgement) -> str:
    depth = _depth(judgement)
    plain = _without_overrides(judgement.subject)
    sizes = working_sizes(plain, depth)
    works = f"without a repair tp_size {joined(sizes)} work{'s' * (len(sizes) == 1)}" if sizes else ""
    if plain.sharding.tp_size > MAX_RANKS_FOR_REPAIR:
        sought = f"above tp_size {MAX_RANKS_FOR_REPAIR} a repair is looked for only by {plain.plan_command()}"
        return "; ".join(part for part in (works, sought) if part)
    repaired = repair(plain, depth=depth, first=judgement if plain is judgement.subject else None)
    if repaired.judgement.passed:
        return "; ".join(part for part in (_offer(plain, repaired, depth), works) if part)
    return f"no override that tpplan knows makes it run at this tp_size; {works}" if works else ""


def _fix_of_expert_ranks(judgement: Judgement) -> str:
    """The sizes at which the plan passes with its experts shared, and whether it passes without sharing them."""
    subject, depth = judgement.subject, _depth(judgement)
    tp_size = subject.sharding.tp_size

    def passes(tp_size: int, ep_size: int | None) -> bool:
        sharding = replace(subject.sharding, tp_size=tp_size, ep_size=ep_size)
        return tp_size <= MAX_RANKS_FOR_REPAIR and judge(replace(subject, sharding=sharding), depth).passed

    sizes = [size for size in expert_sizes(subject)[-MAX_SIZES:] if passes(size, size)]
    others = [size for size in sizes if size != tp_size]
    ways = [f"give ep_size {tp_size}"] if tp_size in sizes else []
    ways += [f"give tp_size and ep_size {joined(others, 'or')}"] if others else []
    ways += ["leave ep_size out"] if passes(tp_size, None) else []
    return ", or ".join(ways)


def working_sizes(subject: Subject, depth: Depth = Depth.SHAPES) -> list[int]:
    """Sizes below tp_size at which the model passes as it is: each was run to `depth`, the largest few only.

    Size 1 is not run again: a failure counts as one of sharding only after the unsharded model ran.
    """
    candidates = [size for size in dividing_sizes(subject) if size <= MAX_RANKS_FOR_REPAIR]
    return [size for size in candidates[-MAX_SIZES:] if size == 1 or judge(subject.at(size), depth).passed]


def _without_overrides(subject: Subject) -> Subject:
    """The model at this tp_size with nothing but its own plan."""
    sharding = Sharding(tp_size=subject.sharding.tp_size)
    return subject if sharding == subject.sharding else replace(subject, sharding=sharding, file=None, facts=None)


def _offer(subject: Subject, repaired: Repair, depth: Depth) -> str:
    """The command that writes the repaired plan. Where only shapes were run, the plan may still be refused for its numbers."""
    command = subject.plan_command()
    if not repaired.attempts:
        return f"the model's own plan runs; {command} writes it"
    changed: dict[str, Attempt] = {}
    for attempt in repaired.attempts:  # two steps on one block are one change of it
        before = changed.get(attempt.block, attempt)
        changed[attempt.block] = replace(attempt, overrides={**before.overrides, **attempt.overrides})
    blocks = ", ".join(f"{block or 'the model'} ({attempt.describe()})" for block, attempt in changed.items())
    if depth is Depth.NUMERICS:
        return f"{command} writes a plan that passes: {blocks}"
    return f"{command} writes a plan that runs, if its numbers are right too: {blocks}"


def _depth(judgement: Judgement) -> Depth:
    return Depth.NUMERICS if "numerics" in judgement.stages else Depth.SHAPES
