"""TPP305 and the bytes per rank: how much of the model a plan really shards."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping

from tpplan.checks.experts import experts_divide
from tpplan.diagnostics import BytesPerRank, Diagnostic, Place
from tpplan.model.skeleton import wildcard
from tpplan.subject import Subject
from tpplan.units import count, in_one_unit

# A rank that holds more than this many times an even split is told what stays replicated.
WORTH_SAYING = 1.5
LISTED = 5


def bytes_per_rank(subject: Subject, local_sizes: Mapping[str, int]) -> BytesPerRank:
    """Parameter bytes on the largest rank. local_sizes: parameter -> elements it holds, from the sharded model."""
    whole = held = 0
    for _, local, full in _held(subject, local_sizes):
        held += local
        whole += local if local == full else 0
    ideal = -(-subject.skeleton.bytes // subject.sharding.tp_size)
    return BytesPerRank(parameters=held, whole=whole, ideal=ideal)


def check_replicated(
    subject: Subject, local_sizes: Mapping[str, int], entered: Collection[str] = ()
) -> Iterator[Diagnostic]:
    """TPP305: what stays replicated, largest first, when it is much. entered: modules that text reaches."""
    tp_size = subject.sharding.tp_size
    share = bytes_per_rank(subject, local_sizes)
    if tp_size == 1 or share.parameters <= WORTH_SAYING * share.ideal:
        return
    by_rule: dict[str, int] = defaultdict(int)
    for name, local, full in _held(subject, local_sizes):
        if local == full:
            by_rule[wildcard(name)] += local
    largest = sorted(by_rule.items(), key=lambda item: (-item[1], item[0]))
    more = f", and {len(largest) - LISTED} more" if len(largest) > LISTED else ""
    elements = {name: parameter.bytes for name, parameter in subject.skeleton.parameters.items()}
    total = sum(elements.values())
    whole, whole_of, *sizes = in_one_unit(share.whole, total, *(size for _, size in largest[:LISTED]))
    listed = ", ".join(f"{rule} {size}" for (rule, _), size in zip(largest[:LISTED], sizes, strict=True))
    parameters = subject.skeleton.parameters
    held = sum(size for name, size in local_sizes.items() if name in parameters)
    yield Diagnostic(
        code="TPP305",
        message=f"each rank holds {count(held)} of {count(sum(p.elements for p in parameters.values()))} parameters, "
        f"{share.parameters / share.ideal:.1f} times an even split over {tp_size} ranks",
        where=Place(file=subject.spec.source.name),
        evidence=f"replicated: {whole} of {whole_of} ({share.whole / total:.0%}): {listed}{more}",
        fix=_fix(subject, next((rule for rule, _ in largest if rule.rpartition(".")[0] in entered), "")),
    )


def _held(subject: Subject, local_sizes: Mapping[str, int]) -> Iterator[tuple[str, int, int]]:
    """(name, bytes on the largest rank, bytes of the whole parameter), tied parameters once."""
    for name, parameter in subject.skeleton.parameters.items():
        if name in local_sizes and parameter.bytes:
            yield name, -(-parameter.bytes * local_sizes[name] // parameter.elements), parameter.bytes


def _fix(subject: Subject, largest: str) -> str:
    """The model's own expert plan where it covers what is largest, else rules where it has none yet.

    largest: of the replicated parameters that text reaches, empty where there is none.
    """
    experts = [rule for rule in subject.skeleton.expert_plan if largest.startswith(rule)]
    tp_size = subject.sharding.tp_size
    if experts and not subject.sharding.ep_size and not subject.training and experts_divide(subject, tp_size):
        return f"{subject.plan_command()} tries the model's expert plan (ep_size {tp_size}) and keeps it if it passes"
    adds = any(rule not in subject.skeleton.default_plan for rule in subject.sharding.overrides)  # done already
    if adds or not largest or largest.rpartition(".")[0] in subject.plan or subject.sharding.ep_size:
        return ""
    return f"{subject.plan_command('--extend')} tries rules for what none shards, and keeps those that pass"
