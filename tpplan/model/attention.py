"""Finding the attention blocks of a model, with the numbers of heads that their projections make."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tpplan.model.config import config_value, text_config
from tpplan.model.skeleton import Skeleton

QUERY = ("q_proj", "query", "query_proj", "wq")
KEY_VALUE = ("k_proj", "v_proj", "key", "value", "key_proj", "value_proj", "wk", "wv", "kv_proj")
OUTPUT = ("o_proj", "out_proj", "dense", "c_proj", "wo", "output_proj")


@dataclass(frozen=True, kw_only=True)
class Projection:
    """One linear layer of a block. columns: out_features. unit: columns that belong to one head."""

    name: str
    columns: int
    unit: int

    @property
    def heads(self) -> int:
        return self.columns // self.unit

    def splits_a_head(self, tp_size: int) -> bool:
        """Whether a rank's share of columns is not a whole number of heads."""
        return bool(self.columns % tp_size or (self.columns // tp_size) % self.unit)


@dataclass(frozen=True, kw_only=True)
class AttentionBlock:
    """An attention module: its name and its projections by role (dotted names of concrete modules)."""

    name: str
    head_dim: int
    queries: tuple[Projection, ...]
    keys_values: tuple[Projection, ...]
    outputs: tuple[str, ...]

    @property
    def key_value_heads(self) -> int:
        return min((projection.heads for projection in self.keys_values), default=0)


def attention_blocks(skeleton: Skeleton, config: Any) -> Iterator[AttentionBlock]:
    """Every module that holds query and key/value projections as linear layers, and has heads of a known width."""
    shared = config_value(text_config(config), "head_dim")
    for name, module in skeleton.model.named_modules():
        linear = dict(_linear_children(module))
        queries = [key for key in linear if key in QUERY]
        keys_values = [key for key in linear if key in KEY_VALUE]
        head_dim = _head_dim(module, shared)
        if not (queries and keys_values and head_dim):
            continue
        yield AttentionBlock(
            name=name,
            head_dim=head_dim,
            queries=tuple(
                _projection(module, name, key, linear[key], _query_unit(module, linear[key], head_dim))
                for key in queries
            ),
            keys_values=tuple(
                _projection(module, name, key, linear[key], _value_unit(module, key, head_dim)) for key in keys_values
            ),
            outputs=tuple(_name_of(module, name, key) for key in linear if key in OUTPUT),
        )


def _linear_children(module: Any) -> Iterator[tuple[str, Any]]:
    """Linear layers by the name under which the block holds them; some wrap each in a module of its own."""
    import torch

    for key, child in module.named_children():
        inner = getattr(child, "linear", None)
        if isinstance(child, torch.nn.Linear):
            yield key, child
        elif isinstance(inner, torch.nn.Linear):
            yield key, inner


def _projection(block: Any, name: str, key: str, linear: Any, unit: int) -> Projection:
    return Projection(name=_name_of(block, name, key), columns=linear.out_features, unit=unit)


def _name_of(block: Any, name: str, key: str) -> str:
    """The dotted name of the linear layer itself."""
    return f"{name}.{key}.linear" if hasattr(getattr(block, key), "linear") else f"{name}.{key}"


def _head_dim(module: Any, shared: Any) -> int | None:
    """The module's own, or the one of the config."""
    own = getattr(module, "head_dim", None)
    if isinstance(own, int):
        return own
    return shared if isinstance(shared, int) else None


def _value_unit(module: Any, key: str, head_dim: int) -> int:
    """Columns per key or value head: values may have a width of their own."""
    own = getattr(module, "v_head_dim", None)
    return own if key.startswith(("v", "wv")) and isinstance(own, int) else head_dim


def _query_unit(module: Any, linear: Any, head_dim: int) -> int:
    """Columns per query head: a gated query projection makes a head and its gate, twice head_dim."""
    heads = config_value(getattr(module, "config", None), "num_attention_heads")
    if isinstance(heads, int) and heads and linear.out_features % heads == 0:
        unit = linear.out_features // heads
        if unit % head_dim == 0:
            return unit
    return head_dim
