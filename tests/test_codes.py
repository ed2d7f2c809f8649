"""The table of codes is complete: every code has a page with a tested example, is given, and has a failing case."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

import tpplan
from tests.support.golden import CASES, Command, expected
from tpplan.codes import CODES, Severity

TESTS = Path(__file__).parent
SOURCES = [file for file in Path(tpplan.__file__).parent.rglob("*.py") if file.parent.name != "codes"]

# Codes that no call of the command line can show from files alone, and why: a test shows them instead.
SHOWN_BY_A_TEST = {
    "TPP304": "Transformers before 5.23 on a TPU",
    "TPP309": "Transformers before 5.21",
    "TPP316": "Transformers before 5.23 on a TPU",
    "TPP337": "Transformers 5.20 and older",
    "TPP342": "a model that only its miniature can run, and that takes long",
    "TPP403": "no small model of the installed release runs forward and stops in its backward",
    "TPP506": "only hrm_text of 5.24, see test_remedy",
    "TPP901": "a broken installation",
    **{code: "real ranks" for code in CODES if code.startswith(("TPP51", "TPP52"))},
    **{code: "torch_tpu or a launcher" for code in CODES if code.startswith("TPP91")},
    **{code: "the TPU's compiler" for code in CODES if code.startswith(("TPP60", "TPP94"))},
    **{code: "a machine, see `tpplan doctor`" for code in CODES if code.startswith(("TPP92", "TPP93"))},
}


def test_slugs_and_titles_are_unique() -> None:
    assert len({entry.slug for entry in CODES.values()}) == len(CODES)
    assert len({entry.title for entry in CODES.values()}) == len(CODES)


@pytest.mark.parametrize("code", CODES)
class TestCode:
    def test_has_a_number_a_slug_and_a_page(self, code: str) -> None:
        entry = CODES[code]
        assert re.fullmatch(r"TPP[1-69]\d\d", code)
        assert re.fullmatch(r"[a-z]+(-[a-z]+)*", entry.slug)
        assert len(entry.title) > 10 and not entry.title.endswith(".")
        for part in (entry.meaning, entry.reason, entry.action):
            assert part.endswith("."), part

    def test_is_given_by_the_product(self, code: str) -> None:
        assert any(f'"{code}"' in file.read_text(encoding="utf-8") for file in SOURCES)

    def test_is_shown_by_a_failing_case_and_absent_from_a_passing_one(self, code: str) -> None:
        if code in SHOWN_BY_A_TEST:
            assert not (CASES / f"{code}-{CODES[code].slug}").exists(), "it has a case now: take it out of the list"
            return
        failing, passing = CASES / f"{code}-{CODES[code].slug}", CASES / f"{code}-passing"
        shown = output(failing)
        assert f"{code} {CODES[code].slug}" in shown
        assert code not in output(passing)
        assert Command.read(passing).exit_code == 0
        if CODES[code].severity is Severity.ERROR:
            assert Command.read(failing).exit_code in (1, 2)

    def test_has_an_example_that_a_case_runs(self, code: str) -> None:
        """The command is that of the case, and each further line is `FILE: TEXT` of one of its files."""
        entry = CODES[code]
        assert bool(entry.command) is (code not in SHOWN_BY_A_TEST)
        if not entry.command:
            assert entry.example.endswith(".") and "\n" not in entry.example
            return
        case = CASES / f"{code}-{entry.slug}"
        assert shlex.split(entry.command) == ["tpplan", *Command.read(case).arguments]
        for line in entry.example.splitlines()[1:]:
            file, _, said = line.partition(": ")
            text = "".join((case / file).read_text(encoding="utf-8").split())
            assert "".join(said.split()) in text, line

    def test_is_explained_in_four_parts(self, code: str, capsys: pytest.CaptureFixture) -> None:
        from tpplan.cli import main

        assert main(["explain", CODES[code].slug]) == main(["explain", code.lower()]) == 0
        printed = capsys.readouterr().out
        assert printed.count(CODES[code].text()) == 2
        headings = [line for line in printed.splitlines() if line and not line.startswith((" ", code))]
        assert headings == ["What it means", "Why it matters", "Example", "What to do"] * 2


@pytest.mark.parametrize("code", SHOWN_BY_A_TEST)
def test_what_no_case_shows_is_shown_by_a_test(code: str) -> None:
    tests = [file for file in TESTS.glob("test_*.py") if file.name != Path(__file__).name]
    assert any(f'"{code}"' in file.read_text(encoding="utf-8") for file in tests)


def test_every_code_that_is_given_is_in_the_table() -> None:
    given = {code for file in SOURCES for code in re.findall(r'"(TPP\d{3})"', file.read_text(encoding="utf-8"))}
    assert given <= set(CODES)


# The message names weights or a method, and may be longer than others.
NAMES = {code for code in CODES if code.startswith("TPP33")} | {"TPP306"}
ITSELF = {"TPP105", "TPP110", "TPP130"}  # the place and the message are all that there is to show
ONLY_THE_READER_KNOWS = {"TPP101", "TPP102"}  # what the file, or the line, was meant to be


def test_every_message_is_one_line_of_a_fact_and_every_fix_one_action() -> None:
    folders = [folder for folder in CASES.iterdir() if folder.is_dir()]
    shown = {folder: list(diagnostics(folder)) for folder in folders}
    assert sum(map(len, shown.values())) > 100
    for folder, found in shown.items():
        for code, message, evidence, fix in found:
            said = f"{folder.name}: {code} {message}"
            assert len(message) <= 120 or code in NAMES, said
            assert not message.endswith("."), said
            assert evidence or code in ITSELF, said
            assert " | " not in fix and "; or " not in fix and not fix.endswith("."), f"{said}: {fix}"
        errors = {code for code, *_ in found if CODES[code].severity is Severity.ERROR} - ONLY_THE_READER_KNOWS
        looked_for = "static" not in Command.read(folder).arguments  # some fixes are plans that were run
        assert not errors or not looked_for or any(fix for *_, fix in found), folder.name


def diagnostics(folder: Path) -> Iterator[tuple[str, str, str, str]]:
    """(code, message, evidence, fix) of each diagnostic that a case shows."""
    if text := expected(folder, "expected.json"):
        for shown in json.loads(text)["diagnostics"]:
            yield shown["code"], shown["message"], shown["evidence"], shown["fix"]
    for found in DIAGNOSTIC.finditer(expected(folder, "expected.txt") + expected(folder, "expected.stderr")):
        yield found["code"], found["message"], found["evidence"] or "", found["fix"] or ""


DIAGNOSTIC = re.compile(
    r"^(?:.*?: )?(?:error|warning|note) (?P<code>TPP\d+) [a-z-]+: (?P<message>.*)\n"
    r"(?:  evidence: (?P<evidence>.*)\n)?(?:  fix: (?P<fix>.*)\n)?",
    re.MULTILINE,
)


def output(folder: Path) -> str:
    return "".join(expected(folder, name) for name in ("expected.txt", "expected.json", "expected.stderr"))
