"""TPP301 and TPP302: does tp_size cut a head in two."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from fractions import Fraction

from tpplan.diagnostics import Diagnostic, Place
from tpplan.model.attention import AttentionBlock, Projection, attention_blocks
from tpplan.model.config import config_value, text_config, text_config_place
from tpplan.model.skeleton import wildcard
from tpplan.styles import Flow
from tpplan.subject import Subject

HEAD_CODES = {"TPP301": "key/value", "TPP302": "query"}


def check_heads(subject: Subject) -> Iterator[Diagnostic]:
    """One diagnostic for each kind of projection whose share of columns on a rank is not a whole number of heads."""
    seen = set()
    for block in attention_blocks(subject.skeleton, subject.spec.config):
        for code, projections in (("TPP301", block.keys_values), ("TPP302", block.queries)):
            cut = [projection for projection in projections if cuts_a_head(subject, projection)]
            kind = (code, wildcard(block.name), tuple((projection.columns, projection.unit) for projection in cut))
            if cut and kind not in seen:
                seen.add(kind)
                yield _diagnostic(subject, code, block, cut[0])


def dividing_sizes(subject: Subject) -> list[int]:
    """The sizes below tp_size at which no projection that the plan cuts is cut inside a head.

    Only powers of two where the plan cuts no projection of known heads.
    """
    cut = [
        projection
        for block in attention_blocks(subject.skeleton, subject.spec.config)
        for projection in (*block.queries, *block.keys_values)
        if subject.style(projection.name).leaves is Flow.CUT
    ]
    # A larger size than there are heads cuts one in any case, so the search is over sizes up to the fewest heads.
    fewest = min((projection.heads for projection in cut), default=subject.sharding.tp_size)
    sizes = range(1, min(subject.sharding.tp_size, fewest + 1))
    return [size for size in sizes if not _any_splits(cut, size) and (cut or size & (size - 1) == 0)]


def _any_splits(projections: Iterable[Projection], tp_size: int) -> bool:
    return any(projection.splits_a_head(tp_size) for projection in projections)


def cuts_a_head(subject: Subject, projection: Projection) -> bool:
    """Whether the plan shards the columns of this projection, and a rank's share is not a whole number of heads."""
    leaves = subject.style(projection.name).leaves
    return leaves is Flow.CUT and projection.splits_a_head(subject.sharding.tp_size)


def _diagnostic(subject: Subject, code: str, block: AttentionBlock, projection: Projection) -> Diagnostic:
    tp_size, heads, what = subject.sharding.tp_size, projection.heads, HEAD_CODES[code]
    columns = projection.columns / tp_size
    rule = wildcard(projection.name)
    place = subject.place_of_rule(rule) if subject.overridden(projection.name) else Place(file=subject.spec.source.name)
    return Diagnostic(
        code=code,
        message=f"tp_size {tp_size} does not divide {heads} {what} head{'s' * (heads != 1)}: each rank would get "
        f"{_share(projection, tp_size, what)}",
        where=Place(file=place.file, line=place.line, column=place.column, rule=rule, module=wildcard(block.name)),
        evidence=f"{_source(subject, what, heads)}; {projection.columns} columns / {tp_size} ranks = {columns:g} "
        f"columns per rank, one head needs {projection.unit}",
    )


def _share(projection: Projection, tp_size: int, what: str) -> str:
    """The heads per rank: `half a query head`, `2/3 of a query head`, `1.5 query heads`, `1 1/3 query heads`."""
    share = Fraction(projection.columns, tp_size * projection.unit)
    if share == Fraction(1, 2):
        return f"half a {what} head"
    if share < 1:
        return f"{share} of a {what} head"
    whole, rest = divmod(share, 1)
    number = f"{float(share):g}" if 100 % share.denominator == 0 else f"{whole} {rest}"
    return f"{number} {what} heads"


def disagreement(subject: Subject, diagnostic: Diagnostic) -> Diagnostic:
    """TPP308 instead of a TPP301 or TPP302 whose module the shapes stage ran: the model's own code decides."""
    return Diagnostic(
        code="TPP308",
        message=f"tp_size {subject.sharding.tp_size} cuts {HEAD_CODES[diagnostic.code]} heads, and the model's own "
        "code runs nevertheless",
        where=diagnostic.where,
        evidence=f"{diagnostic.evidence}; the shapes stage ran its forward without weights on the first and the last "
        "rank",
    )


def _source(subject: Subject, what: str, heads: int) -> str:
    """The number of heads with where it stands: in the config, or in the layers when the config has one per layer."""
    field = "num_key_value_heads" if what == "key/value" else "num_attention_heads"
    config = text_config(subject.spec.config)
    if config_value(config, field) == heads:
        return f"{field} = {heads} ({text_config_place(subject.spec)})"
    return f"{heads} {what} heads in these layers"
