"""The command line: parse, call, render, exit code. Decides nothing.

Exit codes: 0 nothing failed, 1 the plan or model has errors or a stage could not run, 2 bad usage or unreadable input,
3 a bug of tpplan. stdout carries the result alone.
"""

from __future__ import annotations

import errno
import os
import sys

import typer

from tpplan.cli import plans  # isort: skip - the order in which --help lists the commands
from tpplan.cli import machine  # isort: skip
from tpplan.cli.app import app
from tpplan.cli.failures import bad_usage, bug, model_of, usage_message
from tpplan.garbage import collect_less_often
from tpplan.signals import leaving_in_order

NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

__all__ = ["app", "machine", "main", "plans"]


def main(arguments: list[str] | None = None) -> int:
    """Run the command line and return its exit code; the console script and `python -m tpplan` call this."""
    arguments = sys.argv[1:] if arguments is None else arguments
    _make_writable()
    collect_less_often()
    try:
        with leaving_in_order():
            return app(arguments, prog_name="tpplan", standalone_mode=False) or 0
    except typer.Exit as stop:
        if stop.exit_code == 130:
            sys.stderr.write("interrupted\n")
        return stop.exit_code
    except (KeyboardInterrupt, typer.Abort):
        sys.stderr.write("interrupted\n")
        return 130
    except (BrokenPipeError, SystemExit) as stop:  # for a broken pipe typer and rich exit with 1, as if a plan failed
        if isinstance(stop, SystemExit) and not isinstance(stop.__context__, BrokenPipeError):
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except OSError as error:
        if error.errno not in NO_ROOM:
            return bug()
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is left in its buffer is lost too
        sys.stderr.write(f"there is no room for the output: {error.strerror}\n")
        return 1
    except Exception as error:
        usage = usage_message(error)
        if usage == "":  # no command was named, and the help has been printed
            return 2
        return bug() if usage is None else bad_usage(arguments, usage, model_of(error, arguments))


def _make_writable() -> None:
    """Let every character be written to whatever encoding the streams have, and have streams where they were closed."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115  open as long as the process
        elif getattr(stream, "encoding", None) not in (None, "utf-8", "UTF-8") and hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
