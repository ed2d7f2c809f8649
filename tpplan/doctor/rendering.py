"""A diagnosis as text for people or as one JSON document for programs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tpplan.doctor.line import Diagnosis, LineStatus
from tpplan.rendering import document, shown

if TYPE_CHECKING:
    from rich.table import Table

STYLES = {LineStatus.PASSED: "green", LineStatus.FAILED: "bold red", LineStatus.NOT_APPLICABLE: "dim"}


def as_json(diagnosis: Diagnosis) -> str:
    """The diagnosis as JSON, in the shape of doctor.schema.json, with a newline at the end."""
    return document(diagnosis.to_dict())


def as_table(diagnosis: Diagnosis) -> Table:
    """A row a line: outcome, name, and what was found with the code and the fix of a failure; the verdict last."""
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2, 0, 0))
    for line in diagnosis.lines:
        found = Text(shown(line.found))
        if line.status is LineStatus.FAILED:
            found = Text(f"{line.code}: ") + found
            found.append(f"\nfix: {shown(line.fix)}" if line.fix else "")
        table.add_row(Text(str(line.status), style=STYLES[line.status]), Text(line.name), found)
    count = len(diagnosis.failed)
    verdict = Text(
        f"{count} failed" if count else "pass", style=STYLES[LineStatus.FAILED if count else LineStatus.PASSED]
    )
    table.add_row(verdict, Text("verdict"), Text(f"as {diagnosis.device}"))
    return table
