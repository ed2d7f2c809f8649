"""The collection of published configs and of public reports, which is not a part of the repository.

The variable TPPLAN_SHARED names its directory: `configs/*.json` and `cases.md`. Without it the tests that read it are
skipped and say so; a directory that lacks them is an error.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

UNSET = "TPPLAN_SHARED names no collection of published configs and reports"


def collection() -> Path | None:
    """The directory, or None where the variable is not set."""
    named = os.environ.get("TPPLAN_SHARED")
    return Path(named) if named else None


def config_files(wanted: Callable[[Path], bool] = lambda file: True) -> list[Any]:
    """The published config files as parameters of a test, with their names as ids; one that is skipped without them."""
    directory = collection()
    if directory is None:
        return [pytest.param(None, marks=pytest.mark.skip(UNSET), id="no collection")]
    files = sorted((directory / "configs").glob("*.json"))
    if not files:
        raise FileNotFoundError(f"TPPLAN_SHARED is {directory}, and there is no config in {directory / 'configs'}")
    return [pytest.param(file, id=file.stem) for file in files if wanted(file)]


def reports() -> str:
    """The text of the collected reports; skips without them."""
    directory = collection()
    if directory is None:
        pytest.skip(UNSET)
    return (directory / "cases.md").read_text(encoding="utf-8")
