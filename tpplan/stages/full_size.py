"""The shapes stage: the real model class at full size, without weights, run as one rank of tp_size.

Weights are fake tensors (shape, dtype and placement, no memory); token ids, positions and masks are real, so that code
that looks at their values runs. Layers that are alike are run once, see `tpplan.model.repeats`.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from tpplan.model.config import ModelSpec
from tpplan.model.fake_weights import FakeWeights
from tpplan.model.forward import example_inputs, main_output, runnable
from tpplan.model.internals import internals
from tpplan.model.quiet import quiet
from tpplan.model.ranks import fake_rank
from tpplan.model.repeats import run_repeats_once
from tpplan.model.skeleton import Sharding, build_on_meta, sends_tokens, shard, tie
from tpplan.model.trail import Trail
from tpplan.units import one_line

FALLBACK_DTYPE = "bfloat16"


class Phase(StrEnum):
    SHARDING = "sharding"
    FORWARD = "forward"
    BACKWARD = "backward"


@dataclass(frozen=True, kw_only=True)
class Stop:
    """Where a run stopped. rank: None where all ranks ran together. module: the innermost module whose forward did not
    return. error: torch's own words."""

    rank: int | None
    phase: Phase
    module: str | None
    error: str
    unsupported: bool = False  # the run without weights cannot represent this operation: nothing was learned


# By dtype, the failure, if any, and the width of the logits: of one model, for one purpose.
UnshardedRuns = dict[str, tuple[Stop | None, int | None]]


@dataclass(frozen=True, kw_only=True)
class ShapesOutcome:
    """What the stage found.

    stop: the first failure, or None. not_run: why nothing was learned, or empty. ranks: the ranks that were run.
    local_sizes: parameter -> elements that rank 0 holds, the largest share. logits_width: columns on rank 0.
    whole_width: columns of the unsharded model, where they are not what its head says and had to be measured.
    entered: modules that the run reached, with `*` for layer numbers; text does not reach the towers of a model.
    needs_weights: it did not run because its code looks at values that only weights give. on_miniature: that reason,
    where the miniature was run in its place.
    """

    ranks: tuple[int, ...]
    stop: Stop | None = None
    not_run: str = ""
    local_sizes: dict[str, int] = field(default_factory=dict)
    logits_width: int | None = None
    whole_width: int | None = None
    entered: frozenset[str] = frozenset()
    needs_weights: bool = False
    on_miniature: str = ""
    seconds: float = 0.0

    @property
    def passed(self) -> bool:
        return self.stop is None and not self.not_run and self.whole_width in (None, self.logits_width)


@dataclass(frozen=True, kw_only=True)
class _Way:
    """How models are run. known: runs of the unsharded model that were made already."""

    training: bool
    every_layer: bool
    known: UnshardedRuns


def run_shapes(
    spec: ModelSpec,
    sharding: Sharding,
    *,
    training: bool = False,
    every_layer: bool = False,
    known: UnshardedRuns | None = None,
) -> ShapesOutcome:
    """Shard and run the model as the first rank, and as the last where shards are uneven, stopping at a failure.

    training: also run a backward, in train mode. every_layer: do not skip layers that repeat an earlier one. known:
    runs of the unsharded model, filled with those that had to be made. In the spec's dtype; in bfloat16 where the
    unsharded model cannot run in that, for some kernels take no other without weights. A failure in bfloat16 alone
    decides nothing.
    """
    way = _Way(training=training, every_layer=every_layer, known={} if known is None else known)
    outcome = _run_ranks(spec, sharding, way)
    if not outcome.not_run or outcome.needs_weights or spec.dtype == FALLBACK_DTYPE:
        return outcome
    second = _run_ranks(replace(spec, dtype=FALLBACK_DTYPE), sharding, way)
    if second.stop:  # it may be of that dtype alone, as an alignment in bytes is
        words = f"{outcome.not_run}; in {FALLBACK_DTYPE} it stops in {second.stop.module or 'the model'}"
        return replace(outcome, not_run=words, needs_weights=True)
    return second if second.needs_weights or not second.not_run else outcome


def _run_ranks(spec: ModelSpec, sharding: Sharding, way: _Way) -> ShapesOutcome:
    started = time.perf_counter()
    run = first = _run_rank(spec, sharding, 0, way)
    ranks: tuple[int, ...] = (0,)
    if run.stop is None and sharding.tp_size > 1 and (first.uneven or sharding.ep_size):
        ranks = (0, sharding.tp_size - 1)
        run = _run_rank(spec, sharding, ranks[-1], way)
    local_sizes, width = first.local_sizes, first.logits_width
    if run.stop:
        reason, needs_weights = _why_not_run(spec, run.stop, way, run.in_dispatch)
        return ShapesOutcome(
            ranks=ranks,
            stop=None if reason else run.stop,
            not_run=reason,
            needs_weights=needs_weights,
            local_sizes=local_sizes,
            seconds=_since(started),
        )
    whole_width = None if width in (None, first.head_rows) else _run_whole(spec, way)[1]
    return ShapesOutcome(
        ranks=ranks,
        local_sizes=local_sizes,
        logits_width=width,
        whole_width=whole_width,
        entered=first.entered,
        seconds=_since(started),
    )


@dataclass(frozen=True, kw_only=True)
class _Run:
    """One rank's run. uneven: whether some shard is not as large on every rank, so that other ranks' shapes differ."""

    stop: Stop | None
    local_sizes: dict[str, int]
    uneven: bool = True
    logits_width: int | None = None
    head_rows: int | None = None
    entered: frozenset[str] = frozenset()
    in_dispatch: bool = False  # it stopped in experts that get their tokens from other ranks, which moved none


def _run_rank(spec: ModelSpec, sharding: Sharding, rank: int, way: _Way) -> _Run:
    with fake_rank(rank, sharding.tp_size):
        model = build_on_meta(spec)
        try:
            model = shard(model, sharding)
        except Exception as error:  # whatever Transformers raises here, from_pretrained would raise
            return _Run(stop=_stop(rank, Phase.SHARDING, None, error), local_sizes={})
        local_sizes, uneven = _local_sizes(model), _is_uneven(model)
        trail = Trail(model)
        stop, width = _run_model(model, spec, rank, way, trail)
        in_dispatch = bool(stop and sharding.ep_size and stop.module and sends_tokens(model, stop.module))
        rows = _head_rows(model)
    return _Run(
        stop=stop,
        local_sizes=local_sizes,
        uneven=uneven,
        logits_width=width,
        head_rows=rows,
        entered=trail.entered,
        in_dispatch=in_dispatch,
    )


def _why_not_run(spec: ModelSpec, stop: Stop, way: _Way, in_dispatch: bool) -> tuple[str, bool]:
    """Why the failure says nothing about tensor parallelism, empty when it does; whether only weights are missing."""
    alone = None
    if not stop.unsupported and stop.phase is not Phase.SHARDING:
        alone, _ = _run_whole(spec, way)
    blind = stop if stop.unsupported else alone if alone and alone.unsupported else None
    if blind:
        return f"{blind.module or 'the model'} cannot be run without weights: {blind.error}", True
    if alone:
        return (
            f"the model does not run unsharded either, in {alone.module or 'its ' + alone.phase}: {alone.error}",
            False,
        )
    if in_dispatch:
        return f"{stop.module} exchanges tokens between ranks, as many as only weights tell", True
    return "", False


def _run_whole(spec: ModelSpec, way: _Way) -> tuple[Stop | None, int | None]:
    """Run the unsharded model in the same way: the failure, if any, and the width of its logits."""
    if spec.dtype not in way.known:
        whole = build_on_meta(spec)
        with quiet():
            tie(whole)
        way.known[spec.dtype] = _run_model(whole, spec, 0, way, Trail(whole))
    return way.known[spec.dtype]


def _head_rows(model: Any) -> int | None:
    """Columns that the output head makes by its weight, tied or not; None for a model without one."""
    head = model.get_output_embeddings()
    weight = getattr(head, "weight", None)
    return None if weight is None or weight.ndim != 2 else int(weight.shape[0])


def _run_model(model: Any, spec: ModelSpec, rank: int, way: _Way, trail: Trail) -> tuple[Stop | None, int | None]:
    """Run forward (and backward) on fake weights. Returns the failure, if any, and the width of the logits."""
    import torch

    phase = Phase.FORWARD
    try:
        with run_repeats_once(model, FakeWeights().give, enabled=not way.every_layer):
            model.train(way.training)
            with quiet(), trail.follow(way.training), torch.set_grad_enabled(way.training):
                output = main_output(runnable(model)(**example_inputs(spec)))
                if way.training:
                    phase = Phase.BACKWARD
                    output.float().sum().backward()
    except Exception as error:  # the model's own code may raise anything, and its buffers may be too large to make
        return _stop(rank, phase, where(trail, phase), error), None
    return None, int(output.shape[-1])


def where(trail: Trail, phase: Phase) -> str | None:
    """The module at which a run stopped: the innermost that runs, in a backward the last that got its gradient."""
    return trail.last_gradient if phase is Phase.BACKWARD else trail.innermost


def _local_sizes(model: Any) -> dict[str, int]:
    from torch.distributed.tensor import DTensor

    sizes = {}
    for name, parameter in model.named_parameters():
        local = parameter.to_local() if isinstance(parameter, DTensor) else parameter
        sizes[name] = local.numel()
    return sizes


def _is_uneven(model: Any) -> bool:
    from torch.distributed.tensor import DTensor, Shard

    return any(
        parameter.shape[placement.dim] % parameter.device_mesh.size(axis)
        for parameter in model.parameters()
        if isinstance(parameter, DTensor)
        for axis, placement in enumerate(parameter.placements)
        if isinstance(placement, Shard)
    )


def _stop(rank: int, phase: Phase, module: str | None, error: Exception) -> Stop:
    known = internals()
    unsupported = (
        known.DataDependentOutput,
        known.DynamicOutputShape,
        known.UnsupportedFakeTensor,
        known.UnsupportedOperator,
    )
    return Stop(
        rank=rank,
        phase=phase,
        module=module,
        error=one_line(error),
        unsupported=isinstance(error, unsupported),
    )


def _since(started: float) -> float:
    return time.perf_counter() - started
