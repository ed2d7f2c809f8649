"""What commands print: a report, a table, what became of a plan."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tpplan.cli.options import Format
from tpplan.diagnostics import Report

if TYPE_CHECKING:
    from tpplan.answers import Found


def show(report: Report, output_format: Format, stream: str = "stdout") -> int:
    from tpplan import rendering

    if output_format is Format.JSON:
        sys.stdout.write(rendering.as_json(report))
    else:
        write(rendering.as_text(report), stream)
    return report.exit_code


def show_all(reports: Sequence[Report], output_format: Format) -> int:
    """What stands against each that does not pass, then a table of all. Returns the highest exit code."""
    from tpplan import rendering
    from tpplan.cli import tables

    if output_format is Format.JSON:
        sys.stdout.write(rendering.document({"reports": [report.to_dict() for report in reports]}))
    else:
        for report in reports:
            if report.exit_code:
                write(rendering.as_text(report))
        write(tables.reports_table(reports))
    return max(report.exit_code for report in reports)


NOTHING_TO_TRY = "tpplan has none to try for what text reaches and no rule shards"


def say_repair(found: Found, output: str | None, *, extend: bool = False) -> None:
    """On stderr: what the plan overrides and why, and what was run to prove it. extend: more rules were asked for."""
    for attempt in found.attempts:
        strategy = f" ({found.strategy})" if attempt.overrides and not attempt.adds else ""
        write(f"{attempt.block or 'the model'}: {attempt.reason}; {attempt.describe()}{strategy}\n", "stderr")
    if not found.attempts:
        write("the model's own plan passes as it is: no override\n", "stderr")
    if extend and not any(attempt.adds for attempt in found.attempts):
        tried = sorted({attempt.block for attempt in found.refused if attempt.adds})
        write(f"no rule to add: {'none passes for ' + ', '.join(tried) if tried else NOTHING_TO_TRY}\n", "stderr")
    show(found.report, Format.TEXT, "stderr")
    if output:
        write(f"written to {output}\n", "stderr")


def say_strategies(found: Found) -> None:
    """On stderr: what each strategy costs, and which became the plan; nothing where they were not asked for."""
    from tpplan.cli import tables

    if found.chosen:
        write(tables.strategies_table(found.candidates, found.chosen), "stderr")
        write(tables.notes(found.candidates), "stderr")


def write(text: Any, stream: str = "stdout") -> None:
    from rich.console import Console
    from rich.table import Table

    class Pipe(Console):
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError  # rich would exit with 1, which says that a plan fails

    console = Pipe(stderr=stream == "stderr", soft_wrap=True, markup=False, highlight=False, emoji=False)
    if isinstance(text, Table) and not console.is_terminal:  # a file has no width that a table must keep to
        console.width = 10_000
        console.width = console.measure(text).maximum
    console.print(text, end="")
