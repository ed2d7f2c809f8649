"""The repair loop: propose overrides for the fault, run them, until the plan is sound or nothing is left to try."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

from tpplan.answers import Attempt
from tpplan.checks.memory import WORTH_SAYING
from tpplan.model.skeleton import known_styles
from tpplan.planner.proposals import propose, share_experts
from tpplan.planner.strategies import available
from tpplan.stages.bench import Bench
from tpplan.stages.judge import Judgement, judge
from tpplan.subject import Subject

MAX_ATTEMPTS = 12


@dataclass(frozen=True, kw_only=True)
class Repair:
    """The last judgement (it is sound, or nothing was left to try) and the proposals that led to it.

    refused: proposals that were run and did not help. strategy: the one that was followed.
    """

    judgement: Judgement
    attempts: tuple[Attempt, ...]
    strategy: str
    refused: tuple[Attempt, ...] = ()

    @property
    def overrides(self) -> dict[str, str]:
        return dict(sorted(self.judgement.subject.sharding.overrides.items()))

    @property
    def tried(self) -> str:
        """The blocks that proposals were for, each once."""
        return ", ".join(dict.fromkeys(attempt.block or "the model" for attempt in (*self.attempts, *self.refused)))


def repair(subject: Subject, strategy: str | None = None, depth: str | None = None, *, bench: Bench) -> Repair:
    """Overrides with which `subject` is sound at `depth`, starting from its own.

    strategy: of STRATEGIES; the next that is to be had takes its place where the installed Transformers lacks a style
    that it needs.
    """
    to_be_had = available(subject.training, known_styles())
    strategy = strategy if strategy in to_be_had else to_be_had[0]
    judgement = judge(subject, depth, bench=bench)
    attempts: list[Attempt] = []
    refused: list[Attempt] = []
    seen = {_failure(judgement)}
    while judgement.fault and len(attempts) < MAX_ATTEMPTS:
        step = _first_that_helps(judgement, strategy, depth, bench, seen, refused)
        if step is None:
            break
        attempt, judgement = step
        attempts.append(attempt)
        seen.add(_failure(judgement))
    shared = _with_experts_shared(judgement, depth, bench) if judgement.sound else None
    if shared:
        attempt, judgement = shared
        attempts.append(attempt)
    return Repair(judgement=judgement, attempts=tuple(attempts), strategy=strategy, refused=tuple(refused))


def _first_that_helps(
    judgement: Judgement,
    strategy: str,
    depth: str | None,
    bench: Bench,
    seen: set[Hashable],
    refused: list[Attempt],
) -> tuple[Attempt, Judgement] | None:
    """The first proposal after which it is sound or fails in a way not seen yet; the others go to `refused`."""
    assert judgement.fault is not None
    for attempt in propose(judgement.subject, judgement.fault, strategy):
        tried = judge(attempt.applied_to(judgement.subject), depth, bench=bench)
        if tried.sound or _failure(tried) not in seen:
            return attempt, tried
        refused.append(attempt)
    return None


def _with_experts_shared(judgement: Judgement, depth: str | None, bench: Bench) -> tuple[Attempt, Judgement] | None:
    """The same plan with the model's expert plan for experts that it leaves replicated, where that is sound."""
    share = judgement.share
    if share is None or share.parameters <= WORTH_SAYING * share.ideal:
        return None
    for attempt in share_experts(judgement.subject, "its experts stay replicated"):
        tried = judge(attempt.applied_to(judgement.subject), depth, bench=bench)
        if tried.sound and tried.share and tried.share.parameters < share.parameters:
            return attempt, tried
    return None


def _failure(judgement: Judgement) -> Hashable:
    """What failed, so that two failures can be told apart; None when nothing did."""
    if judgement.sound:
        return None
    if judgement.fault:
        return judgement.fault.key
    return tuple((diagnostic.code, str(diagnostic.where)) for diagnostic in judgement.report().errors)
