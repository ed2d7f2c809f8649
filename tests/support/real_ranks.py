"""Whether a plan is right, by raw Transformers on gloo ranks forked from this process. Imports nothing of tpplan."""

from __future__ import annotations

import logging
import multiprocessing
import os
import tempfile
import traceback
from pathlib import Path
from typing import Any

TOLERANCE = 1e-3  # of logits and gradients, over the largest of them; what is right differs by rounding, some 1e-6
SECONDS = 120
IDS = [[5, 17, 3, 40, 22, 9, 31, 8], [11, 2, 63, 7, 29, 1, 50, 33]]


def is_right(directory: Path, tp_size: int, overrides: dict[str, str], *, training: bool) -> tuple[bool, str]:
    """Whether every rank's logits and greedy tokens, and with `training` its gradients, are the unsharded model's.

    directory: a checkpoint of a causal language model. The second value says what was wrong.
    """
    wanted = _run(directory, None, training)
    with tempfile.TemporaryDirectory() as meeting:
        context = multiprocessing.get_context("fork")
        pipes, ranks = [], []
        for rank in range(tp_size):
            ours, theirs = context.Pipe(duplex=False)
            given = (rank, tp_size, f"file://{meeting}/store", directory, overrides, training, wanted, theirs)
            ranks.append(context.Process(target=_rank, args=given, daemon=True))
            pipes.append(ours)
        for process in ranks:
            process.start()
        try:
            said = [pipe.recv() if pipe.poll(SECONDS) else "no answer" for pipe in pipes]
        except EOFError:
            said = ["a rank died"]
        finally:
            for process in ranks:
                process.kill()
                process.join()
    wrong = [one for one in said if one]
    return not wrong, "; ".join(wrong)


def _rank(
    rank: int, tp_size: int, store: str, directory: Path, overrides: dict, training: bool, wanted: dict, pipe: Any
) -> None:
    import torch.distributed
    from transformers import DistributedConfig

    logging.disable(logging.CRITICAL)
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(tp_size)}
    try:
        torch.set_num_threads(1)
        torch.distributed.init_process_group("gloo", init_method=store, rank=rank, world_size=tp_size)
        plan = {"tp_plan": overrides} if overrides else {}
        found = _run(directory, DistributedConfig(tp_size=tp_size, **plan), training)
        pipe.send(_difference(found, wanted))
    except Exception as error:
        pipe.send(f"{type(error).__name__}: {error}\n{traceback.format_exc()[-600:]}")
    finally:
        pipe.close()
        os._exit(0)


def _run(directory: Path, distributed_config: Any, training: bool) -> dict[str, Any]:
    """Logits, greedy tokens with either cache, and gradients, as plain tensors."""
    import torch
    from transformers import AutoModelForCausalLM

    given = {"distributed_config": distributed_config} if distributed_config else {}
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32, **given).eval()
    ids = torch.tensor(IDS)
    found: dict[str, Any] = {}
    with torch.no_grad():
        found["logits"] = _whole(model(input_ids=ids, use_cache=False).logits)
        for cache in ("dynamic", "static"):
            kept = {"cache_implementation": cache, "max_new_tokens": 4, "do_sample": False, "disable_compile": True}
            found[f"tokens, {cache} cache"] = model.generate(ids, attention_mask=torch.ones_like(ids), **kept).float()
    if training:
        logits = _whole(model(input_ids=ids, use_cache=False).logits)
        (logits * torch.cos(torch.arange(logits.numel()).reshape(logits.shape) * 1.0)).sum().backward()
        found |= {name: _whole(p.grad) for name, p in model.named_parameters() if p.grad is not None}
    return {name: tensor.detach().numpy() for name, tensor in found.items()}


def _whole(tensor: Any) -> Any:
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def _difference(found: dict[str, Any], wanted: dict[str, Any]) -> str:
    """What is not as it should be, empty where all is."""
    import numpy

    if found.keys() != wanted.keys():
        return f"only one has {sorted(found.keys() ^ wanted.keys())[:3]}"
    for name, right in wanted.items():
        if found[name].shape != right.shape:
            return f"{name} has shape {found[name].shape}, not {right.shape}"
        error = numpy.abs(found[name] - right).max() / max(numpy.abs(right).max(), 1e-3)
        if not error <= TOLERANCE:
            return f"{name} differs by {error:.1e}"
    return ""
