"""The launch stage alone, whatever the stages before it say of the plan: `verify` launches no plan that fails them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tpplan.diagnostics import Report
from tpplan.launch.options import LaunchOptions
from tpplan.launch.verify import as_launched, launch_stage
from tpplan.model.internals import versions
from tpplan.opening import open_request
from tpplan.plan_files.document import Plan
from tpplan.planner.solve import solve
from tpplan.request import make_request
from tpplan.stages.bench import Bench
from tpplan.stages.judge import in_order
from tpplan.subject import Subject


def launched(what: str | Path | Plan, tp_size: int | None = None, **given: Any) -> Report:
    """The report of the stage: of a plan as it is, of a model with its repaired plan. given: options of both kinds."""
    options = {name: given.pop(name) for name in LaunchOptions.__dataclass_fields__ if name in given}
    request = make_request(what, tp_size, **given)
    subject = open_request(request)
    if not request.is_plan:
        subject = solve(subject, None, Bench(subject)).judgement.subject
    return stage_report(as_launched(subject, dtype_is_asked_for=request.dtype is not None), LaunchOptions(**options))


def stage_report(subject: Subject, options: LaunchOptions) -> Report:
    result = launch_stage(subject, options)
    return Report(
        model=subject.spec.source.name,
        tp_size=subject.sharding.tp_size,
        versions=versions(),
        stages={"launch": result.stage},
        diagnostics=in_order(result.diagnostics),
        overrides=dict(sorted(subject.sharding.overrides.items())),
        ranks=result.ranks,
    )
