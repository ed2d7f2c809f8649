"""The JSON Schemas of what tpplan reads and prints, with the closed sets of this release filled in.

The files beside this module say the shape; a set that has a table or an enumeration of its own is a `$ref` in them, and
its values are filled in here.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from enum import StrEnum
from importlib.resources import files
from typing import Any

from tpplan.choices import Device, Dtype, Purpose


class SchemaName(StrEnum):
    PLAN = "plan"
    REPORT = "report"
    REPORTS = "reports"
    SIZES = "sizes"
    DOCTOR = "doctor"


def filled(name: str, sets: Mapping[str, Iterable[str]] | None = None) -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of this name, a value of SchemaName.

    sets: values of the closed sets that are tables: stages and strategies, which a plan's schema does not have.
    """
    text = files("tpplan").joinpath(f"{name}.schema.json").read_text(encoding="utf-8")
    schema: dict[str, Any] = json.loads(text)
    known: dict[str, Iterable[str]] = {"device": Device, "purpose": Purpose, "dtype": Dtype, **(sets or {})}
    used = {key: list(map(str, values)) for key, values in known.items() if f'"#/$defs/{key}"' in text}
    if used:
        schema["$defs"] = {key: {"type": "string", "enum": values} for key, values in used.items()}
    if '"#/$defs/report"' in text:
        report = filled("report", sets)
        schema["$defs"] = report.pop("$defs") | {"report": report}
    return schema
