"""Every tp_size of a device, and every strategy at one size, side by side: what runs, by which repair, at what cost."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from tpplan.answers import Candidate, Costs
from tpplan.choices import Optimize
from tpplan.diagnostics import Verdict
from tpplan.planner.extend import extended
from tpplan.planner.remedy import with_fixes
from tpplan.planner.repair import Repair
from tpplan.planner.solve import by_strategy, solve
from tpplan.stages import table
from tpplan.stages.bench import Bench
from tpplan.stages.judge import judge, measured_costs
from tpplan.subject import Subject
from tpplan.targets import resolve

UNLIMITED = (1, 2, 4, 8, 16)  # where a device has no sizes of its own


def candidate_of(repaired: Repair, bench: Bench) -> Candidate:
    """The plan that a repair ended with."""
    return Candidate(
        report=with_fixes(repaired.judgement, bench).report(),
        costs=measured_costs(repaired.judgement, bench),
        strategy=repaired.strategy if repaired.overrides else None,
        attempts=repaired.attempts,
        ep_size=repaired.judgement.subject.sharding.ep_size,
    )


def all_sizes(
    subject: Subject, bench: Bench, tp_sizes: Iterable[int] = (), strategy: str | None = None, depth: str | None = None
) -> list[Candidate]:
    """A candidate for each of `tp_sizes`, by default for each that the device has on one host, ascending.

    Plans are looked for without the stages that a verdict does not need; what passes is then judged at `depth`.
    """
    sizes = sorted(set(tp_sizes)) or resolve(subject.device).host_counts or UNLIMITED
    bench.share(sizes)
    depth = depth or table.deepest()
    least = table.least(depth)
    found = [solve(subject.at(size), strategy, bench, depth=least) for size in sizes]
    if depth != least:
        found = [_judged_further(made, depth, bench) if made.judgement.passed else made for made in found]
    return [candidate_of(made, bench) for made in found]


def _judged_further(made: Repair, depth: str, bench: Bench) -> Repair:
    return replace(made, judgement=judge(made.judgement.subject, depth, bench=bench))


def all_strategies(
    subject: Subject, bench: Bench, *, extend: bool = False, depth: str | None = None
) -> list[tuple[Repair, Candidate]]:
    """For each strategy that leads to another plan the repair and the candidate; one where the model needs no override.

    extend: with rules for what the plan of a strategy leaves replicated.
    """
    found = list(by_strategy(subject, None, bench, extend=extend, depth=depth))
    if not extend and all(made.judgement.sound and not made.judgement.passed for made in found):
        found.append(extended(found[-1], bench, depth))  # as `solve` does where none fits
    return [(made, candidate_of(made, bench)) for made in found]


def best(candidates: Iterable[Candidate], optimize: Optimize) -> Candidate | None:
    """The candidate that passes with the fewest bytes per rank, or with the least to wait for; None where none passes.

    memory: parameters and cache. latency: calls of collectives for a token, then the bytes that they complete, then
    FLOPs: at a small batch each call is a wait for all ranks.
    """
    passing = [(one, one.costs) for one in candidates if one.verdict is Verdict.PASS and one.costs]
    weigh = _bytes_held if optimize is Optimize.MEMORY else _waits
    return min(passing, key=lambda pair: weigh(pair[1]), default=(None, None))[0]


def _bytes_held(costs: Costs) -> tuple[int, ...]:
    return (costs.memory.held, *_waits(costs))


def _waits(costs: Costs) -> tuple[int, ...]:
    usage = costs.usage
    calls = sum(collective.count for collective in usage.collectives)
    return calls, sum(collective.bytes for collective in usage.collectives), usage.flops
