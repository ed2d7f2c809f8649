"""Reading files that may be anything, and writing them: whole or not at all."""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager

from tpplan.diagnostics import Diagnostic, InputError, Place


def read_regular(path: str | os.PathLike[str], limit: int) -> bytes:
    """At most `limit` bytes of the regular file at `path`, without waiting for the other end of a pipe.

    Raises OSError, or ValueError for a name that holds NUL.
    """

    def open_at_once(name: str, flags: int) -> int:
        return os.open(name, flags | getattr(os, "O_NONBLOCK", 0))

    with open(path, "rb", opener=open_at_once) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(None, "not a regular file")
        return file.read(limit)


def write_atomically(path: str | os.PathLike[str], text: str | bytes) -> None:
    """Write `text` to the file at `path` as UTF-8: afterwards it holds all of the text, or what it held before.

    Permissions are those that opening the file for writing would give: an existing file keeps its mode and must be
    writable, a new one gets what the umask leaves. A symbolic link is followed. The text is on disk on return.
    Raises InputError (TPP101) where that place cannot be written.
    """
    data = text.encode("utf-8") if isinstance(text, str) else text
    with _refusals(path):
        target = os.path.realpath(path)
        with _file_beside(target, _mode_to_keep(target)) as temporary:
            with open(temporary, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, target)


def require_writable(path: str | os.PathLike[str]) -> None:
    """Raise InputError (TPP101) where `write_atomically` could not put a file now. Nothing is left behind."""
    with _refusals(path):
        target = os.path.realpath(path)
        with _file_beside(target, _mode_to_keep(target)):
            pass


@contextmanager
def _refusals(path: str | os.PathLike[str]) -> Iterator[None]:
    try:
        if not os.fspath(path):
            raise ValueError("the name is empty")
        yield
    except (OSError, ValueError) as error:  # ValueError: a path that holds NUL
        raise InputError(
            Diagnostic(
                code="TPP101",
                message="the file cannot be written; nothing was changed",
                where=Place(file=os.fspath(path) or None),
                evidence=getattr(error, "strerror", None) or str(error),
            )
        ) from error


def _mode_to_keep(target: str) -> int | None:
    """Mode of the file at `target`, None if there is none. Raises OSError where open() for writing would not do."""
    try:
        mode = os.stat(target).st_mode
    except FileNotFoundError:
        return None
    if not stat.S_ISREG(mode):  # replacing a device or a pipe would destroy it
        raise OSError(None, "not a regular file")
    if not os.access(target, os.W_OK):
        raise PermissionError(None, "the file there is write-protected")
    return stat.S_IMODE(mode)


@contextmanager
def _file_beside(target: str, mode: int | None) -> Iterator[str]:
    """Path of a new empty file in the directory of `target`, gone again unless it was renamed."""
    path = os.path.join(os.path.dirname(target), f".tpplan-{secrets.token_hex(8)}.tmp")
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666))
    try:
        if mode is not None:
            os.chmod(path, mode)
        yield path
    finally:
        if os.path.lexists(path):
            os.unlink(path)
