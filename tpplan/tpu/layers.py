"""A model with few of its layers: those left out hand their input on, and count by the growth that one more brings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tpplan.model.repeats import layers_by_kind


@dataclass(frozen=True, kw_only=True)
class LayerKind:
    """Layers that are alike. container: the name of their list. indices: their places in it."""

    container: str
    indices: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Selection:
    """The layers that run. kept: list name -> the indices that run, of every list that has more. growing: the kind that
    has one layer more than the fewest, None for the fewest themselves."""

    kept: Mapping[str, frozenset[int]]
    growing: LayerKind | None = None


def kinds_of(model: Any) -> tuple[LayerKind, ...]:
    """Every kind of which the model has several layers, where these are alike but for their place."""
    return tuple(
        LayerKind(container=name, indices=tuple(kind))
        for name, kinds in layers_by_kind(model).items()
        for kind in kinds
        if len(kind) > 1 and _is_layer(model.get_submodule(f"{name}.{kind[0]}"))
    )


def _is_layer(module: Any) -> bool:
    """Whether it may be a layer of the stack: lists of experts and of heads are not."""
    return len(list(module.children())) > 1


def selections(model: Any) -> tuple[Selection, ...]:
    """The fewest layers, one of each kind, then for each kind those with one layer more of it."""
    kinds = kinds_of(model)
    containers = {kind.container for kind in kinds}
    all_kinds = {name: found for name, found in layers_by_kind(model).items() if name in containers}
    fewest = {name: frozenset(kind[0] for kind in found) for name, found in all_kinds.items()}
    grown = [
        Selection(kept=fewest | {kind.container: fewest[kind.container] | {kind.indices[1]}}, growing=kind)
        for kind in kinds
    ]
    return Selection(kept=fewest), *grown


@contextmanager
def only(model: Any, selection: Selection | None) -> Iterator[set[int]]:
    """Run only these layers while the context lasts; None runs all. Yields ids of the modules that do not run."""
    skipped: set[int] = set()
    replaced = []
    for name, kept in selection.kept.items() if selection else ():
        seen: list[Any] = []
        for index, layer in enumerate(model.get_submodule(name)):
            replaced.append((layer, vars(layer).get("forward")))
            if index in kept:
                layer.forward = _remembering(layer.forward, seen)
            else:
                layer.forward = _handing_on(seen)
                skipped.update(id(module) for module in layer.modules())
    try:
        yield skipped
    finally:
        for layer, forward in reversed(replaced):
            del layer.forward
            if forward is not None:
                layer.forward = forward


def _remembering(forward: Any, seen: list[Any]) -> Any:
    def call(*args: Any, **kwargs: Any) -> Any:
        result = forward(*args, **kwargs)
        seen[:] = [result]
        return result

    return call


def _handing_on(seen: list[Any]) -> Any:
    """A forward that returns its hidden states, in the form in which the layer before it returned its own."""

    def call(*args: Any, **kwargs: Any) -> Any:
        hidden = args[0] if args else kwargs["hidden_states"]
        last = seen[0] if seen else None
        return (hidden, *last[1:]) if isinstance(last, tuple) else hidden

    return call
