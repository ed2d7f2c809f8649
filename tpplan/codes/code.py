"""What a code is."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from enum import StrEnum

WIDTH = 100


class Severity(StrEnum):
    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


@dataclass(frozen=True, kw_only=True)
class Code:
    """slug: stable short name. title: one line. The rest is the page of `tpplan explain`.

    meaning: what was found. reason: why it matters. action: what to do. example: a command line that produces it, with
    a line `FILE: TEXT` for each part of a file that matters; or a sentence that says what shows it, where that is
    a machine, real ranks or another release.
    """

    slug: str
    severity: Severity
    title: str
    meaning: str
    reason: str
    example: str
    action: str

    @property
    def command(self) -> str:
        """The command line of the example; empty where no command shows the code from files alone."""
        line = self.example.partition("\n")[0]
        return line if line.startswith("tpplan ") else ""

    def text(self) -> str:
        """The page: four parts, each under its heading."""
        example = textwrap.indent(self.example.replace("\n", "\n  "), "  ") if self.command else _filled(self.example)
        parts = {
            "What it means": _filled(self.meaning),
            "Why it matters": _filled(self.reason),
            "Example": example,
            "What to do": _filled(self.action),
        }
        return "\n\n".join(f"{heading}\n{part}" for heading, part in parts.items())


def _filled(text: str) -> str:
    return textwrap.fill(text, WIDTH, initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False)


def error(slug: str, title: str, **page: str) -> Code:
    return Code(slug=slug, severity=Severity.ERROR, title=title, **page)


def warning(slug: str, title: str, **page: str) -> Code:
    return Code(slug=slug, severity=Severity.WARNING, title=title, **page)


def note(slug: str, title: str, **page: str) -> Code:
    return Code(slug=slug, severity=Severity.NOTE, title=title, **page)
