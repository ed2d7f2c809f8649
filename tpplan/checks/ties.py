"""Tied weights: one parameter under two names."""

from __future__ import annotations

from collections.abc import Iterator

from tpplan.codes import Severity
from tpplan.diagnostics import Diagnostic, Place
from tpplan.model.internals import versions
from tpplan.model.releases import TIES_LOAD_ON_TPU, install, transformers_version
from tpplan.model.skeleton import wildcard
from tpplan.subject import Subject


def check_tied_styles(subject: Subject) -> Iterator[Diagnostic]:
    """TPP303: an override gives one of a tied pair a placement that the other's style does not expect."""
    if subject.sharding.tp_size == 1:
        return
    for target, source in sorted(subject.skeleton.ties.items()):
        head, embedding = (name.rpartition(".")[0] for name in (target, source))
        if not (subject.overridden(head) or subject.overridden(embedding)):
            continue
        if subject.style(head).cut_dim == subject.style(embedding).cut_dim:
            continue
        changed = head if subject.overridden(head) else embedding
        yield Diagnostic(
            code="TPP303",
            message=f"{wildcard(head)} and {wildcard(embedding)} are one tied weight and their styles cut it differently",
            where=subject.place_of_rule(wildcard(changed)),
            evidence=f"{wildcard(embedding)} is {_cut(subject, embedding)}, {wildcard(head)} is {_cut(subject, head)}; "
            "after tying both carry the placement of the embedding",
            fix="leave both at the model's own styles, or override both so that they cut the same dim",
        )


def check_tied_weights_on_tpu(subject: Subject) -> Iterator[Diagnostic]:
    """TPP304: the tied-weight comparison that the TPU backend cannot lower, where it would be reached."""
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
        code="TPP304",
        severity=Severity.ERROR if both else Severity.WARNING,
        message=f"{target} and {source} are tied and both in the checkpoint, so loading on TPU compares them and fails"
        if both
        else f"{target} and {source} are tied; if the checkpoint has both names, loading on TPU fails",
        where=Place(file=subject.spec.source.name, parameter=target),
        evidence=f"Transformers {installed} compares them with torch.equal, whose MIN all-reduce TPU cannot lower"
        + ("" if both else "; the checkpoint is not at hand, so which names it has is unknown"),
        fix=install(TIES_LOAD_ON_TPU),
    )


def _cut(subject: Subject, module: str) -> str:
    name, dim = subject.style_name(module), subject.style(module).cut_dim
    return f"{name or 'without a rule'} ({'whole' if dim is None else f'cut along dim {dim}'})"


def _in(keys: frozenset[str], name: str) -> bool:
    """Whether the checkpoint has this parameter; older checkpoints lack the prefix of the base model."""
    return name in keys or name.partition(".")[2] in keys
