"""The numerics stage: the loader's own path, then the numbers on every rank, on one miniature."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator, Mapping

from tpplan.diagnostics import Diagnostic, Place, Stage, Status
from tpplan.miniature.build import Miniature
from tpplan.model.skeleton import wildcard
from tpplan.stages.bench import Bench
from tpplan.stages.causes import cause_of, with_evidence
from tpplan.stages.comparison import TOLERANCE, GradientFault, Numerics, WrongLogits, run_numerics
from tpplan.stages.load import Load, run_load
from tpplan.stages.result import Fault, FaultKind, GradientError, StageResult
from tpplan.subject import Subject

Finding = tuple[FaultKind, Diagnostic]


def run(subject: Subject, earlier: Mapping[str, StageResult], bench: Bench) -> StageResult:
    """The result of loading the miniature with `subject`'s plan and of comparing its numbers."""
    started = time.perf_counter()
    try:
        miniature = bench.miniature(subject.sharding.tp_size)
    except ValueError as error:
        reason = f"no miniature of this model runs: {error}"
        return StageResult(stage=Stage(status=Status.NOT_RUN, reason=reason, seconds=time.perf_counter() - started))
    load = run_load(bench.saved(subject.sharding.tp_size), subject.sharding)
    numerics = run_numerics(miniature, subject.sharding, training=subject.training)
    findings = (*_load_findings(subject, load), *_numerics_findings(subject, numerics))
    passed = Status.PASSED if load.passed and numerics.passed else Status.NOT_RUN
    status = Status.FAILED if findings else passed
    reason = numerics.not_run or load.not_run or _what_ran(miniature, numerics)
    result = StageResult(
        stage=Stage(status=status, reason=reason, seconds=time.perf_counter() - started), fault=_fault(load, numerics)
    )
    return _with_causes(result, findings, [said for one in earlier.values() for said in one.diagnostics])


def _with_causes(result: StageResult, findings: tuple[Finding, ...], said: list[Diagnostic]) -> StageResult:
    """The result with its findings, those that an earlier diagnostic explains as the evidence of that one."""
    own: list[Diagnostic] = []
    explained: dict[int, tuple[Diagnostic, Diagnostic]] = {}
    for kind, finding in findings:
        cause = cause_of(said, kind, finding.where.module or finding.where.parameter or "")
        if cause is None:
            own.append(finding)
            continue
        _, so_far = explained.get(id(cause), (cause, cause))
        name = finding.where.module or finding.where.parameter
        shown = f"{finding.message}: {finding.evidence}"
        explained[id(cause)] = (cause, with_evidence(so_far, f"{name}: {shown}" if name else shown))
    return StageResult(
        stage=result.stage, fault=result.fault, diagnostics=tuple(own), revisions=tuple(explained.values())
    )


def _fault(load: Load, numerics: Numerics) -> Fault | None:
    """What a repair is to mend: the load, then a run that raises, then wrong numbers, then wrong gradients."""
    if load.failed:
        return Fault(kind=FaultKind.LOADED_SLICE if load.wrong else FaultKind.LOAD, parameters=load.blamed)
    if numerics.raised:
        reason = f"the {numerics.raised[0]} raises"
        return Fault(kind=FaultKind.MINIATURE_RAISES, module=numerics.raised_in or "", reason=reason)
    if numerics.differences:
        module = next((one.module for one in numerics.differences if one.module), "")
        wide = not module and any(one.width for one in numerics.differences)
        return Fault(kind=FaultKind.WIDTH if wide else FaultKind.NUMBERS, module=module)
    if numerics.gradients:
        wrong = tuple((fault.parameter, fault.kind) for fault in numerics.gradients)
        return Fault(kind=FaultKind.GRADIENTS, gradients=wrong)
    return None


def _what_ran(miniature: Miniature, numerics: Numerics) -> str:
    parts = ", ".join(numerics.ran)
    skipped = "".join(f"; no {part}: {reason}" for part, reason in numerics.skipped.items())
    return (
        f"load, {parts} on a miniature ({miniature.describe()}); largest error {numerics.largest_error:.1e}, "
        f"tolerance {TOLERANCE.logits:g}{skipped}"
    )


def _load_findings(subject: Subject, load: Load) -> Iterator[Finding]:
    name = subject.spec.source.name
    if load.raised:
        rank, error = load.raised
        yield (
            FaultKind.LOAD,
            Diagnostic(
                code="TPP505",
                message=f"from_pretrained raises on rank {rank} of {subject.sharding.tp_size} while it loads the "
                "sharded model",
                where=Place(file=name),
                evidence=f"on a saved miniature: {error}",
            ),
        )
    if load.wrong:
        rank, parameter = load.wrong
        yield (
            FaultKind.LOADED_SLICE,
            Diagnostic(
                code="TPP506",
                message=f"from_pretrained gives rank {rank} of {subject.sharding.tp_size} values that differ from its "
                "slice of what it gives one device",
                where=Place(file=name, parameter=wildcard(parameter)),
                evidence="compared on a saved miniature, bit for bit",
            ),
        )


def _numerics_findings(subject: Subject, numerics: Numerics) -> Iterator[Finding]:
    if numerics.raised:
        (part, error), module = numerics.raised, numerics.raised_in
        yield (
            FaultKind.MINIATURE_RAISES,
            Diagnostic(
                code="TPP504",
                message=f"the sharded {part} raises, where the unsharded one runs",
                where=Place(file=subject.spec.source.name, module=module),
                evidence=f"on a miniature: {error}",
            ),
        )
    for difference in numerics.differences:
        yield FaultKind.WIDTH if difference.width else FaultKind.NUMBERS, _wrong_numbers(subject, difference)
    for diagnostic in _wrong_gradients(subject, numerics.gradients):
        yield FaultKind.GRADIENTS, diagnostic


def _wrong_numbers(subject: Subject, difference: WrongLogits) -> Diagnostic:
    place = Place(file=subject.spec.source.name, module=difference.module)
    if difference.width:
        found, expected = difference.width
        message = f"the sharded {difference.part} returns {found} columns of logits per rank instead of {expected}"
        return Diagnostic(code="TPP501", message=message, where=place, evidence="vocabulary cut over the ranks")
    return Diagnostic(
        code="TPP501",
        message=f"the sharded {difference.part} gives logits different from the unsharded one's; nothing raises",
        where=place,
        evidence=f"error {difference.error:.2g} of the largest logit on {_ranks(difference.ranks, subject)}, "
        f"tolerance {TOLERANCE.logits:g}",
    )


def _wrong_gradients(subject: Subject, faults: tuple[GradientFault, ...]) -> Iterator[Diagnostic]:
    """One diagnostic for all layers of a parameter that are wrong in the same way."""
    grouped: dict[tuple[str, GradientError], list[GradientFault]] = defaultdict(list)
    for fault in faults:
        grouped[wildcard(fault.parameter), fault.kind].append(fault)
    tp_size = subject.sharding.tp_size
    words = {
        GradientError.MISSING: "is missing",
        GradientError.TIMES_TP_SIZE: f"is {tp_size} times too large on every rank",
        GradientError.PARTIAL: "is left a partial sum on each rank",
        GradientError.OTHER: "is wrong",
    }
    for (parameter, kind), group in sorted(grouped.items()):
        worst = max(group, key=lambda fault: fault.error)
        yield Diagnostic(
            code="TPP502",
            message=f"the gradient {words[kind]}; nothing raises",
            where=Place(file=subject.spec.source.name, parameter=parameter),
            evidence=f"error {worst.error:.2g} of the largest gradient on {_ranks(worst.ranks, subject)}, "
            f"tolerance {TOLERANCE.gradients:g}; style "
            f"{subject.style_name(worst.parameter.rpartition('.')[0]) or 'none'}",
        )


def _ranks(ranks: tuple[int, ...], subject: Subject) -> str:
    if len(ranks) == subject.sharding.tp_size:
        return "every rank"
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"
