"""The repair loop: propose overrides for what stops or is wrong, run it, until it passes or nothing is left to try."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, replace

from tpplan.checks.memory import WORTH_SAYING
from tpplan.choices import Depth, Strategy
from tpplan.diagnostics import Diagnostic, Report
from tpplan.model.skeleton import known_styles, wildcard
from tpplan.planner.proposals import REPAIRABLE, Attempt, propose, share_experts
from tpplan.planner.strategies import GRADIENTS_WHOLE
from tpplan.stages.judge import Judgement, judge
from tpplan.stages.proof import Bench
from tpplan.subject import Subject

MAX_ATTEMPTS = 12


@dataclass(frozen=True, kw_only=True)
class Repair:
    """The last judgement (it passes, or nothing was left to try) and the proposals that led to it.

    refused: proposals that were run and did not help.

    strategy: the one that was followed; it is `gather` where `replicate` was asked for and the installed Transformers
    has no style that replicates with right gradients.
    """

    judgement: Judgement
    attempts: tuple[Attempt, ...]
    strategy: Strategy
    refused: tuple[Attempt, ...] = ()

    @property
    def overrides(self) -> dict[str, str]:
        return dict(sorted(self.judgement.subject.sharding.overrides.items()))

    def report(self) -> Report:
        """The report of the last judgement, with TPP405 where repairs were tried and what one may mend is left."""
        report = self.judgement.report()
        tried = [attempt.block or "the model" for attempt in (*self.attempts, *self.refused)]
        if not tried or not any(error.code in (*REPAIRABLE, "TPP205") for error in report.errors):
            return report
        lacking = ""
        if self.judgement.subject.training and GRADIENTS_WHOLE not in known_styles():
            lacking = (
                f"; this Transformers has no style {GRADIENTS_WHOLE}, which alone keeps whole gradients as they are"
            )
        verdict = Diagnostic(
            code="TPP405",
            message=f"no override that tpplan knows makes this model right at tp_size {report.tp_size}",
            evidence=f"strategy {self.strategy} was tried on {', '.join(dict.fromkeys(tried))}{lacking}",
        )
        return replace(report, diagnostics=(verdict, *report.diagnostics))


def repair(
    subject: Subject,
    strategy: Strategy = Strategy.REPLICATE,
    depth: Depth = Depth.SHAPES,
    *,
    first: Judgement | None = None,
    bench: Bench | None = None,
) -> Repair:
    """Overrides with which `subject` passes every stage up to `depth`, starting from its own.

    first: a judgement of `subject` at this depth that is already at hand. bench: its miniature.
    """
    strategy = _available(strategy, subject)
    bench = bench or Bench(subject)
    judgement = first or judge(subject, depth, bench=bench)
    attempts: list[Attempt] = []
    refused: list[Attempt] = []
    seen = {_failure(judgement)}
    while not judgement.passed and len(attempts) < MAX_ATTEMPTS:
        step = _first_that_helps(judgement, strategy, depth, bench, seen, refused)
        if step is None:
            break
        attempt, judgement = step
        attempts.append(attempt)
        seen.add(_failure(judgement))
    if judgement.passed:
        attempt, judgement = _with_experts_shared(judgement, depth, bench)
        attempts += [attempt] if attempt else []
    return Repair(judgement=judgement, attempts=tuple(attempts), strategy=strategy, refused=tuple(refused))


def _first_that_helps(
    judgement: Judgement, strategy: Strategy, depth: Depth, bench: Bench, seen: set[Hashable], refused: list[Attempt]
) -> tuple[Attempt, Judgement] | None:
    """The first proposal after which it passes or fails in a way that was not seen yet; the others go to `refused`."""
    for attempt in propose(judgement, strategy):
        tried = judge(changed(judgement.subject, attempt), depth, bench=bench)
        if tried.passed or _failure(tried) not in seen:
            return attempt, tried
        refused.append(attempt)
    return None


def _with_experts_shared(judgement: Judgement, depth: Depth, bench: Bench) -> tuple[Attempt | None, Judgement]:
    """The same plan with its experts sharded by the model's expert plan, where they stay whole without and it passes."""
    share = judgement.share
    if share is None or share.parameters <= WORTH_SAYING * share.ideal:
        return None, judgement
    for attempt in share_experts(judgement.subject, "its experts stay whole on every rank"):
        tried = judge(changed(judgement.subject, attempt), depth, bench=bench)
        if tried.passed and tried.share and tried.share.parameters < share.parameters:
            return attempt, tried
    return None, judgement


def _available(strategy: Strategy, subject: Subject) -> Strategy:
    if strategy is Strategy.REPLICATE and subject.training and GRADIENTS_WHOLE not in known_styles():
        return Strategy.GATHER
    return strategy


def changed(subject: Subject, attempt: Attempt) -> Subject:
    """The subject with the attempt's overrides over its own, and its ep_size."""
    sharding = subject.sharding
    overrides = {**sharding.overrides, **attempt.overrides}
    return replace(
        subject, sharding=replace(sharding, overrides=overrides, ep_size=attempt.ep_size or sharding.ep_size)
    )


def _failure(judgement: Judgement) -> Hashable:
    """What failed, so that two failures can be told apart; None when nothing did."""
    if judgement.passed:
        return None
    if judgement.outcome and judgement.outcome.stop:
        stop = judgement.outcome.stop
        return ("shapes", stop.phase, wildcard(stop.module or ""))
    proven = judgement.proof
    if proven and proven.load and proven.load.failed:
        return ("load", frozenset(map(wildcard, proven.load.blamed)))
    if proven and proven.numerics:
        numerics = proven.numerics
        modules = tuple(wildcard(difference.module or "") for difference in numerics.differences)
        gradients = tuple(sorted({(wildcard(fault.parameter), fault.kind) for fault in numerics.gradients}))
        if modules or gradients or numerics.raised:
            return ("numerics", modules, gradients, numerics.raised and numerics.raised[0], numerics.raised_in)
    return ("static", tuple((diagnostic.code, str(diagnostic.where)) for diagnostic in judgement.report().errors))
