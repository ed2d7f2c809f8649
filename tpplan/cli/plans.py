"""Commands on models and plans."""

from __future__ import annotations

import os
import sys
from contextlib import nullcontext
from typing import Annotated, Any

import typer

from tpplan.choices import Optimize, Phase, Trust, usage_error
from tpplan.cli.app import app
from tpplan.cli.options import (
    Format,
    FormatOption,
    Language,
    ModelArgument,
    ModelOrPlanArgument,
    ModelsOrPlansArgument,
    RanksOption,
    StrategyOption,
    TpSizeOption,
    depth_option,
    shares,
)
from tpplan.cli.printing import say_repair, say_strategies, show, show_all, write
from tpplan.diagnostics import PlanError

Shared = dict[str, Any]  # the options that the library takes as they are
COMPILER = ("prefill", "full")  # of them, those of a stage that only `check` and `sizes` run


@app.command()
@shares()
def check(
    what: ModelsOrPlansArgument,
    options: Shared,
    tp_size: TpSizeOption = None,
    depth: Annotated[str | None, depth_option()] = None,
    update: Annotated[
        bool, typer.Option("--update", help="Seal each plan that passes: write into it what was proven.")
    ] = False,
    output_format: FormatOption = Format.TEXT,
) -> int:
    """Say whether a model loads and runs right at a tp_size, or whether a plan does, and what stands against it."""
    _leave_chips_alone()
    from tpplan import api
    from tpplan.cli.progress import progress_bar

    several = len(what) > 1 or api.inputs(what) != what
    try:
        with progress_bar("checking") if several else nullcontext() as progress:
            reports = api.check_all(what, tp_size, depth=depth, update=update, progress=progress, **options)
    except PlanError as error:
        return show(error.report, output_format)
    return show_all(reports, output_format) if several else show(reports[0], output_format)


@app.command()
@shares("model", *COMPILER)
def plan(
    what: ModelArgument,
    options: Shared,
    tp_size: RanksOption = None,
    output: Annotated[
        str | None, typer.Option("-o", "--output", metavar="FILE", help="Write the plan here, not to stdout.")
    ] = None,
    strategy: StrategyOption = None,
    extend: Annotated[
        bool, typer.Option("--extend", help="Also find rules for layers that the model's own plan leaves replicated.")
    ] = False,
    explain: Annotated[
        bool, typer.Option("--explain", help="Try every strategy, and show on stderr what each costs.")
    ] = False,
    optimize: Annotated[
        Optimize | None,
        typer.Option(
            help="Take the strategy with the fewest bytes per rank, or the fewest collectives, whatever --strategy."
        ),
    ] = None,
    name: Annotated[
        str | None, typer.Option("--id", metavar="ID", help="Name of the model in the plan, if not MODEL.")
    ] = None,
) -> int:
    """Write a plan that passes, or say why none can."""
    _leave_chips_alone()
    from tpplan import api
    from tpplan.files import require_writable, write_atomically

    try:
        if output is not None:
            require_writable(output)
        found = api.find_plan(
            what,
            tp_size,
            strategy=strategy,
            extend=extend,
            name=name,
            compare=explain,
            optimize=optimize,
            **options,
        )
        text = found.plan.to_yaml()
        if output is not None:
            write_atomically(output, text)
    except PlanError as error:
        return show(error.report, Format.TEXT, stream="stderr")
    if output is None:
        sys.stdout.write(text)
    say_strategies(found)
    say_repair(found, output, extend=extend)
    return 0


@app.command()
@shares("model")
def sizes(
    what: ModelArgument,
    options: Shared,
    tp_size: Annotated[
        list[int] | None,
        typer.Option(
            "--tp-size", metavar="N", help="A size; repeatable. Without: all that the device has on one host."
        ),
    ] = None,
    strategy: StrategyOption = None,
    depth: Annotated[str | None, depth_option(measured=True)] = None,
    output_format: FormatOption = Format.TEXT,
) -> int:
    """Every tp_size side by side: what runs, by which repair, bytes per rank, whether they fit, and what it moves."""
    _leave_chips_alone()
    from tpplan import api
    from tpplan.cli import tables
    from tpplan.rendering import document

    try:
        found = api.size_candidates(what, tp_size or (), strategy=strategy, depth=depth, **options)
    except PlanError as error:
        return show(error.report, output_format)
    if output_format is Format.JSON:
        sys.stdout.write(document({"sizes": [candidate.to_dict() for candidate in found]}))
    else:
        write(tables.sizes_table(found))
        write(tables.notes(found))
    return 0 if any(candidate.report.exit_code == 0 for candidate in found) else 1


@app.command()
@shares("full")
def compile(
    what: ModelOrPlanArgument,
    options: Shared,
    tp_size: TpSizeOption = None,
    language: Annotated[
        Language,
        typer.Option(
            "--as", help="What to emit. stablehlo: a rank's program, lowered by torch_tpu; it is written to a FILE."
        ),
    ] = Language.PYTHON,
    output: Annotated[
        str | None, typer.Option("-o", "--output", metavar="FILE", help="Write it here, not to stdout.")
    ] = None,
    phase: Annotated[Phase, typer.Option(help="The program that --as stablehlo emits.")] = Phase.PREFILL,
    strategy: StrategyOption = None,
    require_proof: Annotated[
        bool, typer.Option("--require-proof", help="Run all stages, whatever the plan's seal and the cache say.")
    ] = False,
) -> int:
    """Emit the DistributedConfig of a plan that passes, or of a model after its repair."""
    _leave_chips_alone()
    from tpplan import api
    from tpplan.files import require_writable, write_atomically

    try:
        if output is not None:
            require_writable(output)
        if language is Language.STABLEHLO:
            if output is None:
                raise usage_error("a program is not for a terminal", fix="give -o FILE", model=what)
            program = api.lowered(what, tp_size, phase=phase, strategy=strategy, **options)
            write_atomically(output, program)
            return 0
        trust = Trust.NEVER if require_proof else Trust.SEAL
        made = api.compiled(what, tp_size, strategy=strategy, trust=trust, **options)
        text = made.json() if language is Language.JSON else made.python
        if output is not None:
            write_atomically(output, text)
    except PlanError as error:
        return show(error.report, Format.TEXT, stream="stderr")
    if output is None:
        sys.stdout.write(text)
    return 0


@app.command()
@shares("cache", *COMPILER)
def verify(
    what: ModelOrPlanArgument,
    options: Shared,
    tp_size: TpSizeOption = None,
    miniature: Annotated[bool, typer.Option("--miniature", help="Launch a small model of the same structure.")] = False,
    timeout: Annotated[float, typer.Option(metavar="SECONDS", help="For all processes together.")] = 600.0,
    nnodes: Annotated[int, typer.Option(metavar="N", help="Number of hosts; run the command on each.")] = 1,
    node_rank: Annotated[int, typer.Option(metavar="N", help="Number of this host, from 0.")] = 0,
    rdzv_endpoint: Annotated[str | None, typer.Option(metavar="HOST:PORT", help="Where several hosts meet.")] = None,
    strategy: StrategyOption = None,
    output_format: FormatOption = Format.TEXT,
) -> int:
    """Check, then load the model sharded: ranks under torchrun run and generate, compared with the unsharded model."""
    _leave_chips_alone()
    from tpplan import api
    from tpplan.cli.progress import progress_bar

    try:
        with progress_bar("reading the model") as progress:
            report = api.verify(
                what,
                tp_size,
                strategy=strategy,
                miniature=miniature,
                timeout=timeout,
                nnodes=nnodes,
                node_rank=node_rank,
                rdzv_endpoint=rdzv_endpoint,
                progress=progress,
                **options,
            )
    except PlanError as error:
        report = error.report
    return show(report, output_format)


def _leave_chips_alone() -> None:
    """Keep torch_tpu from loading with torch: these commands run on cpu, and a launch may hold the chip."""
    from tpplan.targets import AUTOLOAD

    os.environ.setdefault(AUTOLOAD, "0")
