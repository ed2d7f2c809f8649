"""The shapes stage: the real class at full size without weights; what it raises, and what each rank would hold."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tpplan.checks.heads import HEAD_CODES, disagreement
from tpplan.checks.memory import bytes_per_rank, check_replicated
from tpplan.diagnostics import Diagnostic, Place, Stage, Status
from tpplan.stages.bench import Bench
from tpplan.stages.causes import cause_of, with_evidence
from tpplan.stages.full_size import Phase, ShapesOutcome, Stop, run_shapes
from tpplan.stages.result import Fault, FaultKind, StageResult
from tpplan.stages.stand_in import run_stand_in
from tpplan.subject import Subject

KINDS = {Phase.SHARDING: FaultKind.SHARDING, Phase.FORWARD: FaultKind.FORWARD, Phase.BACKWARD: FaultKind.BACKWARD}
CODES = {Phase.SHARDING: "TPP401", Phase.FORWARD: "TPP402", Phase.BACKWARD: "TPP403"}
WORDS = {
    Phase.SHARDING: "sharding the model raises",
    Phase.FORWARD: "the sharded forward raises",
    Phase.BACKWARD: "the sharded backward raises",
}


def run(subject: Subject, earlier: Mapping[str, StageResult], bench: Bench) -> StageResult:
    """The result at full size, or on the miniature where the model's code needs values and there is a miniature."""
    said = [diagnostic for result in earlier.values() for diagnostic in result.diagnostics]
    outcome = _outcome(subject, bench)
    result = StageResult(
        stage=_stage(outcome),
        share=bytes_per_rank(subject, outcome.local_sizes) if outcome.local_sizes else None,
        entered=None if outcome.stop or outcome.not_run else outcome.entered,
    )
    if outcome.local_sizes:
        replicated = check_replicated(subject, outcome.local_sizes, outcome.entered)
        result = replace(result, diagnostics=tuple(replicated))
    if outcome.stop:
        return _stopped(subject, said, outcome.stop, result)
    if outcome.passed:
        return replace(result, revisions=tuple(_disagreements(subject, said, outcome)))
    if outcome.not_run:
        return result
    wrong, cause = _wrong_width(subject, outcome), cause_of(said, FaultKind.WIDTH, "")
    result = replace(result, fault=Fault(kind=FaultKind.WIDTH))
    if cause:
        return replace(result, revisions=((cause, with_evidence(cause, wrong.message)),))
    return replace(result, diagnostics=(*result.diagnostics, wrong))


def _outcome(subject: Subject, bench: Bench) -> ShapesOutcome:
    outcome = run_shapes(subject.spec, subject.sharding, training=subject.training, known=bench.runs)
    if not outcome.needs_weights:
        return outcome
    try:
        miniature = bench.miniature(subject.sharding.tp_size)
    except ValueError as error:  # no miniature of this model runs
        return replace(outcome, not_run=f"{outcome.not_run}; and it has no miniature: {error}")
    return run_stand_in(miniature, subject.sharding, outcome, training=subject.training)


def _stage(outcome: ShapesOutcome) -> Stage:
    if outcome.not_run:
        return Stage(status=Status.NOT_RUN, reason=outcome.not_run, seconds=outcome.seconds)
    reason = f"on a miniature, for {outcome.on_miniature}" if outcome.on_miniature else ""
    return Stage(status=Status.PASSED if outcome.passed else Status.FAILED, reason=reason, seconds=outcome.seconds)


def _stopped(subject: Subject, said: list[Diagnostic], stop: Stop, result: StageResult) -> StageResult:
    """The result with the first module that stops: as evidence of what explains it, else as a diagnostic of its own."""
    kind, tp_size = KINDS[stop.phase], subject.sharding.tp_size
    result = replace(result, fault=Fault(kind=kind, module=stop.module or ""), stops="the shapes stage failed")
    ranks = f"{tp_size} ranks" if stop.rank is None else f"rank {stop.rank} of {tp_size}"
    backward = stop.phase is Phase.BACKWARD
    after = f"; the last module to get its gradient was {stop.module}" if backward and stop.module else ""
    cause = cause_of(said, kind, stop.module or "")
    if cause:
        where = f" in {stop.module}" if stop.module and not backward else ""
        shown = f"{WORDS[stop.phase]}{where} on {ranks}: {stop.error}{after}"
        return replace(result, revisions=((cause, with_evidence(cause, shown)),))
    own = Diagnostic(
        code=CODES[stop.phase],
        message=f"{WORDS[stop.phase]} on {ranks}",
        where=Place(file=subject.spec.source.name, module=stop.module),
        evidence=f"{stop.error}{after}",
    )
    return replace(result, diagnostics=(*result.diagnostics, own))


def _disagreements(
    subject: Subject, said: list[Diagnostic], outcome: ShapesOutcome
) -> list[tuple[Diagnostic, Diagnostic]]:
    """The model's own code decides over the head arithmetic: where it ran, the arithmetic is only a warning."""
    return [
        (diagnostic, disagreement(subject, diagnostic))
        for diagnostic in said
        if diagnostic.code in HEAD_CODES and diagnostic.where.module in outcome.entered
    ]


def _wrong_width(subject: Subject, outcome: ShapesOutcome) -> Diagnostic:
    """Logits of another width than the unsharded model's, measured on both."""
    found, expected = outcome.logits_width, outcome.whole_width
    return Diagnostic(
        code="TPP208",
        message=f"the sharded model returns {found} columns of logits where the unsharded one returns {expected}",
        where=Place(file=subject.spec.source.name),
        evidence="both were run without weights",
    )
