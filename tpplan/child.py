"""Library calls carried out in another process, for a caller in a process group already, or for several at once.

The process knows nothing of the caller's program: it imports the function by its name.
"""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable
from typing import IO, Any

from tpplan.garbage import collect_less_often
from tpplan.launcher_variables import without_torchrun
from tpplan.signals import die_with_parent, leaving_in_order
from tpplan.targets import AUTOLOAD

GRACE = 5.0  # seconds to leave in order


class ChildDied(RuntimeError):
    """The process ended without an answer."""


class Child:
    """A process that carries out calls, one after the other, until the context is left or this process dies."""

    def __init__(self, log: IO[bytes] | None = None) -> None:
        """log: where all goes that it prints, this process's stderr if left out."""
        environment = without_torchrun(os.environ) | {AUTOLOAD: "0"}
        command = [sys.executable, "-m", "tpplan.child"]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, env=environment
        )

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        """End it, whatever it does, in order if it can; a call that waits for it raises ChildDied."""
        self._process.terminate()
        try:
            self._process.wait(GRACE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def call_within(self, seconds: float, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """As `call`; what takes longer is killed, and raises ChildDied."""
        timer = threading.Timer(seconds, self._process.kill)
        timer.start()
        try:
            return self.call(function, *args, **kwargs)
        except ChildDied as error:
            raise ChildDied(f"{error}" if timer.is_alive() else f"it took more than {seconds:g} s") from error
        finally:
            timer.cancel()

    def call(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """What `function(*args, **kwargs)` returns, or raises, there. Raises ChildDied."""
        assert self._process.stdin and self._process.stdout
        try:
            pickle.dump((function, args, kwargs), self._process.stdin)
            self._process.stdin.flush()
            returned, value = pickle.load(self._process.stdout)
        except (EOFError, OSError, pickle.UnpicklingError) as error:
            said = f"the process that ran {function.__name__} ended with code {self._process.wait()}; see its stderr"
            raise ChildDied(said) from error
        if not returned:
            raise value
        return value


def call_in_child(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """What `function(*args, **kwargs)` returns, or raises, in a new process."""
    with Child() as child:
        return child.call(function, *args, **kwargs)


def main() -> None:
    """The child's side: pickled calls on stdin, their pickled outcomes on stdout, everything printed on stderr."""
    die_with_parent(signal.SIGTERM)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal: who asked ends this process
    outcomes = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    collect_less_often()
    with leaving_in_order():
        while True:
            try:
                function, args, kwargs = pickle.load(sys.stdin.buffer)
            except EOFError:  # nothing more is wanted
                return
            pickle.dump(_outcome(function, args, kwargs), outcomes)
            outcomes.flush()


def _outcome(function: Callable[..., Any], args: tuple, kwargs: dict) -> tuple[bool, Any]:
    from tpplan.diagnostics import PlanError

    try:
        return True, function(*args, **kwargs)
    except PlanError as error:
        return False, error
    except Exception as error:  # a bug; the traceback, which cannot be sent, is on stderr
        traceback.print_exc()
        return False, RuntimeError(f"{function.__name__} raised {error!r} in a child process; see its stderr")


if __name__ == "__main__":
    main()
