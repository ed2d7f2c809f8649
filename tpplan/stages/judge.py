"""One plan on one model: the stages run in order, what they found is put together, and every report says just that."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from tpplan.answers import Costs
from tpplan.codes import Severity
from tpplan.diagnostics import BytesPerRank, Diagnostic, Report, Stage, Status, Verdict
from tpplan.model.internals import versions
from tpplan.stages import table
from tpplan.stages.bench import Bench
from tpplan.stages.costs import costs_of, is_asked_for, memory_diagnostics
from tpplan.stages.result import Fault, StageResult
from tpplan.stages.static import judged
from tpplan.subject import Subject

MEMORY_CODES = frozenset({"TPP340", "TPP601"})  # errors that no override of a fault mends
SEVERITIES = tuple(Severity)


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """Everything that is said of one plan: the only source of its report.

    results: of each stage asked for, in order. diagnostics: of all of them, and of memory, in the order of a report.
    costs: what the plan costs a rank, where memory was asked for and the model ran. ranks: what each rank of a launch
    measured, as report.schema.json says.
    """

    subject: Subject
    results: Mapping[str, StageResult]
    diagnostics: tuple[Diagnostic, ...]
    costs: Costs | None = None
    ranks: tuple[dict[str, Any], ...] = ()

    @property
    def fault(self) -> Fault | None:
        """What failed first, if a repair may mend it: what raises at full size, else the first stage's."""
        faults = [result.fault for result in self.results.values() if result.fault]
        raising = [result.fault for result in self.results.values() if result.fault and result.stops]
        return next(iter(raising or faults), None)

    @property
    def share(self) -> BytesPerRank | None:
        """Parameter bytes per rank; None when the model was not sharded."""
        return next((result.share for result in self.results.values() if result.share), None)

    @property
    def entered(self) -> frozenset[str] | None:
        """Modules that a forward reached, with `*` for layer numbers; None where none ran."""
        return next((result.entered for result in self.results.values() if result.entered is not None), None)

    @property
    def stages(self) -> dict[str, Stage]:
        return {name: result.stage for name, result in self.results.items()}

    @property
    def sound(self) -> bool:
        """Whether every stage passed and nothing stands against the plan but the memory of the device."""
        wrong = (d for d in self.diagnostics if d.severity is Severity.ERROR and d.code not in MEMORY_CODES)
        return all(result.passed for result in self.results.values()) and not any(wrong)

    @property
    def passed(self) -> bool:
        return self.report().verdict is Verdict.PASS

    def report(self) -> Report:
        return Report(
            model=self.subject.spec.source.name,
            tp_size=self.subject.sharding.tp_size,
            versions=versions(),
            stages=self.stages,
            diagnostics=self.diagnostics,
            bytes_per_rank=self.share,
            dtype=self.subject.spec.loaded_as,
            memory=self.costs.memory if self.costs else None,
            overrides=dict(sorted(self.subject.sharding.overrides.items())),
            ranks=self.ranks,
            programs=tuple(program for result in self.results.values() for program in result.programs),
            plan=self.subject.file.path if self.subject.file else None,
        )


def judge(subject: Subject, depth: str | None = None, *, bench: Bench | None = None) -> Judgement:
    """Run every stage up to `depth` on `subject`. Raises nothing for what is wrong with the plan or the model.

    depth: a name of the table of stages, the last one if left out. bench: what earlier judgements of the same model
    have made already.
    """
    depth, bench = depth or table.deepest(), bench or Bench(subject)
    known = bench.remembered(subject, depth)
    if known:
        return known
    results: dict[str, StageResult] = {}
    for entry in table.up_to(depth):
        stopped = next((result.stops for result in results.values() if result.stops), "")
        if stopped:
            results[entry.name] = StageResult(stage=Stage(status=Status.NOT_RUN, reason=stopped))
        else:
            result = entry.run(subject, results, bench)
            results = {name: _revised(one, result) for name, one in results.items()} | {entry.name: result}
    diagnostics = [diagnostic for result in results.values() for diagnostic in result.diagnostics]
    costs = _costs(subject, results, bench) if is_asked_for(subject) else None
    measured = any(result.programs for result in results.values()) and not subject.training
    if costs and not measured:  # the compiler's own numbers are better than an estimate, but have no gradients
        diagnostics += memory_diagnostics(subject, costs)
    judgement = Judgement(subject=subject, results=results, diagnostics=in_order(diagnostics), costs=costs)
    bench.remember(judgement, depth)
    return judgement


def measured_costs(judgement: Judgement, bench: Bench) -> Costs | None:
    """The costs of a plan, whether or not its verdict weighs them; None where the model did not run sharded."""
    return judgement.costs or _costs(judgement.subject, judgement.results, bench)


def _costs(subject: Subject, results: Mapping[str, StageResult], bench: Bench) -> Costs | None:
    ran = next((result for result in results.values() if result.share), None)
    return costs_of(subject, ran.share, bench) if ran and ran.share and ran.passed else None


def _revised(result: StageResult, later: StageResult) -> StageResult:
    """A result with those of its diagnostics replaced that a later stage has more to say about."""
    changes = {id(old): new for old, new in later.revisions}
    if not any(id(diagnostic) in changes for diagnostic in result.diagnostics):
        return result
    said = [changes.get(id(diagnostic), diagnostic) for diagnostic in result.diagnostics]
    return judged(said, result.stage.seconds, result.stops)


def with_result(judgement: Judgement, name: str, result: StageResult) -> Judgement:
    """The judgement with the result of one stage more."""
    diagnostics = in_order((*judgement.diagnostics, *result.diagnostics))
    return replace(judgement, results={**judgement.results, name: result}, diagnostics=diagnostics)


def in_order(diagnostics: Iterable[Diagnostic]) -> tuple[Diagnostic, ...]:
    """Errors, warnings, notes; by their place within each."""

    def place(diagnostic: Diagnostic) -> tuple:
        where = diagnostic.where
        severity = SEVERITIES.index(diagnostic.severity)
        return severity, where.line or 0, where.column or 0, diagnostic.code, str(where), diagnostic.message

    return tuple(sorted(diagnostics, key=place))
