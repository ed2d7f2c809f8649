"""The work of a child process: torch_tpu's programs of a miniature, computed on CPU, against the unsharded model."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tpplan.choices import Phase
from tpplan.difference import TOLERANCES, difference
from tpplan.model.cache import static_cache
from tpplan.model.checkpoint import load_sharded
from tpplan.model.config import ModelSpec
from tpplan.model.forward import example_inputs, main_output, runnable
from tpplan.model.quiet import quiet
from tpplan.model.ranks import fake_rank
from tpplan.model.skeleton import Sharding
from tpplan.tpu.collectives import NoLowering
from tpplan.tpu.device import start, tpu_rank
from tpplan.tpu.forward import Workload, programs, sharded
from tpplan.tpu.internals import Lacking
from tpplan.tpu.lowering import lower
from tpplan.tpu.plain import plain_operators
from tpplan.tpu.program import Program
from tpplan.tpu.values import Arrays, Cpu, initial, run_ranks, updated
from tpplan.units import one_line

PROMPT = 8  # tokens
LENGTH = 16  # tokens that the cache holds
TOLERANCE = TOLERANCES["float32"].logits


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """What to compute. spec: the miniature's. directory: its checkpoint."""

    spec: ModelSpec
    directory: Path
    sharding: Sharding


@dataclass(frozen=True, kw_only=True)
class Wrong:
    """Logits that differ from the unsharded model's: in which phase, on which ranks, by how much of the largest."""

    phase: str
    ranks: tuple[int, ...]
    error: float


@dataclass(frozen=True, kw_only=True)
class Values:
    """wrong: what differs. largest_error: of all ranks and phases. reason: why nothing was compared, or empty."""

    wrong: tuple[Wrong, ...] = ()
    largest_error: float = 0.0
    reason: str = ""
    seconds: float = 0.0

    @property
    def passed(self) -> bool:
        return not self.wrong and not self.reason


def compared(work: Comparison) -> Values:
    """The values of every rank, in a prefill and in a decode step after it."""
    import torch

    started = time.perf_counter()
    torch.set_num_threads(1)
    try:
        start()
        expected = _unsharded(work)
        found = _on_all_ranks(work)
    except (Lacking, NoLowering) as error:
        return Values(reason=str(error), seconds=time.perf_counter() - started)
    except Exception as error:  # the model's own code may raise anything
        return Values(reason=f"on the device tpu: {one_line(error)}", seconds=time.perf_counter() - started)
    wrong, largest = [], 0.0
    for phase in Phase:
        errors = [difference(torch.from_numpy(one), expected[phase], TOLERANCE).error for one in found[phase]]
        largest = max(largest, *errors)
        ranks = tuple(rank for rank, error in enumerate(errors) if error > TOLERANCE)
        if ranks:
            wrong.append(Wrong(phase=phase, ranks=ranks, error=max(errors)))
    return Values(wrong=tuple(wrong), largest_error=largest, seconds=time.perf_counter() - started)


def _tokens(work: Comparison) -> dict[Phase, Any]:
    ids = example_inputs(work.spec, PROMPT + 1)["input_ids"]
    return {Phase.PREFILL: ids[:, :PROMPT], Phase.DECODE: ids[:, PROMPT:]}


def _unsharded(work: Comparison) -> dict[Phase, Any]:
    import torch

    with quiet():
        model = _load(work, Sharding(tp_size=1)).eval()
    run = runnable(model)
    cache = static_cache(run.config, LENGTH)
    with torch.no_grad(), quiet():
        return {
            phase: main_output(run(input_ids=ids, past_key_values=cache, use_cache=True))
            for phase, ids in _tokens(work).items()
        }


def _load(work: Comparison, sharding: Sharding) -> Any:
    spec = work.spec
    return load_sharded(spec.auto_class, work.directory, sharding, trust_remote_code=spec.trust_remote_code)


@dataclass(frozen=True, kw_only=True)
class _Rank:
    """One rank's programs with their artifacts, and the tensors that the loader gave it, by name."""

    programs: dict[Phase, tuple[Program, list[bytes]]]
    weights: dict[str, Any]


def _rank(work: Comparison, rank: int) -> _Rank:
    import torch

    tp_size = work.sharding.tp_size
    with fake_rank(rank, tp_size), quiet():
        weights = _local_tensors(_load(work, work.sharding))
    with tpu_rank(rank, tp_size):
        model = sharded(work.spec, work.sharding, torch.float32)
        workload = Workload(prefill=PROMPT, max_length=LENGTH, last_only=False)
        made = {}
        for phase, program in programs(model, work.spec, tp_size, workload, decompositions=plain_operators()):
            made[phase] = program, [lower(segment) for segment in program.segments]
    return _Rank(programs=made, weights=weights)


def _local_tensors(model: Any) -> dict[str, Any]:
    from torch.distributed.tensor import DTensor

    tensors = {
        **dict(model.named_parameters(remove_duplicate=False)),
        **dict(model.named_buffers(remove_duplicate=False)),
    }
    return {name: one.to_local() if isinstance(one, DTensor) else one for name, one in tensors.items()}


def _on_all_ranks(work: Comparison) -> dict[Phase, Arrays]:
    """Each rank's logits, by phase."""
    ranks = [_rank(work, rank) for rank in range(work.sharding.tp_size)]
    cpu = Cpu()
    caches: list[dict[str, Any]] = [{} for _ in ranks]
    found: dict[Phase, Arrays] = {}
    for phase, ids in _tokens(work).items():
        own = [one.programs[phase] for one in ranks]
        arguments = [
            initial(program, {"input_ids": ids.numpy()}, one.weights, cache)
            for (program, _), one, cache in zip(own, ranks, caches, strict=True)
        ]
        results = run_ranks(cpu, [program for program, _ in own], [artifacts for _, artifacts in own], arguments)
        found[phase] = [result[0] for result in results]
        caches = [
            cache | updated(program, result) for (program, _), result, cache in zip(own, results, caches, strict=True)
        ]
    return found
