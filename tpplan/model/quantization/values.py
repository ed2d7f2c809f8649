"""Reading the values of a quantization_config, each of the one type that it may have."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from reprlib import repr as shown
from typing import Any

KINDS = {dict: "an object", list: "a list", str: "a string", bool: "a boolean", int: "an integer", float: "a number"}


class Malformed(ValueError):
    """A quantization_config that no loader can read. key: the value at fault, dotted below quantization_config."""

    def __init__(self, message: str, key: str = "") -> None:
        super().__init__(message)
        self.key = key


@dataclass(frozen=True, kw_only=True)
class Values:
    """One object of a quantization_config. inside: its dotted name, empty for the whole.

    A method returns the value of `key`, or its default; it raises Malformed for a value that no loader can read.
    """

    raw: Mapping[str, Any]
    inside: str = ""

    @classmethod
    def of(cls, raw: object, inside: str = "") -> Values:
        if not isinstance(raw, dict):
            raise Malformed(f"{inside or 'quantization_config'} is {kind_of(raw)}, must be an object", inside)
        return cls(raw=raw, inside=inside)

    def object(self, key: str) -> Values:
        return Values.of(self.raw.get(key), self.dotted(key))

    def flag(self, key: str, default: bool = False) -> bool:
        value = self.raw.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self._malformed(key, f"is {kind_of(value)}, must be true or false")
        return value

    def choice(self, key: str, allowed: tuple[str, ...], default: str) -> str:
        value = self.raw.get(key)
        if value is None:
            return default
        if value not in allowed:
            raise self._malformed(key, f"is {shown(value)}, must be one of {', '.join(allowed)}")
        return value

    def bits(self, key: str, allowed: tuple[int, ...], default: int | None = None) -> int:
        """default: None where the key must be there."""
        if key not in self.raw and default is None:
            raise Malformed(f"quantization_config has no {key}", self.dotted(key))
        value = self.raw.get(key, default)
        if type(value) is not int or value not in allowed:
            raise self._malformed(key, f"is {shown(value)}, must be one of {', '.join(map(str, allowed))}")
        return value

    def group_size(self, default: int | None) -> int | None:
        """-1 and null mean all of the input dim, which is None here."""
        value = self.raw.get("group_size", default)
        if value is None or value == -1:
            return None
        if type(value) is not int or value < 1:
            raise self._malformed("group_size", f"is {shown(value)}, must be a positive integer or -1")
        return value

    def pair(self, key: str) -> tuple[int, int]:
        value = self.raw.get(key)
        match value:
            case [int(high), int(wide)] if bool not in map(type, value) and min(high, wide) > 0:
                return high, wide
        raise self._malformed(key, f"is {shown(value)}, must be two positive integers")

    def names(self, key: str, *, expressions: str = "") -> tuple[str, ...] | None:
        """Names of modules, read as regular expressions where they start with `expressions`; None if missing."""
        value = self.raw.get(key)
        if value is None:
            return None
        if not isinstance(value, list | tuple) or not all(isinstance(name, str) for name in value):
            raise self._malformed(key, "is not a list of strings")
        for name in value:
            if name.startswith(expressions):
                self._compile(key, name.removeprefix(expressions))
        return tuple(value)

    def dotted(self, key: str) -> str:
        return f"{self.inside}.{key}" if self.inside else key

    def _compile(self, key: str, expression: str) -> None:
        try:
            re.compile(expression)
        except (re.error, OverflowError, RecursionError) as error:
            said = f"has {shown(expression)}, which is not a regular expression ({error})"
            raise self._malformed(key, said) from error

    def _malformed(self, key: str, said: str) -> Malformed:
        return Malformed(f"{self.dotted(key)} {said}", self.dotted(key))


def kind_of(value: object) -> str:
    return "missing" if value is None else KINDS.get(type(value), type(value).__name__)
