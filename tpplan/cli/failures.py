"""Command lines that make no sense, and our own bugs: two things that never look alike."""

from __future__ import annotations

import sys
import tempfile
import traceback
from itertools import pairwise
from typing import Any

from tpplan.cli.options import Format
from tpplan.cli.printing import show


def usage_message(error: Exception) -> str | None:
    """The message of an error about the command line itself, whichever click typer carries; else None."""
    return error.format_message() if hasattr(error, "format_message") and hasattr(error, "exit_code") else None


def model_of(error: Any, arguments: list[str]) -> str:
    """The MODEL or PLAN of a command line whose other values were refused; empty where it cannot be told."""
    context = getattr(error, "ctx", None)
    if context is None or context.info_name not in arguments:
        return ""
    rest = arguments[arguments.index(context.info_name) + 1 :]
    try:
        what = context.command.make_parser(context).parse_args(rest)[0].get("what") or ""
        return what if isinstance(what, str) else " ".join(map(str, what))
    except Exception as again:
        if usage_message(again) is None:
            raise
        return ""


def bad_usage(arguments: list[str], message: str, model: str) -> int:
    from tpplan.choices import usage_error

    wants_json = "--format=json" in arguments or ("--format", "json") in pairwise(arguments)
    fix = "tpplan --help lists the commands, tpplan COMMAND --help its options"
    error = usage_error(message.rstrip("."), fix, model)
    return show(error.report, Format.JSON if wants_json else Format.TEXT, stream="stdout" if wants_json else "stderr")


def bug() -> int:
    with tempfile.NamedTemporaryFile("w", prefix="tpplan-bug-", suffix=".log", delete=False, encoding="utf-8") as log:
        traceback.print_exc(file=log)
    sys.stderr.write(f"tpplan has a bug: {sys.exc_info()[1]!r}; the traceback is in {log.name}\n")
    return 3
