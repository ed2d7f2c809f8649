"""The application that commands register with, and its own options."""

from __future__ import annotations

from typing import Annotated

import typer

from tpplan.cli.printing import write

app = typer.Typer(
    name="tpplan",
    help="Tensor-parallel plans for Hugging Face Transformers: check, repair, prove.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_versions(asked: bool) -> None:
    if not asked:
        return
    from tpplan import __version__
    from tpplan.model.internals import versions

    known = {"torch": "torch", "transformers": "Transformers"}
    installed = [f"{name} {versions()[package]}" for package, name in known.items() if package in versions()]
    write(f"tpplan {__version__} ({', '.join(installed) or 'neither torch nor Transformers is installed'})\n")
    raise typer.Exit


@app.callback()
def tpplan(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_versions, is_eager=True, help="Print versions, and stop.")
    ] = False,
) -> None:
    """Tensor-parallel plans for Hugging Face Transformers: check, repair, prove."""
