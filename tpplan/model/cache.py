"""What a model keeps between two tokens: the tensors of its cache, by layer, whatever kind of state they are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

# Fields of a model's output that hold its state; Transformers has one name for each family of models.
FIELDS = ("past_key_values", "cache_params", "state")
SELF, CROSS = "self", "cross"  # an encoder-decoder's decoder has a cache of each
PARTS = (SELF, CROSS)
CacheSlot = tuple[str, int]  # one of PARTS, and the number of the layer in it


@dataclass(frozen=True, kw_only=True)
class LayerState:
    """The state of one layer for one sequence, in bytes on one rank.

    key_values: of its keys and values. kept: tokens that these hold. window: the most tokens that they ever hold, None
    where they grow without end. other: of all other tensors (convolution and recurrent states, compressed entries).
    """

    key_values: int = 0
    kept: int = 0
    window: int | None = None
    other: int = 0


def static_cache(config: Any, length: int) -> Any:
    """An empty transformers.StaticCache for `length` tokens."""
    from transformers import StaticCache

    return StaticCache(config=config, max_cache_len=length)


def read_cache(output: Any, itemsizes: Mapping[Any, int] = MappingProxyType({})) -> dict[CacheSlot, LayerState]:
    """The state of every layer that has one, by its place in the cache; empty where the model keeps nothing.

    itemsizes: bytes that an element of a dtype takes, where that is not the dtype's own.
    """
    states: dict[CacheSlot, LayerState] = {}
    for name in FIELDS:
        cache = getattr(output, name, None)
        if cache is None:
            continue
        parts = {
            SELF: getattr(cache, "self_attention_cache", cache),
            CROSS: getattr(cache, "cross_attention_cache", None),
        }
        for part, own in parts.items():
            states |= {(part, layer): state for layer, state in _read(own, itemsizes).items()}
    return states


def _read(cache: Any, itemsizes: Mapping[Any, int]) -> dict[int, LayerState]:
    states = {place: _layer(layer, itemsizes) for place, layer in enumerate(getattr(cache, "layers", None) or ())}
    own = vars(cache) if hasattr(cache, "__dict__") else {"": cache}
    for name, value in own.items():
        for place, part in _by_place(value) if name != "layers" else ():
            before = states.get(place, LayerState())
            states[place] = replace(before, other=before.other + _size(part, set(), itemsizes))
    return {place: state for place, state in states.items() if state.key_values or state.other}


def _layer(layer: Any, itemsizes: Mapping[Any, int]) -> LayerState:
    keys = getattr(layer, "keys", None)
    seen: set[int] = set()
    key_values = _size([keys, getattr(layer, "values", None)], seen, itemsizes)
    return LayerState(
        key_values=key_values,
        kept=int(keys.shape[-2]) if keys is not None and key_values else 0,
        window=getattr(layer, "sliding_window", None) if getattr(layer, "is_sliding", False) else None,
        other=_size(vars(layer), seen, itemsizes),
    )


def _by_place(value: Any) -> Iterator[tuple[int, Any]]:
    """The parts of a list or mapping that a cache keeps beside its layers, by layer."""
    items = (
        value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, (list, tuple)) else ()
    )
    yield from ((place, part) for place, part in items if isinstance(place, int))


def _size(value: Any, seen: set[int], itemsizes: Mapping[Any, int]) -> int:
    """Bytes on this rank of every tensor inside plain containers, each once: some layers keep one under two names.

    seen: ids of the tensors that were counted. Scalars are no state of a sequence.
    """
    import torch
    from torch.distributed.tensor import DTensor

    if isinstance(value, torch.Tensor):
        if id(value) in seen or not value.ndim:
            return 0
        seen.add(id(value))
        local = value.to_local() if isinstance(value, DTensor) else value
        return local.numel() * itemsizes.get(local.dtype, local.element_size())
    parts = value.values() if isinstance(value, Mapping) else value if isinstance(value, (list, tuple)) else ()
    return sum(_size(part, seen, itemsizes) for part in parts)
