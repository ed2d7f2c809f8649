"""TPP309: a gathered output that does not divide by tp_size, which older releases of Transformers refuse."""

from __future__ import annotations

from collections.abc import Iterator

from tpplan.diagnostics import Diagnostic, Place
from tpplan.model.internals import versions
from tpplan.model.releases import UNEVEN_GATHER, has_uneven_gather, install
from tpplan.model.skeleton import wildcard
from tpplan.subject import Subject

GATHERED = ("colwise_gather_output", "colwise_rep")


def check_gathered_widths(subject: Subject) -> Iterator[Diagnostic]:
    """One diagnostic for each rule; none where the installed Transformers takes uneven shards."""
    for rule, width in uneven_gathers(subject).items():
        place = subject.place_of_rule(rule) if rule in subject.sharding.overrides else Place(rule=rule)
        yield Diagnostic(
            code="TPP309",
            message=f"tp_size {subject.sharding.tp_size} does not divide the {width} columns of the gathered output, "
            "and sharding raises",
            where=Place(file=place.file or subject.spec.source.name, line=place.line, column=place.column, rule=rule),
            evidence=f"{rule} is {subject.plan[rule]}; Transformers {versions().get('transformers')} wants equal "
            "shards",
            fix=install(UNEVEN_GATHER),
        )


def uneven_gathers(subject: Subject) -> dict[str, int]:
    """Rule -> output width of the modules whose gathered output the installed Transformers does not split unevenly."""
    if has_uneven_gather():
        return {}
    found = {}
    for name, module in subject.skeleton.model.named_modules():
        width = getattr(module, "out_features", None) or getattr(module, "embedding_dim", None)
        if subject.style_name(name) in GATHERED and width and width % subject.sharding.tp_size:
            found[wildcard(name)] = width
    return found
