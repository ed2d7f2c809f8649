"""A plan that passes on its device, found by the strategies in turn."""

from __future__ import annotations

from collections.abc import Iterator

from tpplan.model.skeleton import known_styles
from tpplan.planner.extend import extended
from tpplan.planner.repair import Repair, repair
from tpplan.planner.strategies import available
from tpplan.stages.bench import Bench
from tpplan.subject import Subject
from tpplan.targets import resolve


def solve(
    subject: Subject, strategy: str | None, bench: Bench, *, extend: bool = False, depth: str | None = None
) -> Repair:
    """The first way to a plan that passes: the strategy asked for, or where none was each in turn, then with rules for
    what none shards; of ways that all fail the first. extend: with such rules in any case.

    A later way is tried only where all that stands against the first is the memory of the device, and an even split of
    the parameters would fit.
    """
    ways = by_strategy(subject, strategy, bench, extend=extend, depth=depth)
    first = last = next(ways)
    if first.judgement.passed or not first.judgement.sound or not could_fit(subject):
        return first
    for last in ways:
        if last.judgement.passed:
            return last
    if not extend and strategy is None:
        last = extended(last, bench, depth)
    return last if last.judgement.passed else first


def by_strategy(
    subject: Subject, strategy: str | None, bench: Bench, *, extend: bool = False, depth: str | None = None
) -> Iterator[Repair]:
    """The repair by the strategy asked for, or by each that leads to another plan."""
    seen: list[dict[str, str]] = []
    for name in [strategy] if strategy else available(subject.training, known_styles()):
        made = repair(subject, name, depth, bench=bench)
        made = extended(made, bench, depth) if extend else made
        if made.overrides not in seen:
            seen.append(made.overrides)
            yield made


def could_fit(subject: Subject) -> bool:
    """Whether an even split of the parameters (and gradients), which no plan is below, fits the device."""
    hbm, tp_size = resolve(subject.device).hbm_bytes, subject.sharding.tp_size
    return hbm is None or (1 + subject.training) * subject.skeleton.bytes / tp_size <= hbm
