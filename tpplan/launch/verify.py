"""The launch stage: real ranks, started by torchrun, load the checkpoint sharded and run it."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, replace
from typing import Any

from tpplan.checks.memory import bytes_per_rank
from tpplan.choices import Device
from tpplan.codes import Severity
from tpplan.diagnostics import BytesPerRank, Diagnostic, Place, PlanError, Stage, Status, Verdict
from tpplan.launch.checkpoint import NotLaunched, find_checkpoint, unsharded_does_not_fit
from tpplan.launch.findings import findings
from tpplan.launch.measured import rank_facts, summary
from tpplan.launch.options import LaunchOptions, check_usage
from tpplan.launch.processes import LEAST_PROCESS_BYTES, Workspace, available_bytes, workspace
from tpplan.launch.run import Launch
from tpplan.launch.torchrun import tpu_environment
from tpplan.model.skeleton import build_skeleton
from tpplan.stages.full_size import run_shapes
from tpplan.stages.judge import Judgement, with_result
from tpplan.stages.result import StageResult
from tpplan.stages.table import LAUNCH
from tpplan.subject import Subject
from tpplan.units import gib


@dataclass(frozen=True, kw_only=True)
class LaunchResult:
    """ranks: what each rank of this host measured, as report.schema.json has it; empty where none was started."""

    stage: Stage
    diagnostics: tuple[Diagnostic, ...] = ()
    ranks: tuple[dict[str, Any], ...] = ()


def launch_stage(subject: Subject, options: LaunchOptions) -> LaunchResult:
    """What the ranks of this host measured when they loaded and ran the model; call it on every host.

    Raises InputError (TPP130) for options that make no sense.
    """
    check_usage(options, subject)
    started = time.perf_counter()
    with workspace() as space:
        try:
            result = _launch(subject, options, space)
        except NotLaunched as reason:
            result = _not_run(str(reason))
        except PlanError as error:
            result = _not_run("torchrun was not started", *error.report.diagnostics)
    return replace(result, stage=replace(result.stage, seconds=time.perf_counter() - started))


def _launch(subject: Subject, options: LaunchOptions, space: Workspace) -> LaunchResult:
    """Run the unsharded model, run the ranks, and say what became of them.

    Raises NotLaunched where there is no checkpoint to launch, PlanError (TPP910, TPP911, TPP912) where no TPU is.
    """
    variables = _tpu_variables(subject, options)
    checkpoint = find_checkpoint(subject, space.directory, miniature=options.miniature, save=options.miniature_dir)
    share = _predicted(checkpoint.subject)
    held = share.parameters if share else None
    launch = Launch(checkpoint=checkpoint, options=_met_by(options, variables), variables=variables, space=space)
    if too_much := _too_much(launch, held or 0):
        return _not_run("the ranks do not fit into memory", too_much)
    too_large = unsharded_does_not_fit(checkpoint)
    unsharded, notes = (None, [launch.not_compared(too_large)]) if too_large else launch.run_unsharded()
    if _has_error(notes):
        return _not_run("the unsharded model does not run either", *notes)
    ended = launch.run_ranks(unsharded, held or 0)
    found = findings(ended, checkpoint.subject, held)
    if any(diagnostic.code == "TPP913" for diagnostic in found):
        stage = Stage(status=Status.NOT_RUN, reason="torchrun did not run the ranks")
    elif _has_error(found):
        stage = Stage(status=Status.FAILED)
    elif notes and not too_large:
        stage = Stage(status=Status.NOT_RUN, reason=f"nothing was compared; the ranks ran: {summary(ended)}")
    else:
        stage = Stage(status=Status.PASSED, reason=summary(ended))
    ranks = rank_facts(ended, held, checkpoint.subject)
    return LaunchResult(stage=stage, diagnostics=(*found, *notes, *checkpoint.notes), ranks=ranks)


def _not_run(reason: str, *diagnostics: Diagnostic) -> LaunchResult:
    return LaunchResult(stage=Stage(status=Status.NOT_RUN, reason=reason), diagnostics=diagnostics)


def _has_error(diagnostics: list[Diagnostic]) -> bool:
    return any(diagnostic.severity is Severity.ERROR for diagnostic in diagnostics)


def _predicted(subject: Subject) -> BytesPerRank | None:
    """What `check` says that the ranks will hold, None where sharding itself fails."""
    local_sizes = run_shapes(subject.spec, subject.sharding).local_sizes
    return bytes_per_rank(subject, local_sizes) if local_sizes else None


def _too_much(launch: Launch, held: int) -> Diagnostic | None:
    """TPP523 when the ranks of this host cannot fit. held: bytes of parameters on the largest."""
    available = available_bytes()
    count = len(launch.ranks)
    needed = count * (LEAST_PROCESS_BYTES + (held if launch.subject.device is Device.CPU else 0))
    if available is None or needed <= available:
        return None
    return Diagnostic(
        code="TPP523",
        message=f"{count} ranks need at least {gib(needed)}, {gib(available)} of memory are free; none was started",
        where=Place(file=launch.subject.spec.source.name),
        evidence=f"{held} bytes of parameters and {LEAST_PROCESS_BYTES} for a process, {count} times",
    )


def _tpu_variables(subject: Subject, options: LaunchOptions) -> dict[str, str]:
    """What torch_tpu must have set before ranks start; nothing on CPU. Raises PlanError (TPP910, TPP911, TPP912)."""
    if subject.device is Device.CPU:
        return {}
    nnodes = options.nnodes
    ranks = subject.sharding.tp_size // nnodes
    return tpu_environment(nnodes=nnodes if nnodes > 1 else None, nproc_per_node=ranks)


def _met_by(options: LaunchOptions, variables: dict[str, str]) -> LaunchOptions:
    """The options with the place to meet, and this host's number, that torch_tpu found, where no place was given."""
    if options.nnodes == 1 or options.rdzv_endpoint is not None:
        return options
    known = {**os.environ, **variables}  # torch_tpu leaves alone what the caller has set
    endpoint = f"{known['MASTER_ADDR']}:{known['MASTER_PORT']}"
    return replace(options, rdzv_endpoint=endpoint, node_rank=int(known["NODE_RANK"]))


def launched(judgement: Judgement, options: LaunchOptions, *, dtype_is_asked_for: bool) -> Judgement:
    """The judgement with the launch stage, which is not run for a plan that fails the stages before it.

    dtype_is_asked_for: else ranks on CPU run in float32.
    """
    if judgement.report().verdict is Verdict.FAIL:
        result = _not_run("the plan fails before it")
    else:
        result = launch_stage(as_launched(judgement.subject, dtype_is_asked_for=dtype_is_asked_for), options)
    added = StageResult(stage=result.stage, diagnostics=result.diagnostics)
    return replace(with_result(judgement, LAUNCH, added), ranks=result.ranks)


def as_launched(subject: Subject, *, dtype_is_asked_for: bool) -> Subject:
    """The subject in the dtype in which its ranks run."""
    if dtype_is_asked_for or subject.device is not Device.CPU:
        return subject
    spec = replace(subject.spec, dtype="float32")
    return replace(subject, spec=spec, skeleton=build_skeleton(spec))
