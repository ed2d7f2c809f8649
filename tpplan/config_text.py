"""The text of a config.json: what it says, and where each key stands, which Python's json does not tell."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from tpplan.diagnostics import Keys, Position

MAX_DEPTH = 64  # of objects and lists inside one another; configs have a handful

_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[][{}:,]|[^][{}:,"\s]+', re.DOTALL)


class DuplicateKeys(ValueError):
    """An object has a key twice. found: for each, its keys, its place, and the place where it stood first."""

    def __init__(self, found: list[tuple[Keys, Position, Position]]) -> None:
        super().__init__(f"{len(found)} keys stand twice")
        self.found = found


class _Duplicate(Exception):
    pass


def parse_json(text: str) -> Any:
    """The value of a JSON document, as Transformers reads it.

    Raises json.JSONDecodeError for what is no JSON, RecursionError and ValueError for what Python cannot hold, and
    DuplicateKeys for a key that stands twice in one object: readers, Transformers among them, silently keep the last.
    """
    try:
        value = json.loads(text, object_pairs_hook=_distinct)
    except _Duplicate:
        raise DuplicateKeys(_duplicates(text)) from None
    if _is_deep(value):
        raise RecursionError(f"nested more than {MAX_DEPTH} deep")
    return value


def position_of(text: str, keys: Keys) -> Position | None:
    """Line and column of the last of `keys`, or None where they do not lead to a value. text: what parse_json takes."""
    return next((_position(text, offset) for found, offset in keys_of(text) if found == keys), None)


def keys_of(text: str) -> Iterator[tuple[Keys, int]]:
    """Every key of every object, led to by those around it, with its offset; in the order of the text."""
    open_: list[tuple[Keys, bool]] = []  # where each list or object that is open stands, and whether it is an object
    last: list[str | int | None] = []  # in each of them: the key whose value is next, the index, or None before a key
    for match in _TOKEN.finditer(text):
        token = match[0]
        if token in "{[":
            around = (*open_[-1][0], last[-1]) if open_ else ()
            open_.append((around, token == "{"))
            last.append(None if token == "{" else 0)
        elif token in "}]":
            open_.pop()
            last.pop()
        elif token == "," and open_:
            last[-1] = None if open_[-1][1] else last[-1] + 1
        elif token[0] == '"' and open_ and open_[-1][1] and last[-1] is None:
            last[-1] = json.loads(token, strict=False)
            yield (*open_[-1][0], last[-1]), match.start()


def _is_deep(value: Any) -> bool:
    level = [value]
    for _ in range(MAX_DEPTH + 1):
        parts = [part.values() if isinstance(part, dict) else part for part in level if isinstance(part, (dict, list))]
        if not parts:
            return False
        level = [part for inside in parts for part in inside]
    return True


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) != len(pairs):
        raise _Duplicate
    return values


def _duplicates(text: str) -> list[tuple[Keys, Position, Position]]:
    first: dict[Keys, int] = {}
    found = []
    for keys, offset in keys_of(text):
        if keys in first:
            found.append((keys, _position(text, offset), _position(text, first[keys])))
        first.setdefault(keys, offset)
    return found


def _position(text: str, offset: int) -> Position:
    return text.count("\n", 0, offset) + 1, offset - text.rfind("\n", 0, offset)
