"""Every tp_size that a device has, and every strategy at one size, side by side: what runs, by which repair, at what cost."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tpplan.choices import Depth, Optimize, Strategy
from tpplan.diagnostics import Report, Verdict
from tpplan.planner.costs import Costs, costs_of, whole_usage, with_costs
from tpplan.planner.extend import extended
from tpplan.planner.repair import Repair, repair
from tpplan.stages.judge import judge
from tpplan.stages.proof import Bench
from tpplan.stages.usage import Usage
from tpplan.subject import Subject
from tpplan.targets import resolve

UNLIMITED = (1, 2, 4, 8, 16)  # where a device has no sizes of its own


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """One plan that was tried: the model's own, or repaired. costs: None where its shapes stage did not pass. report: of
    its last judgement; what does not fit the device is an error of it, as in `check`."""

    repair: Repair
    costs: Costs | None
    report: Report

    @property
    def tp_size(self) -> int:
        return self.repair.judgement.subject.sharding.tp_size

    @property
    def verdict(self) -> Verdict:
        return self.report.verdict

    def to_dict(self) -> dict:
        """Plain values: the verdict, how the plan was repaired and why, what it costs, and what stands against it."""
        report = self.report
        costs = self.costs.to_dict() if self.costs else dict.fromkeys(("bytes_per_rank", "memory"))
        return {
            "tp_size": self.tp_size,
            "ep_size": self.repair.judgement.subject.sharding.ep_size,
            "verdict": str(self.verdict),
            "strategy": str(self.repair.strategy) if self.repair.overrides else None,
            "overrides": self.repair.overrides,
            "repairs": [
                {"block": attempt.block, "reason": attempt.reason, "change": attempt.describe()}
                for attempt in self.repair.attempts
            ],
            "stages": {name: stage.to_dict() for name, stage in report.stages.items()},
            "diagnostics": [diagnostic.to_dict() for diagnostic in report.diagnostics],
            **costs,
        }


def all_sizes(
    subject: Subject, tp_sizes: Iterable[int] = (), strategy: Strategy = Strategy.REPLICATE, depth: Depth = Depth.SHAPES
) -> list[Candidate]:
    """A candidate for each of `tp_sizes`, by default for each that the device has on one host, ascending."""
    whole = whole_usage(subject)
    sizes = sorted(set(tp_sizes)) or resolve(subject.device).host_counts or UNLIMITED
    return [_candidate(repair(subject.at(size), strategy, depth), whole) for size in sizes]


def all_strategies(subject: Subject, depth: Depth = Depth.NUMERICS, *, extend: bool = False) -> list[Candidate]:
    """A candidate for each strategy that leads to another plan; one alone where the model needs no override.

    extend: with rules for what the plan of a strategy leaves whole.
    """
    whole, bench = whole_usage(subject), Bench(subject)
    own = judge(subject, depth, bench=bench)
    candidates: list[Candidate] = []
    for strategy in Strategy:
        made = repair(subject, strategy, depth, first=own, bench=bench)
        made = extended(made, depth, bench) if extend else made
        if made.overrides not in [other.repair.overrides for other in candidates]:
            candidates.append(_candidate(made, whole))
    return candidates


def best(candidates: Iterable[Candidate], optimize: Optimize) -> Candidate | None:
    """The candidate that passes with the fewest bytes on a rank, or with the least to wait for; None where none passes.

    memory: parameters and cache. latency: calls of collectives for a token, then the bytes that they complete, then
    FLOPs: at a small batch each call is a wait for all ranks.
    """
    passing = [candidate for candidate in candidates if candidate.verdict is Verdict.PASS and candidate.costs]
    weigh = _bytes_held if optimize is Optimize.MEMORY else _waits
    return min(passing, key=weigh, default=None)


def _bytes_held(candidate: Candidate) -> tuple[int, ...]:
    return (candidate.costs.memory.held, *_waits(candidate))


def _waits(candidate: Candidate) -> tuple[int, ...]:
    usage = candidate.costs.usage
    calls = sum(collective.count for collective in usage.collectives)
    return calls, sum(collective.bytes for collective in usage.collectives), usage.flops


def _candidate(repaired: Repair, whole: Usage | None) -> Candidate:
    costs, report = costs_of(repaired.judgement, whole), repaired.report()
    if costs:
        report = with_costs(report, repaired.judgement.subject, costs)
    return Candidate(repair=repaired, costs=costs, report=report)
