"""What each rank of a launch runs: load, forward, backward and generate, compared with what the unsharded model gave.

`python -m tpplan.launch.worker JOB.json` is a rank, as torchrun says; with `--unsharded` it is the one process that
loads the unsharded model and leaves its numbers for the ranks. Each process writes one result file.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import time
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tpplan.garbage import collect_less_often
from tpplan.launch.compare import UnshardedNumbers, first_unequal, local_part, on_cpu
from tpplan.launch.records import (
    NUMBERS,
    UNSHARDED,
    Job,
    LaunchPhase,
    Raised,
    RankResult,
    ResultFile,
    read_job,
    read_result,
)
from tpplan.signals import die_with_parent
from tpplan.units import message, one_line

PEERS_SECONDS = 2.0


def run(job: Job, result: ResultFile, unsharded: RankResult | None, *, whole: bool) -> None:
    """Run every phase of `job`. unsharded: the result to compare with. whole: be the unsharded run."""
    import torch

    torch.manual_seed(0)
    numbers = UnshardedNumbers(Path(job.results) / NUMBERS, job.dtype)
    result.enter(LaunchPhase.LOAD)
    model = _load(job, result, whole)
    result.enter(LaunchPhase.FORWARD)
    inputs = {name: torch.tensor(values) for name, values in job.inputs.items()}
    with torch.set_grad_enabled(job.training):
        output = _logits(model, inputs)
    logits = on_cpu(output)
    result.put(finite=bool(logits.isfinite().all()))
    if unsharded and unsharded.finite:
        result.put(logits=numbers.compare_logits(logits))
    gradients = _gradients(model, output, result, numbers, unsharded, whole) if job.training else {}
    if model.can_generate():
        result.enter(LaunchPhase.GENERATE)
        if whole:
            _note_unsharded_tokens(model, inputs["input_ids"], job, result)
        elif unsharded is None or unsharded.tokens is not None:
            _note_tokens(model, inputs["input_ids"], job, result, unsharded)
    if whole:
        numbers.save(logits, gradients)
    result.enter(LaunchPhase.DONE)


def _load(job: Job, result: ResultFile, whole: bool) -> Any:
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
    result.put(
        load_seconds=time.perf_counter() - started,
        parameter_bytes=sum(local_part(p).numel() * p.element_size() for p in model.parameters()),
        missing=sorted(info["missing_keys"]),
    )
    return model.eval()


def _logits(model: Any, inputs: Mapping[str, Any]) -> Any:
    from tpplan.model.forward import main_output

    return main_output(model(**{name: tensor.to(model.device) for name, tensor in inputs.items()}))


def _gradients(
    model: Any, output: Any, result: ResultFile, numbers: UnshardedNumbers, unsharded: RankResult | None, whole: bool
) -> dict[str, Any]:
    """Run the backward. The whole run returns its gradients, a rank notes how its own compare with those."""
    result.enter(LaunchPhase.BACKWARD)
    _objective(output).backward()
    result.enter(LaunchPhase.COMPARE)
    gradients: dict[str, Any] = {}
    if whole:
        gradients = {name: on_cpu(p.grad) for name, p in model.named_parameters() if p.grad is not None}
        result.put(gradient_scale=max((gradient.abs().max().item() for gradient in gradients.values()), default=0.0))
    elif unsharded:
        result.put(gradients=numbers.compare_gradients(model, unsharded.gradient_scale))
    model.zero_grad(set_to_none=True)
    return gradients


def _objective(logits: Any) -> Any:
    """A scalar in which each logit has a weight of its own: no gradient can stand in for another."""
    import torch

    weights = torch.cos(torch.arange(logits.numel(), dtype=torch.float32)).reshape(logits.shape)
    return (logits.float() * weights.to(logits.device)).sum()


def _note_tokens(model: Any, ids: Any, job: Job, result: ResultFile, unsharded: RankResult | None) -> None:
    """Generate greedily and note the tokens. The ranks use the cache with which the unsharded model generates."""
    cache = (unsharded.cache if unsharded else None) or "static"
    tokens, _, kept = _generate(model, ids, job.new_tokens, cache)
    first = first_unequal(tokens, unsharded.tokens or []) if unsharded else None
    result.put(tokens=tokens, first_token=first, **(_sizes(kept) if cache == "static" else {}))


def _note_unsharded_tokens(model: Any, ids: Any, job: Job, result: ResultFile) -> None:
    """Generate greedily and note the tokens, or why there are none.

    The unsharded model may refuse a static cache, as models with a state of their own do, or refuse to generate: that
    is noted, for it says nothing about sharding.
    """
    for cache in ("static", "dynamic"):
        try:
            tokens, margins, _ = _generate(model, ids, job.new_tokens, cache)
        except Exception as error:  # noted, and reported by the parent
            result.put(generate_error=one_line(error))
        else:
            result.put(tokens=tokens, margins=margins, cache=cache)
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


def _raised(error: Exception) -> Raised:
    torch = sys.modules.get("torch")
    memory = isinstance(error, (MemoryError, *((torch.OutOfMemoryError,) if torch else ())))
    return Raised(type=type(error).__name__, message=message(error), at=time.time(), memory=memory)


def main(arguments: list[str]) -> int:
    """Be one process of the launch: exit code 0, or 1 with what was raised in the result file and on stderr."""
    die_with_parent(signal.SIGKILL)
    collect_less_often()
    faulthandler.register(signal.SIGUSR1, all_threads=False)  # the parent asks where a rank that hangs is
    job = read_job(Path(arguments[0]))
    results = Path(job.results)
    whole = "--unsharded" in arguments
    rank = 0 if whole else int(os.environ["RANK"])
    result = ResultFile(results / (UNSHARDED if whole else f"rank-{rank}.json"), rank)
    try:
        unsharded = read_result(results / UNSHARDED) if job.compare and not whole else None
        run(job, result, unsharded, whole=whole)
        _leave_group()
    except Exception as error:  # whatever it is, the parent reports it
        result.put(error=_raised(error))
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
