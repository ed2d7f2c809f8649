"""Rules that must agree with each other: queries with keys and values, a cut projection with its partner, the head."""

from __future__ import annotations

from collections.abc import Iterator

from tpplan.diagnostics import Diagnostic
from tpplan.model.attention import attention_blocks
from tpplan.model.skeleton import wildcard
from tpplan.styles import Flow
from tpplan.subject import Subject

# Projections of a feed-forward block: those that widen, and those that read what was widened.
UP = ("gate_proj", "up_proj", "gate_up_proj", "fc1", "fc_in", "c_fc", "w1", "w3", "dense_h_to_4h", "wi_0", "wi_1", "wi")
DOWN = ("down_proj", "fc2", "fc_out", "c_proj", "w2", "dense_4h_to_h", "wo")


def check_key_value_alone(subject: Subject) -> Iterator[Diagnostic]:
    """TPP206: keys or values whole on every rank under queries that are cut. Only an override is judged here; what a
    model ships is judged by running it."""
    seen = set()
    for block in attention_blocks(subject.skeleton, subject.spec.config):
        cut_queries = [q.name for q in block.queries if subject.style(q.name).leaves is Flow.CUT]
        whole = [kv.name for kv in block.keys_values if subject.style(kv.name).leaves is not Flow.CUT]
        rules = tuple(wildcard(name) for name in whole if subject.overridden(name))
        if not (cut_queries and rules) or block.key_value_heads == 1 or rules in seen:
            continue
        seen.add(rules)
        names = ", ".join(rule.rpartition(".")[2] for rule in rules)
        yield Diagnostic(
            code="TPP206",
            message=f"{names} give every rank all {block.key_value_heads} key/value heads while each rank has its own "
            "query heads, so queries meet the wrong keys and the numbers are silently wrong",
            where=subject.place_of_rule(rules[0]),
            evidence=f"{wildcard(cut_queries[0])} is {subject.style_name(cut_queries[0])}, {rules[0]} is "
            f"{subject.style_name(whole[0])}; {block.key_value_heads} key/value heads",
            fix=f"override q, k, v and o of {wildcard(block.name)} together, as `tpplan plan` does",
        )


def check_partners(subject: Subject) -> Iterator[Diagnostic]:
    """TPP207: a projection that leaves its output cut, and the one that reads it expects it whole; or the reverse."""
    seen = set()
    for before, after in _chains(subject):
        touched = [name for name in (*before, after) if subject.overridden(name)]
        if not touched:
            continue
        leaves = {subject.style(name).leaves is Flow.CUT for name in before}
        reads_cut = subject.style(after).reads is Flow.CUT
        if leaves == {reads_cut} or len(leaves) > 1:
            continue
        rule = wildcard(after)
        if rule in seen:
            continue
        seen.add(rule)
        first = before[0]
        yield Diagnostic(
            code="TPP207",
            message=f"{wildcard(first)} leaves its output {'cut over the ranks' if True in leaves else 'whole'} and {rule} "
            f"reads it {'cut' if reads_cut else 'whole'}, so the forward multiplies matrices of different widths",
            where=subject.place_of_rule(wildcard(touched[0])),
            evidence=f"{wildcard(first)} is {subject.style_name(first)}, {rule} is {subject.style_name(after)}",
            fix=f"give {rule} the style {'rowwise' if True in leaves else 'rowwise_split_input'}",
        )


def _chains(subject: Subject) -> Iterator[tuple[list[str], str]]:
    """(projections, the projection that reads their output) of attention and feed-forward blocks."""
    import torch

    for block in attention_blocks(subject.skeleton, subject.spec.config):
        for output in block.outputs[:1]:
            yield [query.name for query in block.queries], output
    for name, module in subject.skeleton.model.named_modules():
        linear = [key for key, child in module.named_children() if isinstance(child, torch.nn.Linear)]
        up = [f"{name}.{key}" for key in linear if key in UP]
        down = [f"{name}.{key}" for key in linear if key in DOWN]
        if up and len(down) == 1:
            yield up, down[0]


def check_logits(subject: Subject) -> Iterator[Diagnostic]:
    """TPP208: the output head leaves each rank a part of the vocabulary."""
    head = subject.skeleton.model.get_output_embeddings()
    names = [name for name, module in subject.skeleton.model.named_modules() if module is head]
    for name in names:
        if head is None or subject.style(name).leaves is not Flow.CUT:
            continue
        rule, vocab = wildcard(name), getattr(head, "out_features", 0)
        yield Diagnostic(
            code="TPP208",
            message=f"{rule} leaves its logits cut: each rank returns its part of the vocabulary as if it were all of it",
            where=subject.place_of_rule(rule),
            evidence=f"{rule} is {subject.style_name(name)}; {vocab} columns over {subject.sharding.tp_size} ranks",
            fix=f"give {rule} the style colwise_gather_output",
        )
