"""Values of a config: how one is read, and those that no reader takes as they were meant, refused at their place."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator
from typing import Any

from tpplan.diagnostics import Diagnostic, Keys
from tpplan.source import Source

# Numbers of heads, by the names that config classes give them.
QUERY_HEADS = ("num_attention_heads", "n_head", "n_heads", "num_heads", "num_attention_head", "attention_heads")
KEY_VALUE_HEADS = (
    "num_key_value_heads",
    "num_kv_heads",
    "n_head_kv",
    "n_kv_heads",
    "n_kv_head",
    "kv_heads",
    "num_query_groups",
    "multi_query_group_num",
    "num_attention_kv_heads",
)
FIELDS = {"num_attention_heads": QUERY_HEADS, "num_key_value_heads": KEY_VALUE_HEADS}  # by Transformers' name
ONE_KEY_VALUE_HEAD = ("multi_query", "multi_query_attention")  # true: one, unless another name says how many
_QUOTED = re.compile(r"[`'\"](\w+)[`'\"]")


def config_value(config: Any, name: str) -> Any:
    """The value of a config attribute, or None when it has none or holds one per layer.

    Heterogeneous configs raise a RuntimeError of their own for values that differ by layer.
    """
    try:
        return getattr(config, name, None)
    except RuntimeError:
        return None


def refuse_odd_counts(source: Source, raw: dict) -> None:
    """Raise InputError (TPP117) for every number of heads, nested ones included, that is no whole number above 0.

    raw: the config as it was parsed. Lists (one number a layer or a stage) and null are left to Transformers.
    """
    found = [
        (keys, value)
        for keys, value in _values(raw)
        if keys[-1] in (*QUERY_HEADS, *KEY_VALUE_HEADS) and isinstance(value, (str, bool, int, float))
    ]
    odd = [(keys, value) for keys, value in found if type(value) is not int or value < 1]
    if odd:
        raise source.refused(
            *(
                Diagnostic(
                    code="TPP117",
                    message=f"{keys[-1]} is {_kind(value)}, must be a whole number of heads, so no model can be built",
                    where=source.place_of(*keys),
                    evidence=f"{'.'.join(map(str, keys))} = {json.dumps(value)}",
                    fix=f"correct the value in {source.called}",
                )
                for keys, value in odd
            )
        )


def refuse_unread_counts(source: Source, raw: dict, config: Any, path: Keys, used: dict[str, int | None]) -> None:
    """Raise InputError (TPP112) for a number of heads under a name that the config class does not read.

    raw: the part of the config that describes the language model, at `path`. config: the same part as Transformers
    read it. used: query and key/value heads that the class has, by Transformers' names, None where it has no such
    value. A name is no trap where the number that the class uses is the same, or stands there under its own name too.
    """
    own = names_read_by(type(config))
    unread: dict[str, tuple[int, str]] = {}
    for field, names in FIELDS.items():
        if all(raw.get(name) is None for name in names if name in own):
            unread |= _claims(raw, names, own, field)
    odd = [(name, value, field) for name, (value, field) in unread.items() if used[field] not in (value, None)]
    if odd:
        cls = type(config).__name__
        raise source.refused(
            *(
                Diagnostic(
                    code="TPP112",
                    message=f"{name} is not read, and {field} is not in the config: it would be a different model",
                    where=source.place_of(*path, name),
                    evidence=f"{name} = {json.dumps(raw[name])}; {cls} does not read it, and its {field} is "
                    f"{used[field]}",
                    fix=f"put {field} into {source.called}",
                )
                for name, value, field in odd
            )
        )


def refuse_contradictions(source: Source, raw: dict, config: Any, path: Keys) -> None:
    """Raise InputError (TPP118) for two names of one value that give it different values: one would silently win.

    Arguments as in `refuse_unread_counts`.
    """
    cls: Any = type(config)
    pairs = [(alias, name) for alias, name in cls.attribute_map.items() if alias in raw and name in raw]
    odd = [(alias, name) for alias, name in pairs if raw[alias] != raw[name] and None not in (raw[alias], raw[name])]
    if odd:
        raise source.refused(
            *(
                Diagnostic(
                    code="TPP118",
                    message=f"{alias} and {name} are two names of one value and differ, so one is silently dropped",
                    where=source.place_of(*path, name),
                    evidence=f"{alias} = {json.dumps(raw[alias])}, {name} = {json.dumps(raw[name])} "
                    f"({cls.__name__}.attribute_map)",
                    fix=f"remove the wrong one of the two from {source.called}",
                )
                for alias, name in odd
            )
        )


def place_named_by(source: Source, raw: dict, error: Exception) -> Keys:
    """Keys of the value of `raw` that an error names in quotes, or () where it names none, or several would do.

    Where several values have that name, it is the one whose value is quoted too.
    """
    said = str(error)
    for name in _QUOTED.findall(said):
        named = [(keys, value) for keys, value in _values(raw) if keys[-1] == name]
        if len(named) > 1:
            named = [(keys, value) for keys, value in named if repr(value) in said]
        if len(named) == 1:
            return named[0][0]
    return ()


def _claims(raw: dict, names: tuple[str, ...], own: Collection[str], field: str) -> dict[str, tuple[int, str]]:
    """Name -> the number that it says, and the field it is about; of names that the class does not read."""
    said = {name: (raw[name], field) for name in names if name not in own and type(raw.get(name)) is int}
    if not said and field in KEY_VALUE_HEADS:
        said = {name: (1, field) for name in ONE_KEY_VALUE_HEAD if name not in own and raw.get(name) is True}
    return said


def names_read_by(cls: Any) -> set[str]:
    """Names that a config class of Transformers has fields for, or reads as another name of one."""
    fields = {name for base in cls.__mro__ for name in vars(base).get("__annotations__", {})}
    return fields | set(cls.attribute_map) | set(cls.attribute_map.values())


def _values(raw: dict, path: Keys = ()) -> Iterator[tuple[Keys, Any]]:
    for key, value in raw.items():
        yield (*path, key), value
        if isinstance(value, dict):
            yield from _values(value, (*path, key))


def _kind(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"the string {json.dumps(value)}" if isinstance(value, str) else json.dumps(value)
