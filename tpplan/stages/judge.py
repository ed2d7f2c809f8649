"""One plan on one model: run the static checks and the stages asked for, and gather what they say."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, replace

from tpplan import checks
from tpplan.checks.heads import disagreement
from tpplan.checks.memory import bytes_per_rank, check_whole
from tpplan.choices import Depth
from tpplan.codes import Severity
from tpplan.diagnostics import BytesPerRank, Diagnostic, Place, Report, Stage, Status
from tpplan.model.internals import versions
from tpplan.stages import proof
from tpplan.stages.shapes import Phase, ShapesOutcome, run_shapes
from tpplan.stages.stand_in import run_stand_in
from tpplan.subject import Subject

HEAD_CODES = ("TPP301", "TPP302")
PHASE_CODES = {Phase.SHARDING: "TPP401", Phase.FORWARD: "TPP402", Phase.BACKWARD: "TPP403"}
PHASE_WORDS = {
    Phase.SHARDING: "sharding the model raises",
    Phase.FORWARD: "the sharded forward raises",
    Phase.BACKWARD: "the sharded backward raises",
}


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """What the stages said about one subject. outcome, proof: of the shapes and the numerics stage, None when they
    did not run. share: None when the model was not sharded."""

    subject: Subject
    stages: dict[str, Stage]
    diagnostics: tuple[Diagnostic, ...]
    outcome: ShapesOutcome | None = None
    proof: proof.Proof | None = None
    share: BytesPerRank | None = None

    @property
    def passed(self) -> bool:
        return self.report().exit_code == 0

    def report(self) -> Report:
        return Report(
            model=self.subject.spec.source.name,
            tp_size=self.subject.sharding.tp_size,
            versions=versions(),
            stages=self.stages,
            diagnostics=self.diagnostics,
            bytes_per_rank=self.share,
            overrides=dict(sorted(self.subject.sharding.overrides.items())),
        )


def judge(subject: Subject, depth: Depth = Depth.SHAPES, *, bench: proof.Bench | None = None) -> Judgement:
    """Run every stage up to `depth` on `subject`. Raises nothing for what is wrong with the plan or the model.

    bench: the miniature of an earlier judgement of the same model and tp_size, to be used again.
    """
    started = time.perf_counter()
    rejected = checks.rejections(subject)
    diagnostics = rejected + checks.findings(subject)
    seconds = time.perf_counter() - started
    if rejected or depth is Depth.STATIC:
        stages = {"static": _static_stage(diagnostics, seconds)} | _not_run(depth, rejected)
        return Judgement(subject=subject, stages=stages, diagnostics=_sorted(diagnostics))
    bench = bench or proof.Bench(subject)
    outcome = _run_shapes(subject, bench)
    diagnostics = _reconcile(subject, diagnostics, outcome)
    share = bytes_per_rank(subject, outcome.local_sizes) if outcome.local_sizes else None
    if share:
        diagnostics += check_whole(subject, outcome.local_sizes, outcome.entered)
    stages = {"static": _static_stage(diagnostics, seconds), "shapes": _shapes_stage(outcome)}
    if outcome.stop:
        diagnostics.append(stop_diagnostic(subject, outcome))
    elif outcome.whole_width not in (None, outcome.logits_width) and not _has(diagnostics, "TPP208"):
        diagnostics.append(width_diagnostic(subject, outcome))
    proven = None
    if depth is Depth.NUMERICS and outcome.stop:
        stages["numerics"] = Stage(status=Status.NOT_RUN, reason="the shapes stage failed")
    elif depth is Depth.NUMERICS:
        proven = proof.prove(subject, bench)
        stages["numerics"] = proven.stage
        diagnostics += proven.diagnostics
    return Judgement(
        subject=subject,
        stages=stages,
        diagnostics=_sorted(diagnostics),
        outcome=outcome,
        proof=proven,
        share=share,
    )


def _run_shapes(subject: Subject, bench: proof.Bench) -> ShapesOutcome:
    """The stage at full size, or on the miniature where the model's code needs values and there is a miniature."""
    outcome = run_shapes(subject.spec, subject.sharding, training=subject.training)
    if not outcome.needs_weights:
        return outcome
    try:
        return run_stand_in(bench.miniature, subject.sharding, outcome, training=subject.training)
    except ValueError as error:  # no miniature of this model runs
        return replace(outcome, not_run=f"{outcome.not_run}; and it has no miniature: {error}")


def stop_diagnostic(subject: Subject, outcome: ShapesOutcome) -> Diagnostic:
    """The failure of the shapes stage: the first module that stops, with torch's own error as evidence."""
    stop = outcome.stop
    assert stop is not None
    where = f" in {stop.module}" if stop.module and stop.phase is not Phase.BACKWARD else ""
    rank = "" if stop.rank is None else f"rank {stop.rank} of "
    after = f"; the last module to get its gradient was {stop.module}" if stop.phase is Phase.BACKWARD else ""
    return Diagnostic(
        code=PHASE_CODES[stop.phase],
        message=f"{PHASE_WORDS[stop.phase]}{where} on {rank}{subject.sharding.tp_size}{' ranks' * (not rank)}{after}",
        where=Place(file=subject.spec.source.name, module=stop.module),
        evidence=stop.error,
    )


def width_diagnostic(subject: Subject, outcome: ShapesOutcome) -> Diagnostic:
    """Logits of another width than the unsharded model's, measured on both."""
    found, expected = outcome.logits_width, outcome.whole_width
    return Diagnostic(
        code="TPP208",
        message=f"the sharded model returns {found} columns of logits where the unsharded one returns {expected}",
        where=Place(file=subject.spec.source.name),
        evidence="both were run without weights",
    )


def _has(diagnostics: Iterable[Diagnostic], code: str) -> bool:
    return any(diagnostic.code == code for diagnostic in diagnostics)


def _not_run(depth: Depth, rejected: list[Diagnostic]) -> dict[str, Stage]:
    codes = ", ".join(sorted({diagnostic.code for diagnostic in rejected}))
    stage = Stage(status=Status.NOT_RUN, reason=f"Transformers rejects the plan ({codes})")
    names = {Depth.STATIC: (), Depth.SHAPES: ("shapes",), Depth.NUMERICS: ("shapes", "numerics")}
    return dict.fromkeys(names[depth], stage)


def _reconcile(subject: Subject, diagnostics: list[Diagnostic], outcome: ShapesOutcome) -> list[Diagnostic]:
    """The model's own code decides over the head arithmetic: where it ran, the arithmetic is only a warning."""
    if not outcome.passed:
        return diagnostics
    return [
        disagreement(subject, diagnostic)
        if diagnostic.code in HEAD_CODES and diagnostic.where.module in outcome.entered
        else diagnostic
        for diagnostic in diagnostics
    ]


def _static_stage(diagnostics: Iterable[Diagnostic], seconds: float) -> Stage:
    failed = any(diagnostic.severity is Severity.ERROR for diagnostic in diagnostics)
    return Stage(status=Status.FAILED if failed else Status.PASSED, seconds=seconds)


def _shapes_stage(outcome: ShapesOutcome) -> Stage:
    if outcome.not_run:
        return Stage(status=Status.NOT_RUN, reason=outcome.not_run, seconds=outcome.seconds)
    status = Status.PASSED if outcome.passed else Status.FAILED
    reason = f"on a miniature, for {outcome.on_miniature}" if outcome.on_miniature else ""
    return Stage(status=status, reason=reason, seconds=outcome.seconds)


def _sorted(diagnostics: Iterable[Diagnostic]) -> tuple[Diagnostic, ...]:
    order = {Severity.ERROR: 0, Severity.WARNING: 1, Severity.NOTE: 2}
    return tuple(
        sorted(
            diagnostics,
            key=lambda d: (order[d.severity], d.where.line or 0, d.where.column or 0, d.code, str(d.where), d.message),
        )
    )
