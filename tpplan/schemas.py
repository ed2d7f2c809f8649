"""The JSON Schemas of what tpplan reads and prints, with the closed sets of this release filled in.

The files beside this module say the shape; a set that has a table or an enumeration of its own is a `$ref` in them, and
its values come from there.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from enum import StrEnum
from importlib.resources import files
from typing import Any

from tpplan.choices import Device, Dtype, Purpose
from tpplan.planner.strategies import STRATEGIES
from tpplan.stages import table


class SchemaName(StrEnum):
    PLAN = "plan"
    REPORT = "report"
    SIZES = "sizes"
    DOCTOR = "doctor"


SETS: dict[str, Callable[[], Iterable[str]]] = {
    "device": lambda: Device,
    "purpose": lambda: Purpose,
    "dtype": lambda: Dtype,
    "stage": table.names,
    "strategy": lambda: STRATEGIES,
}


def schema(name: str) -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of this name, a value of SchemaName."""
    text = files("tpplan").joinpath(f"{name}.schema.json").read_text(encoding="utf-8")
    found: dict[str, Any] = json.loads(text)
    used = {key: values for key, values in SETS.items() if f'"#/$defs/{key}"' in text}
    if used:
        found["$defs"] = {key: {"type": "string", "enum": [str(v) for v in values()]} for key, values in used.items()}
    return found
