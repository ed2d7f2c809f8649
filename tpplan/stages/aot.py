"""The aot stage: the TPU's own compiler on a rank's programs, and torch_tpu's lowering of all ranks, computed on CPU.

The compiler says whether the full-size model fits and what it moves; the values, of a miniature, whether what torch_tpu
makes of the sharded model still computes the unsharded model's logits. Both run in processes of their own.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tpplan import scratch
from tpplan.child import Child, ChildDied
from tpplan.choices import Phase
from tpplan.diagnostics import BytesPerRank, CompiledProgram, Diagnostic, Place, PlanError, Report, Stage, Status
from tpplan.model.internals import versions
from tpplan.stages.bench import Bench
from tpplan.stages.comparison import TOLERANCE
from tpplan.stages.result import StageResult
from tpplan.subject import Subject
from tpplan.targets import resolve
from tpplan.tpu.internals import INSTALL, missing_packages
from tpplan.units import gib, joined

if TYPE_CHECKING:
    from tpplan.tpu.job import Outcome, Work
    from tpplan.tpu.values_job import Values

PREFILL = 512  # tokens, where the caller names none
LENGTH = 4096  # tokens that the cache holds, where the caller names none
WITHIN = 900.0  # seconds for either process
WITHIN_FULL = 3600.0  # and where every layer is compiled
END_OF_LOG = 400  # characters


def run(subject: Subject, earlier: Mapping[str, StageResult], bench: Bench) -> StageResult:
    """The result of compiling `subject`'s plan for its device, and of its values."""
    started = time.perf_counter()
    reason, diagnostic = _why_not(subject)
    if reason:
        said = (diagnostic,) if diagnostic else ()
        return StageResult(stage=Stage(status=Status.NOT_RUN, reason=reason), diagnostics=said)
    with ThreadPoolExecutor(2) as pool:
        compiling, comparing = pool.submit(_compile, subject), pool.submit(_compare, subject, bench)
        outcome, values = compiling.result(), comparing.result()
    share = next((result.share for result in earlier.values() if result.share), None)
    found = (*_compiler_findings(subject, outcome, share), *_value_findings(subject, values))
    complete = outcome.programs and values.passed
    status = Status.FAILED if any(one.code[:4] == "TPP6" for one in found) else Status.PASSED
    return StageResult(
        stage=Stage(
            status=status if complete or status is Status.FAILED else Status.NOT_RUN,
            reason=_what_ran(subject, outcome, values, share),
            seconds=time.perf_counter() - started,
        ),
        diagnostics=found,
        programs=outcome.programs,
    )


def _why_not(subject: Subject, *, compiles: bool = True) -> tuple[str, Diagnostic | None]:
    """Why nothing can be lowered for this subject, empty where it can; with a diagnostic where it is the machine.

    compiles: whether it is to be compiled too, for a topology.
    """
    if missing := missing_packages():
        reason = f"{joined(missing)} {'is' if len(missing) == 1 else 'are'} not installed"
        message = f"the TPU's compiler cannot be asked: {reason}"
        where = Place(file=subject.spec.source.name)
        return reason, Diagnostic(
            code="TPP940", message=message, where=where, evidence="not found: " + ", ".join(missing), fix=INSTALL
        )
    if compiles and not _topology(subject):
        return f"libtpu's compiler has no topology of {subject.sharding.tp_size} {subject.device}", None
    if subject.spec.runs_own_code:
        return "the model brings code of its own, which is not taken to the process that compiles", None
    scheme = subject.spec.scheme
    if scheme is not None and not scheme.dequantized:
        return f"its weights stay packed ({subject.spec.quantization}), and what runs on them is not traced", None
    return "", None


def _topology(subject: Subject) -> str:
    target = resolve(subject.device)
    size = subject.sharding.tp_size
    return target.compiler_topology(size) if target.has_limits and target.exists(size) else ""


def export(subject: Subject, phase: Phase) -> bytes:
    """A program of rank 0 as torch_tpu lowers it, as a portable artifact of StableHLO.

    Raises PlanError with TPP940, or with TPP941 and the reason, where there is none.
    """
    from tpplan.tpu.job import exported

    reason, diagnostic = _why_not(subject, compiles=False)
    if not reason:
        answer = _in_child(exported, _work(subject), WITHIN_FULL, phase)
        if not answer.reason:
            artifact: bytes = answer.artifact
            return artifact
        reason = answer.reason
    name = subject.spec.source.name
    silent = Diagnostic(code="TPP941", message="there is no program", where=Place(file=name), evidence=reason)
    raise PlanError(Report(model=name, versions=versions(), diagnostics=(diagnostic or silent,)))


def _work(subject: Subject) -> Work:
    from tpplan.tpu.forward import Workload
    from tpplan.tpu.job import Work

    length = max(subject.max_length or LENGTH, (subject.prefill or 0) + 1)
    return Work(
        spec=subject.spec,
        sharding=subject.sharding,
        workload=Workload(
            batch=subject.batch or 1, prefill=subject.prefill or min(PREFILL, length - 1), max_length=length
        ),
        topology=_topology(subject),
        hbm=resolve(subject.device).hbm_bytes,
        full=subject.full,
    )


def _compile(subject: Subject) -> Outcome:
    from tpplan.tpu.job import Outcome, compiled

    answer = _in_child(compiled, _work(subject), WITHIN_FULL if subject.full else WITHIN)
    return Outcome(reason=answer.reason, lacking=True) if isinstance(answer, _Died) else answer


def _compare(subject: Subject, bench: Bench) -> Values:
    from tpplan.tpu.values_job import Comparison, Values, compared

    tp_size = subject.sharding.tp_size
    try:
        miniature, saved = bench.miniature(tp_size), bench.saved(tp_size)
    except ValueError as error:
        return Values(reason=f"no miniature of this model runs: {error}")
    if saved.not_run:
        return Values(reason=saved.not_run)
    work = Comparison(spec=miniature.spec, directory=saved.directory, sharding=subject.sharding)
    answer = _in_child(compared, work, WITHIN)
    return Values(reason=answer.reason) if isinstance(answer, _Died) else answer


@dataclass(frozen=True, kw_only=True)
class _Died:
    """A process that gave no answer. reason: what is known of its end."""

    reason: str


def _in_child(function: Any, work: Any, seconds: float, *more: Any) -> Any:
    """What the function answers in a process of its own, or _Died."""
    with scratch.directory() as folder, (folder / "log").open("w+b") as log, Child(log) as child:
        try:
            return child.call_within(seconds, function, work, *more)
        except ChildDied as error:
            log.seek(0)
            last = " ".join(log.read().decode("utf-8", "replace").split())[-END_OF_LOG:]
            return _Died(reason=f"{error}; its last words: {last}")


def _compiler_findings(subject: Subject, outcome: Outcome, share: BytesPerRank | None) -> Iterator[Diagnostic]:
    where = Place(file=subject.spec.source.name)
    if outcome.lacking:
        yield Diagnostic(
            code="TPP941",
            message="the TPU's compiler gave no answer here",
            where=where,
            evidence=outcome.reason,
            fix="install the tested set of versions with tpplan's constraints.txt",
        )
    hbm = resolve(subject.device).hbm_bytes
    assert hbm is not None
    for program in outcome.programs:
        if program.refused:
            yield Diagnostic(
                code="TPP601",
                message=f"the TPU's compiler refuses the {program.phase}: it does not fit one {subject.device}",
                where=where,
                evidence=program.refused,
            )
        elif (needed := program.hbm + _unread(program, share)) > hbm:
            yield Diagnostic(
                code="TPP601",
                message=f"the {program.phase} as compiled needs {gib(needed)} per device, and {subject.device} has "
                f"{gib(hbm)}",
                where=where,
                evidence=_parts(program) + ("; of few layers, extrapolated" if program.extrapolated else ""),
            )


def _unread(program: CompiledProgram, share: BytesPerRank | None) -> int:
    """Bytes of parameters that a rank holds and this program does not read, as the towers of a text prompt."""
    return max(0, share.parameters - program.parameters) if share else 0


def _parts(program: CompiledProgram) -> str:
    return (
        f"parameters {gib(program.parameters)}, cache {gib(program.cache)}, temporaries {gib(program.temporaries)}, "
        f"code {gib(program.code)}"
    )


def _value_findings(subject: Subject, values: Values) -> Iterator[Diagnostic]:
    for wrong in values.wrong:
        yield Diagnostic(
            code="TPP602",
            message=f"the {wrong.phase} as lowered for TPU gives logits different from the unsharded model's",
            where=Place(file=subject.spec.source.name),
            evidence=f"error {wrong.error:.2g} of the largest logit on "
            f"{'rank' if len(wrong.ranks) == 1 else 'ranks'} {joined(wrong.ranks)}, tolerance {TOLERANCE.logits:g}; "
            "torch_tpu's lowering of a miniature, computed on CPU",
        )


def _what_ran(subject: Subject, outcome: Outcome, values: Values, share: BytesPerRank | None) -> str:
    parts = []
    if outcome.reason:
        parts.append(f"nothing compiled: {outcome.reason}")
    elif programs := outcome.programs:
        phases = joined(program.phase for program in programs)
        parts.append(f"{phases} compiled for {programs[0].topology}")
        if any(program.extrapolated for program in programs):
            parts.append("extrapolated from few layers")
        if share and (unread := _unread(programs[0], share)):
            parts.append(f"{gib(unread)} of parameters are not read by a text prompt")
        if subject.training:
            parts.append("no backward")
    if values.reason:
        parts.append(f"no values: {values.reason}")
    else:
        parts.append(
            f"values of all ranks on CPU, largest error {values.largest_error:.1e}, tolerance {TOLERANCE.logits:g}"
        )
    return "; ".join(parts)
