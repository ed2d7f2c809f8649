"""What a config.json says and Transformers reads otherwise: it loads, as another model than the file seems to say."""

from __future__ import annotations

from collections.abc import Iterator

from tpplan.diagnostics import Diagnostic, Place
from tpplan.model.attention import AttentionBlock, attention_blocks
from tpplan.model.config import text_config_path, text_config_place, text_part
from tpplan.model.skeleton import wildcard
from tpplan.subject import Subject

TIE = "tie_word_embeddings"


def check_tie_flags(subject: Subject) -> Iterator[Diagnostic]:
    """TPP313: tie_word_embeddings is in the file, at the top or in the nested config, and the model does not follow."""
    head = subject.skeleton.model.get_output_embeddings()
    if subject.facts is not None or head is None:
        return
    name = next(name for name, module in subject.skeleton.model.named_modules() if module is head)
    ties = subject.skeleton.ties
    tied = f"{name}.weight" in {*ties.keys(), *ties.values()}
    source, nested = subject.spec.source, text_config_path(subject.spec.config)
    for path in dict.fromkeys([(), nested]):
        said = (text_part(source.config, subject.spec.config) if path else source.config).get(TIE)
        if isinstance(said, bool) and said is not tied:
            followed = "the top level of the config" if path else ".".join(nested) or "its own class"
            where = ".".join(path) or source.called
            yield Diagnostic(
                code="TPP313",
                message=f"{TIE} is {str(said).lower()} in {where} and is not followed: "
                f"the head is {'tied' if tied else 'not tied'}",
                where=source.place_of(*path, TIE),
                evidence=f"{name}.weight is {'the embedding' if tied else 'a weight of its own'} in the model as "
                f"built; {subject.skeleton.class_name} goes by {followed}",
                fix=f"set {TIE} to {str(tied).lower()} in {where}",
            )


def check_architectures(subject: Subject) -> Iterator[Diagnostic]:
    """TPP314: architectures names another class than the one that is loaded; auto classes go by model_type."""
    named = subject.spec.source.config.get("architectures")
    found = subject.skeleton.class_name
    if subject.facts is not None or not isinstance(named, list) or not named or _same(found) in map(_same, named):
        return
    listed = ", ".join(map(str, named))
    yield Diagnostic(
        code="TPP314",
        message=f"architectures does not name {found}, which is loaded and was judged",
        where=subject.spec.source.place_of("architectures"),
        evidence=f"architectures names {listed}; {subject.spec.auto_class} chooses by model_type, "
        f"{subject.spec.config.model_type}",
        fix=f"put {found} into architectures",
    )


def _same(name: object) -> str:
    """A class name without what releases have spelled differently: PhiMoE and Phimoe, KimiK25 and Kimi_K25."""
    return str(name).replace("_", "").lower()


def check_groups(subject: Subject) -> Iterator[Diagnostic]:
    """TPP315: key/value heads that do not divide the query heads that share them: no forward can group them."""
    seen = set()
    for block in attention_blocks(subject.skeleton, subject.spec.config):
        heads = _ungrouped(subject, block)
        kind = (wildcard(block.name), heads)
        if heads is None or kind in seen:
            continue
        seen.add(kind)
        queries, key_values = heads
        yield Diagnostic(
            code="TPP315",
            message=f"{queries} query heads cannot share {key_values} key/value heads evenly, so the model runs at no "
            "tp_size",
            where=Place(file=subject.spec.source.name, module=wildcard(block.name)),
            evidence=f"num_attention_heads = {queries}, num_key_value_heads = {key_values} "
            f"({text_config_place(subject.spec)}); {queries} % {key_values} = {queries % key_values}",
            fix=f"correct num_key_value_heads in {subject.spec.source.called}",
        )


def _ungrouped(subject: Subject, block: AttentionBlock) -> tuple[int, int] | None:
    """(query heads, key/value heads) of a block that repeats its keys a whole number of times and comes out wrong."""
    groups = getattr(subject.skeleton.model.get_submodule(block.name), "num_key_value_groups", None)
    queries = block.queries[0].heads
    if not isinstance(groups, int) or len(block.queries) != 1 or groups * block.key_value_heads == queries:
        return None
    return queries, block.key_value_heads
