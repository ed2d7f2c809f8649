"""The repair loop: propose overrides for what stops or is wrong, run it, until it passes or nothing is left to try."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from tpplan.checks.subject import Subject
from tpplan.judge import Depth, Judgement, judge
from tpplan.model.skeleton import known_styles, wildcard
from tpplan.numerics import GradientFault, Kind
from tpplan.proof import Bench
from tpplan.shapes import Phase
from tpplan.strategies import GRADIENTS_SUMMED, GRADIENTS_WHOLE, Strategy, overrides_for
from tpplan.styles import STYLES, WHOLE_STYLES

MAX_ATTEMPTS = 12


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """One proposal. block: the module whose rules it overrides, with `*` for layer numbers. reason: what it mends."""

    block: str
    reason: str
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


def repair(
    subject: Subject,
    strategy: Strategy = Strategy.REPLICATE,
    depth: Depth = Depth.SHAPES,
    *,
    first: Judgement | None = None,
) -> Repair:
    """Overrides with which `subject` passes every stage up to `depth`, starting from its own.

    first: a judgement of `subject` at this depth that is already at hand.
    """
    strategy = _available(strategy, subject)
    bench = Bench(subject)
    judgement = first or judge(subject, depth, bench=bench)
    attempts: list[Attempt] = []
    while not judgement.passed and len(attempts) < MAX_ATTEMPTS:
        attempt = _propose(judgement, strategy)
        if attempt is None:
            break
        attempts.append(attempt)
        sharding = judgement.subject.sharding
        overrides = {**sharding.overrides, **attempt.overrides}
        changed = replace(judgement.subject, sharding=replace(sharding, overrides=overrides))
        judgement = judge(changed, depth, bench=bench)
    return Repair(judgement=judgement, attempts=tuple(attempts), strategy=strategy)


def _available(strategy: Strategy, subject: Subject) -> Strategy:
    """Replication that is right for training needs the style `replicate`; releases without it get the gather."""
    if strategy is Strategy.REPLICATE and subject.training and GRADIENTS_WHOLE not in known_styles():
        return Strategy.GATHER
    return strategy


def _propose(judgement: Judgement, strategy: Strategy) -> Attempt | None:
    """What to override next, from the last failure: a block that raises or is wrong, a load, or gradients."""
    subject, outcome, proven = judgement.subject, judgement.outcome, judgement.proof
    if outcome and outcome.stop:
        stop = outcome.stop
        if stop.phase is Phase.SHARDING:
            return None
        return _propose_block(subject, strategy, stop.module or "", f"the {stop.phase} raises")
    if proven and proven.load and not proven.load.passed:
        return _propose_experts(subject)
    if proven and proven.numerics and proven.numerics.differences:
        module = next((d.module for d in proven.numerics.differences if d.module), "")
        return _propose_block(subject, strategy, module, "the numbers are wrong") if module else None
    if proven and proven.numerics and proven.numerics.gradients:
        return _propose_gradients(subject, proven.numerics.gradients)
    return None


def _propose_block(subject: Subject, strategy: Strategy, module: str, reason: str) -> Attempt | None:
    """Overrides for the smallest block around `module` in which a rule can still change."""
    for block in _enclosing_blocks(module):
        rules = _rules_of_block(subject, block)
        overrides = overrides_for(rules, strategy, training=subject.training)
        if any(_shards(style) for style in rules.values()) and overrides:
            return Attempt(block=block, reason=reason, overrides=_with_tied_partners(subject, overrides))
    return None


def _propose_experts(subject: Subject) -> Attempt | None:
    """Fused experts whole on every rank: their weights are converted while they load, which sharding can disturb."""
    fused = sorted(rule for rule, style in subject.plan.items() if style == "moe_tp_experts" and rule in subject.skeleton.rules)
    for block in fused:
        inside = {rule: style for rule, style in subject.plan.items() if rule == block or rule.startswith(f"{block}.")}
        overrides = overrides_for(inside, Strategy.REPLICATE, training=subject.training)
        if overrides:
            return Attempt(block=block, reason="loading it sharded fails", overrides=overrides)
    return None


def _propose_gradients(subject: Subject, faults: tuple[GradientFault, ...]) -> Attempt | None:
    """The style whose backward is right, for each module with a parameter whose gradient has the wrong sum."""
    wanted = {Kind.TIMES_TP_SIZE: GRADIENTS_WHOLE, Kind.PARTIAL: GRADIENTS_SUMMED}
    overrides = {}
    for fault in faults:
        module = fault.parameter.rpartition(".")[0]
        style = wanted.get(fault.kind)
        if style in known_styles() and not subject.style(module).cut_dim and subject.style_name(module) != style:
            overrides[wildcard(module)] = style
    if not overrides:
        return None
    return Attempt(block=", ".join(sorted(overrides)), reason="its gradients are wrong", overrides=overrides)


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
