"""Plan files: the plan in a file and the place of each of its parts, or every mistake in it with line and column.

`text` reads the text and `shape` judges what it says; here the file is read and the two are put together.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from tpplan.diagnostics import Diagnostic, InputError, Keys, Place, Position
from tpplan.files import read_regular
from tpplan.plan_files.document import Plan
from tpplan.plan_files.shape import all_mistakes
from tpplan.plan_files.text import end_of, place_of, read_yaml

MAX_BYTES = 1 << 20


@dataclass(frozen=True, kw_only=True)
class PlanFile:
    """A plan, and where each of its parts stands. path: the file as the user gave it. places: keys -> position."""

    path: str
    plan: Plan
    places: Mapping[Keys, Position] = field(repr=False)

    def place_of(self, *keys: str | int) -> Place:
        """Line and column of the last of `keys` in the file, or of the closest enclosing part that stands there."""
        return place_of(self.path, self.places, keys)

    def place_of_rule(self, rule: str) -> Place:
        """Line and column of a rule of `overrides`, and its name; the closest enclosing part if it is not there."""
        return replace(self.place_of("overrides", rule), rule=rule)


def read_plan(path: str | os.PathLike[str]) -> PlanFile:
    """The plan in the file at `path`.

    Raises InputError with every mistake in the file (TPP101 to TPP105), sorted by position.
    """
    return parse_plan(read_text(path), file=os.fspath(path))


def read_text(path: str | os.PathLike[str]) -> str:
    """The text of the plan file at `path`. Raises InputError (TPP101)."""
    name = os.fspath(path)
    try:
        data = read_regular(name, MAX_BYTES + 1)
    except (OSError, ValueError) as error:  # ValueError: a name that holds NUL
        said = "there is no such file" if isinstance(error, FileNotFoundError) else "the file cannot be read"
        raise _unreadable(Place(file=name), said, getattr(error, "strerror", None) or str(error)) from None
    if len(data) > MAX_BYTES:
        raise _too_large(name)
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        line, _ = end_of(data[: error.start].decode("utf-8"))
        found = f"byte 0x{data[error.start]:02x} at offset {error.start}"
        raise _unreadable(Place(file=name, line=line), "the file is not UTF-8 text", found) from None


def parse_plan(text: str, file: str = "<string>") -> PlanFile:
    """The plan that `text` describes; `file` is what diagnostics call it.

    Raises InputError with every mistake in the text (TPP101 to TPP105), sorted by position.
    """
    if len(text) > MAX_BYTES:
        raise _too_large(file)
    document = read_yaml(text, file)
    if mistakes := all_mistakes(document) if document.is_complete else document.mistakes:
        raise InputError(*_sorted(mistakes))
    return PlanFile(path=file, plan=Plan.from_dict(document.value), places=document.places)


def _sorted(mistakes: Sequence[Diagnostic]) -> list[Diagnostic]:
    """`mistakes` by position; at one position a misnamed key stays before its value."""
    return sorted(mistakes, key=lambda mistake: (mistake.where.line or 0, mistake.where.column or 0))


def _too_large(file: str) -> InputError:
    return _unreadable(Place(file=file), "the file is too large for a plan", f"a plan has at most {MAX_BYTES} bytes")


def _unreadable(where: Place, message: str, evidence: str) -> InputError:
    return InputError(Diagnostic(code="TPP101", message=message, where=where, evidence=evidence))
