"""One forked child at a time. The parent has imported everything and run nothing, so a child starts in milliseconds."""

from __future__ import annotations

import importlib
import multiprocessing
import os
import pkgutil
import resource
import signal
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Of one child. seconds: for each answer that it gives. gib: of memory that it may write."""

    seconds: float = 120.0
    gib: float = 10.0


@dataclass(frozen=True, kw_only=True)
class Child:
    """What a child said before it ended. failure: why it ended early, or empty. peak_mib: resident memory."""

    said: list[Any]
    failure: str = ""
    peak_mib: int = 0


def preload() -> None:
    """Import what children need. Nothing of it may run in the parent: torch's threads do not survive a fork."""
    import torch
    import torch.distributed._local_tensor
    import torch.distributed.tensor.debug
    import torch.testing._internal.distributed.fake_pg
    import transformers
    import transformers.initialization
    import transformers.models.auto.modeling_auto

    torch.set_num_threads(1)
    _ = transformers.AutoModelForCausalLM, transformers.DistributedConfig
    import tpplan

    for module in pkgutil.walk_packages(tpplan.__path__, "tpplan."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)


def run(work: Callable[[], Iterable[Any]], expected: int, limits: Limits, log: Path) -> Child:
    """What `work` yields in a child of its own, until it ends, dies, or gives no answer for limits.seconds.

    expected: how many answers it gives; used for nothing but the words of a failure. log: gets what the child prints.
    """
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=_child, args=(work, there, limits, log), daemon=True)
    process.start()
    there.close()
    said, failure, peak = [], "", 0
    while not failure:
        if not here.poll(limits.seconds):
            failure = f"timeout: no answer in {limits.seconds:g} s, {len(said)} of {expected} given"
            os.kill(process.pid, signal.SIGKILL)
            break
        try:
            kind, value = here.recv()
        except EOFError:
            process.join()
            failure = f"crash: the child ended with {process.exitcode}, {len(said)} of {expected} answers given"
            break
        if kind == "end":
            peak = value
            break
        if kind == "raised":
            failure = f"crash: {value}"
        else:
            said.append(value)
    process.join()
    return Child(said=said, failure=failure, peak_mib=peak)


def _child(work: Callable[[], Iterable[Any]], pipe: Connection, limits: Limits, log: Path) -> None:
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(output, 1)
    os.dup2(output, 2)
    size = int(limits.gib * 2**30)
    resource.setrlimit(resource.RLIMIT_DATA, (size, size))
    try:
        for answer in work():
            pipe.send(("said", answer))
    except BaseException:  # the parent records it
        pipe.send(("raised", traceback.format_exc()))
        os._exit(1)
    pipe.send(("end", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024))
    pipe.close()
    os._exit(0)
