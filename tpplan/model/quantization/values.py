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
        value = default if self.raw.get(key) is None else self.raw[key]
        return self._fitting(key, value, isinstance(value, bool), "true or false")

    def choice(self, key: str, allowed: tuple[str, ...], default: str) -> str:
        value = default if self.raw.get(key) is None else self.raw[key]
        return self._fitting(key, value, value in allowed, f"one of {', '.join(allowed)}")

    def bits(self, key: str, allowed: tuple[int, ...], default: int | None = None) -> int:
        """default: None where the key must be there."""
        if key not in self.raw and default is None:
            raise Malformed(f"quantization_config has no {key}", self.dotted(key))
        value = self.raw.get(key, default)
        fits = type(value) is int and value in allowed
        return self._fitting(key, value, fits, f"one of {', '.join(map(str, allowed))}")

    def group_size(self, default: int | None) -> int | None:
        """-1 and null mean all of the input dim, which is None here."""
        value = self.raw.get("group_size", default)
        if value is None or value == -1:
            return None
        return self._fitting("group_size", value, type(value) is int and value > 0, "a positive integer or -1")

    def pair(self, key: str) -> tuple[int, int]:
        value = self.raw.get(key)
        fits = isinstance(value, list | tuple) and len(value) == 2 and all(type(n) is int and n > 0 for n in value)
        high, wide = self._fitting(key, value, fits, "two positive integers")
        return high, wide

    def names(self, key: str, *, expressions: str = "") -> tuple[str, ...] | None:
        """Names of modules, read as regular expressions where they start with `expressions`; None if missing."""
        value = self.raw.get(key)
        if value is None:
            return None
        fits = isinstance(value, list | tuple) and all(isinstance(name, str) for name in value)
        self._fitting(key, value, fits, "a list of strings")
        for expression in (name.removeprefix(expressions) for name in value if name.startswith(expressions)):
            try:
                re.compile(expression)
            except (re.error, OverflowError, RecursionError) as error:
                said = f"{self.dotted(key)} has {shown(expression)}, which is not a regular expression ({error})"
                raise Malformed(said, self.dotted(key)) from error
        return tuple(value)

    def dotted(self, key: str) -> str:
        return f"{self.inside}.{key}" if self.inside else key

    def _fitting(self, key: str, value: Any, fits: bool, must_be: str) -> Any:
        if not fits:
            raise Malformed(f"{self.dotted(key)} is {shown(value)}, must be {must_be}", self.dotted(key))
        return value


def kind_of(value: object) -> str:
    return "missing" if value is None else KINDS.get(type(value), type(value).__name__)
