"""Commands on models and plans."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tpplan.choices import Depth, Optimize, Strategy
from tpplan.cli.app import app
from tpplan.cli.options import (
    AutoClassOption,
    BatchOption,
    DeviceOption,
    DtypeOption,
    Format,
    FormatOption,
    Language,
    MaxLengthOption,
    ModelArgument,
    ModelOrPlanArgument,
    PurposeOption,
    RanksOption,
    StrategyOption,
    TpSizeOption,
    TrustOption,
    WithModelOption,
)
from tpplan.cli.printing import say_repair, say_strategies, show, write
from tpplan.diagnostics import PlanError

if TYPE_CHECKING:
    from tpplan.request import Request


@app.command()
def check(
    what: ModelOrPlanArgument,
    tp_size: TpSizeOption = None,
    model: WithModelOption = None,
    auto_class: AutoClassOption = None,
    device: DeviceOption = None,
    purpose: PurposeOption = None,
    dtype: DtypeOption = None,
    depth: Annotated[
        Depth,
        typer.Option(
            help="static: arithmetic alone. shapes: run it without weights. numerics: compare a miniature's numbers too."
        ),
    ] = Depth.SHAPES,
    batch: BatchOption = None,
    max_length: MaxLengthOption = None,
    output_format: FormatOption = Format.TEXT,
    trust_remote_code: TrustOption = False,
) -> int:
    """Say whether a model loads and runs at a tp_size, or whether a plan does, and what stands against it."""
    _leave_chips_alone()
    from tpplan import api

    try:
        report = api.check(
            what,
            tp_size,
            model=model,
            auto_class=auto_class,
            device=device,
            purpose=purpose,
            dtype=dtype,
            depth=depth,
            batch=batch,
            max_length=max_length,
            trust_remote_code=trust_remote_code,
        )
    except PlanError as error:
        report = error.report
    return show(report, output_format)


@app.command()
def plan(
    what: ModelArgument,
    tp_size: RanksOption = None,
    output: Annotated[
        str | None, typer.Option("-o", "--output", metavar="FILE", help="Write the plan here, not to stdout.")
    ] = None,
    strategy: StrategyOption = Strategy.REPLICATE,
    extend: Annotated[
        bool, typer.Option("--extend", help="Also find rules for the layers that the model's own plan leaves whole.")
    ] = False,
    explain: Annotated[
        bool, typer.Option("--explain", help="Try every strategy, and show on stderr what each costs.")
    ] = False,
    optimize: Annotated[
        Optimize | None,
        typer.Option(
            help="Take the strategy with the fewest bytes on a rank, or the fewest collectives, whatever --strategy."
        ),
    ] = None,
    batch: BatchOption = None,
    max_length: MaxLengthOption = None,
    name: Annotated[
        str | None, typer.Option("--id", metavar="ID", help="Name of the model in the plan, if not MODEL.")
    ] = None,
    auto_class: AutoClassOption = None,
    device: DeviceOption = None,
    purpose: PurposeOption = None,
    dtype: DtypeOption = None,
    trust_remote_code: TrustOption = False,
) -> int:
    """Write a plan that passes, or say why none can."""
    _leave_chips_alone()
    from tpplan import answers
    from tpplan.files import require_writable, write_atomically

    request = _request(
        what=what,
        tp_size=tp_size,
        name=name,
        auto_class=auto_class,
        device=device,
        purpose=purpose,
        dtype=dtype,
        batch=batch,
        max_length=max_length,
        trust_remote_code=trust_remote_code,
    )
    candidates: list = []
    try:
        if output is not None:
            require_writable(output)
        if explain or optimize:
            made, repaired, candidates = answers.make_best_plan(request, strategy, optimize, extend)
        else:
            made, repaired = answers.make_plan(request, strategy, extend)
        if output is not None:
            write_atomically(output, made.to_yaml())
    except PlanError as error:
        return show(error.report, Format.TEXT, stream="stderr")
    if output is None:
        sys.stdout.write(made.to_yaml())
    if candidates:
        say_strategies(candidates, repaired)
    say_repair(repaired, output, extend=extend)
    return 0


@app.command()
def sizes(
    what: ModelArgument,
    tp_size: Annotated[
        list[int] | None,
        typer.Option(
            "--tp-size", metavar="N", help="A size; repeatable. Without: all that the device has on one host."
        ),
    ] = None,
    strategy: StrategyOption = Strategy.REPLICATE,
    auto_class: AutoClassOption = None,
    device: DeviceOption = None,
    purpose: PurposeOption = None,
    dtype: DtypeOption = None,
    depth: Annotated[
        Depth, typer.Option(help="shapes: run each without weights. numerics: compare a miniature's numbers too.")
    ] = Depth.SHAPES,
    batch: BatchOption = None,
    max_length: MaxLengthOption = None,
    output_format: FormatOption = Format.TEXT,
    trust_remote_code: TrustOption = False,
) -> int:
    """Every tp_size side by side: what runs, by which repair, bytes on a rank, whether they fit, and what it moves."""
    _leave_chips_alone()
    from tpplan import answers
    from tpplan.cli import tables
    from tpplan.rendering import document

    request = _request(
        what=what,
        auto_class=auto_class,
        device=device,
        purpose=purpose,
        dtype=dtype,
        batch=batch,
        max_length=max_length,
        trust_remote_code=trust_remote_code,
    )
    try:
        found = answers.candidates_by_size(request, tuple(tp_size or ()), strategy, depth)
    except PlanError as error:
        return show(error.report, output_format)
    if output_format is Format.JSON:
        sys.stdout.write(document({"sizes": [candidate.to_dict() for candidate in found]}))
    else:
        write(tables.sizes_table(found))
        write(tables.notes(found))
    return 0 if any(candidate.report.exit_code == 0 for candidate in found) else 1


@app.command()
def compile(
    what: ModelOrPlanArgument,
    tp_size: TpSizeOption = None,
    language: Annotated[Language, typer.Option("--as", help="What to emit.")] = Language.PYTHON,
    strategy: StrategyOption = Strategy.REPLICATE,
    model: WithModelOption = None,
    auto_class: AutoClassOption = None,
    device: DeviceOption = None,
    purpose: PurposeOption = None,
    dtype: DtypeOption = None,
    trust_remote_code: TrustOption = False,
) -> int:
    """Emit the DistributedConfig of a plan that passes, or of a model after its repair."""
    _leave_chips_alone()
    from tpplan import answers
    from tpplan.planner import compiled

    request = _request(
        what=what,
        tp_size=tp_size,
        model=model,
        auto_class=auto_class,
        device=device,
        purpose=purpose,
        dtype=dtype,
        trust_remote_code=trust_remote_code,
    )
    try:
        subject = answers.passing_subject(request, strategy)
    except PlanError as error:
        return show(error.report, Format.TEXT, stream="stderr")
    sys.stdout.write(compiled.as_json(subject) if language is Language.JSON else compiled.as_python(subject))
    return 0


@app.command()
def verify(
    what: ModelOrPlanArgument,
    tp_size: TpSizeOption = None,
    miniature: Annotated[bool, typer.Option("--miniature", help="Launch a small model of the same structure.")] = False,
    timeout: Annotated[float, typer.Option(metavar="SECONDS", help="For all processes together.")] = 600.0,
    nnodes: Annotated[int, typer.Option(metavar="N", help="Number of hosts; run the command on each.")] = 1,
    node_rank: Annotated[int, typer.Option(metavar="N", help="Number of this host, from 0.")] = 0,
    rdzv_endpoint: Annotated[str | None, typer.Option(metavar="HOST:PORT", help="Where several hosts meet.")] = None,
    strategy: StrategyOption = Strategy.REPLICATE,
    model: WithModelOption = None,
    auto_class: AutoClassOption = None,
    device: DeviceOption = None,
    purpose: PurposeOption = None,
    dtype: DtypeOption = None,
    output_format: FormatOption = Format.TEXT,
    trust_remote_code: TrustOption = False,
) -> int:
    """Load the model sharded for real: ranks under torchrun load, run and generate, and are compared with the whole."""
    _leave_chips_alone()
    from tpplan.cli.progress import progress_bar
    from tpplan.launch.verify import verify as launch

    request = _request(
        what=what,
        tp_size=tp_size,
        model=model,
        auto_class=auto_class,
        device=device,
        purpose=purpose,
        dtype=dtype,
        trust_remote_code=trust_remote_code,
    )
    try:
        with progress_bar() as progress:
            report = launch(
                request,
                strategy=strategy,
                miniature=miniature,
                timeout=timeout,
                nnodes=nnodes,
                node_rank=node_rank,
                rdzv_endpoint=rdzv_endpoint,
                progress=progress,
            )
    except PlanError as error:
        report = error.report
    return show(report, output_format)


def _leave_chips_alone() -> None:
    """Keep torch_tpu from loading with torch: these commands run the model's code on cpu, a launch may hold the chip."""
    from tpplan.targets import AUTOLOAD

    os.environ.setdefault(AUTOLOAD, "0")


def _request(**values: Any) -> Request:
    from tpplan.request import Request

    return Request(**values)
