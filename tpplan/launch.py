"""The launch stage: real ranks, started by torchrun, load the checkpoint sharded and run it.

Each rank is a process (`tpplan.worker`) that writes one result file. One more, before them, loads the model whole where
it fits, for the ranks to compare with. This module starts them, waits, and gathers what became of them.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from tpplan.checks.memory import bytes_per_rank
from tpplan.checks.subject import Subject
from tpplan.codes import Severity
from tpplan.diagnostics import BytesPerRank, Diagnostic, Place, PlanError, Report, Stage, Status
from tpplan.launch_checkpoint import Checkpoint, NotLaunched, SaveMiniature, find_checkpoint, unsharded_does_not_fit
from tpplan.launch_report import Ended, failure, findings, rank_facts, summary
from tpplan.model.internals import versions
from tpplan.model.skeleton import build_skeleton
from tpplan.processes import Workspace, available_bytes, out_of_memory_kills, resident_bytes, state_of, workspace
from tpplan.request import Request, open_request, usage_error
from tpplan.shapes import example_inputs, run_shapes
from tpplan.torchrun import AUTOLOAD, FAILURES, agent_command, tpu_environment
from tpplan.worker import UNSHARDED, Job, Phase, RankResult, read_result

NEW_TOKENS = 8
POLL_SECONDS = 0.05
STACK_SECONDS = 0.5  # for ranks that hang to write where they are
TAIL_LINES, TAIL_CHARACTERS = 4, 600
LEAST_PROCESS_BYTES = 150 * 2**20  # private memory of a process that has imported torch and Transformers
OTHERS_LAUNCH = ("PET_", "TORCHELASTIC_", "RANK", "LOCAL_", "WORLD_SIZE", "GROUP_", "ROLE_", "MASTER_")  # of another torchrun
Progress = Callable[[str, float], None]


@dataclass(frozen=True, kw_only=True)
class Hosts:
    """nnodes: number of hosts; node_rank: of this one; endpoint: HOST:PORT where the agents meet, None for one host."""

    nnodes: int
    node_rank: int
    endpoint: str | None


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
    weights. miniature_dir: writes it, `tpplan.miniature.save_miniature` if left out. timeout: seconds for all
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
            launch = _Launch(
                checkpoint=checkpoint,
                hosts=_met_by(hosts, variables),
                variables=variables,
                space=space,
                timeout=timeout,
                progress=progress or (lambda _what, _done: None),
            )
            outcome = launch.run()
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


def _not_run(reason: str, *diagnostics: Diagnostic) -> _Outcome:
    return _Outcome(stage=Stage(status=Status.NOT_RUN, reason=reason), diagnostics=diagnostics)


def _subject(request: Request, strategy: str) -> Subject:
    """A plan as it is given, wrong or right, or a model's repaired plan; in float32 on CPU unless a dtype is asked for."""
    if request.is_plan:
        subject = open_request(request)
        plan = subject.file.plan if subject.file else request.what
        dtype = request.dtype or plan.target.dtype
    else:
        from tpplan.api import passing_subject

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
    endpoint = f"{variables['MASTER_ADDR']}:{variables['MASTER_PORT']}"
    return replace(hosts, endpoint=endpoint, node_rank=int(variables["NODE_RANK"]))


@dataclass(frozen=True, kw_only=True)
class _Launch:
    """One launch on this host. variables: environment for the ranks. timeout: seconds, from `started`."""

    checkpoint: Checkpoint
    hosts: Hosts
    variables: dict[str, str]
    space: Workspace
    timeout: float
    progress: Progress
    started: float = field(default_factory=time.monotonic)

    @property
    def subject(self) -> Subject:
        return self.checkpoint.subject

    @property
    def ranks(self) -> range:
        count = self.subject.sharding.tp_size // self.hosts.nnodes
        return range(self.hosts.node_rank * count, (self.hosts.node_rank + 1) * count)

    def run(self) -> _Outcome:
        """Predict, run the unsharded model, run the ranks, and say what became of them."""
        predicted = run_shapes(self.subject.spec, self.subject.sharding, training=self.subject.training).local_sizes
        share = bytes_per_rank(self.subject, predicted) if predicted else None
        held = share.parameters if share else 0
        too_much = self._too_much(held)
        if too_much:
            return replace(_not_run("the ranks do not fit into memory", too_much), share=share)
        unsharded, notes = self._run_unsharded()
        if any(note.severity is Severity.ERROR for note in notes):
            return replace(_not_run("the unsharded model does not run either", *notes), share=share)
        ended = self._run_ranks(unsharded, held)
        failed = failure(ended, self.subject)
        found = [*([failed] if failed else []), *findings(ended, self.subject, share.parameters if share else None)]
        errors = any(diagnostic.severity is Severity.ERROR for diagnostic in found)
        if failed and failed.code == "TPP913":
            stage = Stage(status=Status.NOT_RUN, reason="torchrun did not run the ranks")
        else:
            stage = Stage(status=Status.FAILED if errors else Status.PASSED, reason="" if failed else summary(ended))
        diagnostics = (*found, *notes, *self.checkpoint.notes)
        return _Outcome(stage=stage, diagnostics=diagnostics, share=share, ranks=rank_facts(ended, held or None))
