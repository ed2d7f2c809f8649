"""Rules for layers that a model's plan leaves whole on every rank: each is kept only where the plan still passes.

Which rules may fit is read off the shapes of the linear layers of a block; whether they do, the stages say.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from tpplan.answers import Attempt
from tpplan.model.attention import attention_blocks
from tpplan.model.skeleton import wildcard
from tpplan.planner.proposals import SUMS_EXPERTS
from tpplan.planner.repair import Repair, repair
from tpplan.stages.bench import Bench
from tpplan.stages.judge import Judgement, judge
from tpplan.stages.result import FaultKind
from tpplan.subject import Subject

WORTH_A_RULE = 0.01  # of the model's bytes
REASON = "no rule shards it"


@dataclass(frozen=True, kw_only=True)
class Whole:
    """Layers of one kind of block that no rule names. block: with `*` for layer numbers. bytes: that they take on every
    rank. ways: overrides that may shard them, the one with the fewest collectives first."""

    block: str
    bytes: int
    ways: tuple[dict[str, str], ...]


def extended(repaired: Repair, bench: Bench, depth: str | None = None) -> Repair:
    """The repair, with rules for what it leaves replicated, as many as pass every stage up to `depth` and save bytes.

    A model without any rule does not pass as it is; it does when one of them is found.
    """
    judgement = repaired.judgement
    subject = judgement.subject
    if subject.sharding.tp_size == 1 or not (judgement.sound or not subject.plan):
        return repaired
    whole = list(whole_layers(subject, _entered(judgement, bench)))
    attempts = [_attempt(kind, kind.ways[0]) for kind in whole]
    # one alone is the first that is tried below
    together = _tried(judgement, attempts, repaired, depth, bench) if len(attempts) > 1 else None
    if together:
        return replace(repaired, judgement=together, attempts=(*repaired.attempts, *attempts))
    kept: list[Attempt] = []
    refused: list[Attempt] = []
    for kind in whole:
        for way in kind.ways:
            attempt = _attempt(kind, way)
            better = _tried(judgement, [attempt], repaired, depth, bench)
            if better:
                judgement, kept = better, [*kept, attempt]
                break
            refused.append(attempt)
    return replace(
        repaired,
        judgement=judgement,
        attempts=(*repaired.attempts, *kept),
        refused=(*repaired.refused, *refused),
    )


def _attempt(kind: Whole, way: dict[str, str]) -> Attempt:
    return Attempt(block=kind.block, reason=REASON, overrides=way, adds=True)


def _tried(
    judgement: Judgement, attempts: list[Attempt], repaired: Repair, depth: str | None, bench: Bench
) -> Judgement | None:
    """The judgement with the attempts made, if it is sound with fewer bytes per rank than before."""
    subject = judgement.subject
    for attempt in attempts:
        subject = attempt.applied_to(subject)
    tried = judge(subject, depth, bench=bench)
    if tried.fault and tried.fault.kind is FaultKind.GRADIENTS:
        tried = repair(subject, repaired.strategy, depth, bench=bench).judgement
    before = judgement.share.parameters if judgement.share else subject.skeleton.bytes
    return tried if tried.sound and tried.share and tried.share.parameters < before else None


def _entered(judgement: Judgement, bench: Bench) -> Collection[str]:
    """Modules that text reaches: nothing is proven of the others, for example of a vision tower."""
    if judgement.entered is not None:
        return judgement.entered
    return judge(judgement.subject.at(1), "shapes", bench=bench).entered or ()


def whole_layers(subject: Subject, entered: Collection[str]) -> Iterator[Whole]:
    """What no rule shards and a rule might, largest first. entered: the modules that count, with `*` for layers."""
    sizes: dict[str, int] = defaultdict(int)
    for name, parameter in subject.skeleton.parameters.items():
        sizes[wildcard(name.rpartition(".")[0])] += parameter.bytes
    found = [*_linear_blocks(subject, entered, sizes), *_embeddings(subject, entered), *_experts(subject, entered)]
    kinds = []
    for block, ways in found:
        held = sum(sizes[name] for name in {rule for way in ways for rule in way})
        if ways and held >= WORTH_A_RULE * subject.skeleton.bytes:
            kinds.append(Whole(block=block, bytes=held, ways=tuple(ways)))
    yield from sorted(kinds, key=lambda kind: (-kind.bytes, kind.block))


def _linear_blocks(
    subject: Subject, entered: Collection[str], sizes: Mapping[str, int]
) -> Iterator[tuple[str, list[dict[str, str]]]]:
    """Blocks that hold linear layers: cut over their heads or their inner width where they have such, else each large
    layer's output gathered. Kinds of block may share a name, as the mixers of a hybrid model do."""
    import torch

    heads = _over_heads(subject)
    head = subject.skeleton.model.get_output_embeddings()
    blocks: dict[str, dict[str, Any]] = defaultdict(dict)
    for name, module in subject.skeleton.model.named_modules():
        rule = wildcard(name)
        if isinstance(module, torch.nn.Linear) and module is not head and rule in entered and rule not in subject.plan:
            blocks[rule.rpartition(".")[0]][rule] = module
    for block, layers in blocks.items():
        gathered = _gathered(layers, subject.sharding.tp_size)
        large = {rule: s for rule, s in gathered.items() if sizes[rule] >= WORTH_A_RULE * subject.skeleton.bytes}
        over_heads = heads.get(block, {})
        over_heads = over_heads if over_heads.keys() <= layers.keys() else {}
        others = {rule: layer for rule, layer in layers.items() if rule not in over_heads}
        inner = _over_inner_width(others, subject.sharding.tp_size)
        ways = [large | over_heads | inner] if inner else []
        ways += [large | over_heads] if over_heads else []
        yield block, [way for way in (*ways, gathered) if way]


def _over_heads(subject: Subject) -> dict[str, dict[str, str]]:
    """For each kind of attention block its projections cut over heads; empty where some layer's heads do not divide."""
    found: dict[str, dict[str, str]] = {}
    for block in attention_blocks(subject.skeleton, subject.spec.config):
        projections = (*block.queries, *block.keys_values)
        divides = not any(projection.splits_a_head(subject.sharding.tp_size) for projection in projections)
        rules = dict.fromkeys((wildcard(projection.name) for projection in projections), "colwise")
        rules |= dict.fromkeys(map(wildcard, block.outputs), "rowwise")
        fits = divides and block.outputs and found.get(wildcard(block.name), rules) == rules
        found[wildcard(block.name)] = rules if fits else {}
    return found


def _over_inner_width(layers: dict[str, Any], tp_size: int) -> dict[str, str]:
    """The layers into a block's inner width colwise, the one out of it rowwise; `packed` where gate and up are one."""
    best: dict[str, str] = {}
    for last, down in layers.items():
        into = {}
        for rule, layer in layers.items():
            parts = layer.out_features / down.in_features
            if layer is not down and layer.in_features == down.out_features and parts in (1, 2):
                into[rule] = "colwise" if parts == 1 else "packed_colwise"
        if len(into) >= max(1, len(best) - 1) and down.in_features % tp_size == 0:
            best = {**into, last: "rowwise"}
    return best


def _gathered(layers: dict[str, Any], tp_size: int) -> dict[str, str]:
    """Each layer that divides, with whole input and output."""
    rules = {}
    for rule, layer in layers.items():
        if layer.out_features % tp_size == 0:
            rules[rule] = "colwise_gather_output"
        elif layer.in_features % tp_size == 0:
            rules[rule] = "rowwise_split_input"
    return rules


def _embeddings(subject: Subject, entered: Collection[str]) -> Iterator[tuple[str, list[dict[str, str]]]]:
    """The token embedding over the vocabulary, and the output head with it: the two may be one weight."""
    model = subject.skeleton.model
    names = {id(module): wildcard(name) for name, module in model.named_modules()}
    both = (
        (model.get_input_embeddings(), "embedding_rowwise"),
        (model.get_output_embeddings(), "colwise_gather_output"),
    )
    rules = {names[id(module)]: style for module, style in both if module is not None and id(module) in names}
    rules = {rule: style for rule, style in rules.items() if rule in entered and rule not in subject.plan}
    if rules:
        yield ", ".join(rules), [rules]


def _experts(subject: Subject, entered: Collection[str]) -> Iterator[tuple[str, list[dict[str, str]]]]:
    """Fused experts, gate and up in one weight of three dims, each expert cut over its inner width."""
    if subject.sharding.ep_size:
        return
    modules = {wildcard(name): module for name, module in subject.skeleton.model.named_modules()}
    for rule, module in modules.items():
        fused = {name for name, weight in module.named_parameters(recurse=False) if weight.ndim == 3}
        rules = {f"{rule}.gate_up_proj": "packed_colwise", f"{rule}.down_proj": "rowwise", rule: SUMS_EXPERTS}
        if {"gate_up_proj", "down_proj"} <= fused and rule in entered and not rules.keys() & subject.plan.keys():
            yield rule, [rules]
