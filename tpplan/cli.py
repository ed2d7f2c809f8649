"""The command line: parse, call, render, exit code. Decides nothing.

Exit codes: 0 nothing failed, 1 the plan or model has errors or a stage could not run, 2 bad usage or unreadable input,
3 a bug of tpplan. stdout carries the result alone.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import traceback
from dataclasses import replace
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tpplan.choices import Depth, Device, Dtype, Optimize, Purpose, Strategy
from tpplan.diagnostics import PlanError, Report

if TYPE_CHECKING:
    from tpplan.request import Request

app = typer.Typer(
    name="tpplan",
    help="Tensor-parallel plans for Hugging Face Transformers: check, repair, prove.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


class Format(StrEnum):
    TEXT = "text"
    JSON = "json"


class Language(StrEnum):
    JSON = "json"
    PYTHON = "python"


class SchemaName(StrEnum):
    PLAN = "plan"
    REPORT = "report"
    SIZES = "sizes"
    DOCTOR = "doctor"


ModelOrPlanArgument = Annotated[
    str,
    typer.Argument(metavar="MODEL|PLAN", help="A directory or file with a config.json, a hub id, or a plan (.yaml)."),
]
ModelArgument = Annotated[
    str, typer.Argument(metavar="MODEL", help="A directory or file with a config.json, or a hub id.")
]
TpSizeOption = Annotated[
    int | None, typer.Option("--tp-size", metavar="N", help="Number of ranks. A plan has its own.")
]
AutoClassOption = Annotated[
    str | None, typer.Option(metavar="CLASS", help="The auto class that loads the model. Found from the config.")
]
DeviceOption = Annotated[Device | None, typer.Option(help="What the model will run on.", show_default="cpu")]
PurposeOption = Annotated[
    Purpose | None, typer.Option(help="training: gradients must be right too.", show_default="inference")
]
DtypeOption = Annotated[Dtype | None, typer.Option(help="Dtype of the weights.", show_default="the config's")]
TrustOption = Annotated[bool, typer.Option("--trust-remote-code", help="Run the Python code that the model brings.")]
FormatOption = Annotated[Format, typer.Option("--format", help="json: exactly one document on stdout.")]
RanksOption = Annotated[int | None, typer.Option("--tp-size", metavar="N", help="Number of ranks; required.")]
StrategyOption = Annotated[Strategy, typer.Option(help="What becomes of a block that cannot be sharded.")]
WithModelOption = Annotated[
    str | None,
    typer.Option("--model", metavar="MODEL", help="The model a PLAN will be used with, if not the one it names."),
]


BatchOption = Annotated[
    int | None, typer.Option(metavar="N", help="Sequences that memory is to suffice for.", show_default="1")
]
MaxLengthOption = Annotated[
    int | None, typer.Option(metavar="N", help="Tokens of each sequence.", show_default="4096, or what the model takes")
]


def _print_versions(asked: bool) -> None:
    if not asked:
        return
    from tpplan import __version__
    from tpplan.model.internals import versions

    known = {"torch": "torch", "transformers": "Transformers"}
    installed = [f"{name} {versions()[package]}" for package, name in known.items() if package in versions()]
    _print(f"tpplan {__version__} ({', '.join(installed) or 'neither torch nor Transformers is installed'})\n")
    raise typer.Exit


@app.callback()
def tpplan(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_versions, is_eager=True, help="Print versions, and stop.")
    ] = False,
) -> None:
    """Tensor-parallel plans for Hugging Face Transformers: check, repair, prove."""


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
    return _show(report, output_format)


@app.command()
def plan(
    what: ModelArgument,
    tp_size: RanksOption = None,
    output: Annotated[
        str | None, typer.Option("-o", "--output", metavar="FILE", help="Write the plan here, not to stdout.")
    ] = None,
    strategy: StrategyOption = Strategy.REPLICATE,
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
    from tpplan import api
    from tpplan.files import require_writable, write_atomically

    request = _request(what, tp_size, None, auto_class, device, purpose, dtype, trust_remote_code)
    request = replace(request, name=name, batch=batch, max_length=max_length)
    candidates: list = []
    try:
        if output is not None:
            require_writable(output)
        if explain or optimize:
            made, repaired, candidates = api.make_best_plan(request, strategy, optimize)
        else:
            made, repaired = api.make_plan(request, strategy)
        if output is not None:
            write_atomically(output, made.to_yaml())
    except PlanError as error:
        return _show(error.report, Format.TEXT, stream="stderr")
    if output is None:
        sys.stdout.write(made.to_yaml())
    if candidates:
        _say_strategies(candidates, repaired)
    _say_repair(repaired, output)
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
    from tpplan import api

    request = _request(what, None, None, auto_class, device, purpose, dtype, trust_remote_code)
    request = replace(request, batch=batch, max_length=max_length)
    try:
        found = api.candidates_by_size(request, tuple(tp_size or ()), strategy, depth)
    except PlanError as error:
        return _show(error.report, output_format)
    if output_format is Format.JSON:
        sys.stdout.write(json.dumps({"sizes": [candidate.to_dict() for candidate in found]}, indent=2) + "\n")
    else:
        from tpplan import tables

        _print(tables.sizes_table(found))
        _print(tables.notes(found))
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
    from tpplan import api, compiled

    request = _request(what, tp_size, model, auto_class, device, purpose, dtype, trust_remote_code)
    try:
        subject = api.passing_subject(request, strategy)
    except PlanError as error:
        return _show(error.report, Format.TEXT, stream="stderr")
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
    from tpplan.launch.verify import progress_bar
    from tpplan.launch.verify import verify as launch

    request = _request(what, tp_size, model, auto_class, device, purpose, dtype, trust_remote_code)
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
    return _show(report, output_format)


@app.command(
    options_metavar="[OPTIONS] [TORCHRUN OPTIONS] SCRIPT [ARGUMENTS]",
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "allow_interspersed_args": False},
)
def launch(
    context: typer.Context,
    device: Annotated[
        Device | None, typer.Option(help="tpu: set the TPU environment or fail. Else: where chips are.")
    ] = None,
    print_env: Annotated[bool, typer.Option("--print-env", help="Print what would be set, and start nothing.")] = False,
) -> int:
    """Start torchrun with the TPU launch environment set first.

    Everything after our own options goes to torchrun unchanged; the exit code is the script's.
    """
    from tpplan.launch import torchrun

    try:
        return torchrun.launch(context.args, device, print_env)
    except PlanError as error:
        return _show(error.report, Format.TEXT, stream="stderr")


@app.command()
def doctor(
    device: Annotated[Device | None, typer.Option(help="What must work here. Default: the TPU it has, or cpu.")] = None,
    output_format: FormatOption = Format.TEXT,
) -> int:
    """Say what on this machine would keep a launch from working, or silently spoil it: one line for each thing."""
    from tpplan.doctor import diagnose, rendering

    diagnosis = diagnose(device)
    if output_format is Format.JSON:
        sys.stdout.write(rendering.as_json(diagnosis))
    else:
        _print(rendering.as_table(diagnosis))
    return diagnosis.exit_code


@app.command()
def explain(
    code: Annotated[str | None, typer.Argument(metavar="CODE", help="A code such as TPP301, or its slug.")] = None,
) -> int:
    """Print the page of a code; without CODE, all codes."""
    from tpplan.codes import CODES

    if code is None:
        _print("".join(f"{number} {entry.slug}: {entry.title}\n" for number, entry in sorted(CODES.items())))
        return 0
    by_slug = {entry.slug: number for number, entry in CODES.items()}
    number = by_slug.get(code.lower(), code.upper())
    if number not in CODES:
        said = f"there is no code {code!r}; the codes are {', '.join(sorted(CODES))}"
        raise typer.BadParameter(said, param_hint="CODE")
    entry = CODES[number]
    _print(f"{number} {entry.slug} ({entry.severity}): {entry.title}\n\n{entry.page}\n")
    return 0


@app.command()
def schema(name: Annotated[SchemaName, typer.Argument(help="Which schema.")] = SchemaName.PLAN) -> int:
    """Print the JSON Schema of plan files, or of what `check`, `sizes` and `doctor` print with --format json."""
    from importlib.resources import files

    sys.stdout.write(files("tpplan").joinpath(f"{name}.schema.json").read_text(encoding="utf-8"))
    return 0


def main(arguments: list[str] | None = None) -> int:
    """Run the command line and return its exit code; the console script and `python -m tpplan` call this."""
    arguments = sys.argv[1:] if arguments is None else arguments
    try:
        return app(arguments, prog_name="tpplan", standalone_mode=False) or 0
    except typer.Exit as stop:
        if stop.exit_code == 130:
            sys.stderr.write("interrupted\n")
        return stop.exit_code
    except (KeyboardInterrupt, typer.Abort):
        sys.stderr.write("interrupted\n")
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except Exception as error:
        usage = _usage_message(error)
        if usage == "":  # no command was named, and the help has been printed
            return 2
        return _bug() if usage is None else _bad_usage(arguments, usage, _model_of(error, arguments))


def _leave_chips_alone() -> None:
    """Keep torch_tpu from loading with torch: these commands run the model's code on cpu, a launch may hold the chip."""
    os.environ.setdefault("TORCH_DEVICE_BACKEND_AUTOLOAD", "0")


def _request(what, tp_size, model, auto_class, device, purpose, dtype, trust_remote_code) -> Request:
    from tpplan.request import Request

    return Request(
        what=what,
        tp_size=tp_size,
        model=model,
        auto_class=auto_class,
        device=device,
        purpose=purpose,
        dtype=dtype,
        trust_remote_code=trust_remote_code,
    )


def _show(report: Report, output_format: Format, stream: str = "stdout") -> int:
    from tpplan import report as rendering

    if output_format is Format.JSON:
        sys.stdout.write(rendering.as_json(report))
    else:
        _print(rendering.as_text(report), stream)
    return report.exit_code


def _say_repair(repaired: Any, output: str | None) -> None:
    """On stderr: what the plan overrides and why, and what was run to prove it."""
    from tpplan import report as rendering

    for attempt in repaired.attempts:
        block = attempt.block or "the model"
        _print(f"{block}: {attempt.reason}; {attempt.describe()} ({repaired.strategy})\n", "stderr")
    if not repaired.attempts:
        _print("the model's own plan passes as it is: no override\n", "stderr")
    _print(rendering.as_text(repaired.judgement.report()), "stderr")
    if output:
        _print(f"written to {output}\n", "stderr")


def _say_strategies(candidates: list, repaired: Any) -> None:
    """On stderr: what each strategy costs, and which became the plan."""
    from tpplan import tables

    chosen = next(candidate for candidate in candidates if candidate.repair is repaired)
    _print(tables.strategies_table(candidates, chosen), "stderr")
    _print(tables.notes(candidates), "stderr")


def _print(text: Any, stream: str = "stdout") -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(stderr=stream == "stderr", soft_wrap=True, markup=False, highlight=False, emoji=False)
    if isinstance(text, Table) and not console.is_terminal:  # a file has no width that a table must keep to
        console.width = 10_000
        console.width = console.measure(text).maximum
    console.print(text, end="")


def _usage_message(error: Exception) -> str | None:
    """The message of an error about the command line itself, whichever click typer carries; else None."""
    return error.format_message() if hasattr(error, "format_message") and hasattr(error, "exit_code") else None


def _model_of(error: Any, arguments: list[str]) -> str:
    """The MODEL or PLAN of a command line whose other values were refused; empty where it cannot be told."""
    context = getattr(error, "ctx", None)
    if context is None or context.info_name not in arguments:
        return ""
    rest = arguments[arguments.index(context.info_name) + 1 :]
    try:
        return str(context.command.make_parser(context).parse_args(rest)[0].get("what") or "")
    except Exception as again:
        if _usage_message(again) is None:
            raise
        return ""


def _bad_usage(arguments: list[str], message: str, model: str) -> int:
    from tpplan.request import usage_error

    wants_json = any(
        a == "--format=json" or (a, b) == ("--format", "json") for a, b in zip(arguments, [*arguments[1:], ""])
    )
    fix = "tpplan --help lists the commands, tpplan COMMAND --help its options"
    error = usage_error(message.rstrip("."), fix, model)
    return _show(error.report, Format.JSON if wants_json else Format.TEXT, stream="stdout" if wants_json else "stderr")


def _bug() -> int:
    with tempfile.NamedTemporaryFile("w", prefix="tpplan-bug-", suffix=".log", delete=False, encoding="utf-8") as log:
        traceback.print_exc(file=log)
    sys.stderr.write(f"tpplan has a bug: {sys.exc_info()[1]!r}; the traceback is in {log.name}\n")
    return 3
