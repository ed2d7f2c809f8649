"""How far a model is shrunk: the sizes that are tried, and what becomes of the hidden size and heads of one config."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import Any

from tpplan.model.config import config_value

HEADS = (
    "num_attention_heads",
    "n_head",
    "num_heads",
    "encoder_attention_heads",
    "attention_heads",
    "decoder_attention_heads",
    "heads",
)
LAYER_COUNTS = (
    "num_hidden_layers",
    "n_layer",
    "n_layers",
    "num_layers",
    "encoder_layers",
    "decoder_layers",
    "num_blocks",
    "depth",
)
HIDDEN = ("hidden_size", "n_embd", "d_model", "dim", "embed_dim")
# Widths of the parts of a head that are rotated: they keep their ratio to its width.
ROTATED = ("rotary_dim",)
HIDDEN_FLOOR, HEAD_FLOOR = 64, 16
MANY_HEADS = 64  # of HEAD_FLOOR columns: more are given half of it


class Hidden(StrEnum):
    """What becomes of the hidden size.

    NARROW: the floor, or HEADS where the width of a head comes from it. HEADS: a multiple of the number of heads.
    FULL: unchanged.
    """

    NARROW = "narrow"
    HEADS = "heads"
    FULL = "full"


class Towers(StrEnum):
    """What becomes of the widths of towers; their depth is always cut. FOLLOW: only those of the language model."""

    NARROW = "narrow"
    FOLLOW = "follow"
    FULL = "full"


@dataclass(frozen=True, kw_only=True)
class Size:
    """One way to shrink.

    vocabulary: whether it is shrunk. layers: the ones of the language model to keep, empty for all as they are.
    tower_layers: those of towers, by their depth. sections: the model's mrope_section, which its code has where the
    config gives none.
    """

    tp_size: int
    hidden: Hidden
    towers: Towers
    vocabulary: bool = True
    layers: tuple[int, ...]
    tower_layers: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    sections: tuple[int, ...] = ()


class Widths:
    """The hidden size of one config, full and small, and how much narrower a head becomes with it."""

    def __init__(self, config: Any, size: Size) -> None:
        self.config = config
        self._size = size
        self._values = config.to_dict()
        self.heads = next((v for name in HEADS if is_count(v := config_value(config, name))), None)

    @cached_property
    def full(self) -> int | None:
        return next((v for name in HIDDEN if is_count(v := config_value(self.config, name))), None)

    @cached_property
    def small(self) -> int | None:
        return self.of(self.full) if self.full else None

    def of(self, value: int) -> int:
        """What becomes of a hidden size."""
        if self._size.hidden is Hidden.FULL:
            return value
        if self._size.hidden is Hidden.NARROW and self.own_head_width:
            return smaller(value, self._size.tp_size, HIDDEN_FLOOR)
        return self._multiple_of_heads(value) if self.heads else value

    @cached_property
    def own_head_width(self) -> bool:
        """Whether the width of a head is a value of its own, and not hidden size / heads."""
        return any("head_dim" in name and is_count(value) for name, value in self._values.items())

    @property
    def head_ratio(self) -> tuple[int, int] | None:
        """(small, full) width of a head where it becomes narrower with the hidden size."""
        if self.own_head_width or not self.heads or not self.full or self.small == self.full:
            return None
        return self.small // self.heads, self.full // self.heads

    def _multiple_of_heads(self, value: int) -> int:
        """Heads of at least HEAD_FLOOR columns, of which whole pairs are rotated, and the same remainders."""
        assert self.heads
        left, width = value % self.heads, value // self.heads
        modulus = 8 * self._size.tp_size
        lowest = 1 if self.own_head_width else HEAD_FLOOR // (2 if self.heads > MANY_HEADS else 1)
        fitting = [
            columns
            for columns in range(lowest, width)
            if self._rotates_whole_pairs(columns, width) and self.heads * columns + left >= HIDDEN_FLOOR
        ]
        even = [columns for columns in fitting if (self.heads * columns + left) % modulus == value % modulus]
        chosen = (even or fitting or [width])[0]
        return self.heads * chosen + left

    def _rotates_whole_pairs(self, columns: int, width: int) -> bool:
        if self.own_head_width:
            return True
        pairs = [rotated // 2 for name in ROTATED if is_count(rotated := config_value(self.config, name))]
        return columns % 4 == 0 and all(pair * columns % width == 0 for pair in pairs)


@dataclass(frozen=True, kw_only=True)
class Part:
    """One config of a model, and all that its smaller values depend on.

    own: its widths. text: those of the language model. depth: its number of layers, 0 where all are kept or it has
    none. layers: the ones to keep, empty for all. offsets: first tokens of the codes of towers, in order.
    """

    config: Any
    own: Widths
    text: Widths
    size: Size
    depth: int = 0
    layers: tuple[int, ...] = ()
    offsets: tuple[int, ...] = ()


def number_of_layers(config: Any) -> int:
    """The number of layers that a config gives under any of its names, 0 where it gives none."""
    counts = (config_value(config, name) for name in LAYER_COUNTS)
    return next((count for count in counts if isinstance(count, int)), 0)


def is_count(value: Any) -> bool:
    """Whether a value is a whole number above 0."""
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def smaller(value: int, tp_size: int, floor: int) -> int:
    """The smallest width of at least `floor`, or `value` itself, with the same remainder by 8 * tp_size."""
    modulus = 8 * tp_size
    remainder = value % modulus
    return min(value, remainder + modulus * max(0, -(-(floor - remainder) // modulus)))
