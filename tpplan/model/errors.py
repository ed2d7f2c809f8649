"""What an exception stands for: memory that ran out, which says nothing of a plan, or weights that do not convert."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator


def out_of_memory(error: BaseException) -> bool:
    """Whether `error`, or what it was raised from, is the operating system or the device refusing memory.

    torch's CPU allocator and safetensors raise it as another type, with the system's own words for ENOMEM inside.
    """
    import torch

    words = os.strerror(errno.ENOMEM)
    return any(
        isinstance(one, (MemoryError, torch.OutOfMemoryError))
        or words in str(one)
        or any(words in text for text in conversion_errors(one).values())
        for one in _chain(error)
    )


def conversion_errors(error: BaseException) -> dict[str, str]:
    """What went wrong while the loader converted weights, by parameter, if it raised `error` for that; else empty.

    Transformers writes these to its log alone, with their tracebacks: they are read from the loader's frame, where it
    raised, and the lines of the frames left out.
    """
    trace, found = error.__traceback__, dict[str, str]()
    while trace is not None:
        for value in trace.tb_frame.f_locals.values():
            known = getattr(value, "conversion_errors", None)
            found = known if isinstance(known, dict) and known else found
        trace = trace.tb_next
    return {name: _without_frames(text) for name, text in sorted(found.items())}


def _without_frames(traceback: str) -> str:
    kept: list[str] = []
    for line in traceback.splitlines():
        is_frame = line.startswith((" ", "Traceback"))
        if line and not is_frame and not any(line in earlier for earlier in kept):  # the message stands there twice
            kept.append(line)
    return "; ".join(kept)


def _chain(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    one: BaseException | None = error
    while one is not None and id(one) not in seen:
        seen.add(id(one))
        yield one
        one = one.__cause__ or one.__context__
