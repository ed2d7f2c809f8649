"""Commands on this machine, and on tpplan itself."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from tpplan.choices import Device
from tpplan.cli.app import app
from tpplan.cli.options import Format, FormatOption
from tpplan.cli.printing import show, write
from tpplan.diagnostics import PlanError
from tpplan.schemas import SchemaName


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
        return show(error.report, Format.TEXT, stream="stderr")


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
        write(rendering.as_table(diagnosis))
    return diagnosis.exit_code


@app.command()
def explain(
    code: Annotated[str | None, typer.Argument(metavar="CODE", help="A code such as TPP301, or its slug.")] = None,
) -> int:
    """Print the page of a code; without CODE, all codes."""
    from tpplan.codes import CODES

    if code is None:
        write("".join(f"{number} {entry.slug}: {entry.title}\n" for number, entry in sorted(CODES.items())))
        return 0
    by_slug = {entry.slug: number for number, entry in CODES.items()}
    number = by_slug.get(code.lower(), code.upper())
    if number not in CODES:
        said = f"there is no code {code!r}; the codes are {', '.join(sorted(CODES))}"
        raise typer.BadParameter(said, param_hint="CODE")
    entry = CODES[number]
    write(f"{number} {entry.slug} ({entry.severity}): {entry.title}\n\n{entry.text()}\n")
    return 0


@app.command()
def schema(name: Annotated[SchemaName, typer.Argument(help="Which schema.")] = SchemaName.PLAN) -> int:
    """Print the JSON Schema of plan files, or of what `check`, `sizes` and `doctor` print with --format json."""
    from tpplan import api
    from tpplan.rendering import document

    sys.stdout.write(document(api.schema(name)))
    return 0
