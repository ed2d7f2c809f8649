"""Golden cases: each folder of tests/cases is one call of the command line with everything it prints.

A folder holds the input files, `command` (the arguments, then `exit N`, then what it needs, if anything),
`expected.txt` or `expected.json` (stdout), and `expected.stderr` where stderr is not empty. The call runs in a copy of
the folder, so that paths in the output are the ones in the command. What differs by run or machine is replaced before
the comparison, see VOLATILE.

To write the expected files anew after a change of wording, and then to read the diff, for what they say must be true:

    TPPLAN_WRITE_EXPECTED=1 python -m pytest tests/test_cases.py
"""

from __future__ import annotations

import importlib.metadata
import os
import re
import shlex
import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest
from packaging.requirements import Requirement

CASES = Path(__file__).parent / "cases"
WRITE = bool(os.environ.get("TPPLAN_WRITE_EXPECTED"))
VERSION = importlib.metadata.version

# (pattern, what stands for it): seconds, versions, what the installed release counts, and rounding errors.
VOLATILE = [
    (r"(?m)^(\w+ +(?:passed|failed|not-run) +)\d+\.\d\d s", r"\1# s"),
    (r'"seconds": \d+\.\d+', '"seconds": 0.0'),
    (rf"\b{re.escape(VERSION('transformers'))}\b", "{transformers}"),
    (rf"(?<!\w){re.escape(VERSION('torch'))}(?!\w)", "{torch}"),
    (rf'("accelerate": "){re.escape(VERSION("accelerate"))}"', r'\1{accelerate}"'),
    (r"knows \d+ model types", "knows # model types"),
    (r"largest error \d\.\de-\d\d", "largest error #"),
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


@pytest.mark.parametrize("name", sorted(folder.name for folder in CASES.iterdir()))
def test_case(name: str, tmp_path: Path, capfd: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    from tpplan.cli import main

    folder = CASES / name
    command = Command.read(folder)
    if command.needs and not command.needs.specifier.contains(VERSION(command.needs.name)):
        pytest.skip(f"needs {command.needs}")
    monkeypatch.chdir(shutil.copytree(folder, tmp_path / "case"))

    exit_code = main(command.arguments)

    printed = capfd.readouterr()
    stdout, stderr = normalised(printed.out), normalised(printed.err)
    if WRITE:
        command.write(folder, exit_code)
        for file, text in ((command.output_name, stdout), ("expected.stderr", stderr)):
            (folder / file).write_text(text, encoding="utf-8") if text else (folder / file).unlink(missing_ok=True)
        pytest.skip("written, not compared")
    assert stdout == expected(folder, command.output_name)
    assert stderr == expected(folder, "expected.stderr")
    assert exit_code == command.exit_code
