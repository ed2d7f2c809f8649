"""The table of codes is complete: every code has a page, is given somewhere, and is shown by a failing case."""

from __future__ import annotations

import re
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
    "TPP337": "Transformers 5.20 and older",
    "TPP342": "a model that only its miniature can run, and that takes long",
    "TPP403": "no small model of the installed release runs forward and stops in its backward",
    "TPP405": "every small model of the installed release that fails has a repair: test_main_job breaks the loader",
    "TPP506": "only hrm_text of 5.24, see test_remedy",
    "TPP901": "a broken installation",
    **{code: "real ranks" for code in CODES if code.startswith(("TPP51", "TPP52"))},
    **{code: "torch_tpu or a launcher" for code in CODES if code.startswith("TPP91")},
    **{code: "a machine, see `tpplan doctor`" for code in CODES if code.startswith(("TPP92", "TPP93"))},
}


def test_slugs_and_titles_are_unique() -> None:
    assert len({entry.slug for entry in CODES.values()}) == len(CODES)
    assert len({entry.title for entry in CODES.values()}) == len(CODES)


@pytest.mark.parametrize("code", CODES)
class TestCode:
    def test_has_a_number_a_slug_and_a_page(self, code: str) -> None:
        entry = CODES[code]
        assert re.fullmatch(r"TPP[1-59]\d\d", code)
        assert re.fullmatch(r"[a-z]+(-[a-z]+)*", entry.slug)
        assert len(entry.page) > len(entry.title) > 10, "the page says more than the title"
        assert entry.page.endswith(".") and not entry.title.endswith(".")

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

    def test_is_explained(self, code: str, capsys: pytest.CaptureFixture) -> None:
        from tpplan.cli import main

        assert main(["explain", CODES[code].slug]) == main(["explain", code.lower()]) == 0
        assert capsys.readouterr().out.count(CODES[code].page) == 2


@pytest.mark.parametrize("code", SHOWN_BY_A_TEST)
def test_what_no_case_shows_is_shown_by_a_test(code: str) -> None:
    tests = [file for file in TESTS.glob("test_*.py") if file.name != Path(__file__).name]
    assert any(f'"{code}"' in file.read_text(encoding="utf-8") for file in tests)


def test_every_code_that_is_given_is_in_the_table() -> None:
    given = {code for file in SOURCES for code in re.findall(r'"(TPP\d{3})"', file.read_text(encoding="utf-8"))}
    assert given <= set(CODES)


def output(folder: Path) -> str:
    return "".join(expected(folder, name) for name in ("expected.txt", "expected.json", "expected.stderr"))
