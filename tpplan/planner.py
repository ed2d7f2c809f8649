"""The repair loop: propose overrides for the block that stops, run it, until it passes or nothing is left to try."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from tpplan.checks.subject import Subject
from tpplan.judge import Depth, Judgement, judge
from tpplan.model.skeleton import wildcard
from tpplan.shapes import Phase
from tpplan.strategies import Strategy, overrides_for
from tpplan.styles import STYLES, WHOLE_STYLES

MAX_ATTEMPTS = 12


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """One proposal. block: the module whose rules it overrides, with `*` for layer numbers."""

    block: str
    overrides: dict[str, str]


@dataclass(frozen=True, kw_only=True)
class Repair:
    """The last judgement (it passes, or nothing was left to try) and the proposals that led to it."""

    judgement: Judgement
    attempts: tuple[Attempt, ...]
    strategy: Strategy

    @property
    def overrides(self) -> dict[str, str]:
        return dict(sorted(self.judgement.subject.sharding.overrides.items()))


def repair(subject: Subject, strategy: Strategy = Strategy.REPLICATE, first: Judgement | None = None) -> Repair:
    """Overrides with which `subject` passes the shapes stage, starting from its own.

    first: a judgement of `subject` that is already at hand.
    """
    judgement = first or judge(subject, Depth.SHAPES)
    attempts: list[Attempt] = []
    while not judgement.passed and len(attempts) < MAX_ATTEMPTS:
        attempt = _propose(judgement, strategy)
        if attempt is None:
            break
        attempts.append(attempt)
        sharding = judgement.subject.sharding
        overrides = {**sharding.overrides, **attempt.overrides}
        judgement = judge(replace(judgement.subject, sharding=replace(sharding, overrides=overrides)), Depth.SHAPES)
    return Repair(judgement=judgement, attempts=tuple(attempts), strategy=strategy)


def _propose(judgement: Judgement, strategy: Strategy) -> Attempt | None:
    """Overrides for the smallest block around the module that stopped in which a rule can still change."""
    stop = judgement.outcome.stop if judgement.outcome else None
    if stop is None or stop.module is None and stop.phase is not Phase.FORWARD:
        return None
    subject = judgement.subject
    for block in _enclosing_blocks(stop.module or ""):
        rules = _rules_of_block(subject, block)
        overrides = overrides_for(rules, strategy, training=subject.training)
        if any(_shards(style) for style in rules.values()) and overrides:
            return Attempt(block=block, overrides=_with_tied_partners(subject, overrides))
    return None


def _enclosing_blocks(module: str) -> Iterator[str]:
    """The module's parents from the inside out (the module itself first), with `*` for layer numbers."""
    parts = wildcard(f".{module}.").strip(".").split(".") if module else []
    for length in range(len(parts), -1, -1):
        block = ".".join(parts[:length])
        if not block.endswith("*") or length == len(parts):
            yield block


def _rules_of_block(subject: Subject, block: str) -> dict[str, str]:
    """The resolved rules strictly inside a block; outside of layers only those that are not inside one.

    A block that holds whole layers is never taken whole: that would unshard the model.
    """
    prefix = f"{block}." if block else ""
    inside = {rule: style for rule, style in subject.plan.items() if rule.startswith(prefix) and rule != block}
    return {rule: style for rule, style in inside.items() if "*" not in rule[len(prefix) :].split(".")}


def _shards(style: str) -> bool:
    known = STYLES.get(style)
    return style not in WHOLE_STYLES and known is not None and style != "local_params"


def _with_tied_partners(subject: Subject, overrides: dict[str, str]) -> dict[str, str]:
    """The overrides, with the same style for a module whose weight is tied to one of theirs."""
    paired = dict(overrides)
    for target, source in subject.skeleton.ties.items():
        pair = [wildcard(name.rpartition(".")[0]) for name in (target, source)]
        for module, partner in (pair, pair[::-1]):
            if module in overrides and partner in subject.plan and partner not in paired:
                paired[partner] = overrides[module]
    return paired
