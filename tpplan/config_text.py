"""The text of a config.json: what it says, and where each key stands, which Python's json does not tell."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
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


@dataclass(kw_only=True)
class _Open:
    """An object or a list whose end was not met yet.

    keys: where it stands. key: of an object, that whose value is next, None before a key. index: of a list.
    """

    keys: Keys
    is_object: bool
    key: str | None = None
    index: int = 0

    @property
    def inside(self) -> Keys:
        """Where the value that is next stands."""
        return (*self.keys, self.index if self.key is None else self.key)


def parse_json(text: str) -> Any:
    """The value of a JSON document, as Transformers reads it.

    Raises json.JSONDecodeError for what is no JSON, RecursionError and ValueError for what Python cannot hold, and
    DuplicateKeys for a key that stands twice in one object: readers, Transformers among them, silently keep the last.
    """
    try:
        value = json.loads(text, object_pairs_hook=_distinct)
    except _Duplicate:
        json.loads(text)  # raises for what is no JSON behind the duplicate
        raise DuplicateKeys(_duplicates(text)) from None
    if _is_deep(value):
        raise RecursionError(f"nested more than {MAX_DEPTH} deep")
    return value


def position_of(text: str, keys: Keys) -> Position | None:
    """Line and column of the last of `keys`, or None where they do not lead to a value. text: what parse_json takes."""
    return next((_position(text, offset) for found, offset in keys_of(text) if found == keys), None)


def keys_of(text: str) -> Iterator[tuple[Keys, int]]:
    """Every key of every object, led to by those around it, with its offset; in the order of the text."""
    opened: list[_Open] = []
    for match in _TOKEN.finditer(text):
        token, around = match[0], opened[-1] if opened else None
        if token in "{[":
            opened.append(_Open(keys=around.inside if around else (), is_object=token == "{"))
        elif around is None:
            continue  # a value alone
        elif token in "}]":
            opened.pop()
        elif token == ",":
            around.key, around.index = None, around.index + 1
        elif around.is_object and around.key is None and token[0] == '"':
            around.key = json.loads(token, strict=False)
            yield around.inside, match.start()


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
