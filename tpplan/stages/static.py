"""The static stage: arithmetic on the config, the resolved plan and the shapes of parameters. Nothing is run."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping

from tpplan import checks
from tpplan.codes import Severity
from tpplan.diagnostics import Diagnostic, Stage, Status
from tpplan.stages.bench import Bench
from tpplan.stages.result import CODES_OF, Fault, FaultKind, StageResult
from tpplan.subject import Subject

# What arithmetic alone can find of what a repair may mend, the first to be mended first.
FOUND_HERE = (FaultKind.HEADS, FaultKind.SCALES, FaultKind.WIDTH)


def run(subject: Subject, earlier: Mapping[str, StageResult], bench: Bench) -> StageResult:
    """The result of all static checks."""
    started = time.perf_counter()
    rejected = checks.rejections(subject)
    found = (*rejected, *checks.findings(subject))
    codes = ", ".join(sorted({diagnostic.code for diagnostic in rejected}))
    return judged(found, time.perf_counter() - started, f"Transformers rejects the plan ({codes})" if rejected else "")


def judged(diagnostics: Iterable[Diagnostic], seconds: float, stops: str) -> StageResult:
    """The result that these diagnostics make."""
    said = tuple(diagnostics)
    failed = any(diagnostic.severity is Severity.ERROR for diagnostic in said)
    stage = Stage(status=Status.FAILED if failed else Status.PASSED, seconds=seconds)
    return StageResult(stage=stage, diagnostics=said, fault=_fault(said), stops=stops)


def _fault(diagnostics: tuple[Diagnostic, ...]) -> Fault | None:
    for kind in FOUND_HERE:
        for diagnostic in diagnostics:
            where = diagnostic.where
            if diagnostic.code in CODES_OF[kind] and (where.module or where.parameter or kind is FaultKind.WIDTH):
                parameters = (where.parameter,) if where.parameter else ()
                return Fault(kind=kind, module=where.module or "", parameters=parameters)
    return None
