"""Candidates as tables for people: one row per tp_size, or one row per strategy."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from tpplan.answers import Candidate, Usage
from tpplan.diagnostics import CompiledProgram, Memory, Report, Verdict
from tpplan.rendering import VERDICT_STYLE, shown
from tpplan.units import gib

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

COSTS = ("parameters", "replicated", "KV cache", "fits", "per layer and token", "TFLOPs")


def sizes_table(candidates: Sequence[Candidate]) -> Table:
    """One row for each tp_size, ascending."""
    from rich.text import Text

    table = _table("tp_size", "verdict", "repair")
    for candidate in candidates:
        verdict = Text(str(candidate.verdict), style=VERDICT_STYLE[candidate.verdict])
        table.add_row(str(candidate.tp_size), verdict, _repair(candidate), *_costs(candidate))
    return table


def reports_table(reports: Iterable[Report]) -> Table:
    """One row for each model and plan that was checked."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("model or plan", "tp_size", "verdict", "parameters", "why"):
        table.add_column(name, justify="right" if name in ("tp_size", "parameters") else "left")
    for report in reports:
        verdict = Text(str(report.verdict), style=VERDICT_STYLE[report.verdict])
        held = gib(report.bytes_per_rank.parameters) if report.bytes_per_rank else ""
        why = " ".join(dict.fromkeys(error.code for error in report.errors))
        name = shown(report.plan or report.model or report.diagnostics[0].where.file or "")
        table.add_row(name, str(report.tp_size or ""), verdict, held, why or _day(report))
    return table


def _day(report: Report) -> str:
    return f"remembered from {report.remembered}" if report.remembered else ""


def strategies_table(candidates: Sequence[Candidate], chosen: Candidate) -> Table:
    """One row for each strategy, the one that became the plan marked."""
    from rich.text import Text

    table = _table("", "strategy", "verdict")
    for candidate in candidates:
        strategy = candidate.strategy or "the model's own plan"
        verdict = Text(str(candidate.verdict), style=VERDICT_STYLE[candidate.verdict])
        table.add_row("*" if candidate == chosen else "", strategy, verdict, *_costs(candidate))
    return table


def notes(candidates: Iterable[Candidate]) -> str:
    """What the columns mean, for which cache, and why a size fails, one line each."""
    lines = []
    memory = next((c.costs.memory for c in candidates if c.costs), None)
    if memory and memory.cache is not None:
        lines.append(
            f"KV cache: static, {memory.batch} x {memory.max_length} tokens; in parentheses an even split of it"
        )
    if any(c.costs and c.costs.usage.collectives for c in candidates):
        lines.append(
            "per layer and token: collectives on one rank and bytes of the tensors that they complete, on average"
        )
    for candidate in candidates:
        lines += [f"tp_size {candidate.tp_size}: {_compiled(program)}" for program in candidate.report.programs]
        if candidate.verdict is not Verdict.PASS:
            lines.append(f"tp_size {candidate.tp_size}: {_why(candidate.report)}")
    return "".join(f"{line}\n" for line in lines)


def _compiled(program: CompiledProgram) -> str:
    """What the compiler counts of a program, for its own column beside the estimate."""
    if program.refused:
        return f"{program.phase} refused by the compiler"
    size = f"{program.phase} of {program.batch} x {program.tokens} tokens"
    return f"{size} needs {gib(program.hbm)} of HBM by the compiler, {gib(program.temporaries)} of it temporaries"


def _why(report: Report) -> str:
    """What keeps a plan from passing, and what mends it where that is known."""
    if not report.errors:
        return "; ".join(stage.reason for stage in report.stages.values() if stage.reason)
    first = report.errors[0]
    name = first.where.parameter or first.where.module
    said = f"{name}: {first.message}" if name else first.message
    return f"{said}; {first.fix}" if first.fix else said


def _table(*first: str) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in (*first, *COSTS):
        right = name in ("tp_size", "parameters", "replicated", "KV cache", "TFLOPs")
        table.add_column(name, justify="right" if right else "left", no_wrap=name != "repair")
    return table


def _costs(candidate: Candidate) -> tuple[Text | str, ...]:
    costs = candidate.costs
    if costs is None:
        return ("",) * len(COSTS)
    share, memory, usage = costs.share, costs.memory, costs.usage
    replicated = f"{share.whole / share.parameters:.0%}" if share.parameters else ""
    flops = f"{usage.flops / 1e12:.3f}" if usage.flops else ""
    return gib(share.parameters), replicated, _cache(memory), _fits(memory), _in_a_layer(usage), flops


def _repair(candidate: Candidate) -> str:
    """What is overridden and why; blocks that differ in nothing but their layers are one already."""
    return "; ".join(
        f"{attempt.block or 'the model'}: {attempt.reason}, {attempt.describe()}"
        + (f" ({candidate.strategy})" if attempt.overrides else "")
        for attempt in candidate.attempts
    )


def _cache(memory: Memory) -> str:
    if memory.cache is None:
        return ""
    even = f" ({gib(memory.cache_even)})" if memory.cache_even not in (None, memory.cache) else ""
    return f"{gib(memory.cache)}{even}"


def _fits(memory: Memory) -> Text | str:
    from rich.text import Text

    if memory.hbm is None:
        return ""
    left = memory.hbm - memory.held
    if left < 0:
        return Text.assemble(("no", "bold red"), f", {gib(-left)} over")
    word = ("yes", "bold green") if memory.fits else ("maybe", "bold yellow")
    return Text.assemble(word, f", {gib(left)} free")


def _in_a_layer(usage: Usage) -> str:
    inside = [collective for collective in usage.collectives if collective.in_layers]
    if not usage.layers:
        return ""
    return (
        ", ".join(
            f"{collective.count / usage.layers:.3g} {collective.kind} {collective.bytes / usage.layers / 1024:.4g} KiB"
            for collective in inside
        )
        or "none"
    )
