"""Golden cases: each folder of tests/cases is one call of the command line with everything it prints.

A folder holds the input files, `command` (the arguments, then `exit N`, then what it needs, if anything),
`expected.txt` or `expected.json` (stdout), and `expected.stderr` where stderr is not empty. The call runs in a copy of
the folder, so that paths in the output are the ones in the command. What differs by run or machine is replaced before
the comparison, see VOLATILE.

To write the expected files anew after a change of wording, and then to read the diff, for what they say must be true:

    TPPLAN_WRITE_EXPECTED=1 python -m pytest tests/test_cases.py
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.support.golden import CASES, VERSION, WRITE, Command, expected, normalised


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
