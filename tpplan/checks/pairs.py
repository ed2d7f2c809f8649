"""Rules that must agree with each other: queries with keys and values, a cut projection with its partner, the head."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tpplan.checks.heads import cuts_a_head
from tpplan.checks.ties import disagreeing_ties
from tpplan.diagnostics import Diagnostic
from tpplan.model.attention import AttentionBlock, attention_blocks
from tpplan.model.skeleton import wildcard
from tpplan.styles import Flow
from tpplan.subject import Subject
from tpplan.units import joined

# Projections of a feed-forward block: those that widen, and those that read what was widened.
UP = ("gate_proj", "up_proj", "gate_up_proj", "fc1", "fc_in", "c_fc", "w1", "w3", "dense_h_to_4h", "wi_0", "wi_1", "wi")
DOWN = ("down_proj", "fc2", "fc_out", "c_proj", "w2", "dense_4h_to_h", "wo")


@dataclass(frozen=True, kw_only=True)
class Chain:
    """Projections whose output another reads: `before`, read by `after`. beside: keys and values of the same block."""

    before: tuple[str, ...]
    after: str
    beside: tuple[str, ...] = ()


def check_key_value_alone(subject: Subject) -> Iterator[Diagnostic]:
    """TPP206: keys or values that each rank holds all of, under queries that are sharded. Only an override is judged
    here; what a model ships is judged by running it."""
    seen = set()
    for block in attention_blocks(subject.skeleton, subject.spec.config):
        gathered = _gathered_alone(subject, block)
        rules = tuple(map(wildcard, gathered))
        if not rules or rules in seen:
            continue
        seen.add(rules)
        styles = {wildcard(name): subject.style_name(name) for name in (block.queries[0].name, *gathered)}
        yield Diagnostic(
            code="TPP206",
            message=f"each rank gets all {block.key_value_heads} key/value heads and only its share of the query "
            "heads: silently wrong numbers",
            where=subject.place_of_rule(rules[0]),
            evidence=", ".join(f"{rule} is {name}" for rule, name in styles.items()),
            fix=f"{subject.plan_command()} writes a plan that overrides queries and outputs too"
            if any(kv.splits_a_head(subject.sharding.tp_size) for kv in block.keys_values)
            else _removal(rules),
        )


def _removal(rules: Sequence[str]) -> str:
    return f"remove the override{'s' * (len(rules) > 1)} of {joined(rules)}"


def _gathered_alone(subject: Subject, block: AttentionBlock) -> list[str]:
    """Overridden key and value projections that give each rank all of several heads, beside a share of the queries.

    None where a head of the block is cut too: that raises, and TPP301 or TPP302 says so.
    """
    cut_queries = any(subject.style(query.name).leaves is Flow.CUT for query in block.queries)
    cut_heads = any(cuts_a_head(subject, projection) for projection in (*block.queries, *block.keys_values))
    if block.key_value_heads == 1 or not cut_queries or cut_heads:
        return []
    gathered = [kv.name for kv in block.keys_values if subject.style(kv.name).leaves is not Flow.CUT]
    return [name for name in gathered if subject.overridden(name)]


def check_partners(subject: Subject) -> Iterator[Diagnostic]:
    """TPP207: a projection leaves its output sharded, and the one that reads it expects all of it; or the reverse."""
    seen = set()
    for chain in _chains(subject):
        touched = [wildcard(name) for name in (*chain.before, chain.after) if subject.overridden(name)]
        leaves = {subject.style(name).leaves is Flow.CUT for name in chain.before}
        reads_cut = subject.style(chain.after).reads is Flow.CUT
        rule = wildcard(chain.after)
        if not touched or leaves == {reads_cut} or len(leaves) > 1 or rule in seen:
            continue
        seen.add(rule)
        first, cut = wildcard(chain.before[0]), True in leaves
        alike = all((subject.style(name).leaves is Flow.CUT) is cut for name in chain.beside)
        yield Diagnostic(
            code="TPP207",
            message=f"{_short(first)} leaves its output {'sharded' if cut else 'replicated'} and {_short(rule)} reads "
            f"it {'sharded' if reads_cut else 'replicated'}: their widths differ in the forward",
            where=subject.place_of_rule(rule if rule in touched else touched[0]),
            evidence=f"{first} is {subject.style_name(chain.before[0])}, {rule} is {subject.style_name(chain.after)}",
            fix=f"give {rule} the style {'rowwise' if cut else 'rowwise_split_input'}" if alike else _removal(touched),
        )


def _short(rule: str) -> str:
    """The last name of a rule, as q_proj; some wrap the linear layer in a module of that name."""
    return rule.removesuffix(".linear").rpartition(".")[2]


def _chains(subject: Subject) -> Iterator[Chain]:
    """Those of attention and feed-forward blocks; not of attention with a TPP206, whose fix is for all of it."""
    import torch

    for block in attention_blocks(subject.skeleton, subject.spec.config):
        if _gathered_alone(subject, block):
            continue
        for output in block.outputs[:1]:
            yield Chain(
                before=tuple(query.name for query in block.queries),
                after=output,
                beside=tuple(kv.name for kv in block.keys_values),
            )
    for name, module in subject.skeleton.model.named_modules():
        linear = [key for key, child in module.named_children() if isinstance(child, torch.nn.Linear)]
        up = tuple(f"{name}.{key}" for key in linear if key in UP)
        down = [f"{name}.{key}" for key in linear if key in DOWN]
        if up and len(down) == 1:
            yield Chain(before=up, after=down[0])


def check_logits(subject: Subject) -> Iterator[Diagnostic]:
    """TPP208: the output head leaves each rank a part of the vocabulary. A tied head with a TPP303 is left to that."""
    head = subject.skeleton.model.get_output_embeddings()
    tied_otherwise = {head for head, _ in disagreeing_ties(subject)}
    names = [name for name, module in subject.skeleton.model.named_modules() if module is head]
    for name in names:
        if head is None or name in tied_otherwise or subject.style(name).leaves is not Flow.CUT:
            continue
        rule, vocab = wildcard(name), getattr(head, "out_features", 0)
        yield Diagnostic(
            code="TPP208",
            message="each rank returns its part of the logits as if they were those of the full vocabulary",
            where=subject.place_of_rule(rule),
            evidence=f"{rule} is {subject.style_name(name)}; {vocab} columns over {subject.sharding.tp_size} ranks",
            fix=f"give {rule} the style colwise_gather_output",
        )
