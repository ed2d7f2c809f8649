"""tpplan's own answers on one config: what `check` and `plan` say, with every exception that is ours recorded."""

from __future__ import annotations

import time
import traceback
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import Any


class Numerics(StrEnum):
    """Which plans are compared on a miniature: none, those that a repair made, or the model's own plan too."""

    NONE = "none"
    REPAIRS = "repairs"
    ALL = "all"


def answers(
    file: Path, auto_class: str | None, tp_sizes: list[int], purpose: str, numerics: Numerics
) -> Iterator[dict]:
    """For each tp_size what tpplan says: `check`, and `repair` where there was something to repair or to prove."""
    for tp_size in tp_sizes:
        began = time.process_time()
        answer = _answer(file, auto_class, tp_size, purpose, numerics)
        yield {"tp_size": tp_size, "cpu_seconds": round(time.process_time() - began, 2)} | answer


def _answer(file: Path, auto_class: str | None, tp_size: int, purpose: str, numerics: Numerics) -> dict:
    from tpplan.diagnostics import InputError
    from tpplan.opening import open_request
    from tpplan.planner.repair import repair
    from tpplan.request import make_request
    from tpplan.stages.bench import Bench
    from tpplan.stages.judge import judge

    answer: dict[str, Any] = {}
    started = time.perf_counter()
    try:
        subject = open_request(make_request(file, tp_size, auto_class=auto_class, purpose=purpose))
        bench = Bench(subject)
        answer["class_name"] = subject.skeleton.class_name
        answer["open_seconds"] = _since(started)
        judgement = judge(subject, "shapes", bench=bench)
        answer["check"] = _judged(judgement) | {"seconds": _since(started)}
        proven, stopped = numerics is Numerics.ALL, judgement.results.get("shapes")
        if (proven and judgement.passed) or (stopped and stopped.stops and not judgement.passed):
            started = time.perf_counter()
            depth = "shapes" if numerics is Numerics.NONE else "numerics"
            found = repair(subject, depth=depth, bench=bench)
            answer["repair"] = _judged(found.judgement) | {
                "seconds": _since(started),
                "overrides": found.overrides,
                "ep_size": found.judgement.subject.sharding.ep_size,
                "attempts": [[attempt.block, attempt.reason] for attempt in found.attempts],
            }
    except InputError as error:
        answer["check"] = {
            "verdict": "refused",
            "errors": [_shown(diagnostic) for diagnostic in error.diagnostics],
            "seconds": _since(started),
        }
    except Exception:  # a bug of ours is what a sweep is for
        key = "repair" if "check" in answer else "check"
        answer[key] = {
            "verdict": "crash",
            "errors": [["traceback", traceback.format_exc()]],
            "seconds": _since(started),
        }
    return answer


def _judged(judgement: Any) -> dict:
    report = judgement.report()
    share = report.bytes_per_rank
    return {
        "verdict": str(report.verdict),
        "structure": _structure(report),
        "codes": sorted({diagnostic.code for diagnostic in report.diagnostics}),
        "errors": [_shown(diagnostic) for diagnostic in report.errors],
        "stages": {name: [str(stage.status), round(stage.seconds, 2)] for name, stage in report.stages.items()},
        "not_run": {name: stage.reason for name, stage in report.stages.items() if stage.status == "not-run"},
        "share": round(share.parameters / share.ideal, 4) if share else None,
    }


def _structure(report: Any) -> str:
    """The verdict without the errors of a quantized checkpoint: the oracle runs the model as if it were not one."""
    from tpplan.codes.quantized import QUANTIZED

    ran = all(stage.status == "passed" for name, stage in report.stages.items() if name != "static")
    only_quantized = all(error.code in QUANTIZED for error in report.errors)
    return "pass" if ran and report.errors and only_quantized else str(report.verdict)


def _shown(diagnostic: Any) -> list[str]:
    where = diagnostic.where.module or diagnostic.where.parameter or diagnostic.where.rule or ""
    return [diagnostic.code, where, f"{diagnostic.message} [{diagnostic.evidence[:300]}]"]


def _since(started: float) -> float:
    return round(time.perf_counter() - started, 2)
