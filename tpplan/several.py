"""Several models and plans judged in one call: what is remembered at once, the rest in a few processes.

Each process imports the libraries once and judges one after the other; it ends with the process that asked.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence

from tpplan import engine, remembered
from tpplan.child import Child, ChildDied
from tpplan.diagnostics import Diagnostic, Place, PlanError, Report, Stage, Status
from tpplan.request import Request

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
    """Reports as they come. A process that dies takes the one that it judged along, and another takes its place."""
    from concurrent.futures import ThreadPoolExecutor, as_completed

    children: dict[int, Child] = {}  # of the threads, by their id

    def asked(request: Request) -> Report:
        mine = threading.get_ident()
        child = children.get(mine) or children.setdefault(mine, Child())
        try:
            return child.call(checked, request, depth)
        except ChildDied:
            del children[mine]
            return _died(request, depth)

    with ThreadPoolExecutor(jobs) as threads:
        numbers = {threads.submit(asked, request): number for number, request in requests.items()}
        try:
            for future in as_completed(numbers):
                yield numbers[future], future.result()
        finally:
            threads.shutdown(wait=False, cancel_futures=True)
            for child in list(children.values()):
                child.end()


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
