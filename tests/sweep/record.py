"""One case from config to records: both sides asked in children of their own, and their answers put side by side."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from . import children, product
from .agreement import compare, holding
from .cases import Case, write_config
from .oracle import Oracle


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """How cases are run. layers: the most that an architecture keeps, None for all. log: what a child printed last."""

    purpose: str
    numerics: product.Numerics
    limits: children.Limits
    log: Path
    layers: int | None = None


def records(case: Case, tp_sizes: list[int], sweep: Sweep) -> Iterator[dict]:
    """One record for each tp_size."""
    start = {
        "case": case.name,
        "model_type": case.model_type,
        "purpose": sweep.purpose,
        "numerics": str(sweep.numerics),
    }
    with tempfile.TemporaryDirectory(prefix="tpplan-sweep-") as directory:
        try:
            file = write_config(case, Path(directory), sweep.layers)
        except Exception as error:  # a config class that cannot be made without arguments
            words = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
            yield from (start | {"tp_size": size, "skipped": words} for size in tp_sizes)
            return
        ours = children.run(
            lambda: product.answers(file, case.auto_class, tp_sizes, sweep.purpose, sweep.numerics),
            len(tp_sizes),
            sweep.limits,
            sweep.log,
        )
        answers = {answer["tp_size"]: answer for answer in ours.said}
        questions = list(_questions(tp_sizes, answers))
        theirs = children.run(
            lambda: _ask(file, case.auto_class, questions, sweep.purpose), len(questions), sweep.limits, sweep.log
        )
    runs = dict(zip(map(str, questions), theirs.said, strict=False))  # a child that ended early said less
    for size in tp_sizes:
        answer = answers.get(size) or {"check": _broken(ours.failure)}
        made = start | {"tp_size": size, "peak_mib": ours.peak_mib} | answer
        yield made | _side_by_side(made, size, runs, theirs.failure)


def _questions(tp_sizes: list[int], answers: dict[int, dict]) -> Iterator[tuple]:
    """(tp_size, overrides, ep_size) that the oracle is to run: every size's own plan, then the repairs."""
    for size in tp_sizes:
        yield (size, None, None)
    for size in tp_sizes:
        repair = answers.get(size, {}).get("repair", {})
        if _is_a_plan(repair):
            yield (size, repair["overrides"], repair["ep_size"])


def _is_a_plan(repair: dict) -> bool:
    """Whether the repair ended in another plan than the model's own, that has not failed."""
    return bool(repair.get("overrides") or repair.get("ep_size")) and _structure(repair) in ("pass", "incomplete")


def _ask(file: Path, auto_class: str | None, questions: list[tuple], purpose: str) -> Iterator[dict]:
    oracle = Oracle(file, auto_class, training=purpose == "training")
    for question in questions:
        yield asdict(oracle.sharded(*question))


def _side_by_side(made: dict, size: int, runs: dict[str, dict], failure: str) -> dict:
    missing = {"status": failure.partition(":")[0] or "crash", "error": failure}
    plain = runs.get(str((size, None, None)), missing)
    found: dict[str, Any] = {"oracle": plain, "agreement": str(compare(_structure(made["check"]), plain["status"]))}
    repair = made.get("repair")
    if repair:
        changed, run = _is_a_plan(repair), plain
        if changed:
            run = runs.get(str((size, repair["overrides"], repair["ep_size"])), missing)
            found["oracle_repair"] = run
        found["holding"] = str(holding(_structure(repair), changed, run["status"]))
    return found


def _structure(judged: dict) -> str:
    return judged.get("structure", judged["verdict"])


def _broken(failure: str) -> dict:
    return {"verdict": failure.partition(":")[0], "errors": [["child", "", failure]], "seconds": 0.0}
