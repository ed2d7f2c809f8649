"""Tied weights: one parameter under two names."""

from __future__ import annotations

from collections.abc import Iterator

from tpplan.diagnostics import Diagnostic, Place
from tpplan.model.internals import versions
from tpplan.model.releases import TIES_LOAD_ON_TPU, install, transformers_version
from tpplan.model.skeleton import wildcard
from tpplan.subject import Subject


def check_tied_styles(subject: Subject) -> Iterator[Diagnostic]:
    """TPP303: an override gives one of a tied pair a placement that the other's style does not expect."""
    for head, embedding in disagreeing_ties(subject):
        overridden = [wildcard(name) for name in (head, embedding) if subject.overridden(name)]
        yield Diagnostic(
            code="TPP303",
            message="two tied weights are one parameter, and their styles shard it differently",
            where=subject.place_of_rule(overridden[0]),
            evidence=f"{wildcard(embedding)} is {_cut(subject, embedding)}, {wildcard(head)} is {_cut(subject, head)}; "
            "after tying both carry the placement of the embedding",
            fix=f"remove the override{'s' * (len(overridden) > 1)} of {' and '.join(overridden)}",
        )


def disagreeing_ties(subject: Subject) -> Iterator[tuple[str, str]]:
    """(head, embedding) modules of the tied pairs of which an override shards one along another dim than the other."""
    if subject.sharding.tp_size == 1:
        return
    for target, source in sorted(subject.skeleton.ties.items()):
        head, embedding = (name.rpartition(".")[0] for name in (target, source))
        touched = subject.overridden(head) or subject.overridden(embedding)
        if touched and subject.style(head).cut_dim != subject.style(embedding).cut_dim:
            yield head, embedding


def check_tied_weights_on_tpu(subject: Subject) -> Iterator[Diagnostic]:
    """TPP304, or TPP316 without the checkpoint: the comparison of tied weights that the TPU's compiler refuses."""
    on_tpu = subject.device.startswith("tpu") and subject.sharding.tp_size > 1
    if not on_tpu or not subject.skeleton.ties or transformers_version() >= TIES_LOAD_ON_TPU:
        return
    keys = subject.spec.source.checkpoint_keys
    both = [pair for pair in sorted(subject.skeleton.ties.items()) if keys and all(_in(keys, name) for name in pair)]
    if keys is not None and not both:
        return
    target, source = both[0] if both else sorted(subject.skeleton.ties.items())[0]
    installed = versions().get("transformers")
    yield Diagnostic(
        code="TPP304" if both else "TPP316",
        message="the checkpoint has both names of a tied weight, so loading on TPU compares them and fails"
        if both
        else "two weights are tied, and loading on TPU fails if the checkpoint has both names",
        where=Place(file=subject.spec.source.name, parameter=target),
        evidence=f"{target} and {source}; Transformers {installed} compares them with torch.equal, a MIN "
        "all-reduce of int64, which the TPU's compiler refuses: Supported lowering only of Sum all reduce"
        + ("" if both else "; the checkpoint is not at hand, so which names it has is unknown"),
        fix=install(TIES_LOAD_ON_TPU),
    )


def _cut(subject: Subject, module: str) -> str:
    name, dim = subject.style_name(module), subject.style(module).cut_dim
    return f"{name or 'without a rule'} ({'replicated' if dim is None else f'sharded along dim {dim}'})"


def _in(keys: frozenset[str], name: str) -> bool:
    """Whether the checkpoint has this parameter; older checkpoints lack the prefix of the base model."""
    return name in keys or name.partition(".")[2] in keys
