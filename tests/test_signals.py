"""Whatever ends a check or a plan, at whatever moment: no process and no temporary directory is left of it."""

from __future__ import annotations

import fcntl
import getpass
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import configs
from tpplan import scratch
from tpplan.signals import leaving_in_order


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """The temporary directory of the commands of one test."""
    (tmp_path / "tmp").mkdir()
    return tmp_path / "tmp"


@pytest.fixture
def model(tmp_path: Path) -> str:
    return configs.write(tmp_path / "model", configs.llama(num_attention_heads=8, num_key_value_heads=2))


def start(home: Path, *arguments: str) -> subprocess.Popen:
    environment = os.environ | {"TMPDIR": str(home), "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-m", "tpplan", *arguments]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def saved_miniature(home: Path) -> bool:
    """Whether the command is at work on its numbers: it has written a checkpoint."""
    return any(home.glob("tpplan-*/model.safetensors"))


def left(home: Path) -> list[str]:
    """What is there of tpplan; torch keeps a directory of its own beside it."""
    return [path.name for path in home.iterdir() if path.name != f"torchinductor_{getpass.getuser()}"]


def eventually(condition, seconds: float = 60) -> bool:
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.005)
    return condition()


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize(("number", "command"), [(signal.SIGINT, "check"), (signal.SIGTERM, "plan")])
def test_nothing_stays(home: Path, model: str, tmp_path: Path, number: int, command: str) -> None:
    output = ["-o", str(tmp_path / "plan.yaml")] if command == "plan" else []
    with start(home, command, model, "--tp-size", "4", *output) as process:
        assert eventually(lambda: saved_miniature(home))
        process.send_signal(number)
        _, said = process.communicate(timeout=60)
    assert process.returncode == (130 if number == signal.SIGINT else 128 + number)
    assert left(home) == [] and not (tmp_path / "plan.yaml").exists()
    assert b"Traceback" not in said


@pytest.fixture
def all_heard() -> Iterator[None]:
    """A background job of a script, and what nohup starts, ignore some of them."""
    before = {number: signal.signal(number, signal.SIG_DFL) for number in (signal.SIGHUP, signal.SIGQUIT)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("all_heard")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT])
def test_each_leaves_in_order_and_once(number: int) -> None:
    """A second one, while what is left is cleaned up, changes nothing."""
    cleaned = []
    with pytest.raises(SystemExit) as stop, leaving_in_order():
        try:
            signal.raise_signal(number)
        finally:
            signal.raise_signal(signal.SIGTERM)
            cleaned.append("all")
    assert stop.value.code == 128 + number and cleaned == ["all"]
    assert signal.getsignal(number) == signal.SIG_DFL


@pytest.mark.usefixtures("all_heard")
def test_one_that_python_dropped_is_not_the_last(recwarn: pytest.WarningsRecorder) -> None:
    class Dropping:
        def __del__(self) -> None:
            signal.raise_signal(signal.SIGTERM)

    with pytest.raises(SystemExit) as stop, leaving_in_order():
        Dropping()
        signal.raise_signal(signal.SIGHUP)
    assert stop.value.code == 128 + signal.SIGHUP


def test_what_a_kill_left_is_removed_by_the_next_run(home: Path, model: str) -> None:
    with start(home, "check", model, "--tp-size", "2") as process:
        assert eventually(lambda: saved_miniature(home))
        process.kill()
        process.communicate(timeout=60)
    assert left(home) != []
    with start(home, "check", model, "--tp-size", "2", "--depth", "static") as process:
        process.communicate(timeout=60)
    assert process.returncode == 0 and left(home) == []


class TestAbandoned:
    """Directories of others are left alone."""

    @pytest.fixture
    def there(self, tmp_path: Path) -> Path:
        scratch._remove_abandoned.cache_clear()
        return tmp_path

    def test_one_whose_lock_nobody_holds_is_removed(self, there: Path) -> None:
        (there / "tpplan-dead").mkdir()
        (there / "tpplan-dead" / scratch.LOCK).touch()
        (there / "tpplan-dead" / "model.safetensors").touch()
        scratch._remove_abandoned(str(there))
        assert list(there.iterdir()) == []

    def test_one_that_is_just_made_stays(self, there: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Another process looks at it right before it is locked."""
        monkeypatch.setattr("tempfile.tempdir", str(there))

        def flock(*given: int) -> None:
            monkeypatch.undo()
            scratch._remove_abandoned.cache_clear()
            scratch._remove_abandoned(str(there))
            fcntl.flock(*given)

        monkeypatch.setattr(scratch.fcntl, "flock", flock)
        made = scratch.make()
        assert (made / scratch.LOCK).exists()
        scratch.remove(made)

    def test_one_that_is_held_stays(self, there: Path) -> None:
        (there / "tpplan-live").mkdir()
        with (there / "tpplan-live" / scratch.LOCK).open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            scratch._remove_abandoned(str(there))
            assert (there / "tpplan-live").exists()

    def test_without_a_lock_it_must_be_empty_and_old(self, there: Path) -> None:
        for name, age in (("new", 0), ("old", 2 * scratch.UNLOCKED), ("full", 2 * scratch.UNLOCKED)):
            made = there / f"tpplan-{name}"
            made.mkdir()
            if name == "full":
                (made / "somebody's").touch()
            os.utime(made, (0, time.time() - age))
        scratch._remove_abandoned(str(there))
        assert sorted(path.name for path in there.iterdir()) == ["tpplan-full", "tpplan-new"]

    def test_links_and_files_stay(self, there: Path) -> None:
        (there / "other").mkdir()
        (there / "other" / scratch.LOCK).touch()
        (there / "tpplan-link").symlink_to(there / "other")
        (there / "tpplan-bug-1.log").touch()
        scratch._remove_abandoned(str(there))
        assert len(list(there.iterdir())) == 3 and (there / "other" / scratch.LOCK).exists()
