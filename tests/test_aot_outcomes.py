"""What the aot stage makes of its two processes' answers, whatever is installed."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

import tpplan
from tests.support import configs
from tpplan.child import Child, ChildDied
from tpplan.diagnostics import CompiledProgram, Report, Status, Verdict
from tpplan.stages import aot
from tpplan.targets import TARGETS
from tpplan.tpu.job import Outcome
from tpplan.tpu.values_job import Values, Wrong

PROGRAM = CompiledProgram(
    phase="prefill", batch=1, tokens=128, max_length=256, topology="v6e:2x2", arguments=2**30, temporaries=2**20
)
BOTH = (PROGRAM, PROGRAM)


@pytest.fixture
def judged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The report of a model that passes all else, with these answers."""
    model = configs.write(tmp_path, configs.llama(num_attention_heads=8, num_key_value_heads=4))

    def report(outcome: Outcome, values: Values = Values(), missing: tuple[str, ...] = ()) -> Report:  # noqa: B008
        monkeypatch.setattr(aot, "missing_packages", lambda: missing)
        monkeypatch.setattr(aot, "_compile", lambda subject: outcome)
        monkeypatch.setattr(aot, "_compare", lambda subject, bench: values)
        return tpplan.check(model, 4, device="tpu-v6e", depth="aot", cache=False)

    return report


def test_what_ran_and_is_right_passes(judged) -> None:
    report = judged(Outcome(programs=BOTH))
    assert report.verdict is Verdict.PASS and report.programs == BOTH


@pytest.mark.parametrize(
    ("outcome", "values", "codes"),
    [
        (Outcome(reason="aten.frobnicate"), Values(), set()),
        (Outcome(programs=BOTH), Values(reason="ragged dot"), set()),
        (Outcome(reason="it took more than 900 s", lacking=True), Values(), {"TPP941"}),
        (Outcome(reason="on the device tpu: RuntimeError", raised=True), Values(reason="no"), set()),
    ],
)
def test_what_gave_no_answer_is_no_pass(judged, outcome: Outcome, values: Values, codes: set[str]) -> None:
    report = judged(outcome, values)
    assert report.verdict is Verdict.INCOMPLETE and report.stages["aot"].status is Status.NOT_RUN
    assert {one.code for one in report.errors} == codes
    assert outcome.reason in report.stages["aot"].reason and values.reason in report.stages["aot"].reason


@pytest.mark.parametrize(
    ("outcome", "values", "code"),
    [
        (
            Outcome(programs=(PROGRAM, CompiledProgram(**vars(PROGRAM) | {"refused": "17.8G of 15.7G"}))),
            Values(),
            "TPP601",
        ),
        (Outcome(programs=(CompiledProgram(**vars(PROGRAM) | {"arguments": 33 * 2**30}),)), Values(), "TPP601"),
        (Outcome(programs=BOTH), Values(wrong=(Wrong(phase="decode", ranks=(3,), error=0.5),)), "TPP602"),
        (Outcome(reason="aten.x"), Values(wrong=(Wrong(phase="decode", ranks=(3,), error=0.5),)), "TPP602"),
    ],
)
def test_what_is_wrong_fails(judged, outcome: Outcome, values: Values, code: str) -> None:
    report = judged(outcome, values)
    assert report.verdict is Verdict.FAIL and report.stages["aot"].status is Status.FAILED
    assert [one.code for one in report.errors] == [code]


def test_without_the_packages_it_is_not_run(judged) -> None:
    report = judged(Outcome(programs=BOTH), missing=("jax",))
    assert report.verdict is Verdict.INCOMPLETE and report.programs == ()
    assert [(one.code, one.fix) for one in report.errors] == [("TPP940", "pip install 'tpplan[aot]'")]


@pytest.mark.parametrize("device", ["cpu", "tpu"])
def test_a_device_without_a_compiler_is_bad_usage(tmp_path: Path, device: str) -> None:
    model = configs.write(tmp_path, configs.llama())
    with pytest.raises(tpplan.InputError, match="TPP130"):
        tpplan.check(model, 2, device=device, depth="aot")


@pytest.mark.parametrize(
    ("device", "tp_size", "name"),
    [
        ("tpu-v5e", 1, "v5e:1x1"),
        ("tpu-v5e", 8, "v5e:2x4"),
        ("tpu-v5e", 16, "v5e:4x4"),
        ("tpu-v6e", 4, "v6e:2x2"),
        ("tpu-v5p", 2, "v5p:2x1x1"),
        ("tpu-v5p", 16, "v5p:2x2x4"),
        ("tpu-v7", 2, "tpu7x:1x1x1"),
        ("tpu-v7", 8, "tpu7x:2x2x1"),
        ("tpu-v4", 4, ""),
        ("cpu", 4, ""),
    ],
)
def test_topologies_have_the_compiler_s_names(device: str, tp_size: int, name: str) -> None:
    assert TARGETS[tpplan.choices.Device(device)].compiler_topology(tp_size) == name


def test_what_takes_too_long_is_killed_and_said() -> None:
    started = time.monotonic()
    with Child() as child, pytest.raises(ChildDied, match="it took more than 1 s"):
        child.call_within(1.0, time.sleep, 60)
    assert time.monotonic() - started < 30


def test_what_dies_is_no_answer_with_its_last_words() -> None:
    died = aot._in_child(sys.exit, 7, 60.0)
    assert "code 7" in died.reason and "its last words" in died.reason


def test_a_program_without_a_file_or_the_packages_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    from tpplan.cli import main

    model = configs.write(tmp_path / "model", configs.llama())
    assert main(f"compile {model} --tp-size 2 --as stablehlo".split()) == 2
    assert "TPP130" in capsys.readouterr().err
    monkeypatch.setattr(aot, "missing_packages", lambda: ("jax",))
    assert main(f"compile {model} --tp-size 2 --as stablehlo -o {tmp_path / 'file'}".split()) == 1
    assert "TPP940" in capsys.readouterr().err and not (tmp_path / "file").exists()
