"""The launch stage: real ranks, started by torchrun, load the checkpoint sharded and run it, beside the whole model."""

from __future__ import annotations

import math
import os
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from tpplan.checks.memory import bytes_per_rank
from tpplan.codes import Severity
from tpplan.diagnostics import BytesPerRank, Diagnostic, Place, PlanError, Report, Stage, Status
from tpplan.launch.checkpoint import NotLaunched, SaveMiniature, find_checkpoint, unsharded_does_not_fit
from tpplan.launch.findings import Ended, findings, mib
from tpplan.launch.processes import LEAST_PROCESS_BYTES, available_bytes, workspace
from tpplan.launch.run import Hosts, Launch, Progress
from tpplan.launch.torchrun import tpu_environment
from tpplan.model.internals import versions
from tpplan.model.skeleton import build_skeleton
from tpplan.request import Request, open_request, usage_error
from tpplan.stages.full_size import run_shapes
from tpplan.stages.usage import Usage, measure
from tpplan.subject import Subject
from tpplan.units import gib

HOST_AND_PORT = re.compile(r"([^\s:]+|\[[\da-fA-F:.]+\])(:\d{1,5})?")

SEVERITIES = list(Severity)


@dataclass(frozen=True, kw_only=True)
class _Outcome:
    stage: Stage
    diagnostics: tuple[Diagnostic, ...] = ()
    share: BytesPerRank | None = None
    ranks: tuple[dict, ...] = ()


def verify(
    request: Request,
    *,
    strategy: str = "replicate",
    miniature: bool = False,
    miniature_dir: SaveMiniature | None = None,
    timeout: float = 600,
    nnodes: int = 1,
    node_rank: int = 0,
    rdzv_endpoint: str | None = None,
    progress: Progress | None = None,
) -> Report:
    """The report of the launch stage: what the ranks of this host measured when they loaded and ran the model.

    request: a plan is launched as it is, a model with its repaired plan (strategy: as in `api.plan`); on CPU in
    float32 unless a dtype is asked for. miniature: launch a small model of the same structure although there are
    weights. miniature_dir: writes it, `tpplan.miniature.build.save_miniature` if left out. timeout: seconds for all
    processes together. nnodes, node_rank, rdzv_endpoint: as torchrun's; call it on every host. On TPU the last two
    may be left to torch_tpu. progress: called several times a second with what runs and the part done, 0 to 1.

    Raises InputError for what cannot be read or makes no sense, PlanError for a model that no plan serves.
    """
    started = time.perf_counter()
    subject = _subject(request, strategy)
    hosts = Hosts(nnodes=nnodes, node_rank=node_rank, endpoint=rdzv_endpoint)
    _check_usage(subject, hosts, timeout)
    with workspace() as space:
        try:
            variables = _tpu_variables(subject, hosts)
            checkpoint = find_checkpoint(subject, space.directory, miniature=miniature, save=miniature_dir)
            share = _predicted(checkpoint.subject)
            launch = Launch(
                checkpoint=checkpoint,
                hosts=_met_by(hosts, variables),
                variables=variables,
                space=space,
                timeout=timeout,
                progress=progress or _say_nothing,
            )
            outcome = _outcome(launch, share)
        except NotLaunched as reason:
            outcome = _not_run(str(reason))
        except PlanError as error:
            outcome = _not_run("torchrun was not started", *error.report.diagnostics)
    return Report(
        model=subject.spec.source.name,
        tp_size=subject.sharding.tp_size,
        versions=versions(),
        stages={"launch": replace(outcome.stage, seconds=time.perf_counter() - started)},
        diagnostics=outcome.diagnostics,
        bytes_per_rank=outcome.share,
        overrides=dict(sorted(subject.sharding.overrides.items())),
        ranks=outcome.ranks,
    )


def _predicted(subject: Subject) -> BytesPerRank | None:
    """What `check` says that the ranks will hold, None where sharding itself fails."""
    local_sizes = run_shapes(subject.spec, subject.sharding).local_sizes
    return bytes_per_rank(subject, local_sizes) if local_sizes else None


def _outcome(launch: Launch, share: BytesPerRank | None) -> _Outcome:
    """Run the unsharded model, run the ranks, and say what became of them."""
    subject = launch.subject
    predicted = share.parameters if share else None
    too_much = _too_much(launch, predicted or 0)
    if too_much:
        return _not_run("the ranks do not fit into memory", too_much)
    too_large = unsharded_does_not_fit(launch.checkpoint)
    unsharded, notes = (None, [launch.not_compared(too_large)]) if too_large else launch.run_unsharded()
    if any(note.severity is Severity.ERROR for note in notes):
        return _not_run("the unsharded model does not run either", *notes)
    ended = launch.run_ranks(unsharded, predicted or 0)
    found = findings(ended, subject, predicted)
    if any(diagnostic.code == "TPP913" for diagnostic in found):
        stage = Stage(status=Status.NOT_RUN, reason="torchrun did not run the ranks")
    elif any(diagnostic.severity is Severity.ERROR for diagnostic in found):
        stage = Stage(status=Status.FAILED)
    elif notes and not too_large:
        stage = Stage(status=Status.NOT_RUN, reason=f"nothing was compared; the ranks ran: {_summary(ended)}")
    else:
        stage = Stage(status=Status.PASSED, reason=_summary(ended))
    diagnostics = sorted((*found, *notes, *launch.checkpoint.notes), key=lambda d: SEVERITIES.index(d.severity))
    return _Outcome(
        stage=stage, diagnostics=tuple(diagnostics), share=share, ranks=_rank_facts(ended, predicted, subject)
    )


def _too_much(launch: Launch, held: int) -> Diagnostic | None:
    """TPP523 when the ranks of this host cannot fit. held: bytes of parameters on the largest."""
    available = available_bytes()
    count = len(launch.ranks)
    needed = count * (LEAST_PROCESS_BYTES + (held if launch.subject.device == "cpu" else 0))
    if available is None or needed <= available:
        return None
    return Diagnostic(
        code="TPP523",
        message=f"{count} ranks need at least {needed / 2**30:.1f} GiB, {available / 2**30:.1f} GiB of memory are free",
        where=Place(file=launch.subject.spec.source.name),
        evidence=f"{held} bytes of parameters and {LEAST_PROCESS_BYTES} for a process, {count} times",
    )


def _rank_facts(ended: Ended, predicted: int | None, subject: Subject) -> tuple[dict[str, Any], ...]:
    """What each rank measured, for the report's `ranks`; None for what it did not come to."""
    cached = any(result.cache_tokens for result in ended.results.values())
    usage = measure(subject.spec, subject.sharding) if cached else Usage(not_run="no rank has a static cache")

    def predicted_cache(tokens: int | None) -> int | None:
        return None if usage.not_run or not tokens else usage.cache_bytes(1, tokens)

    def finite(found: Mapping[str, Any] | None, key: str) -> float | None:
        return found[key] if found and math.isfinite(found[key]) else None

    return tuple(
        {
            "rank": result.rank,
            "phase": str(result.phase),
            "load_seconds": None if result.load_seconds is None else round(result.load_seconds, 3),
            "peak_bytes": result.peak_bytes,
            "parameter_bytes": result.parameter_bytes,
            "predicted_bytes": predicted,
            "cache_bytes": result.cache_bytes,
            "predicted_cache_bytes": predicted_cache(result.cache_tokens),
            "logits_error": finite(result.logits, "error"),
            "tokens": result.tokens,
            "tokens_equal": result.first_token is None if result.tokens and ended.unsharded else None,
            "first_token": result.first_token,
            "gradients_error": finite(result.gradients, "worst"),
        }
        for result in (ended.results[rank] for rank in ended.ranks if rank in ended.results)
    )


def _summary(ended: Ended) -> str:
    """One line on the ranks: what was compared, where all came to their end and it is right, and what the load cost."""
    results = [ended.results[rank] for rank in ended.ranks if rank in ended.results]
    parts = [f"{len(ended.ranks)} rank{'s' * (len(ended.ranks) > 1)}"]
    if ended.unsharded and all(result.logits for result in results):
        parts.append(f"logits within {max(result.logits['error'] for result in results):.1e} of the unsharded model's")
    if ended.unsharded and all(result.gradients for result in results):
        worst = max(result.gradients["worst"] for result in results)
        parts.append(f"{results[0].gradients['compared']} gradients within {worst:.1e}")
    if all(result.tokens for result in results):
        equal = " equal" if ended.unsharded and all(result.first_token is None for result in results) else ""
        parts.append(f"{len(results[0].tokens)} tokens{equal}")
    caches = {result.cache_bytes for result in results if result.cache_bytes}
    if caches:
        parts.append(f"static cache {gib(max(caches))}")
    parts.append(f"load {max(result.load_seconds or 0 for result in results):.1f} s")
    parts.append(f"peak {mib(max(result.peak_bytes or 0 for result in results))} a rank")
    return ", ".join(parts)


def _not_run(reason: str, *diagnostics: Diagnostic) -> _Outcome:
    return _Outcome(stage=Stage(status=Status.NOT_RUN, reason=reason), diagnostics=diagnostics)


def _subject(request: Request, strategy: str) -> Subject:
    """A plan as it is given, or a model's repaired plan; on CPU in float32 unless a dtype is asked for."""
    if request.is_plan:
        subject = open_request(request)
        dtype = request.dtype
    else:
        from tpplan.answers import passing_subject

        subject, dtype = passing_subject(request, strategy), request.dtype
    if dtype or subject.device != "cpu":
        return subject
    spec = replace(subject.spec, dtype="float32")
    return replace(subject, spec=spec, skeleton=build_skeleton(spec))


def _check_usage(subject: Subject, hosts: Hosts, timeout: float) -> None:
    tp_size, name = subject.sharding.tp_size, subject.spec.source.name
    if not timeout > 0:
        raise usage_error(f"timeout is {timeout} s", fix="give the seconds that all processes may take", model=name)
    if hosts.nnodes < 1 or tp_size % hosts.nnodes:
        fix = "give a number of hosts that divides tp_size"
        raise usage_error(f"tp_size {tp_size} is not spread over {hosts.nnodes} hosts evenly", fix=fix, model=name)
    if not 0 <= hosts.node_rank < hosts.nnodes:
        fix = f"give a number from 0 to {hosts.nnodes - 1}"
        raise usage_error(f"node_rank is {hosts.node_rank} of {hosts.nnodes} hosts", fix=fix, model=name)
    if hosts.endpoint is not None and not HOST_AND_PORT.fullmatch(hosts.endpoint):
        raise usage_error(f"rdzv_endpoint is {hosts.endpoint!r}", fix="give HOST:PORT of the first host", model=name)
    if hosts.nnodes > 1 and hosts.endpoint is None and subject.device == "cpu":
        fix = "give --rdzv-endpoint HOST:PORT of the first host on each"
        raise usage_error("several hosts need a place to meet", fix=fix, model=name)


def _tpu_variables(subject: Subject, hosts: Hosts) -> dict[str, str]:
    """What torch_tpu must have set before ranks start; nothing on CPU. Raises PlanError (TPP910, TPP911, TPP912)."""
    if subject.device == "cpu":
        return {}
    ranks = subject.sharding.tp_size // hosts.nnodes
    return tpu_environment(nnodes=hosts.nnodes if hosts.nnodes > 1 else None, nproc_per_node=ranks)


def _met_by(hosts: Hosts, variables: dict[str, str]) -> Hosts:
    """The hosts with the place to meet, and this one's number, that torch_tpu found, where no place was given."""
    if hosts.nnodes == 1 or hosts.endpoint is not None:
        return hosts
    known = {**os.environ, **variables}  # torch_tpu leaves alone what the caller has set
    endpoint = f"{known['MASTER_ADDR']}:{known['MASTER_PORT']}"
    return replace(hosts, endpoint=endpoint, node_rank=int(known["NODE_RANK"]))


def _say_nothing(what: str, done: float) -> None:
    """The progress that nobody asked for."""


@contextmanager
def progress_bar() -> Iterator[Progress | None]:
    """A `progress` for `verify` that draws a bar on stderr, or None where stderr is no terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar

    console = Console(stderr=True)
    if not console.is_terminal:
        yield None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Bar(*columns, console=console, transient=True) as bar:
        task = bar.add_task("reading the model", total=1.0)
        yield lambda what, done: bar.update(task, description=what, completed=done)
