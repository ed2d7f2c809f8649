"""The attention blocks of a model: which linear layers make queries, keys and values, and how many heads they make.

Projections are known by the names that Transformers gives them; a block without both kinds is none.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

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
        """Whether the columns of one rank are not a whole number of heads."""
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
        head_dim = _head_dim(module, shared)
        if not head_dim:
            continue
        linear = list(_linear_children(name, module))
        queries = [
            Projection(name=one.name, columns=one.columns, unit=_query_unit(module, one.columns, head_dim))
            for one in linear
            if one.key in QUERY
        ]
        keys_values = [
            Projection(name=one.name, columns=one.columns, unit=_value_unit(module, one.key, head_dim))
            for one in linear
            if one.key in KEY_VALUE
        ]
        outputs = [one.name for one in linear if one.key in OUTPUT]
        if queries and keys_values:
            yield AttentionBlock(
                name=name,
                head_dim=head_dim,
                queries=tuple(queries),
                keys_values=tuple(keys_values),
                outputs=tuple(outputs),
            )


class _Linear(NamedTuple):
    """A linear layer: the name under which its block holds it, its own dotted name, and its out_features."""

    key: str
    name: str
    columns: int


def _linear_children(name: str, block: Any) -> Iterator[_Linear]:
    """The linear layers of a block; some blocks wrap each in a module of its own."""
    import torch

    for key, child in block.named_children():
        inner = getattr(child, "linear", None)
        if isinstance(child, torch.nn.Linear):
            yield _Linear(key, f"{name}.{key}", child.out_features)
        elif isinstance(inner, torch.nn.Linear):
            yield _Linear(key, f"{name}.{key}.linear", inner.out_features)


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


def _query_unit(module: Any, columns: int, head_dim: int) -> int:
    """Columns per query head: a gated query projection makes a head and its gate, twice head_dim."""
    heads = config_value(getattr(module, "config", None), "num_attention_heads")
    if isinstance(heads, int) and heads and columns % heads == 0:
        unit = columns // heads
        if unit % head_dim == 0:
            return unit
    return head_dim
