"""A workspace leaves nothing behind, however it is left, and whatever its children do to stay."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest

from tpplan.launch import processes
from tpplan.launch.processes import (
    available_bytes,
    marked,
    out_of_memory_kills,
    peak_bytes,
    resident_bytes,
    state_of,
    workspace,
)

# A child that does not listen, with a child of its own in another session.
STUBBORN = """
import signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(120)"], start_new_session=True)
print("ready", flush=True)
time.sleep(120)
"""


@pytest.fixture(autouse=True)
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def wait_for(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.parametrize("error", [None, ValueError, KeyboardInterrupt, SystemExit], ids=str)
def test_nothing_is_left(error: type[BaseException] | None, scratch: Path) -> None:
    with pytest.raises(error) if error else nullcontext(), workspace() as made:
        child = made.start([sys.executable, "-c", STUBBORN], os.environ, "log")
        wait_for(lambda: "ready" in (made.directory / "log").read_text())
        wait_for(lambda: len(marked(made.marker)) == 2)
        if error:
            raise error
    assert marked(made.marker) == []
    assert child.returncode == -signal.SIGKILL
    assert list(scratch.iterdir()) == []


@pytest.mark.usefixtures("interruptible")
def test_signals_that_come_while_processes_end_wait(scratch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second Ctrl-C does not interrupt the cleaning; it arrives after it."""

    def interrupted_kill(pid: int) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(pid, signal.SIGKILL)

    monkeypatch.setattr(processes, "_kill", interrupted_kill)
    with pytest.raises(KeyboardInterrupt), workspace() as made:
        made.start([sys.executable, "-c", STUBBORN], os.environ, "log")
        wait_for(lambda: "ready" in (made.directory / "log").read_text())
    assert marked(made.marker) == []
    assert list(scratch.iterdir()) == []


def test_what_the_system_tells() -> None:
    assert 2**20 < available_bytes() < os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert state_of(os.getpid()) in ("R", "S")
    assert state_of(2**30) == ""
    assert resident_bytes(os.getpid()) > 2**20
    assert resident_bytes(2**30) == 0
    assert peak_bytes() >= resident_bytes(os.getpid())


def test_kills_for_memory_are_those_that_the_kernel_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "Path", lambda path: tmp_path / path.lstrip("/"))
    assert out_of_memory_kills() == 0, "it does not tell"
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/vmstat").write_text("nr_free_pages 5\noom_kill 3\nswap_ra 7\n")
    assert out_of_memory_kills() == 3
