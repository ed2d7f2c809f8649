"""Temporary directories: each is removed when its process ends, and what a killed one left by the next that makes one.

A directory is held by a lock on a file in it, which the kernel gives up with the process, whichever way that ends.
"""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows: what a killed process left stays
    fcntl = None  # type: ignore[assignment]

PREFIX = "tpplan-"
LOCK = ".tpplan-lock"
UNLOCKED = 60.0  # seconds after which a directory that was never locked is nobody's

_held: dict[Path, int] = {}


@contextmanager
def directory() -> Iterator[Path]:
    """A new directory while the context lasts."""
    made = make()
    try:
        yield made
    finally:
        remove(made)


def make(purpose: str = "") -> Path:
    """A new directory, with `purpose` in its name, which ends with `remove`."""
    _remove_abandoned(tempfile.gettempdir())
    made = Path(tempfile.mkdtemp(prefix=PREFIX + purpose))
    if fcntl:
        early = made / f"{LOCK}.new"  # under its own name a lock is held from the start
        _held[made] = os.open(early, os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(_held[made], fcntl.LOCK_EX | fcntl.LOCK_NB)
        early.rename(made / LOCK)
    return made


def remove(made: Path) -> None:
    """Remove a directory with all that is in it."""
    shutil.rmtree(made, ignore_errors=True)
    if made in _held:
        os.close(_held.pop(made))


@cache
def _remove_abandoned(home: str) -> None:
    """Remove this user's directories that no process holds."""
    with suppress(OSError):
        for path in Path(home).glob(f"{PREFIX}*"):
            with suppress(OSError):
                seen = path.lstat()
                if stat.S_ISDIR(seen.st_mode) and seen.st_uid == os.geteuid() and _is_abandoned(path):
                    shutil.rmtree(path, ignore_errors=True)


def _is_abandoned(path: Path) -> bool:
    if not fcntl:
        return False
    try:
        lock = os.open(path / LOCK, os.O_RDWR | os.O_NOFOLLOW)
    except FileNotFoundError:  # killed before it was locked, or just made; or another program's
        return not any(path.iterdir()) and time.time() - path.stat().st_mtime > UNLOCKED
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(lock)
    return True
