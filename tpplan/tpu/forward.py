"""What one rank runs: a prefill, and a decode step with a static cache, as programs."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tpplan.choices import Phase
from tpplan.model.cache import static_cache
from tpplan.model.config import ModelSpec, config_value
from tpplan.model.forward import main_output, runnable
from tpplan.model.quiet import quiet
from tpplan.model.skeleton import Sharding, build_on_meta, shard
from tpplan.tpu.collectives import NoLowering
from tpplan.tpu.device import TpuTensors
from tpplan.tpu.layers import Selection, only
from tpplan.tpu.program import Program, cut
from tpplan.tpu.tracing import trace


@dataclass(frozen=True, kw_only=True)
class Workload:
    """batch: sequences. prefill: tokens of each that the prefill takes. max_length: tokens that the cache holds.
    last_only: whether the logits of the last token are all that is wanted, as in `generate`."""

    batch: int = 1
    prefill: int
    max_length: int
    last_only: bool = True


def sharded(spec: ModelSpec, sharding: Sharding, dtype: Any = None) -> Any:
    """The model on meta, sharded for the rank that this process is. Within `device.tpu_rank`."""
    return shard(build_on_meta(spec, dtype), sharding).eval()


def programs(
    model: Any,
    spec: ModelSpec,
    tp_size: int,
    workload: Workload,
    *,
    selection: Selection | None = None,
    decompositions: Mapping[Any, Any] | None = None,
) -> Iterator[tuple[Phase, Program]]:
    """The programs of a sharded model for the rank that this process is, in the order in which they run.

    selection: the layers that run, all if left out. decompositions: operators to be traced as others. Raises
    NoLowering, and whatever the model's forward raises.
    """
    import torch

    if config_value(spec.config, "is_encoder_decoder"):
        raise NoLowering("an encoder-decoder, whose two passes are not traced")
    with only(model, selection) as skipped, _own_tensors_kept(model), quiet():
        tensors = TpuTensors()
        tensors.replace(model, skipped)
        run = runnable(model)
        cache = static_cache(run.config, workload.max_length)
        extra = {"logits_to_keep": 1} if workload.last_only and _keeps_logits(run) else {}

        def forward(input_ids: Any) -> Any:
            output = run(input_ids=input_ids, past_key_values=cache, use_cache=True, **extra)
            return main_output(output)

        prompt = tensors.empty((workload.batch, workload.prefill), torch.int64)
        token = tensors.empty((workload.batch, 1), torch.int64)
        with torch.no_grad(), tensors.mode:
            forward(prompt)  # the cache takes its shapes from the first keys and values
            cache.reset()
        yield Phase.PREFILL, cut(trace(forward, {"input_ids": prompt}, tensors, _held(cache), decompositions), tp_size)
        with torch.no_grad(), tensors.mode:
            cache.reset()
            forward(prompt)
        yield Phase.DECODE, cut(trace(forward, {"input_ids": token}, tensors, _held(cache), decompositions), tp_size)


def _keeps_logits(model: Any) -> bool:
    return "logits_to_keep" in inspect.signature(model.forward).parameters


def _held(cache: Any) -> dict[str, Any]:
    """The tensors of a cache by their place in it."""
    import torch

    found: dict[str, Any] = {}

    def visit(name: str, value: Any) -> None:
        if isinstance(value, torch.Tensor):
            found[name] = value
        elif isinstance(value, dict):
            for key, one in value.items():
                visit(f"{name}.{key}", one)

    for place, layer in enumerate(cache.layers):
        for name, value in vars(layer).items():
            visit(f"{place}.{name}", value)
    return found


@contextmanager
def _own_tensors_kept(model: Any) -> Iterator[None]:
    """Let the model have its tensors on meta again, for the next trace."""
    holders = [holder for module in model.modules() for holder in (module._parameters, module._buffers)]
    before = [(holder, dict(holder)) for holder in holders]
    try:
        yield
    finally:
        for holder, own in before:
            holder.update(own)
