"""The plan: what it is made for, its overrides, and what was proven; and how it is written as YAML.

`file` reads plans. What `Plan.to_yaml` writes reads back as an equal plan.
"""

from __future__ import annotations

import math
import re
import sys
from dataclasses import dataclass
from functools import cache
from typing import Any

import yaml

from tpplan.schemas import filled

MAX_DEPTH = 32  # collections inside each other, the plan itself included
MAX_DIGITS = 64  # of an integer

# Plain scalars that this reader, a YAML 1.1 reader or a YAML 1.2 reader takes for something else than a string, and
# that PyYAML's own table (1.1, without y and n, floats only with a dot) does not know. PyYAML quotes those it knows.
_LIKE_A_NUMBER = re.compile(r"[-+]?\.?(?:[0-9][0-9a-f_.:xo+-]*|nan|inf|infinity)", re.IGNORECASE)
_LIKE_A_WORD = frozenset(("y", "n", "yes", "no", "on", "off", "true", "false", "null", "~", "<<", "="))


@dataclass(frozen=True, kw_only=True)
class ModelFacts:
    """The model that a plan is for.

    id: hub id, or path of a directory with a config.json. auto_class: name of the auto class that loads it.
    config: the config values that the plan depends on, JSON values with the names and nesting of config.json.
    """

    id: str
    auto_class: str
    config: dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Target:
    """What a plan is made for: numbers of ranks, device, purpose and the dtype that weights are loaded in."""

    tp_size: int
    ep_size: int | None = None
    device: str = "cpu"
    purpose: str = "inference"
    dtype: str | None = None


@dataclass(frozen=True, kw_only=True)
class Proof:
    """What was proven of a plan: stage -> outcome, package -> version, and the strategy that the overrides follow.

    seal: the digest of `tpplan.plan_files.seal`, which an edit of the plan breaks.
    """

    stages: dict[str, str]
    versions: dict[str, str]
    strategy: str | None = None
    seal: str | None = None


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A tensor-parallel plan. overrides: rule -> name of a parallel style, put over the model's own plan."""

    model: ModelFacts
    target: Target
    overrides: dict[str, str]
    proven: Proof | None = None

    def to_dict(self) -> dict[str, Any]:
        """The plan as plain data, in the shape of plan.schema.json; what is None is left out."""
        parts = {
            "version": 1,
            "model": dict(vars(self.model)),
            "target": _present(vars(self.target)),
            "overrides": dict(sorted(self.overrides.items())),
            "proven": None if self.proven is None else _present(vars(self.proven)),
        }
        return _present(parts)

    def to_yaml(self) -> str:
        """The plan file's text: overrides sorted, one line a scalar, ambiguous scalars quoted, a newline at the end.

        Raises ValueError for a value that no plan file can hold: see `as_json_value`.
        """
        return _as_yaml(self.to_dict())

    def proven_yaml(self) -> str:
        """The lines of `to_yaml` that say what was proven."""
        return _as_yaml({"proven": self.to_dict()["proven"]})

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Plan:
        """The plan that `data` describes.

        data: in the shape of plan.schema.json; `file` checks that, this does not.
        """
        proven = data.get("proven")
        return cls(
            model=ModelFacts(**data["model"]),
            target=Target(**data["target"]),
            overrides=dict(data["overrides"]),
            proven=None if proven is None else Proof(**proven),
        )


def _as_yaml(value: dict[str, Any]) -> str:
    return yaml.dump(
        as_json_value(value),
        Dumper=_Dumper,
        sort_keys=False,
        default_flow_style=False,
        allow_unicode=True,
        width=sys.maxsize,
    )


@cache
def plan_schema() -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of plan files. Not to be changed by the caller."""
    return filled("plan")


def as_json_value(value: Any, depth: int = 1) -> Any:
    """`value` as dict, list, str, int, float, bool and None, if a plan file can hold it.

    Raises ValueError for another type, a key that is not a string, a number that is not finite, an integer of more
    than MAX_DIGITS digits, a string that is not Unicode text, or collections nested deeper than MAX_DEPTH.
    """
    if not isinstance(value, dict | list):
        return _as_json_scalar(value)
    if depth > MAX_DEPTH:
        raise ValueError(f"a plan holds no values nested deeper than {MAX_DEPTH}")
    if isinstance(value, list):
        return [as_json_value(item, depth + 1) for item in value]
    if wrong := [key for key in value if not isinstance(key, str)]:
        raise ValueError(f"a plan's keys are strings, not {wrong[0]!r}")
    return {_as_json_scalar(key): as_json_value(item, depth + 1) for key, item in value.items()}


def _as_json_scalar(value: Any) -> str | int | float | bool | None:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        value.encode("utf-8")  # a lone surrogate raises UnicodeEncodeError, a ValueError
        return str.__str__(value)
    if isinstance(value, int) and abs(value) < 10**MAX_DIGITS:
        return int(value)
    if isinstance(value, float) and math.isfinite(value):
        return float(value)
    raise ValueError(f"a plan cannot hold this value of type {type(value).__name__}")


def _present(values: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value is not None}


class _Dumper(yaml.SafeDumper):
    """PyYAML's safe dumper, without anchors, and with quotes around what some reader could misread."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _represent_text(dumper: _Dumper, text: str) -> yaml.ScalarNode:
    style = None
    if not text.isprintable():  # line and paragraph separators too: readers disagree about which of them end a line
        style = '"'
    elif _LIKE_A_NUMBER.fullmatch(text) or text.lower() in _LIKE_A_WORD:
        style = "'"
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _represent_text)
