"""A limit for what may hang: a test fails when its time is up, and does not wait."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class TimeIsUp(BaseException):
    """Not an Exception, so that nothing that is tested takes it for a failure of its own."""


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """Raise TimeIsUp in what runs inside, unless it ends within `seconds` of wall time. In the main thread alone."""

    def stop(*_: Any) -> None:
        raise TimeIsUp(f"it did not end within {seconds:g} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@contextmanager
def cpu_seconds(most: float) -> Iterator[None]:
    """Assert that what runs inside takes no more time of the processor, whatever else the machine does."""
    before = time.process_time()
    yield
    assert time.process_time() - before < most
