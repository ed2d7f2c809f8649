"""Several models and plans judged in one call: what is remembered at once, the rest in a few processes.

The processes are forked from one that has imported the libraries, so each of them is ready at once; they end with the
process that asked, however it ends.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from tpplan import engine, remembered
from tpplan.diagnostics import Diagnostic, Place, PlanError, Report, Stage, Status
from tpplan.request import Request

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

# What a check imports, once for all processes.
PRELOADED = [
    "transformers",
    "torch.distributed.tensor",
    "tpplan.opening",
    "tpplan.planner.solve",
    "tpplan.stages.static",
    "tpplan.stages.shapes",
    "tpplan.stages.numerics",
]
Progress = Callable[[str, float], None]


def check_each(
    requests: Sequence[Request], depth: str, jobs: int | None = None, progress: Progress | None = None
) -> list[Report]:
    """A report for each request, in their order; what cannot be read has one that says so.

    jobs: processes at once, by default one for each processor that this process may use.
    """
    reports: dict[int, Report] = {}
    left = {}
    for number, request in enumerate(requests):
        known = _known(request, depth)
        if known is None:
            left[number] = request
        else:
            reports[number] = known
    jobs = min(jobs or processors(), len(left))
    found = _in_processes(left, depth, jobs) if jobs > 1 else _here(left, depth)
    for number, report in found:
        reports[number] = report
        if progress:
            progress(f"{len(reports)} of {len(requests)}", len(reports) / len(requests))
    return [reports[number] for number in range(len(requests))]


def checked(request: Request, depth: str) -> Report:
    """The report of one check, of an input that cannot be read too."""
    try:
        return remembered.answer(engine.check, request, depth)
    except PlanError as error:
        return error.report


def _known(request: Request, depth: str) -> Report | None:
    try:
        return remembered.recalled(engine.check, request, depth)
    except PlanError as error:
        return error.report


def _here(requests: Mapping[int, Request], depth: str) -> Iterator[tuple[int, Report]]:
    for number, request in requests.items():
        yield number, checked(request, depth)


def _in_processes(requests: Mapping[int, Request], depth: str, jobs: int) -> Iterator[tuple[int, Report]]:
    """When a process dies, all that was not finished is judged again, each alone: so it is known whose process dies."""
    unfinished = dict(requests)
    for number, report in _pooled(unfinished, depth, jobs):
        if report is not None:
            del unfinished[number]
            yield number, report
    for number, request in unfinished.items():
        ((_, report),) = _pooled({number: request}, depth, 1)
        yield number, report or _died(request, depth)


def _pooled(requests: Mapping[int, Request], depth: str, jobs: int) -> Iterator[tuple[int, Report | None]]:
    """Reports as they come; None for each that was not finished when a process died."""
    from concurrent.futures import Future, ProcessPoolExecutor, as_completed
    from concurrent.futures.process import BrokenProcessPool
    from multiprocessing import get_context

    context = get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    theirs, ours = context.Pipe(duplex=False)
    with ours, ProcessPoolExecutor(jobs, context, initializer=_begin, initargs=(theirs, jobs)) as pool:
        numbers: dict[Future, int] = {pool.submit(checked, one, depth): number for number, one in requests.items()}
        try:
            for future in as_completed(numbers):
                try:
                    yield numbers[future], future.result()
                except BrokenProcessPool:
                    yield numbers[future], None
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            ours.close()
            raise


def _begin(parent: Connection, jobs: int) -> None:
    """In each process: end when the other end of `parent` is closed, as it is when who asked dies; share processors."""
    from multiprocessing.connection import wait

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal: who asked ends them

    def end_with_parent() -> None:
        wait([parent])
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=end_with_parent, daemon=True).start()
    import torch

    torch.set_num_threads(max(1, processors() // jobs))


def processors() -> int:
    """Those that this process may use, where the system tells; else all."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _died(request: Request, depth: str) -> Report:
    reason = "the process that judged it died"
    what = request.called
    return Report(
        model=what,
        tp_size=request.tp_size,
        stages={depth: Stage(status=Status.NOT_RUN, reason=reason)},
        diagnostics=(
            Diagnostic(
                code="TPP914",
                message=f"{reason}, so nothing is known about it",
                where=Place(file=what),
                fix=f"run `tpplan check {what}` alone, with more memory free",
            ),
        ),
    )
