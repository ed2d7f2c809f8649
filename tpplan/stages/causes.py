"""One cause is one diagnostic: what the arithmetic had found already gets what a run showed as its evidence."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from tpplan.diagnostics import Diagnostic
from tpplan.model.skeleton import wildcard
from tpplan.stages.result import FaultKind

RAISES = frozenset({FaultKind.FORWARD, FaultKind.BACKWARD, FaultKind.MINIATURE_RAISES})
WRONG = frozenset({FaultKind.NUMBERS, FaultKind.GRADIENTS})
ANY = RAISES | WRONG | {FaultKind.SHARDING, FaultKind.LOAD, FaultKind.WIDTH}


@dataclass(frozen=True, kw_only=True)
class Cause:
    """What an error of the static stage leads to. nearby: only inside the block that the error is about."""

    kinds: frozenset[FaultKind]
    nearby: bool = True


CAUSES: dict[str, Cause] = {
    "TPP206": Cause(kinds=RAISES | WRONG),  # keys and values alone
    "TPP207": Cause(kinds=RAISES | WRONG),  # a projection without its partner
    "TPP208": Cause(kinds=frozenset({FaultKind.NUMBERS, FaultKind.WIDTH}), nearby=False),  # the head leaves logits cut
    "TPP301": Cause(kinds=RAISES),
    "TPP302": Cause(kinds=RAISES),
    "TPP303": Cause(kinds=ANY, nearby=False),  # a tied pair is at both ends of the model
    "TPP309": Cause(kinds=frozenset({FaultKind.SHARDING}), nearby=False),
}


def cause_of(said: Iterable[Diagnostic], kind: FaultKind, module: str) -> Diagnostic | None:
    """The error among `said` that explains a failure of this kind in `module`, or None."""
    for diagnostic in said:
        cause = CAUSES.get(diagnostic.code)
        if cause is None or kind not in cause.kinds:
            continue
        if not cause.nearby or _is_inside(module, _block(diagnostic)):
            return diagnostic
    return None


def with_evidence(cause: Diagnostic, shown: str) -> Diagnostic:
    """The cause, with what a run showed of it."""
    return replace(cause, evidence=f"{cause.evidence}; {shown}" if cause.evidence else shown)


def _block(diagnostic: Diagnostic) -> str:
    """The block that an error of the static stage is about, with `*` for layer numbers."""
    where = diagnostic.where
    return where.module or (where.rule or "").rpartition(".")[0]


def _is_inside(module: str, block: str) -> bool:
    name = wildcard(f".{module}.").strip(".")
    return name == block or name.startswith(f"{block}.")
