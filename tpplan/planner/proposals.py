"""What to try for a failure: the overrides, in order of preference, that may mend it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tpplan.answers import Attempt
from tpplan.checks.experts import experts_divide
from tpplan.checks.widths import uneven_gathers
from tpplan.model.attention import attention_blocks
from tpplan.model.skeleton import known_styles, style_of, wildcard
from tpplan.planner.strategies import GRADIENTS_SUMMED, GRADIENTS_WHOLE, REPLICATE, overrides_for
from tpplan.stages.result import Fault, FaultKind, GradientError
from tpplan.styles import STYLES, UNTOUCHED, WHOLE_STYLES, Flow
from tpplan.subject import Subject

SUMS_EXPERTS = "moe_tp_experts"


def propose(subject: Subject, fault: Fault, strategy: str) -> Iterator[Attempt]:
    """Proposals for a fault of `subject`'s plan, the one to be tried first in front."""
    return PROPOSERS[fault.kind](subject, fault, strategy)


def _for_sharding(subject: Subject, fault: Fault, strategy: str) -> Iterator[Attempt]:
    yield from _uneven_gathers_whole(subject)


def _for_module(subject: Subject, fault: Fault, strategy: str) -> Iterator[Attempt]:
    yield from _for_block(subject, strategy, fault.module, fault.words)


def _for_named_module(subject: Subject, fault: Fault, strategy: str) -> Iterator[Attempt]:
    if fault.module:
        yield from _for_module(subject, fault, strategy)


def _for_scales(subject: Subject, fault: Fault, strategy: str) -> Iterator[Attempt]:
    """For a weight cut inside blocks that share a scale: whole experts on each rank, else the weight's block whole."""
    for parameter in fault.parameters:
        if style_of(parameter, subject.skeleton.expert_plan, is_parameter=True):
            yield from share_experts(subject, fault.words)
        yield from _for_block(subject, REPLICATE, parameter.rpartition(".")[0], fault.words)


def _for_width(subject: Subject, fault: Fault, strategy: str) -> Iterator[Attempt]:
    yield from _head_whole(subject)


def _for_load(subject: Subject, fault: Fault, strategy: str) -> Iterator[Attempt]:
    yield from share_experts(subject, fault.words)
    yield from _experts_whole(subject, fault.words)
    for module in dict.fromkeys(name.rpartition(".")[0] for name in fault.parameters):
        yield from _for_block(subject, REPLICATE, module, fault.words)


def _for_gradients(subject: Subject, fault: Fault, strategy: str) -> Iterator[Attempt]:
    """The style whose backward is right, for each module with a parameter whose gradient has the wrong sum."""
    wanted = {GradientError.TIMES_TP_SIZE: GRADIENTS_WHOLE, GradientError.PARTIAL: GRADIENTS_SUMMED}
    overrides: dict[str, str] = {}
    for parameter, error in fault.gradients:
        module, style = parameter.rpartition(".")[0], wanted.get(error)
        is_whole = subject.style(module).cut_dim is None
        if style in known_styles() and is_whole and subject.style_name(module) != style:
            overrides[wildcard(module)] = style
    if overrides:
        yield Attempt(block=", ".join(sorted(overrides)), reason=fault.words, overrides=overrides)


def share_experts(subject: Subject, reason: str) -> Iterator[Attempt]:
    """Experts sharded by the model's expert plan."""
    if subject.sharding.ep_size or subject.sharding.tp_size == 1:
        return
    plan = {rule: style for rule, style in subject.skeleton.expert_plan.items() if rule in subject.skeleton.rules}
    if any(STYLES.get(style, UNTOUCHED).experts for style in plan.values()) and experts_divide(
        subject, subject.sharding.tp_size
    ):
        yield Attempt(block=min(plan, key=len), reason=reason, ep_size=subject.sharding.tp_size)


def _for_block(subject: Subject, strategy: str, module: str, reason: str) -> Iterator[Attempt]:
    """The smallest block around `module` in which a rule can still change, then the larger ones."""
    yield from _single_head_whole(subject, module, reason)
    for block in _enclosing_blocks(module):
        rules = _rules_of_block(subject, block)
        overrides = _overrides(subject, rules, strategy)
        if any(_shards(style) for style in rules.values()) and overrides:
            yield Attempt(block=block, reason=reason, overrides=_with_tied_partners(subject, overrides))


def _single_head_whole(subject: Subject, module: str, reason: str) -> Iterator[Attempt]:
    """With one key/value head all queries share it: keys and values alone go whole, and queries stay sharded.

    Each rank then sends its own queries' part of the gradient, which the style sums.
    """
    blocks = [b for b in attention_blocks(subject.skeleton, subject.spec.config) if b.keys_values]
    around = {wildcard(b.name) for b in blocks if module == b.name or module.startswith(f"{b.name}.")}
    kind = [b for b in blocks if wildcard(b.name) in around]
    tp_size = subject.sharding.tp_size
    if not kind or any(b.key_value_heads != 1 or any(q.splits_a_head(tp_size) for q in b.queries) for b in kind):
        return
    cut = {wildcard(kv.name) for b in kind for kv in b.keys_values if subject.style(kv.name).leaves is Flow.CUT}
    if cut:
        yield Attempt(block=min(around), reason=reason, overrides=dict.fromkeys(sorted(cut), GRADIENTS_SUMMED))


def _experts_whole(subject: Subject, reason: str) -> Iterator[Attempt]:
    """Fused experts whole on every rank: their weights are converted while they load, which sharding can disturb."""
    for block in sorted(rule for rule, style in subject.plan.items() if style == SUMS_EXPERTS):
        inside = {rule: style for rule, style in subject.plan.items() if rule == block or rule.startswith(f"{block}.")}
        overrides = _overrides(subject, inside, REPLICATE)
        if block in subject.skeleton.rules and overrides:
            yield Attempt(block=block, reason=reason, overrides=overrides)


def _head_whole(subject: Subject) -> Iterator[Attempt]:
    """The output head, whose gathered columns are not those of the whole weight, whole on every rank."""
    head = subject.skeleton.model.get_output_embeddings()
    names = [wildcard(name) for name, module in subject.skeleton.model.named_modules() if module is head]
    overrides = _overrides(subject, {name: subject.plan[name] for name in names if name in subject.plan}, REPLICATE)
    if overrides:
        overrides = _with_tied_partners(subject, overrides)
        yield Attempt(block=names[0], reason=str(FaultKind.WIDTH), overrides=overrides)


def _uneven_gathers_whole(subject: Subject) -> Iterator[Attempt]:
    """Projections whose gathered output does not divide, replicated: Transformers before 5.21 refuses them."""
    overrides: dict[str, str] = {}
    for rule in uneven_gathers(subject):
        overrides |= _overrides(subject, {rule: subject.plan[rule]}, REPLICATE)
    if overrides:
        reason = "its output does not divide"
        yield Attempt(block=", ".join(overrides), reason=reason, overrides=_with_tied_partners(subject, overrides))


def _overrides(subject: Subject, rules: dict[str, str], strategy: str) -> dict[str, str]:
    return overrides_for(rules, strategy, training=subject.training, styles=known_styles())


def _enclosing_blocks(module: str) -> Iterator[str]:
    """The module's parents from the inside out (the module itself first), with `*` for layer numbers."""
    parts = wildcard(f".{module}.").strip(".").split(".") if module else []
    for length in range(len(parts), -1, -1):
        block = ".".join(parts[:length])
        if not block.endswith("*") or length == len(parts):
            yield block


def _rules_of_block(subject: Subject, block: str) -> dict[str, str]:
    """The resolved rules inside a block; outside of layers only those that are not inside one.

    A block that holds whole layers is never taken whole: that would unshard the model. The block's own rule counts
    only where it sums what cut experts leave (`moe_tp_experts`): over whole experts it would sum tp_size times as much.
    """
    prefix = f"{block}." if block else ""
    inside = {rule: style for rule, style in subject.plan.items() if rule.startswith(prefix)}
    if subject.plan.get(block) == SUMS_EXPERTS:
        inside[block] = SUMS_EXPERTS
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


PROPOSERS: dict[FaultKind, Callable[[Subject, Fault, str], Iterator[Attempt]]] = {
    FaultKind.SHARDING: _for_sharding,
    FaultKind.FORWARD: _for_module,
    FaultKind.BACKWARD: _for_module,
    FaultKind.HEADS: _for_named_module,
    FaultKind.SCALES: _for_scales,
    FaultKind.WIDTH: _for_width,
    FaultKind.LOAD: _for_load,
    FaultKind.LOADED_SLICE: _for_load,
    FaultKind.MINIATURE_RAISES: _for_named_module,
    FaultKind.NUMBERS: _for_named_module,
    FaultKind.GRADIENTS: _for_gradients,
}
