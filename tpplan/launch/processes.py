"""Child processes that leave nothing behind: no process, no directory, whichever way their parent is left."""

from __future__ import annotations

import os
import resource
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tpplan import scratch
from tpplan.signals import ENDING, handlers, leaving_in_order

MARKER = "TPPLAN_LAUNCH"  # in the environment of every process that a workspace starts
KILL_SECONDS = 10.0
LEAST_PROCESS_BYTES = 150 * 2**20  # private memory of a process that has imported torch and Transformers


@dataclass(frozen=True, kw_only=True)
class Workspace:
    """A place for the children of one launch. All of it, the processes and the directory, ends with `workspace`.

    marker: the value of MARKER in the environment of the children and of all that they start.
    """

    directory: Path
    marker: str
    children: list[subprocess.Popen] = field(default_factory=list)

    def start(self, command: list[str], environment: Mapping[str, str], log: str) -> subprocess.Popen:
        """`command` in a session of its own, its output in the file `log` of the directory."""
        with (self.directory / log).open("wb") as stream:
            child = subprocess.Popen(
                command,
                env={**environment, MARKER: self.marker},
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=stream,
                start_new_session=True,
            )
        self.children.append(child)
        return child


@contextmanager
def workspace() -> Iterator[Workspace]:
    """A new workspace; when the context is left, in whatever way, its processes are gone and so is its directory.

    Signals leave it too, as SystemExit. Without /proc torchrun is asked to end its workers, and waited for.
    """
    made: Workspace | None = None
    with leaving_in_order():
        try:
            made = Workspace(directory=scratch.make("launch-"), marker=secrets.token_hex(8))
            yield made
        finally:
            with _signals_held():
                if made:
                    _end(made.children, made.marker)
                    scratch.remove(made.directory)


def own_command(module: str, *arguments: str) -> list[str]:
    """The command of a child that calls `child(*arguments)` of one of tpplan's modules.

    It is found without touching PYTHONPATH, which what the child starts inherits.
    """
    home = str(Path(__file__).resolve().parents[2])
    code = f"import sys; sys.path.append({home!r}); from {module} import child; child(*sys.argv[1:])"
    return [sys.executable, "-P", "-c", code, *arguments]


def marked(marker: str) -> list[int]:
    """Pids of the live processes that have `marker` in their environment, where the system tells."""
    wanted = f"{MARKER}={marker}".encode()
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if wanted in (process / "environ").read_bytes().split(b"\0"):
                found.append(int(process.name))
        except OSError:
            continue  # another user's, or gone in the meantime
    return found


def _end(children: list[subprocess.Popen], marker: str) -> None:
    deadline = time.monotonic() + KILL_SECONDS
    if not Path("/proc/self/environ").exists():
        for child in children:
            child.terminate()  # torchrun ends its workers
    while (pids := marked(marker)) and time.monotonic() < deadline:
        for pid in pids:
            _kill(pid)
        time.sleep(0.02)
    for child in children:
        if child.poll() is None:
            try:
                child.wait(max(deadline - time.monotonic(), 0.1))
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return  # it ended by itself


@contextmanager
def _signals_held() -> Iterator[None]:
    """Keep Ctrl-C and the like waiting while processes are ended."""
    held: list[int] = []
    try:
        with handlers(ENDING, lambda number, _: held.append(number)):
            yield
    finally:
        for number in dict.fromkeys(held):
            os.kill(os.getpid(), number)


def available_bytes() -> int | None:
    """Memory that new processes can take without swapping, in bytes: of the machine, or of this container if less."""
    meminfo = Path("/proc/meminfo")
    if not meminfo.exists():
        return None
    values = dict(line.split(":", 1) for line in meminfo.read_text(encoding="utf-8").splitlines())
    machine = int(values["MemAvailable"].split()[0]) * 1024
    limit, used = Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")
    if not limit.exists() or (allowed := limit.read_text(encoding="utf-8").strip()) == "max":
        return machine
    return max(min(machine, int(allowed) - int(used.read_text(encoding="utf-8"))), 0)


def out_of_memory_kills() -> int:
    """How many processes the kernel has killed for memory since it started; 0 where it does not tell."""
    counters = Path("/proc/vmstat")
    lines = counters.read_text(encoding="utf-8").splitlines() if counters.exists() else []
    return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), 0)


def state_of(pid: int) -> str:
    """The letter of a process's state, such as R, S or T (stopped), or an empty string when it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
    except OSError:
        return ""


def resident_bytes(pid: int) -> int:
    """Memory that a process has resident, in bytes, 0 when it is gone."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="utf-8").split()[1])
    except OSError:
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


def peak_bytes() -> int:
    """The most memory that this process has had resident, in bytes.

    From VmHWM where there is one: after a fork, ru_maxrss starts at what the parent had.
    """
    status = Path("/proc/self/status")
    if status.exists():
        for line in status.read_text(encoding="utf-8").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
