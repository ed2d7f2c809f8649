"""What one rank of a sharded model keeps, moves and computes for a token, measured by running it without weights.

The model runs as rank 0, at full size, once for each of two prompt lengths: what grows between them is the cache of a
token, what does not is state of a fixed size. Layers that are alike are run once and counted as often as they occur.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tpplan.answers import Collective, LayerCache, Usage
from tpplan.model.cache import PARTS, CacheSlot, LayerState, read_cache
from tpplan.model.config import ModelSpec
from tpplan.model.fake_weights import FakeWeights
from tpplan.model.forward import example_inputs, runnable
from tpplan.model.meter import make_meter
from tpplan.model.quiet import quiet
from tpplan.model.ranks import fake_rank
from tpplan.model.repeats import Repeats, run_repeats_once
from tpplan.model.skeleton import Sharding, build_on_meta, shard
from tpplan.stages.full_size import FALLBACK_DTYPE
from tpplan.units import one_line

PROMPTS = (16, 32)  # tokens, longer where a layer compresses what leaves its window


def measure(spec: ModelSpec, sharding: Sharding) -> Usage:
    """The use of rank 0 of the model under `sharding`. Raises nothing for a model that does not run."""
    import torch

    usage = Usage(not_run="nothing was run")
    for dtype in dict.fromkeys((spec.dtype, FALLBACK_DTYPE)):
        with fake_rank(0, sharding.tp_size), quiet(), torch.no_grad():
            try:
                model = shard(build_on_meta(replace(spec, dtype=dtype)), sharding).eval()
                itemsizes = {getattr(torch, dtype): getattr(torch, spec.dtype).itemsize}
                return _measure(model, spec, itemsizes)
            except Exception as error:  # the model's own code may raise anything
                usage = Usage(not_run=one_line(error))
    return usage


def _measure(model: Any, spec: ModelSpec, itemsizes: Mapping[Any, int]) -> Usage:
    """itemsizes: the dtype in which it runs, and the bytes that an element has in the spec's dtype."""
    weights = FakeWeights()
    with run_repeats_once(model, weights.give) as repeats:
        meter = make_meter(lambda: tuple(repeats.running), itemsizes)
        with meter:
            output = _run(model, spec, PROMPTS[0])
        times = {stack: repeats.times(stack) for stack in {*meter.flops, *meter.made, *(s for s, _ in meter.calls)}}
        states, prompts = _of_every_layer(read_cache(output, itemsizes), repeats), PROMPTS
        windows = [state.window for state in states.values() if state.window and state.other]
        if windows:
            prompts = (2 * max(windows), 4 * max(windows))
            states = _of_every_layer(read_cache(_run(model, spec, prompts[0]), itemsizes), repeats)
        later = _of_every_layer(read_cache(_run(model, spec, prompts[1]), itemsizes), repeats)
    return Usage(
        layers=sum(times[stack] for stack in times if len(stack) == 1),
        cache=tuple(_layer_cache(states[place], later[place], prompts) for place in states),
        collectives=_collectives(meter, times),
        flops=sum(flops * times[stack] for stack, flops in meter.flops.items()) // PROMPTS[0],
        activations=_largest_layer(meter.made) // PROMPTS[0],
    )


def _run(model: Any, spec: ModelSpec, tokens: int) -> Any:
    return runnable(model)(**example_inputs(spec, tokens))


def _of_every_layer(states: Mapping[CacheSlot, LayerState], repeats: Repeats) -> dict[CacheSlot, LayerState]:
    """The states of all layers: one that did not run keeps as much as the one that stood for it."""
    counted = dict(states)
    for index, first in repeats.indices.items():
        counted |= {(part, index): states[part, first] for part in PARTS if (part, first) in states}
    return counted


def _layer_cache(state: LayerState, later: LayerState, prompts: tuple[int, int]) -> LayerCache:
    """state, later: after prompts of these numbers of tokens."""
    growth = (later.other - state.other) / (prompts[1] - prompts[0])
    return LayerCache(
        key_values=state.key_values // state.kept if state.kept else 0,
        window=state.window,
        growth=growth,
        constant=max(0, round(state.other - growth * prompts[0])),
    )


def _collectives(meter: Any, times: Mapping[tuple[str, ...], int]) -> tuple[Collective, ...]:
    counts: dict[tuple[str, bool], list[int]] = defaultdict(lambda: [0, 0])
    for (stack, kind), calls in meter.calls.items():
        total = counts[kind, bool(stack)]
        total[0] += calls * times[stack]
        total[1] += meter.bytes[stack, kind] * times[stack] // PROMPTS[0]
    return tuple(
        Collective(kind=kind, count=count, bytes=size, in_layers=in_layers)
        for (kind, in_layers), (count, size) in sorted(counts.items())
    )


def _largest_layer(made: Mapping[tuple[str, ...], int]) -> int:
    """Bytes that the outermost layer with most of them makes, layers inside it included."""
    by_layer: dict[str, int] = defaultdict(int)
    for stack, size in made.items():
        if stack:
            by_layer[stack[0]] += size
    return max(by_layer.values(), default=0)
