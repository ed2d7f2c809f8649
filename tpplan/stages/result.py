"""What a stage hands on: its outcome, what it says, the fault that a repair may mend, and what it measured."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from enum import StrEnum

from tpplan.diagnostics import BytesPerRank, CompiledProgram, Diagnostic, Stage, Status
from tpplan.model.skeleton import wildcard


class FaultKind(StrEnum):
    """What failed, by what may mend it; `tpplan.planner.proposals` has a proposer for each."""

    SHARDING = "sharding raises"
    FORWARD = "the forward raises"
    BACKWARD = "the backward raises"
    HEADS = "its heads do not divide"
    SCALES = "tp_size cuts blocks that share a scale"
    WIDTH = "its logits have the wrong width"
    LOAD = "loading it sharded fails"
    LOADED_SLICE = "loading it sharded gives wrong weights"
    MINIATURE_RAISES = "a miniature raises"
    NUMBERS = "the numbers are wrong"
    GRADIENTS = "its gradients are wrong"


# The codes that say so, which the fix of a fault belongs to.
CODES_OF: dict[FaultKind, frozenset[str]] = {
    FaultKind.SHARDING: frozenset({"TPP401", "TPP309"}),
    FaultKind.FORWARD: frozenset({"TPP402"}),
    FaultKind.BACKWARD: frozenset({"TPP403"}),
    FaultKind.HEADS: frozenset({"TPP301", "TPP302"}),
    FaultKind.SCALES: frozenset({"TPP332"}),
    FaultKind.WIDTH: frozenset({"TPP208"}),
    FaultKind.LOAD: frozenset({"TPP505"}),
    FaultKind.LOADED_SLICE: frozenset({"TPP506"}),
    FaultKind.MINIATURE_RAISES: frozenset({"TPP504"}),
    FaultKind.NUMBERS: frozenset({"TPP501"}),
    FaultKind.GRADIENTS: frozenset({"TPP502"}),
}
REPAIRABLE: frozenset[str] = frozenset().union(*CODES_OF.values())


class GradientError(StrEnum):
    """How a gradient is wrong, which tells what mends it."""

    MISSING = "missing"
    TIMES_TP_SIZE = "times tp_size"  # every rank holds the whole gradient and they were summed
    PARTIAL = "partial"  # each rank holds its part and they were not summed
    OTHER = "other"


@dataclass(frozen=True, kw_only=True)
class Fault:
    """What failed first, decided once: repairs are chosen by its kind, and two failures are the same if their keys are.

    module: where, empty for the model itself. parameters: those concerned. gradients: how each is wrong. reason: in
    place of the words of the kind, where the stage knows more.
    """

    kind: FaultKind
    module: str = ""
    parameters: tuple[str, ...] = ()
    gradients: tuple[tuple[str, GradientError], ...] = ()
    reason: str = ""

    @property
    def words(self) -> str:
        return self.reason or str(self.kind)

    @property
    def key(self) -> Hashable:
        """Layers of one kind that fail alike are one failure."""
        gradients = frozenset((wildcard(name), error) for name, error in self.gradients)
        return self.kind, wildcard(self.module), frozenset(map(wildcard, self.parameters)), gradients, self.reason


@dataclass(frozen=True, kw_only=True)
class StageResult:
    """The outcome of one stage.

    diagnostics: what it says. revisions: diagnostics of earlier stages, each with what it becomes now that this stage
    ran. fault: what a repair may mend, None where there is nothing. stops: whether later stages have nothing to run on,
    and why. share: parameter bytes per rank, where it sharded the model. entered: modules that a forward reached, with
    `*` for layer numbers; None where none ran. programs: what the TPU's compiler said of the rank's programs.
    """

    stage: Stage
    diagnostics: tuple[Diagnostic, ...] = ()
    revisions: tuple[tuple[Diagnostic, Diagnostic], ...] = ()
    fault: Fault | None = None
    stops: str = ""
    share: BytesPerRank | None = None
    entered: frozenset[str] | None = field(default=None, repr=False)
    programs: tuple[CompiledProgram, ...] = ()

    @property
    def passed(self) -> bool:
        return self.stage.status is Status.PASSED
