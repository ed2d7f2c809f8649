"""A report as text for people or as one JSON document for programs."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from tpplan.codes import Severity
from tpplan.diagnostics import CompiledProgram, Diagnostic, Memory, Report, Status, Verdict
from tpplan.stages import table
from tpplan.units import gib, in_one_unit, joined

if TYPE_CHECKING:
    from rich.text import Text

SEVERITY_STYLE = {Severity.ERROR: "bold red", Severity.WARNING: "bold yellow", Severity.NOTE: "bold cyan"}
STATUS_STYLE = {Status.PASSED: "green", Status.FAILED: "red", Status.NOT_RUN: "yellow"}
VERDICT_STYLE = {"pass": "bold green", "fail": "bold red", "incomplete": "bold yellow"}


def as_json(report: Report) -> str:
    """The report as JSON, in the shape of report.schema.json, with a newline at the end."""
    return document(report.to_dict())


def document(values: dict) -> str:
    """Plain values as one JSON document, with a newline at the end. Half a surrogate pair, which a config may hold and
    UTF-8 may not, stays the escape that it was."""
    text = json.dumps(values, indent=2, ensure_ascii=False) + "\n"
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def as_text(report: Report) -> Text:
    """The report for a terminal: diagnostics (a fix that several share once), then stages, bytes and the verdict."""
    from rich.text import Text

    text = Text()
    fixes: set[str] = set()
    for diagnostic in report.diagnostics:
        text.append_text(diagnostic_text(diagnostic, with_fix=diagnostic.fix not in fixes))
        fixes.add(diagnostic.fix)
    for name, stage in report.stages.items():
        text.append(f"{name:<8} ")
        text.append(f"{stage.status:<8}", style=STATUS_STYLE[stage.status])
        text.append(f" {stage.seconds:.2f} s")
        text.append(f"  {shown(stage.reason)}\n" if stage.reason else "\n")
    if report.bytes_per_rank:
        share = report.bytes_per_rank
        held, whole, ideal = in_one_unit(share.parameters, share.whole, share.ideal)
        text.append(
            f"bytes    {held} of parameters in {report.dtype} per rank (even split {ideal}), {whole} replicated\n"
        )
    if report.memory:
        text.append(memory_text(report.memory))
    for program in report.programs:
        text.append(program_text(program))
    if report.is_bad_usage:  # there is nothing that a verdict could be about
        return text
    text.append("verdict  ")
    text.append(str(report.verdict), style=VERDICT_STYLE[report.verdict])
    if report.verdict is Verdict.PASS and (left_out := [name for name in table.needed() if name not in report.stages]):
        text.append(f" without {joined(left_out)}")
    size = f" at tp_size {report.tp_size}" if report.tp_size else ""
    text.append(f": {shown(report.model)}{size}" if report.model else "")
    text.append(f" (remembered from {report.remembered})\n" if report.remembered else "\n")
    return text


def program_text(program: CompiledProgram) -> str:
    """What the TPU's compiler says of a program: what it takes, what a chip holds, what it computes and moves."""
    if program.refused:
        return f"{program.phase:<8} refused by the compiler for {program.topology}\n"
    calls = program.traced if program.kept is None else program.kept
    moved = ", ".join(f"{count} {kind.replace('_', '-')}" for kind, count in calls.items()) or "no collectives"
    kernels = ", ".join(f"{count} {name}" for name, count in program.kernels.items())
    about = " (extrapolated)" if program.extrapolated else ""
    return (
        f"{program.phase:<8} {gib(program.hbm)} of HBM on {program.topology}{about} for {program.batch} x "
        f"{program.tokens} tokens\n"
        f"         parameters {gib(program.parameters)}, cache {gib(program.cache)}, temporaries "
        f"{gib(program.temporaries)}, code {gib(program.code)}\n"
        f"         {program.flops / 1e9:.1f} GFLOP, {gib(int(program.accessed))} read and written\n"
        f"         {moved}; kernels: {kernels or 'none'}\n"
    )


def memory_text(memory: Memory) -> str:
    """What a rank holds beside its parameters, and what is left of its device."""
    lines = []
    if memory.cache is not None:
        even = f" (even split {gib(memory.cache_even)})" if memory.cache_even is not None else ""
        lines.append(f"cache    {gib(memory.cache)} per rank{even} for {memory.batch} x {memory.max_length} tokens\n")
    if memory.hbm is not None:
        about = f"; activations take up to {gib(memory.activations)} (estimate)" if memory.activations else ""
        lines.append(f"memory   {gib(memory.held)} of {gib(memory.hbm)} per device{about}\n")
    return "".join(lines)


def diagnostic_text(diagnostic: Diagnostic, *, with_fix: bool = True) -> Text:
    """`place: severity CODE slug: message`, then the evidence and the fix on lines of their own."""
    from rich.text import Text

    text = Text()
    place = str(diagnostic.where)
    text.append(shown(f"{place}: ") if place else "")
    text.append(str(diagnostic.severity), style=SEVERITY_STYLE[diagnostic.severity])
    text.append(f" {diagnostic.code} {diagnostic.slug}: {shown(diagnostic.message)}\n")
    if diagnostic.evidence:
        text.append(f"  evidence: {shown(diagnostic.evidence)}\n", style="dim")
    if diagnostic.fix and with_fix:
        text.append(f"  fix: {shown(diagnostic.fix)}\n")
    return text


def shown(text: str) -> str:
    """`text` with control characters spelled out: a name from a file must not move the cursor or forge a line."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)
