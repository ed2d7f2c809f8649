"""Answers that were given before, kept in the user's cache directory: an unchanged question needs no import.

An entry is one JSON file, named by the digest of all that its answer depends on. What is not there, not readable or not
whole is as if it had never been: nothing here raises.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import time
from collections.abc import Callable, Iterator
from datetime import date
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar, get_type_hints

from tpplan import engine, fingerprint
from tpplan.diagnostics import PlanError, Report, Verdict
from tpplan.files import read_regular
from tpplan.plain import from_plain, to_plain
from tpplan.request import Request

DIRECTORY = "TPPLAN_CACHE"  # the variable that names the directory; empty: nothing is kept
KEPT = 1000  # entries; the oldest go first
MAX_BYTES = 16 << 20  # of an entry
ENTRY, UNFINISHED = re.compile(r"[0-9a-f]{64}\.json"), re.compile(r"[0-9a-f]{16}\.tmp")  # all else is not ours
FORGOTTEN = 3600  # seconds after which an unfinished file is nobody's

Given = ParamSpec("Given")
Answer = TypeVar("Answer")


def answer(
    function: Callable[Concatenate[Request, Given], Answer],
    request: Request,
    *args: Given.args,
    **kwargs: Given.kwargs,
) -> Answer:
    """What the engine's function answers, from the cache where this very question was answered before.

    Kept are passes and failures, and that nothing passes (PlanError); never an answer that is incomplete, or whose
    question changed while it was given.
    """
    known = recalled(function, request, *args, **kwargs)
    if known is not None:
        return known

    def place() -> tuple[Path, dict[str, str]] | None:
        return _place(function.__name__, request, *args, *kwargs.values())

    before = place()
    try:
        found = engine.answer(function, request, *args, **kwargs)
    except PlanError as error:
        if before and type(error) is PlanError and _is_settled(error.report) and place() == before:
            _write(*before, "raised", error.report)
        raise
    if before and all(map(_is_settled, _reports(found))) and place() == before:  # else it changed meanwhile
        _write(*before, "answer", found)
    return found


def recalled(
    function: Callable[Concatenate[Request, Given], Answer], request: Request, *args: Given.args, **kwargs: Given.kwargs
) -> Answer | None:
    """What the engine's function answered to this question, None where that is not known. Raises what it raised."""
    file = _file(function.__name__, request, *args, *kwargs.values())
    known = _read(file, request, get_type_hints(function)["return"]) if file else None
    if isinstance(known, PlanError):
        raise known
    found: Answer | None = known
    return found


def directory() -> Path | None:
    """Where answers are kept; None where nowhere."""
    named = os.environ.get(DIRECTORY)
    if named is not None:
        return Path(named) if named else None
    import platformdirs

    home = platformdirs.user_cache_path("tpplan")
    return home if home.is_absolute() else None  # a user without a home


def _file(function: str, request: Request, *args: Any) -> Path | None:
    home = directory() if request.cache else None
    try:
        return home / f"{fingerprint.question(function, request, *args)}.json" if home else None
    except fingerprint.NotKnown:
        return None


def _place(function: str, request: Request, *args: Any) -> tuple[Path, dict[str, str]] | None:
    """The entry of a question, and the digest of the model on disk that its plan leads to; None where none is kept."""
    file = _file(function, request, *args)
    try:
        name = fingerprint.model_of_plan(request) if file else None
        depends = {} if name is None else {name: fingerprint.content_on_disk(request, name)}
    except (fingerprint.NotKnown, PlanError):
        return None
    return (file, depends) if file else None


def _read(file: Path, request: Request, kind: Any) -> Any:
    """The answer in an entry, or the PlanError that was raised; None where there is none that holds."""
    try:
        entry = json.loads(read_regular(file, MAX_BYTES))
        if any(fingerprint.content_on_disk(request, name) != known for name, known in entry["depends"].items()):
            return None
        said = _marked(entry["said"], entry["date"])
        return PlanError(from_plain(Report, said)) if entry["kind"] == "raised" else from_plain(kind, said)
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError, fingerprint.NotKnown):
        return None


def _write(file: Path, depends: dict[str, str], kind: str, said: Any) -> None:
    with contextlib.suppress(OSError, ValueError, TypeError):
        entry = {"date": date.today().isoformat(), "depends": depends, "kind": kind, "said": to_plain(said)}
        text = json.dumps(entry)
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        beside = file.with_name(f"{secrets.token_hex(8)}.tmp")
        try:
            beside.write_text(text, encoding="utf-8")
            beside.replace(file)
        finally:
            beside.unlink(missing_ok=True)
        _prune(file.parent)


def _prune(home: Path) -> None:
    """Remove the oldest entries beyond KEPT, and what a process that was killed left unfinished."""
    ages = {}
    for path in home.iterdir():
        with contextlib.suppress(OSError):  # another process removed it
            ages[path] = path.lstat().st_mtime
    entries = sorted(filter(lambda path: ENTRY.fullmatch(path.name), ages), key=ages.__getitem__)
    unfinished = [path for path in ages if UNFINISHED.fullmatch(path.name) and ages[path] < time.time() - FORGOTTEN]
    for path in (*entries[:-KEPT], *unfinished):
        with contextlib.suppress(OSError):  # a directory
            path.unlink()


def _reports(found: Any) -> Iterator[Report]:
    for one in found if isinstance(found, list) else [found]:
        if report := one if isinstance(one, Report) else getattr(one, "report", None):
            yield report


def _is_settled(report: Report) -> bool:
    """Whether the same would be said again: nothing failed to run, and no error is the environment's."""
    about_here = any(error.code.startswith("TPP9") for error in report.errors)
    return report.verdict is not Verdict.INCOMPLETE and not about_here


def _marked(said: Any, day: str) -> Any:
    """An answer's plain values, with every report in it marked with the day that it was made."""
    if isinstance(said, list):
        return [_marked(one, day) for one in said]
    if isinstance(said, dict):
        marks = {"remembered": day} if {"stages", "diagnostics", "remembered"} <= said.keys() else {}
        return {key: _marked(one, day) for key, one in said.items()} | marks
    return said
