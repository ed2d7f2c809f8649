"""What holds for every test: no network, one thread, and no code of a model left in the user's cache."""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Iterator

import pytest

# Read when the libraries are imported, so before any test module is.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["OMP_NUM_THREADS"] = "1"
_modules = tempfile.TemporaryDirectory(prefix="tpplan-tests-")
os.environ["HF_MODULES_CACHE"] = _modules.name
os.environ["TPPLAN_CACHE"] = ""  # faults are planted under one version: nothing is remembered but where a test says so


@pytest.fixture
def interruptible() -> Iterator[None]:
    """SIGINT interrupts this process and those it starts, even where the tests were started with it ignored.

    A background job of a script is; Python then installs no handler, and children inherit that it is ignored.
    """
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
