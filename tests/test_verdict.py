"""Statuses and diagnostics to a verdict, a verdict to an exit code: the truth table, with what must come out written.

No model and no torch: a report is made of its parts. Whoever makes reports, `pass` and 0 come out of nothing but this.
"""

from __future__ import annotations

from itertools import combinations_with_replacement, product

import pytest

from tpplan.codes import CODES, Severity
from tpplan.diagnostics import (
    BytesPerRank,
    Diagnostic,
    InputError,
    Memory,
    Place,
    PlanError,
    Report,
    Stage,
    Status,
    Verdict,
)

PASSED, FAILED, NOT_RUN = Status.PASSED, Status.FAILED, Status.NOT_RUN
NAMES = ("static", "shapes", "numerics")
# What can be said beside the stages, by what it says of the plan. Two errors say only why nothing was learned: the
# unsharded model does not run (TPP521), the ranks have no room (TPP523); those of the machine (9xx) too.
SAID = {
    "nothing": (),
    "a note": ("TPP519",),
    "a warning": ("TPP305",),
    "an error": ("TPP402",),
    "why nothing was learned": ("TPP521",),
    "that there is no room": ("TPP523",),
    "that torchrun does not start": ("TPP913",),
    "an error, and why": ("TPP402", "TPP521"),
    "a warning, and why": ("TPP305", "TPP523"),
}
LEARNED = {"an error", "an error, and why"}
WHY = {"why nothing was learned", "that there is no room", "that torchrun does not start", "a warning, and why"}


def report(statuses: tuple[Status, ...], *codes: str, **more: bool) -> Report:
    stages = {name: Stage(status=status) for name, status in zip(NAMES, statuses, strict=False)}
    return Report(model="m", stages=stages, diagnostics=tuple(map(said, codes)), **more)


def said(code: str) -> Diagnostic:
    return Diagnostic(code=code, message="so it is")


def expected(statuses: tuple[Status, ...], what: str) -> tuple[str, int]:
    """The verdict and the exit code, as README says them."""
    if FAILED in statuses or what in LEARNED:
        return "fail", 1
    if NOT_RUN in statuses:
        return "incomplete", 1
    if what in WHY:  # all that was asked for ran, and yet there is an error
        return "fail", 1
    return ("pass", 0) if statuses else ("incomplete", 1)


SETS = [(), *((status,) for status in Status), *combinations_with_replacement(Status, 2)]
SETS += [*combinations_with_replacement(Status, 3)]


@pytest.mark.parametrize(("statuses", "what"), list(product(SETS, SAID)), ids=str)
def test_verdict_and_exit_code(statuses: tuple[Status, ...], what: str) -> None:
    for order in {statuses, statuses[::-1]}:
        made = report(order, *SAID[what])
        assert (str(made.verdict), made.exit_code) == expected(statuses, what)
        assert made.to_dict()["verdict"] == str(made.verdict)


# The table again for the cases that matter most, without an expectation that could be wrong in the same way.
@pytest.mark.parametrize(
    ("statuses", "codes", "verdict", "exit_code"),
    [
        ((PASSED, PASSED, PASSED), (), "pass", 0),
        ((PASSED,), (), "pass", 0),
        ((PASSED, PASSED, PASSED), ("TPP305", "TPP519"), "pass", 0),
        ((), (), "incomplete", 1),
        ((), ("TPP305",), "incomplete", 1),
        ((), ("TPP402",), "fail", 1),
        ((PASSED, NOT_RUN), (), "incomplete", 1),
        ((NOT_RUN, PASSED), (), "incomplete", 1),
        ((PASSED, PASSED, NOT_RUN), (), "incomplete", 1),
        ((NOT_RUN, NOT_RUN, NOT_RUN), (), "incomplete", 1),
        ((PASSED, FAILED, NOT_RUN), ("TPP402",), "fail", 1),
        ((PASSED, FAILED), (), "fail", 1),
        ((FAILED, PASSED), (), "fail", 1),
        ((PASSED, PASSED), ("TPP402",), "fail", 1),
        ((PASSED, NOT_RUN), ("TPP402",), "fail", 1),
        ((PASSED, NOT_RUN), ("TPP521",), "incomplete", 1),
        ((NOT_RUN,), ("TPP523",), "incomplete", 1),
        ((NOT_RUN,), ("TPP913",), "incomplete", 1),
        ((PASSED,), ("TPP913",), "fail", 1),
        ((PASSED,), ("TPP521",), "fail", 1),
        ((NOT_RUN, FAILED), ("TPP521",), "fail", 1),
    ],
    ids=str,
)
def test_by_hand(statuses: tuple[Status, ...], codes: tuple[str, ...], verdict: str, exit_code: int) -> None:
    made = report(statuses, *codes)
    assert (str(made.verdict), made.exit_code) == (verdict, exit_code)


@pytest.mark.parametrize("statuses", [(), (PASSED,), (FAILED,), (NOT_RUN,)], ids=str)
@pytest.mark.parametrize("codes", [(), ("TPP130",), ("TPP101",), ("TPP130", "TPP101")], ids=str)
def test_what_cannot_be_read_is_2(statuses: tuple[Status, ...], codes: tuple[str, ...]) -> None:
    made = report(statuses, *codes, unreadable=True)
    assert (str(made.verdict), made.exit_code) == ("incomplete", 2)


def test_bad_usage_is_said_by_nothing_else() -> None:
    assert report((), "TPP130", unreadable=True).is_bad_usage
    assert not report((), "TPP130", "TPP101", unreadable=True).is_bad_usage
    assert not report((), "TPP101", unreadable=True).is_bad_usage
    assert not report((), "TPP130").is_bad_usage


@pytest.mark.parametrize("code", [code for code in CODES if CODES[code].severity is Severity.ERROR])
def test_no_error_passes(code: str) -> None:
    """Whatever the stages say, and each code of the table."""
    assert not any(report(statuses, code).exit_code == 0 for statuses in SETS)
    learned = report((PASSED, NOT_RUN), code).verdict is Verdict.FAIL
    assert learned is (code not in ("TPP521", "TPP523") and not code.startswith("TPP9"))


@pytest.mark.parametrize("code", [code for code in CODES if CODES[code].severity is not Severity.ERROR])
def test_warnings_and_notes_decide_nothing(code: str) -> None:
    assert {statuses: report(statuses, code).verdict for statuses in SETS} == {
        statuses: report(statuses).verdict for statuses in SETS
    }


class TestErrors:
    def test_of_a_plan_have_the_report(self) -> None:
        made = report((PASSED, FAILED), "TPP402", "TPP305")
        error = PlanError(made)
        assert error.report is made and error.report.exit_code == 1
        assert "TPP402" in str(error) and "TPP305" not in str(error)

    def test_say_why_nothing_was_run(self) -> None:
        stages = {"shapes": Stage(status=PASSED), "numerics": Stage(status=NOT_RUN, reason="no miniature runs")}
        assert str(PlanError(Report(model="m", stages=stages))) == "numerics not run: no miniature runs"

    def test_of_an_input_are_2(self) -> None:
        error = InputError(said("TPP101"))
        assert error.report.exit_code == 2 and error.report.unreadable


def memory(**parts: int | None) -> Memory:
    whole = {"batch": 1, "max_length": 1, "parameters": 0, "cache": None, "cache_even": None, "gradients": 0}
    return Memory(**{**whole, "activations": None, "hbm": None, **parts})


class TestMemory:
    PARTS = {"parameters": 100, "cache": 20, "gradients": 3}

    @pytest.mark.parametrize("left_out", PARTS)
    def test_each_part_is_held(self, left_out: str) -> None:
        assert memory(**self.PARTS).held == 123
        none = None if left_out == "cache" else 0
        assert memory(**{**self.PARTS, left_out: none}).held == 123 - self.PARTS[left_out]

    def test_activations_are_needed_and_not_held(self) -> None:
        assert memory(**self.PARTS, activations=7).held == 123
        assert memory(**self.PARTS, activations=7, hbm=129).fits is False
        assert memory(**self.PARTS, activations=None, hbm=123).fits is True
        assert memory(**self.PARTS, activations=None, hbm=122).fits is False

    @pytest.mark.parametrize(("hbm", "fits"), [(131, True), (130, True), (129, False), (0, False)])
    def test_as_much_as_there_is_fits(self, hbm: int, fits: bool) -> None:
        assert memory(**self.PARTS, activations=7, hbm=hbm).fits is fits

    def test_nothing_is_known_of_a_device_without_a_size(self) -> None:
        assert memory(**self.PARTS, activations=7).fits is None
        assert memory(**self.PARTS).to_dict()["free"] is None

    def test_what_is_free_is_free_for_activations(self) -> None:
        document = memory(**self.PARTS, activations=7, hbm=125).to_dict()
        assert (document["free"], document["fits"]) == (2, False)


class TestPlainValues:
    """What programs read of a report: every value that there is, and no key for one that there is not."""

    def test_of_all_that_a_report_may_hold(self) -> None:
        report = Report(
            model="m",
            tp_size=2,
            versions={"torch": "2.13"},
            stages={
                "static": Stage(status=Status.PASSED, seconds=0.12345),
                "shapes": Stage(status=Status.NOT_RUN, reason="no"),
            },
            diagnostics=(
                Diagnostic(code="TPP301", message="it", where=Place(file="f", line=3, module="a.b"), fix="so"),
            ),
            bytes_per_rank=BytesPerRank(parameters=3, whole=2, ideal=1),
            overrides={"a": "colwise"},
            ranks=({"rank": 0},),
            remembered="2026-01-02",
            plan="p.yaml",
            dtype="bfloat16",
        )
        assert report.to_dict() == {
            "verdict": "fail",
            "model": "m",
            "plan": "p.yaml",
            "tp_size": 2,
            "versions": {"torch": "2.13"},
            "stages": {
                "static": {"status": "passed", "seconds": 0.123},
                "shapes": {"status": "not-run", "seconds": 0.0, "reason": "no"},
            },
            "diagnostics": [
                {
                    "code": "TPP301",
                    "slug": "kv-heads-split",
                    "severity": "error",
                    "message": "it",
                    "where": {"file": "f", "line": 3, "module": "a.b"},
                    "evidence": "",
                    "fix": "so",
                }
            ],
            "bytes_per_rank": {"parameters": 3, "whole": 2, "ideal": 1},
            "dtype": "bfloat16",
            "overrides": {"a": "colwise"},
            "remembered": "2026-01-02",
            "ranks": [{"rank": 0}],
        }

    def test_of_the_least(self) -> None:
        document = Report(model="m").to_dict()
        assert document["bytes_per_rank"] is None and document["tp_size"] is None
        assert not document.keys() & {"plan", "dtype", "memory", "remembered", "ranks"}

    @pytest.mark.parametrize(
        ("place", "said"),
        [
            (Place(), ""),
            (Place(file="f"), "f"),
            (Place(file="f", line=3, column=1), "f:3:1"),
            (Place(file="f", rule="r"), "f r"),
            (Place(module="m", rule="r"), "m"),
            (Place(parameter="p", module="m", rule="r"), "p"),
        ],
    )
    def test_of_a_place_in_words(self, place: Place, said: str) -> None:
        assert str(place) == said
