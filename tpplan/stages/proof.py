"""What the numerics stage proves: the loader's own path, then the numbers on every rank, on one miniature."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from tpplan.diagnostics import Diagnostic, Place, Stage, Status
from tpplan.miniature.build import Miniature, make_miniature
from tpplan.model.skeleton import wildcard
from tpplan.stages.load import Load, run_load
from tpplan.stages.numerics import TOLERANCE, GradientFault, Kind, Numerics, WrongLogits, run_numerics
from tpplan.subject import Subject


class Bench:
    """The miniature of a model at a tp_size, made when it is first needed and used for every plan that is tried."""

    def __init__(self, subject: Subject) -> None:
        self._subject = subject

    @cached_property
    def miniature(self) -> Miniature:
        """Raises ValueError, with the reason, when the model has none."""
        return make_miniature(self._subject.spec, self._subject.skeleton, self._subject.sharding.tp_size)


@dataclass(frozen=True, kw_only=True)
class Proof:
    """The outcome of the stage. load, numerics: None where they did not run."""

    stage: Stage
    diagnostics: tuple[Diagnostic, ...] = ()
    load: Load | None = None
    numerics: Numerics | None = None


def prove(subject: Subject, bench: Bench) -> Proof:
    """Run the load and the numbers of `subject`'s plan on the miniature."""
    started = time.perf_counter()
    try:
        miniature = bench.miniature
    except ValueError as error:
        reason = f"no miniature of this model runs: {error}"
        return Proof(stage=Stage(status=Status.NOT_RUN, reason=reason, seconds=time.perf_counter() - started))
    load = run_load(miniature, subject.sharding)
    numerics = run_numerics(miniature, subject.sharding, training=subject.training)
    diagnostics = tuple(_load_diagnostics(subject, load)) + tuple(_numerics_diagnostics(subject, numerics))
    if diagnostics:
        status = Status.FAILED
    else:
        status = Status.PASSED if load.passed and numerics.passed else Status.NOT_RUN
    reason = numerics.not_run or load.not_run or _what_ran(miniature, numerics)
    stage = Stage(status=status, reason=reason, seconds=time.perf_counter() - started)
    return Proof(stage=stage, diagnostics=diagnostics, load=load, numerics=numerics)


def _what_ran(miniature: Miniature, numerics: Numerics) -> str:
    parts = ", ".join(numerics.ran)
    skipped = "".join(f"; no {part}: {reason}" for part, reason in numerics.skipped.items())
    return (
        f"load, {parts} on a miniature ({miniature.describe()}); largest error {numerics.largest_error:.1e}, "
        f"tolerance {TOLERANCE.logits:g}{skipped}"
    )


def _load_diagnostics(subject: Subject, load: Load) -> Iterator[Diagnostic]:
    name = subject.spec.source.name
    if load.raised:
        rank, error = load.raised
        yield Diagnostic(
            code="TPP505",
            message=f"from_pretrained raises on rank {rank} of {subject.sharding.tp_size} while it loads the sharded model",
            where=Place(file=name),
            evidence=f"on a saved miniature: {error}",
        )
    if load.wrong:
        rank, parameter = load.wrong
        yield Diagnostic(
            code="TPP506",
            message=f"from_pretrained gives rank {rank} of {subject.sharding.tp_size} other values than its slice of what "
            "it gives one device",
            where=Place(file=name, parameter=wildcard(parameter)),
            evidence="compared on a saved miniature, bit for bit",
        )


def _numerics_diagnostics(subject: Subject, numerics: Numerics) -> Iterator[Diagnostic]:
    if numerics.raised:
        (part, error), module = numerics.raised, numerics.raised_in
        yield Diagnostic(
            code="TPP504",
            message=f"the sharded {part} raises{f' in {module}' if module else ''}, where the unsharded one runs",
            where=Place(file=subject.spec.source.name, module=module),
            evidence=f"on a miniature: {error}",
        )
    for difference in numerics.differences:
        yield _wrong_numbers(subject, difference)
    yield from _wrong_gradients(subject, numerics.gradients)


def _wrong_numbers(subject: Subject, difference: WrongLogits) -> Diagnostic:
    at = f", first in {difference.module}" if difference.module else ""
    place = Place(file=subject.spec.source.name, module=difference.module)
    if difference.width:
        found, expected = difference.width
        message = f"the sharded {difference.part} returns {found} columns of logits on a rank instead of {expected}"
        return Diagnostic(code="TPP501", message=message, where=place, evidence=f"vocabulary cut over the ranks{at}")
    return Diagnostic(
        code="TPP501",
        message=f"the sharded {difference.part} gives other logits than the unsharded one{at}; nothing raises",
        where=place,
        evidence=f"error {difference.error:.2g} of the largest logit on {_ranks(difference.ranks, subject)}, "
        f"tolerance {TOLERANCE.logits:g}",
    )


def _wrong_gradients(subject: Subject, faults: tuple[GradientFault, ...]) -> Iterator[Diagnostic]:
    """One diagnostic for all layers of a parameter that are wrong in the same way."""
    grouped: dict[tuple[str, Kind], list[GradientFault]] = defaultdict(list)
    for fault in faults:
        grouped[wildcard(fault.parameter), fault.kind].append(fault)
    tp_size = subject.sharding.tp_size
    words = {
        Kind.MISSING: "is missing",
        Kind.TIMES_TP_SIZE: f"is {tp_size} times too large on every rank",
        Kind.PARTIAL: "is only a part of it on each rank, never summed",
        Kind.OTHER: "is wrong",
    }
    for (parameter, kind), group in sorted(grouped.items()):
        worst = max(group, key=lambda fault: fault.error)
        yield Diagnostic(
            code="TPP502",
            message=f"the gradient of {parameter} {words[kind]}; nothing raises",
            where=Place(file=subject.spec.source.name, parameter=parameter),
            evidence=f"error {worst.error:.2g} of the largest gradient on {_ranks(worst.ranks, subject)}, "
            f"tolerance {TOLERANCE.gradients:g}; style {subject.style_name(worst.parameter.rpartition('.')[0]) or 'none'}",
        )


def _ranks(ranks: tuple[int, ...], subject: Subject) -> str:
    if len(ranks) == subject.sharding.tp_size:
        return "every rank"
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"
