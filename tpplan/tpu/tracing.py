"""One rank's forward as a graph: weights, cache and inputs come in, logits and what the cache became go out."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from tpplan.tpu.collectives import NoLowering
from tpplan.tpu.device import DEVICE, TpuTensors
from tpplan.tpu.internals import tpu_internals


class Role(StrEnum):
    INPUT = "input"
    WEIGHT = "weight"  # or buffer
    CACHE = "cache"
    CONSTANT = "constant"


@dataclass(frozen=True, kw_only=True)
class Argument:
    """One input of a program. name: of the weight or buffer, of the input; or the place of the cache's tensor.

    value: of a constant, a real tensor.
    """

    role: Role
    name: str
    shape: tuple[int, ...]
    dtype: Any
    value: Any = None

    @property
    def bytes(self) -> int:
        count = 1
        for size in self.shape:
            count *= size
        return count * self.dtype.itemsize


@dataclass(frozen=True, kw_only=True)
class Traced:
    """A forward without side effects. arguments: in the order of the graph's placeholders. updates: of each result
    after the first, the place of the argument that it replaces; the first result is the forward's own."""

    graph: Any
    arguments: tuple[Argument, ...]
    updates: tuple[int, ...]


def trace(
    forward: Callable[..., Any],
    inputs: Mapping[str, Any],
    tensors: TpuTensors,
    cache: Mapping[str, Any],
    decompositions: Mapping[Any, Any] | None = None,
) -> Traced:
    """The graph of `forward(**inputs)`, which returns one tensor. inputs: fakes of `tensors`. cache: name -> fake.

    decompositions: operators that are traced as others. Raises NoLowering, and what the forward raises.
    """
    import torch
    from torch.fx.experimental.proxy_tensor import make_fx

    names, values = tuple(inputs), tuple(inputs.values())
    table = {torch.ops.aten.cumsum.default: _cumsum, **(decompositions or {})}

    def call(*given: Any) -> Any:
        return forward(**dict(zip(names, given, strict=True)))

    with torch.no_grad(), tensors.mode:
        graph = make_fx(call, decomposition_table=table, tracing_mode="real", _allow_non_fake_inputs=True)(*values)
    arguments = [
        Argument(role=Role.INPUT, name=name, shape=tuple(value.shape), dtype=value.dtype)
        for name, value in inputs.items()
    ]
    cached = {id(value): name for name, value in cache.items()}
    arguments += _lift(graph, tensors, cached)
    fakes = [tensors.empty(argument.shape, argument.dtype) for argument in arguments]
    with torch.no_grad(), tensors.mode:
        pure = make_fx(torch.func.functionalize(graph), tracing_mode="real", _allow_non_fake_inputs=True)(*fakes)
    updates = _updates_as_results(pure)
    # The pass of torch_tpu's compile backend that changes what a forward computes with: repeated key/value heads are
    # folded into the attention. Its others look for masks that a static cache never makes, or at a backward.
    tpu_internals().fold_gqa(pure)
    pure.graph.eliminate_dead_code()
    _no_tensors_inside(pure)
    _on_tpu(pure)
    pure.recompile()
    return Traced(graph=pure, arguments=tuple(arguments), updates=updates)


def _cumsum(x: Any, dim: int, dtype: Any = None) -> Any:
    """A cumulative sum as a masked one: torch_tpu lowers the operator itself to a composite that libtpu's plugin cannot
    be handed by jax."""
    import torch

    x = x.movedim(dim, -1)
    place = torch.arange(x.shape[-1], device=x.device)
    x = x.to(dtype or (x.dtype if x.is_floating_point() else torch.int64))
    mask = (place[None, :] <= place[:, None]).to(x.dtype)
    return (x.unsqueeze(-2) * mask).sum(-1).movedim(-1, dim)


def _lift(graph: Any, tensors: TpuTensors, cached: Mapping[int, str]) -> list[Argument]:
    """Make every tensor that the graph holds an argument of it: weights, cache, constants. Returns these."""
    from torch._subclasses.fake_tensor import FakeTensor

    found: list[Argument] = []
    places: dict[int, Any] = {}
    last = [node for node in graph.graph.nodes if node.op == "placeholder"][-1]
    for node in list(graph.graph.nodes):
        if node.op != "get_attr":
            continue
        held = operator.attrgetter(node.target)(graph)
        local = getattr(held, "_local_tensor", held)
        if id(local) not in places:
            name = tensors.names.get(id(held)) or tensors.names.get(id(local))
            role, value = Role.WEIGHT, None
            if name is None and id(held) in cached:
                name, role = cached[id(held)], Role.CACHE
            elif name is None:
                role, name = Role.CONSTANT, str(node.target)
                value = getattr(held, "constant", None) if isinstance(held, FakeTensor) else held
                if value is None:
                    raise NoLowering(f"a tensor of shape {tuple(held.shape)} that is no weight and has no value")
            with graph.graph.inserting_after(last):
                last = graph.graph.placeholder(f"argument_{len(places)}")
            places[id(local)] = last
            found.append(Argument(role=role, name=name, shape=tuple(local.shape), dtype=local.dtype, value=value))
        node.replace_all_uses_with(places[id(local)])
        graph.graph.erase_node(node)
    graph.recompile()
    return found


def _updates_as_results(graph: Any) -> tuple[int, ...]:
    """Turn copies into arguments, which functionalization leaves at the end, into results. Returns their places."""
    import torch

    placeholders = {node: place for place, node in enumerate(n for n in graph.graph.nodes if n.op == "placeholder")}
    output = next(node for node in graph.graph.nodes if node.op == "output")
    results, updates = [output.args[0]], []
    for node in list(graph.graph.nodes):
        if node.target == torch.ops.aten.copy_.default and node.args[0] in placeholders:
            updates.append(placeholders[node.args[0]])
            results.append(node.args[1])
            node.replace_all_uses_with(node.args[1])
            graph.graph.erase_node(node)
    output.args = (tuple(results),)
    return tuple(updates)


def _no_tensors_inside(graph: Any) -> None:
    for node in graph.graph.nodes:
        if node.op == "get_attr":
            raise NoLowering(f"a constant that only the second trace has, {node.target}")


def _on_tpu(graph: Any) -> None:
    """What the forward makes on cpu, it makes on the device: the whole program is one of the device."""
    import torch

    for node in graph.graph.nodes:
        if node.kwargs.get("device") is not None:
            node.kwargs = {**node.kwargs, "device": torch.device(DEVICE)}
