"""The command line: parse, call, render, exit code. Decides nothing.

Exit codes: 0 nothing failed, 1 the plan or model has errors or a stage could not run, 2 bad usage or unreadable input,
3 a bug of tpplan. stdout carries the result alone.
"""

from __future__ import annotations

import os
import sys

import typer

from tpplan.cli import plans  # isort: skip - the order in which --help lists the commands
from tpplan.cli import machine  # isort: skip
from tpplan.cli.app import app
from tpplan.cli.failures import bad_usage, bug, model_of, usage_message

__all__ = ["app", "machine", "main", "plans"]


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
        usage = usage_message(error)
        if usage == "":  # no command was named, and the help has been printed
            return 2
        return bug() if usage is None else bad_usage(arguments, usage, model_of(error, arguments))
