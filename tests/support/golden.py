"""Expected output that is kept in files: what a run prints, with what differs by run or machine replaced.

A golden case is a folder of tests/cases: the input files, `command` (the arguments, then `exit N`, then what it needs,
if anything), `expected.txt` or `expected.json` (stdout), and `expected.stderr` where stderr is not empty. README.md
holds output too. With TPPLAN_WRITE_EXPECTED set the tests write what they would compare, and are then skipped.
"""

from __future__ import annotations

import importlib.metadata
import os
import re
import shlex
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import Requirement

CASES = Path(__file__).parents[1] / "cases"
WRITE = bool(os.environ.get("TPPLAN_WRITE_EXPECTED"))
VERSION = importlib.metadata.version

# (pattern, what stands for it): seconds, versions, what the installed release counts, and rounding errors.
VOLATILE = [
    (r"(?m)^(\w+ +(?:passed|failed|not-run) +)\d+\.\d\d s", r"\1# s"),
    (r'"seconds": \d+\.\d+', '"seconds": 0.0'),
    (rf"\b{re.escape(VERSION('transformers'))}\b", "{transformers}"),
    (rf"(?<!\w){re.escape(VERSION('torch'))}(?!\w)", "{torch}"),
    (rf'("accelerate": "){re.escape(VERSION("accelerate"))}"', r'\1{accelerate}"'),
    (r"sha256:[0-9a-f]{64}", "sha256:#"),
    (r"knows \d+ model types", "knows # model types"),
    (r"largest error \d\.\de[-+]\d\d", "largest error #"),
    (r"LocalEntryNotFoundError: .*", "LocalEntryNotFoundError: #"),
]


@dataclass(frozen=True, kw_only=True)
class Command:
    """What `command` says. needs: a requirement on an installed package without which the output is another."""

    arguments: list[str]
    exit_code: int
    needs: Requirement | None = None

    @classmethod
    def read(cls, folder: Path) -> Command:
        call, code, *needs = (folder / "command").read_text(encoding="utf-8").splitlines()
        assert code.startswith("exit "), "the second line is `exit N`"
        requirement = Requirement(needs[0].removeprefix("needs ")) if needs else None
        return cls(arguments=shlex.split(call), exit_code=int(code.removeprefix("exit ")), needs=requirement)

    @property
    def output_name(self) -> str:
        return "expected.json" if "json" in self.arguments else "expected.txt"

    def write(self, folder: Path, exit_code: int) -> None:
        needs = f"needs {self.needs}\n" if self.needs else ""
        (folder / "command").write_text(f"{shlex.join(self.arguments)}\nexit {exit_code}\n{needs}", encoding="utf-8")


def normalised(text: str) -> str:
    for pattern, replacement in VOLATILE:
        text = re.sub(pattern, replacement, text)
    return text


def expected(folder: Path, name: str) -> str:
    file = folder / name
    return file.read_text(encoding="utf-8") if file.exists() else ""
