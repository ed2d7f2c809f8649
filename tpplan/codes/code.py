"""What a code is."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Severity(StrEnum):
    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


@dataclass(frozen=True, kw_only=True)
class Code:
    """slug: stable short name. title: one line. page: what it means, why it matters, what to do."""

    slug: str
    severity: Severity
    title: str
    page: str


def error(slug: str, title: str, page: str) -> Code:
    return Code(slug=slug, severity=Severity.ERROR, title=title, page=page)


def warning(slug: str, title: str, page: str) -> Code:
    return Code(slug=slug, severity=Severity.WARNING, title=title, page=page)


def note(slug: str, title: str, page: str) -> Code:
    return Code(slug=slug, severity=Severity.NOTE, title=title, page=page)
