"""What the doctor says: one line for each thing it looked at, and all of them together."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum


class LineStatus(StrEnum):
    PASSED = "passed"
    FAILED = "failed"
    NOT_APPLICABLE = "not-applicable"


@dataclass(frozen=True, kw_only=True)
class Line:
    """One thing that was looked at, and how it is on this machine.

    name: what. status: passed, failed, or not-applicable. found: what was measured or read; for not-applicable the
    reason why there was nothing to look at. code: of a failure, for `tpplan explain`. fix: one action, or empty.
    """

    name: str
    status: LineStatus
    found: str
    code: str = ""
    fix: str = ""

    def to_dict(self) -> dict:
        key = "reason" if self.status is LineStatus.NOT_APPLICABLE else "found"
        shown = {"name": self.name, "status": str(self.status), key: self.found}
        return shown | ({"code": self.code, "fix": self.fix} if self.status is LineStatus.FAILED else {})


def passed(name: str, found: str) -> Line:
    return Line(name=name, status=LineStatus.PASSED, found=found)


def failed(name: str, found: str, *, code: str, fix: str = "") -> Line:
    return Line(name=name, status=LineStatus.FAILED, found=found, code=code, fix=fix)


def not_applicable(name: str, reason: str) -> Line:
    return Line(name=name, status=LineStatus.NOT_APPLICABLE, found=reason)


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """All lines. device: what the machine was judged as. versions: of the packages that are installed."""

    device: str
    versions: dict[str, str] = field(default_factory=dict)
    lines: tuple[Line, ...] = ()

    @property
    def failed(self) -> tuple[Line, ...]:
        return tuple(line for line in self.lines if line.status is LineStatus.FAILED)

    @property
    def exit_code(self) -> int:
        """1 when a line failed, else 0."""
        return 1 if self.failed else 0

    def to_dict(self) -> dict:
        return {
            "verdict": "fail" if self.failed else "pass",
            "device": self.device,
            "versions": dict(self.versions),
            "lines": [line.to_dict() for line in self.lines],
        }
