"""What each rank of a launch runs: load, forward, backward and generate, compared with what the unsharded model gave.

`python -m tpplan.launch.worker JOB.json` is the rank that torchrun made it; with `--unsharded` it is the one process that
loads the model whole and leaves its numbers for the ranks. Each process writes one result file.
"""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from tpplan.launch.compare import UnshardedNumbers, first_unequal, local_part, on_cpu
from tpplan.launch.processes import die_with_parent, peak_bytes
from tpplan.units import message, one_line

UNSHARDED = "unsharded.json"
NUMBERS = "unsharded.safetensors"
PEERS_SECONDS = 2.0


class LaunchPhase(StrEnum):
    """In the order in which they run; `compare` is the comparison of gradients."""

    START = "start"
    LOAD = "load"
    FORWARD = "forward"
    BACKWARD = "backward"
    COMPARE = "compare"
    GENERATE = "generate"
    DONE = "done"


@dataclass(frozen=True, kw_only=True)
class Job:
    """What all processes of one launch are told.

    checkpoint: a directory with weights. distributed: arguments of DistributedConfig. inputs: of one forward, name ->
    nested lists. results: the directory of the result files. compare: whether the unsharded numbers are there.
    """

    checkpoint: str
    auto_class: str
    dtype: str
    distributed: dict[str, Any]
    inputs: dict[str, list]
    training: bool
    tpu: bool
    new_tokens: int
    results: str
    compare: bool
    trust_remote_code: bool = False

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self)), encoding="utf-8")


@dataclass(frozen=True, kw_only=True)
class RankResult:
    """What one process found, as far as it came. None: it did not come to that.

    phase, since: where it is, and from when (seconds of the clock). load_seconds; peak_bytes: of the process's
    memory; parameter_bytes: that this rank holds. missing: weights that the checkpoint lacks. logits: a Difference.
    tokens: those generated; margins: for each, the distance to the runner-up, as a part of the largest logit.
    cache: its implementation; cache_bytes: that a static one holds on this rank, for cache_tokens of one sequence.
    first_token: index of the first that differs. generate_error: why none were. gradients: how many were compared,
    the largest error, and those that are wrong. error: what was raised: type, message, when, whether memory ran out.
    """

    rank: int
    pid: int
    phase: str = LaunchPhase.START
    since: float = 0.0
    load_seconds: float | None = None
    peak_bytes: int | None = None
    parameter_bytes: int | None = None
    missing: list[str] = field(default_factory=list)
    finite: bool = True
    logits: dict[str, Any] | None = None
    tokens: list[int] | None = None
    margins: list[float] | None = None
    cache: str | None = None
    cache_bytes: int | None = None
    cache_tokens: int | None = None
    first_token: int | None = None
    generate_error: str = ""
    gradient_scale: float | None = None
    gradients: dict[str, Any] | None = None
    error: dict[str, Any] | None = None


def read_result(path: Path) -> RankResult | None:
    """The result in the file, or None while there is none."""
    if not path.exists():
        return None
    return RankResult(**json.loads(path.read_text(encoding="utf-8")))


class _Notes:
    """The result file of this process: rewritten, beside and then renamed, at each change."""

    def __init__(self, path: Path, rank: int) -> None:
        self._path = path
        self._values: dict[str, Any] = {"rank": rank, "pid": os.getpid()}
        self.enter(LaunchPhase.START)

    def enter(self, phase: LaunchPhase) -> None:
        self.put(phase=str(phase), since=time.time())

    def put(self, **values: Any) -> None:
        self._values |= values | {"peak_bytes": peak_bytes()}
        beside = self._path.with_suffix(".tmp")
        beside.write_text(json.dumps(self._values), encoding="utf-8")
        beside.replace(self._path)


def run(job: Job, notes: _Notes, unsharded: RankResult | None, *, whole: bool) -> None:
    """Run every phase of `job`. unsharded: the result to compare with. whole: be the unsharded run."""
    import torch

    torch.manual_seed(0)
    numbers = UnshardedNumbers(Path(job.results) / NUMBERS, job.dtype)
    notes.enter(LaunchPhase.LOAD)
    model = _load(job, notes, whole)
    notes.enter(LaunchPhase.FORWARD)
    inputs = {name: torch.tensor(values) for name, values in job.inputs.items()}
    with torch.set_grad_enabled(job.training):
        output = _logits(model, inputs)
    logits = on_cpu(output)
    notes.put(finite=bool(logits.isfinite().all()))
    if unsharded and unsharded.finite:
        notes.put(logits=asdict(numbers.compare_logits(logits)))
    gradients = _gradients(model, output, notes, numbers, unsharded, whole) if job.training else {}
    if model.can_generate():
        notes.enter(LaunchPhase.GENERATE)
        _note_tokens(model, inputs["input_ids"], job, notes, unsharded, whole)
    if whole:
        numbers.save(logits, gradients)
    notes.enter(LaunchPhase.DONE)


def _load(job: Job, notes: _Notes, whole: bool) -> Any:
    """The model, sharded by from_pretrained for this rank, or whole."""
    import torch
    import transformers

    transformers.utils.logging.disable_progress_bar()
    extra: dict[str, Any] = {"trust_remote_code": True} if job.trust_remote_code else {}
    if not whole:
        extra["distributed_config"] = transformers.DistributedConfig(**job.distributed)
        if job.tpu and job.distributed["tp_size"] == 1:
            extra["device_map"] = "tpu"  # a config of one rank places nothing
    auto_class = getattr(transformers, job.auto_class)
    started = time.perf_counter()
    model, info = auto_class.from_pretrained(
        job.checkpoint, dtype=getattr(torch, job.dtype), output_loading_info=True, **extra
    )
    notes.put(
        load_seconds=time.perf_counter() - started,
        parameter_bytes=sum(local_part(p).numel() * p.element_size() for p in model.parameters()),
        missing=sorted(info["missing_keys"]),
    )
    return model.eval()


def _logits(model: Any, inputs: Mapping[str, Any]) -> Any:
    from tpplan.model.forward import main_output

    return main_output(model(**{name: tensor.to(model.device) for name, tensor in inputs.items()}))


def _gradients(
    model: Any, output: Any, notes: _Notes, numbers: UnshardedNumbers, unsharded: RankResult | None, whole: bool
) -> dict[str, Any]:
    """Run the backward. The whole run returns its gradients, a rank notes how its own compare with those."""
    notes.enter(LaunchPhase.BACKWARD)
    _objective(output).backward()
    notes.enter(LaunchPhase.COMPARE)
    gradients: dict[str, Any] = {}
    if whole:
        gradients = {name: on_cpu(p.grad) for name, p in model.named_parameters() if p.grad is not None}
        notes.put(gradient_scale=max((gradient.abs().max().item() for gradient in gradients.values()), default=0.0))
    elif unsharded:
        notes.put(gradients=numbers.compare_gradients(model, unsharded.gradient_scale or 0.0))
    model.zero_grad(set_to_none=True)
    return gradients


def _objective(logits: Any) -> Any:
    """A scalar in which each logit has a weight of its own: no gradient can stand in for another."""
    import torch

    weights = torch.cos(torch.arange(logits.numel(), dtype=torch.float32)).reshape(logits.shape)
    return (logits.float() * weights.to(logits.device)).sum()


def _note_tokens(model: Any, ids: Any, job: Job, notes: _Notes, unsharded: RankResult | None, whole: bool) -> None:
    """Generate greedily and note the tokens. The ranks use the cache with which the unsharded model generates.

    The unsharded model may refuse a static cache, as models with a state of their own do, or refuse to generate: that
    is noted, for it says nothing about sharding.
    """
    if unsharded and unsharded.tokens is None:
        return
    if not whole:
        cache = (unsharded.cache if unsharded else None) or "static"
        tokens, _, kept = _generate(model, ids, job.new_tokens, cache)
        first = first_unequal(tokens, unsharded.tokens) if unsharded else None
        notes.put(tokens=tokens, first_token=first, **(_sizes(kept) if cache == "static" else {}))
        return
    for cache in ("static", "dynamic"):
        try:
            tokens, margins, _ = _generate(model, ids, job.new_tokens, cache)
        except Exception as error:  # noted, and reported by the parent
            notes.put(generate_error=one_line(error))
        else:
            notes.put(tokens=tokens, margins=margins, cache=cache)
            return


def _sizes(generated: Any) -> dict[str, int]:
    """What the cache of a generation holds, for as many tokens as the longest of its layers."""
    from tpplan.model.cache import read_cache

    states = read_cache(generated).values()
    return {
        "cache_bytes": sum(state.key_values + state.other for state in states),
        "cache_tokens": max((state.kept for state in states), default=0),
    }


def _generate(model: Any, ids: Any, new_tokens: int, cache: str) -> tuple[list[int], list[float], Any]:
    """The new tokens, for each its distance to the runner-up, and all that generate returned. The inputs are left on
    cpu, as the guide says."""
    import torch

    generated = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        do_sample=False,
        num_beams=1,
        min_new_tokens=new_tokens,
        max_new_tokens=new_tokens,
        cache_implementation=cache,
        return_dict_in_generate=True,
        output_logits=True,
    )
    margins = []
    for step in generated.logits:
        best = on_cpu(step)[0].topk(2).values.tolist()
        margins.append((best[0] - best[1]) / (on_cpu(step).abs().max().item() or 1.0))
    return generated.sequences[0, -new_tokens:].tolist(), margins, generated


def _as_noted(error: Exception) -> dict[str, Any]:
    torch = sys.modules.get("torch")
    memory = isinstance(error, (MemoryError, *((torch.OutOfMemoryError,) if torch else ())))
    return {"type": type(error).__name__, "message": message(error), "at": time.time(), "memory": memory}


def main(arguments: list[str]) -> int:
    """Be one process of the launch: exit code 0, or 1 with what was raised in the result file and on stderr."""
    die_with_parent(signal.SIGKILL)
    faulthandler.register(signal.SIGUSR1, all_threads=False)  # the parent asks where a rank that hangs is
    job = Job(**json.loads(Path(arguments[0]).read_text(encoding="utf-8")))
    results = Path(job.results)
    whole = "--unsharded" in arguments
    rank = 0 if whole else int(os.environ["RANK"])
    notes = _Notes(results / (UNSHARDED if whole else f"rank-{rank}.json"), rank)
    try:
        unsharded = read_result(results / UNSHARDED) if job.compare and not whole else None
        run(job, notes, unsharded, whole=whole)
        _leave_group()
    except Exception as error:  # whatever it is, the parent reports it
        notes.put(error=_as_noted(error))
        traceback.print_exc()
        if not whole:
            _wait_for_peers(results)
        return 1
    return 0


def _wait_for_peers(results: Path) -> None:
    """Give the other ranks of this host time to raise as well: torchrun ends them all when the first one is gone."""
    deadline = time.monotonic() + PEERS_SECONDS
    count = int(os.environ["LOCAL_WORLD_SIZE"])
    while time.monotonic() < deadline:
        found = [read_result(path) for path in results.glob("rank-*.json")]
        if sum(1 for result in found if result and (result.error or result.phase == LaunchPhase.DONE)) >= count:
            return
        time.sleep(0.05)


def _leave_group() -> None:
    import torch.distributed as dist

    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
