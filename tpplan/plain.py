"""Values of this package as JSON values, and back: dataclasses of enums, collections and what JSON has itself."""

from __future__ import annotations

import types
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any, Union, get_args, get_origin, get_type_hints


def to_plain(value: Any) -> Any:
    """`value` as dicts, lists and scalars: a dataclass by its fields, an enum by its value."""
    if is_dataclass(value):
        return {field.name: to_plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {key: to_plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_plain(item) for item in value]
    return value.value if isinstance(value, Enum) else value


def from_plain(kind: Any, value: Any) -> Any:
    """The value of type `kind` that `to_plain` made `value` of.

    Raises ValueError, TypeError, KeyError or AttributeError for anything else.
    """
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        (kind,) = (one for one in arguments if one is not types.NoneType)
        return None if value is None else from_plain(kind, value)
    if origin is tuple:
        return tuple(from_plain(arguments[0], item) for item in value)
    if origin is list:
        return [from_plain(arguments[0], item) for item in value]
    if origin is dict:
        return {key: from_plain(arguments[1], item) for key, item in value.items()}
    if is_dataclass(kind):
        hints = get_type_hints(kind)
        made: Any = kind
        return made(**{name: from_plain(hints[name], item) for name, item in value.items()})
    if isinstance(kind, type) and issubclass(kind, Enum):
        return kind(value)
    if kind in (str, int, bool, float, dict) and not isinstance(value, (int, float) if kind is float else kind):
        raise TypeError(f"{value!r} is not of type {kind.__name__}")
    return value
