"""Importing tpplan, and asking it for help, loads neither torch nor Transformers: a fresh process shows it."""

from __future__ import annotations

import subprocess
import sys

import pytest

import tpplan

HEAVY = ("torch", "transformers", "accelerate", "huggingface_hub", "numpy")


def loaded_by(code: str) -> tuple[set[str], str]:
    """Which of HEAVY a fresh process has loaded after `code`, and what it printed before."""
    script = f"{code}\nimport sys; print('\\0' + ' '.join(sys.modules))"
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr
    printed, _, modules = run.stdout.rpartition("\0")
    return set(HEAVY) & set(modules.split()), printed


def test_the_measure_sees_what_is_loaded() -> None:
    assert "numpy" in loaded_by("import numpy")[0]


def test_import_tpplan() -> None:
    assert loaded_by("import tpplan")[0] == set()


def test_the_values_that_the_library_returns_are_light_too() -> None:
    names = "Diagnostic, InputError, Plan, PlanError, Report"
    assert loaded_by(f"from tpplan import {names}")[0] == set()


@pytest.mark.parametrize(
    "arguments",
    [["--help"], ["check", "--help"], ["explain", "TPP301"], ["schema"], ["schema", "report"]],
    ids=" ".join,
)
def test_help_and_pages(arguments: list[str]) -> None:
    loaded, printed = loaded_by(f"from tpplan.cli import main; assert main({arguments}) == 0")
    assert loaded == set()
    assert len(printed) > 100


def test_every_public_name_is_there() -> None:
    for name in tpplan.__all__:
        assert getattr(tpplan, name).__doc__
    with pytest.raises(AttributeError, match="no attribute 'chek'"):
        _ = tpplan.chek
