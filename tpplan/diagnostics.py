"""What tpplan says: a diagnostic, the outcome of a stage, and the report that holds both."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from enum import StrEnum

from tpplan.codes import CODES, Severity

Keys = tuple[str | int, ...]  # keys and list indices, from the outermost value of a file down to one inside it
Position = tuple[int, int]  # line and column, 1-based


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a diagnostic points, as exactly as is known.

    file: path of the plan or config as the user gave it; line, column: 1-based.
    rule: a key of the plan; module, parameter: dotted names inside the model.
    """

    file: str | None = None
    line: int | None = None
    column: int | None = None
    rule: str | None = None
    module: str | None = None
    parameter: str | None = None

    def __str__(self) -> str:
        position = ":".join(str(part) for part in (self.file, self.line, self.column) if part is not None)
        name = self.parameter or self.module or self.rule
        return " ".join(part for part in (position, name) if part)


@dataclass(frozen=True, kw_only=True)
class Diagnostic:
    """One fact about a plan or a model, with what proves it and the one action that mends it.

    code: a key of `tpplan.codes.CODES`. message: the fact and its consequence, lower case, one
    line of at most 120 characters.
    evidence: values read or measured, with their source. fix: one exact action, or empty where there is none.
    """

    code: str
    message: str
    where: Place = Place()
    evidence: str = ""
    fix: str = ""

    @property
    def slug(self) -> str:
        return CODES[self.code].slug

    @property
    def severity(self) -> Severity:
        return CODES[self.code].severity

    def to_dict(self) -> dict:
        return {
            "code": self.code,
            "slug": self.slug,
            "severity": str(self.severity),
            "message": self.message,
            "where": {key: value for key, value in asdict(self.where).items() if value is not None},
            "evidence": self.evidence,
            "fix": self.fix,
        }


class Status(StrEnum):
    PASSED = "passed"
    FAILED = "failed"
    NOT_RUN = "not-run"


# Errors that say why nothing was learned about a plan; those of the environment (9xx) do so too.
NOTHING_LEARNED = frozenset({"TPP521", "TPP523"})


class Verdict(StrEnum):
    PASS = "pass"
    FAIL = "fail"
    INCOMPLETE = "incomplete"


@dataclass(frozen=True, kw_only=True)
class Stage:
    """The outcome of one stage. reason: why it did not run, or what it ran when that needs saying."""

    status: Status
    reason: str = ""
    seconds: float = 0.0

    def to_dict(self) -> dict:
        shown = {"status": str(self.status), "seconds": round(self.seconds, 3)}
        return shown | ({"reason": self.reason} if self.reason else {})


@dataclass(frozen=True, kw_only=True)
class BytesPerRank:
    """Parameter bytes under a plan.

    parameters: on the rank that holds most. whole: the part of it that is replicated.
    ideal: all parameter bytes (a tied pair counted once) divided by tp_size, rounded up.
    """

    parameters: int
    whole: int
    ideal: int

    def to_dict(self) -> dict:
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class Memory:
    """What the rank that holds most needs of its device, in bytes.

    batch, max_length: sequences, and tokens of each, that the cache is sized for. parameters: as in BytesPerRank.
    cache: a static KV cache, with states of other kinds, None for training and where it was not measured.
    cache_even: the unsharded model's cache / tp_size. gradients: of the parameters, for training; an optimizer's states
    come on top. activations: an estimate from above. hbm: memory of the device, None where it is not known.
    """

    batch: int
    max_length: int
    parameters: int
    cache: int | None
    cache_even: int | None
    gradients: int
    activations: int | None
    hbm: int | None

    @property
    def held(self) -> int:
        """What is surely there at once: parameters, cache, gradients."""
        return self.parameters + (self.cache or 0) + self.gradients

    @property
    def fits(self) -> bool | None:
        """Whether all of it, the estimate included, is within the device's memory; None where that is not known."""
        return None if self.hbm is None else self.held + (self.activations or 0) <= self.hbm

    def to_dict(self) -> dict:
        free = None if self.hbm is None else self.hbm - self.held
        return asdict(self) | {"free": free, "fits": self.fits}


@dataclass(frozen=True, kw_only=True)
class CompiledProgram:
    """What the TPU compiler says of one rank's program of the full-size model; sizes in bytes per chip.

    phase: "prefill" or "decode". batch, tokens: sequences, and tokens of each, that it takes. max_length: tokens that
    the static cache holds. refused: the compiler's words, where the program does not fit a chip; then nothing else is
    known. arguments: of parameters, cache and inputs, of which the program itself counts `parameters` and `cache`.
    outputs, of which `aliased` are in the place of arguments. flops, accessed: operations, and bytes read and written.
    traced: collectives of the program, by kind. kept: those left once it is compiled, None where jax cannot read that.
    collective_bytes: of the tensors that they complete. kernels: what runs by kernels of the TPU's own, with counts.
    extrapolated: whether the numbers are of few layers and the growth that one more brings. seconds: all that it took.
    """

    phase: str
    batch: int
    tokens: int
    max_length: int
    topology: str
    refused: str = ""
    parameters: int = 0
    cache: int = 0
    arguments: int = 0
    temporaries: int = 0
    outputs: int = 0
    aliased: int = 0
    code: int = 0
    flops: float = 0.0
    accessed: float = 0.0
    traced: dict[str, int] = field(default_factory=dict)
    kept: dict[str, int] | None = None
    collective_bytes: int = 0
    kernels: dict[str, int] = field(default_factory=dict)
    extrapolated: bool = False
    seconds: float = 0.0

    @property
    def hbm(self) -> int:
        """All that a chip holds while the program runs."""
        return self.arguments + self.temporaries + self.outputs - self.aliased + self.code

    def to_dict(self) -> dict:
        return asdict(self) | {"hbm": None if self.refused else self.hbm}


@dataclass(frozen=True, kw_only=True)
class Report:
    """Everything that one check found. `verdict` follows from stages and diagnostics alone.

    plan: the plan file that was judged, as the user gave it. memory: None where it was not asked for. ranks: what each
    rank of a launch measured, as report.schema.json says. dtype: that bytes_per_rank counts. programs: what the TPU's
    compiler said, where it was asked.
    remembered: the day, as YYYY-MM-DD, on which the stages ran, where they did not run for this answer.
    """

    model: str
    tp_size: int | None = None
    versions: dict[str, str] = field(default_factory=dict)
    stages: dict[str, Stage] = field(default_factory=dict)
    diagnostics: tuple[Diagnostic, ...] = ()
    bytes_per_rank: BytesPerRank | None = None
    memory: Memory | None = None
    overrides: dict[str, str] = field(default_factory=dict)
    unreadable: bool = False
    ranks: tuple[dict, ...] = ()
    remembered: str | None = None
    plan: str | None = None
    dtype: str | None = None
    programs: tuple[CompiledProgram, ...] = ()

    @property
    def errors(self) -> tuple[Diagnostic, ...]:
        return tuple(d for d in self.diagnostics if d.severity is Severity.ERROR)

    @property
    def verdict(self) -> Verdict:
        """`fail` if anything failed, else `incomplete` if a stage asked for did not run, else `pass`.

        An error that is only why a stage did not run is no failure of the plan.
        """
        statuses = {stage.status for stage in self.stages.values()}
        if self.unreadable:
            return Verdict.INCOMPLETE
        learned = [error for error in self.errors if error.code not in NOTHING_LEARNED and error.code[:4] != "TPP9"]
        if Status.FAILED in statuses or learned or (self.errors and Status.NOT_RUN not in statuses):
            return Verdict.FAIL
        if Status.NOT_RUN in statuses or not statuses:
            return Verdict.INCOMPLETE
        return Verdict.PASS

    @property
    def is_bad_usage(self) -> bool:
        """Whether the call itself made no sense, whatever the model."""
        return self.unreadable and all(diagnostic.code == "TPP130" for diagnostic in self.diagnostics)

    @property
    def exit_code(self) -> int:
        """0 pass, 1 the plan or model has errors or a stage could not run, 2 unreadable input."""
        if self.unreadable:
            return 2
        return 0 if self.verdict is Verdict.PASS else 1

    def to_dict(self) -> dict:
        shown = {
            "verdict": str(self.verdict),
            "model": self.model,
            **({"plan": self.plan} if self.plan else {}),
            "tp_size": self.tp_size,
            "versions": dict(self.versions),
            "stages": {name: stage.to_dict() for name, stage in self.stages.items()},
            "diagnostics": [diagnostic.to_dict() for diagnostic in self.diagnostics],
            "bytes_per_rank": self.bytes_per_rank.to_dict() if self.bytes_per_rank else None,
            **({"dtype": self.dtype} if self.dtype else {}),
            "overrides": dict(self.overrides),
        }
        shown |= {"memory": self.memory.to_dict()} if self.memory else {}
        shown |= {"programs": [program.to_dict() for program in self.programs]} if self.programs else {}
        shown |= {"remembered": self.remembered} if self.remembered else {}
        return shown | ({"ranks": [dict(rank) for rank in self.ranks]} if self.ranks else {})


class PlanError(Exception):
    """No plan works, or the one given does not; `report` says why.

    Raised by the library calls where the command line would exit with 1.
    """

    def __init__(self, report: Report) -> None:
        self.report = report
        reasons = [f"{name} not run: {s.reason}" for name, s in report.stages.items() if s.status is Status.NOT_RUN]
        lines = list(map(_line, report.errors)) or reasons or list(map(_line, report.diagnostics))
        super().__init__("\n".join(lines) or f"verdict {report.verdict}")

    def __reduce__(self) -> tuple:
        return _with_report, (type(self), self.report)


class InputError(PlanError):
    """The model or the plan cannot be read, or the call makes no sense (command line: exit code 2)."""

    def __init__(self, *diagnostics: Diagnostic, model: str = "", tp_size: int | None = None) -> None:
        super().__init__(Report(model=model, tp_size=tp_size, diagnostics=diagnostics, unreadable=True))

    @property
    def diagnostics(self) -> tuple[Diagnostic, ...]:
        return self.report.diagnostics


def _line(diagnostic: Diagnostic) -> str:
    """Place, code, slug and message, as the command line prints them."""
    place = str(diagnostic.where)
    return f"{place}: {diagnostic.code} {diagnostic.slug}: {diagnostic.message}".removeprefix(": ")


def _with_report(kind: type[PlanError], report: Report) -> PlanError:
    """Unpickle an error, whose constructor takes other arguments than its message."""
    error = kind.__new__(kind)
    PlanError.__init__(error, report)
    return error
