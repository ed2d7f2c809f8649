"""Layers that are alike are run once: a layer's result is used again for each later layer that is the same.

Two layers are the same when their modules, attributes, parameter shapes and placements are equal (their index apart)
and they are called with arguments of the same shapes. Anything that differs is run.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple

# Attributes that tell a layer its place; they select cache slots and nothing else.
POSITION_ATTRIBUTES = frozenset({"layer_idx", "layer_index", "layer_id", "layer_number", "block_idx"})


@dataclass
class Repeats:
    """Which layers did not run, filled while the model runs.

    first: name of a layer that did not run -> name of the layer whose result stood for its own. indices: its place in
    the cache -> that layer's place. running: names of the layers on the stack, the outermost first.
    """

    first: dict[str, str] = field(default_factory=dict)
    indices: dict[int, int] = field(default_factory=dict)
    running: list[str] = field(default_factory=list)

    def times(self, running: tuple[str, ...]) -> int:
        """How many layers of the model each run of this stack of layers stands for."""
        return math.prod(1 + sum(first == name for first in self.first.values()) for name in running)

    def _skip(self, name: str, layer: Any, first: _First) -> None:
        self.first[name] = first.name
        for module, other in zip(layer.modules(), first.layer.modules(), strict=True):
            self.indices |= dict(zip(_positions(module), _positions(other), strict=False))

    def _run_itself(self, name: str, layer: Any) -> None:
        self.first.pop(name, None)
        for module in layer.modules():
            for index in _positions(module):
                self.indices.pop(index, None)


class _First(NamedTuple):
    """The first layer of a kind, and what it returned, by the shapes of the call."""

    name: str
    layer: Any
    results: dict[Any, Any]


class _ModuleSignature(NamedTuple):
    """Everything that decides what one module of a layer does. name: inside the layer. attributes: by name.

    tensors: name, shape, dtype and placements of its parameters and buffers.
    """

    name: str
    kind: type
    attributes: tuple[tuple[str, Any], ...]
    tensors: tuple[Any, ...]


_Signature = tuple[_ModuleSignature, ...]  # of a layer


@contextmanager
def run_repeats_once(
    model: Any, prepare: Callable[[Any, set[int]], None], *, enabled: bool = True
) -> Iterator[Repeats]:
    """Replace, while the context lasts, the forward of every layer that repeats an earlier one in its list.

    prepare: called as `prepare(module, skipped)` to give the modules inside `module` what they need to run, but for
    those whose ids are in `skipped`: first with the model, then with a repeating layer whose call has other shapes than
    every earlier call of its kind and which must run itself after all.
    """
    repeats = Repeats()
    skipped: set[int] = set()
    replaced = []
    for name, modules in _layer_lists(model) if enabled else ():
        if id(modules) in skipped:
            continue
        kinds: dict[_Signature, _First] = {}
        configs: dict[int, Any] = {}
        for index, layer in enumerate(modules):
            own = f"{name}.{index}"
            first = kinds.setdefault(_signature(layer, configs), _First(own, layer, {}))
            is_repeat = first.name != own
            if is_repeat:
                skipped.update(id(module) for module in layer.modules())
                repeats._skip(own, layer, first)
            replaced.append((layer, vars(layer).get("forward")))
            layer.forward = _answering(layer, own, first.results, prepare if is_repeat else None, repeats)
    prepare(model, skipped)
    try:
        yield repeats
    finally:
        for layer, forward in reversed(replaced):
            del layer.forward
            if forward is not None:
                layer.forward = forward


def _answering(
    layer: Any, name: str, results: dict[Any, Any], prepare: Callable[[Any, set[int]], None] | None, repeats: Repeats
) -> Callable[..., Any]:
    """A forward for `layer` that answers from `results`, by the shapes of the call, and runs where there is none."""
    forward = layer.forward

    def answer(*args: Any, **kwargs: Any) -> Any:
        call = _call_signature((args, kwargs))
        if call not in results:
            if prepare:
                prepare(layer, set())
                repeats._run_itself(name, layer)
            repeats.running.append(name)
            try:
                results[call] = forward(*args, **kwargs)
            finally:
                repeats.running.pop()
        return results[call]

    return answer


def _positions(module: Any) -> list[int]:
    """The values of the attributes that tell a module its place."""
    return [value for name, value in vars(module).items() if name in POSITION_ATTRIBUTES and isinstance(value, int)]


def layers_by_kind(model: Any) -> dict[str, list[list[int]]]:
    """For each list of layers in the model, by name: the indices of the layers of every kind that occurs, in order.

    A number that rises from each layer to the next, and no parameter's shape with it, is a layer's place and no kind.
    """
    kinds = {}
    for name, modules in _layer_lists(model):
        if len(modules):
            configs: dict[int, Any] = {}
            signatures = [_signature(layer, configs) for layer in modules]
            places = _places(signatures)
            seen: dict[_Signature, list[int]] = {}
            for index, signature in enumerate(signatures):
                seen.setdefault(_without(signature, places), []).append(index)
            kinds[name] = list(seen.values())
    return kinds


def first_of_each_kind(model: Any) -> dict[str, list[int]]:
    """The index of the first layer of every kind, by list of layers, as `layers_by_kind` has them."""
    return {name: [kind[0] for kind in kinds] for name, kinds in layers_by_kind(model).items()}


def _layer_lists(model: Any) -> list[tuple[str, Any]]:
    """The lists of layers in a model, with their names."""
    import torch

    return [(name, module) for name, module in model.named_modules() if isinstance(module, torch.nn.ModuleList)]


def _places(signatures: list[_Signature]) -> set[tuple[str, str]]:
    """(module, attribute) of numbers that rise from each layer to the next."""
    if len(signatures) < 3:
        return set()
    numbers = [
        {
            (module.name, attribute): value
            for module in signature
            for attribute, value in module.attributes
            if isinstance(value, int) and not isinstance(value, bool)
        }
        for signature in signatures
    ]
    everywhere = set(numbers[0]).intersection(*numbers[1:])
    return {place for place in everywhere if all(low[place] < high[place] for low, high in pairwise(numbers))}


def _without(signature: _Signature, places: set[tuple[str, str]]) -> _Signature:
    return tuple(
        module._replace(attributes=tuple(pair for pair in module.attributes if (module.name, pair[0]) not in places))
        for module in signature
    )


def _signature(layer: Any, configs: dict[int, Any]) -> _Signature:
    """Everything that decides what a layer does. configs: what was seen of configs, by their id."""
    return tuple(
        _ModuleSignature(name, type(module), _attributes(module, configs), _tensors(module))
        for name, module in layer.named_modules()
    )


def _attributes(module: Any, configs: dict[int, Any]) -> tuple[tuple[str, Any], ...]:
    return tuple(
        (name, _value(value, configs))
        for name, value in sorted(vars(module).items())
        if not name.startswith("_") and name not in POSITION_ATTRIBUTES and name != "forward"
    )


def _value(value: Any, configs: dict[int, Any]) -> Any:
    """A value to compare attributes by; objects are the same only when they are one object, and configs by content."""
    from transformers import PreTrainedConfig

    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (list, tuple)):
        return tuple(_value(item, configs) for item in value)
    if isinstance(value, dict):
        return tuple((str(key), _value(item, configs)) for key, item in value.items())
    if isinstance(value, functools.partial):
        return tuple(_value(part, configs) for part in (value.func, value.args, value.keywords))
    if inspect.ismethod(value):
        return (value.__qualname__, type(value.__self__))
    if isinstance(value, PreTrainedConfig):  # layers whose values differ have each a config of its own
        if id(value) not in configs:
            configs[id(value)] = (type(value), repr(value.to_dict()))
        return configs[id(value)]
    return ("object", id(value))


def _tensors(module: Any) -> tuple[Any, ...]:
    own = [*module._parameters.items(), *module._buffers.items()]
    return tuple(
        (name, None if tensor is None else (tuple(tensor.shape), tensor.dtype, str(getattr(tensor, "placements", ""))))
        for name, tensor in own
    )


def _call_signature(value: Any) -> Any:
    """Shapes, dtypes and plain values of a call's arguments; of other objects their type."""
    import torch

    if isinstance(value, torch.Tensor):
        return (type(value).__name__, tuple(value.shape), value.dtype)
    if isinstance(value, (list, tuple)):
        return tuple(_call_signature(item) for item in value)
    if isinstance(value, dict):
        return tuple((str(key), _call_signature(item)) for key, item in value.items())
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    return type(value).__name__
