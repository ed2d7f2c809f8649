"""Signals that end a process: it leaves its contexts on the way, so that nothing of it stays behind."""

from __future__ import annotations

import ctypes
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

# Those that end a process at once unless it handles them, as far as the system has them.
AT_ONCE = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGHUP", "SIGQUIT") if hasattr(signal, name))
PR_SET_PDEATHSIG = 1  # linux/prctl.h
ENDING = (signal.SIGINT, *AT_ONCE)  # SIGINT is KeyboardInterrupt already


@contextmanager
def handlers(numbers: Iterable[int], handler: Callable[[int, Any], None]) -> Iterator[None]:
    """Handle the signals with `handler` while the context lasts. Does nothing outside the main thread."""
    in_main_thread = threading.current_thread() is threading.main_thread()
    before = {number: signal.signal(number, handler) for number in numbers if in_main_thread}
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)


def leaving_in_order() -> Any:
    """A context in which the signals that would end the process at once raise SystemExit, but not while it is left so.

    A first one may be lost: Python drops what is raised in a `__del__` or in the callback of a weak reference.
    """
    raised: list[SystemExit] = []

    def leave(number: int, _: Any) -> None:
        handled = sys.exc_info()[1]
        while handled is not None:
            if handled in raised:
                return
            handled = handled.__context__
        raised.append(SystemExit(128 + number))
        raise raised[-1]

    return handlers(AT_ONCE, leave)


def die_with_parent(with_signal: int) -> None:
    """Have the kernel send `with_signal` to this process when its parent dies. Does nothing except on Linux."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(with_signal), 0, 0, 0)
