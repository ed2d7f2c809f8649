"""What becomes of the values of a config: a table for each kind of config that a model has.

The first row that holds for a value is used; where none holds, the value stays as it is. A config name that is new
joins the names of a row, or has a row of its own. Widths keep their remainder by 8 * tp_size.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from fnmatch import fnmatchcase
from functools import cache
from typing import Any, NamedTuple

from tpplan.miniature.widths import HIDDEN, LAYER_COUNTS, ROTATED, Hidden, Part, Towers, is_count, smaller
from tpplan.model.config import config_value

ANY = ("*",)
STACK = "num_layers_per_stack"  # num_hidden_layers is a multiple of it: each stack of layers is run several times
LAYER_NUMBERS = ("*_indices", "*_idxs", "*_indexes", "*_layers")  # lists of them
LEADING_LAYERS = ("first_k_dense_replace", "num_dense_layers")  # how many of the first layers have no experts
SHARED_CACHE = ("num_kv_shared_layers",)  # how many of the last layers read the cache of earlier ones
PER_LAYER = ("per_layer_config",)  # layer number -> values of its own
EXPERT_WIDTHS = (
    "moe_intermediate_size",
    "shared_expert_intermediate_size",
    "shared_experts_intermediate_size",
    "moe_shared_expert_intermediate_size",
    "shared_intermediate_size",
    "expert_intermediate_size",
    "expert_ffn_hidden_size",
)
INTERMEDIATE = (
    "intermediate_size",
    "intermediate_size_mlp",
    "ffn_dim",
    "encoder_ffn_dim",
    "decoder_ffn_dim",
    "n_inner",
    "ffn_hidden_size",
    "dense_intermediate_size",
)
PROJECTORS = ("projector_hidden_size", "projection_hidden_dim", "moe_hidden_size", "moe_latent_size")
TOWER_OUTPUT = ("out_hidden_size",)
CHANNELS, GROUPS = ("base_channels",), 32  # of convolutions that are normed in groups, so many of them
VOCODER = ("upsample_initial_channel",)  # halved by each upsampling
# Heads of linear attention: its code loops over a chunk with a state of width x width for each of them.
LINEAR_HEADS = ("linear_num_heads", "linear_num_key_heads", "linear_num_value_heads")
LINEAR_WIDTHS = ("linear_head_dim", "linear_key_head_dim", "linear_value_head_dim")
LINEAR_FOLD, LINEAR_FLOOR = 8, 8
# Heads of Mamba: so many, of such a width, that together are the hidden size times this, or have a width of their own.
MAMBA_HEAD, MAMBA_HEADS, MAMBA_EXPAND, MAMBA_OWN_WIDTH = (
    ("mamba_d_head",),
    "mamba_n_heads",
    "mamba_expand",
    "mamba_d_ssm",
)
# Tokens that a state-space layer computes at once, padded to as many: one chunk is enough for the example's few.
CHUNKS, CHUNK = ("mamba_chunk_size", "chunk_size"), 16
EMBEDDING_WIDTH = ("word_embed_proj_dim",)  # where it is not the hidden size, there is a projection between the two
LOW_RANK = ("q_lora_rank", "kv_lora_rank", "o_lora_rank")
VOCABULARY = ("vocab_size", "vocab_size_per_layer_input")
UNPADDED = ("unpadded_vocab_size",)  # at most vocab_size
TOKENS = ("*_token_id", "*_token_index")
# Ranges of tokens that stand for the codes of a tower, one after the other: each becomes CODES long.
TOKEN_OFFSETS, CODEBOOK, FIRST_CODE, CODES = ("*_token_offset",), ("codebook_size",), 8, 16
ROTARY, SECTIONS = ("rope*",), "mrope_section"
# Names of values that are some other module's width where they are the same number.
WIDTHS = ("*_size", "*_dim", "*_width", "*_channel", "*_channels", "*_channels_out")
# Different from one another and HIDDEN_FLOOR, so that two widths which are mixed up do not fit by chance.
LOW_RANK_FLOOR, INTERMEDIATE_FLOOR, VOCABULARY_FLOOR = 72, 96, 160
EXPERT_FLOOR, PROJECTOR_FLOOR, VOCODER_FLOOR = 48, 80, 192


class Row(NamedTuple):
    """names: of the values that it is for, `*` for any text. becomes: the new value. where: whether it holds."""

    names: tuple[str, ...]
    becomes: Callable[[Part, Any], Any]
    where: Callable[[Part, Any], bool] = lambda part, value: True


def shrunk(table: Sequence[Row], part: Part, name: str, value: Any) -> Any:
    """What becomes of a value of the config in `part`."""
    for row in table:
        if matches(name, row.names) and row.where(part, value):
            return row.becomes(part, value)
    return value


@cache
def matches(name: str, patterns: tuple[str, ...]) -> bool:
    """Whether a name is one of these."""
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _unchanged(part: Part, value: Any) -> Any:
    return value


def _keeps_its_widths(part: Part, value: Any) -> bool:
    return part.size.towers is Towers.FULL or not is_count(value)


def _is_not_narrow(part: Part, value: Any) -> bool:
    return part.size.towers is not Towers.NARROW


def _is_list(part: Part, value: Any) -> bool:
    return isinstance(value, list)


def _is_dict(part: Part, value: Any) -> bool:
    return isinstance(value, dict)


def _is_no_number(part: Part, value: Any) -> bool:
    return isinstance(value, bool) or not isinstance(value, int)


def _is_layer_count(part: Part, value: Any) -> bool:
    return bool(part.layers) and is_count(value)


def _fewer_layers(part: Part, value: int) -> int:
    stack = config_value(part.config, STACK)
    if is_count(stack) and value % stack == 0:
        return value // stack * min(stack, len(part.layers))
    return min(value, len(part.layers))


def _has_layers(part: Part, value: Any) -> bool:
    return bool(part.depth)


def _is_one_per_layer(part: Part, value: Any) -> bool:
    return isinstance(value, list) and part.depth > 1 and len(value) == part.depth


def _kept(part: Part, value: list) -> list:
    return [value[index] for index in part.layers if index < part.depth]


def _are_layer_numbers(part: Part, value: Any) -> bool:
    is_list = isinstance(value, list) and part.depth > 0
    return is_list and all(isinstance(index, int) and 0 <= index < part.depth for index in value)


def _renumbered(part: Part, value: list[int]) -> list[int]:
    return [position for position, index in enumerate(part.layers) if index in value]


def _renumbered_or_first(part: Part, value: list[int]) -> list[int]:
    """Classes take the first of them, so one is left where there was one."""
    return _renumbered(part, value) or [0] * min(1, len(value))


def _of_kept_layers(part: Part, value: dict) -> dict:
    if not part.layers:
        return value
    by_layer = {int(key): values for key, values in value.items()}
    return {position: by_layer[index] for position, index in enumerate(part.layers) if index in by_layer}


def _of_kept_layers_shrunk(part: Part, value: dict) -> dict:
    return {
        position: {name: shrunk(TEXT, part, name, own) for name, own in values.items()}
        if isinstance(values, dict)
        else values
        for position, values in _of_kept_layers(part, value).items()
    }


def _to(floor: int) -> Callable[[Part, int], int]:
    return lambda part, value: smaller(value, part.size.tp_size, floor)


def _is_own_width(part: Part, value: Any) -> bool:
    return value == part.own.full


def _is_text_width(part: Part, value: Any) -> bool:
    return value == part.text.full


def _has_narrow_heads(part: Part, value: Any) -> bool:
    return part.own.head_ratio is not None


def _intermediate(floor: int) -> Callable[[Part, int], int]:
    return lambda part, value: _width(part, value, floor)


def _intermediate_by_layer(floor: int) -> Callable[[Part, list], list]:
    """Widths that differ from layer to layer stay different."""

    def becomes(part: Part, value: list) -> list:
        kept = _kept(part, value) if _is_one_per_layer(part, value) else value
        if not all(map(is_count, kept)):
            return kept
        new: dict[int, int] = {}
        for width in sorted(set(kept)):
            new[width] = _width(part, width, floor, new.values())
        return [new[width] for width in kept]

    return becomes


def _width(part: Part, value: int, floor: int, others: Collection[int] = ()) -> int:
    """A smaller width that is none of `others`, nor the hidden size unless `value` is.

    A loader tells by the shape of an expert's weight whether to transpose it (`Transpose` with check_dims), which a
    square one does not show.
    """
    taken = {*others, part.own.small} if value != part.own.full else {*others}
    new = smaller(value, part.size.tp_size, floor)
    while new in taken and new < value:
        new = smaller(value, part.size.tp_size, new + 1)
    return new


def _linear_width(part: Part, value: int) -> int:
    """An eighth of the width of a linear-attention head, where its projections then divide as they did."""
    narrow, tp_size = value // LINEAR_FOLD, part.size.tp_size
    heads = [count for name in LINEAR_HEADS if is_count(count := config_value(part.config, name))]
    alike = all((count * value) % tp_size == (count * narrow) % tp_size for count in heads)
    return narrow if value % LINEAR_FOLD == 0 and narrow >= LINEAR_FLOOR and alike else value


def _is_mamba_head_of_hidden(part: Part, value: Any) -> bool:
    """Whether the heads of Mamba are the expanded hidden size, which their class then asks for."""
    heads, expand = (config_value(part.config, name) for name in (MAMBA_HEADS, MAMBA_EXPAND))
    if not (is_count(heads) and is_count(expand) and part.own.full and part.own.small):
        return False
    own = config_value(part.config, MAMBA_OWN_WIDTH) is not None
    return not own and heads * value == expand * part.own.full and expand * part.own.small % heads == 0


def _mamba_head(part: Part, value: int) -> int:
    return config_value(part.config, MAMBA_EXPAND) * (part.own.small or 0) // config_value(part.config, MAMBA_HEADS)


def _has_sections(part: Part, value: Any) -> bool:
    return isinstance(value, dict) and _has_narrow_heads(part, value) and bool(SECTIONS in value or part.size.sections)


def _with_sections(part: Part, value: dict) -> dict:
    """Rotary parameters with their sections scaled as the heads are; those that only the code has are written down."""
    return value | {SECTIONS: _scaled_sections(value.get(SECTIONS) or part.size.sections, part.own.head_ratio)}


def _scaled_sections(sections: Sequence[int], ratio: Any) -> list[int]:
    """The sections in proportion, their sum exactly scaled: what is left over goes to those that lost most."""
    parts = [_scaled(section, ratio) for section in sections]
    lost = sorted(range(len(parts)), key=lambda index: -(sections[index] * ratio[0] % ratio[1]))
    for index in lost[: _scaled(sum(sections), ratio) - sum(parts)]:
        parts[index] += 1
    return parts


def _scaled(value: int, ratio: Any) -> int:
    return value * ratio[0] // ratio[1]


def _vocabulary(part: Part, value: int) -> int:
    return smaller(value, part.size.tp_size, VOCABULARY_FLOOR) if part.size.vocabulary else value


def _unpadded(part: Part, value: int) -> int:
    floor = max(1, VOCABULARY_FLOOR - 8 * part.size.tp_size)
    return smaller(value, part.size.tp_size, floor) if part.size.vocabulary else value


def _is_token(part: Part, value: Any) -> bool:
    return part.size.vocabulary and isinstance(value, int)


# The language model's config, and others that are neither a tower's nor the one around them all.
TEXT = (
    Row(PER_LAYER, _of_kept_layers_shrunk, _is_dict),
    Row(ROTARY, _with_sections, _has_sections),
    Row(EXPERT_WIDTHS, _intermediate_by_layer(EXPERT_FLOOR), _is_list),
    Row(INTERMEDIATE, _intermediate_by_layer(INTERMEDIATE_FLOOR), _is_list),
    Row(ANY, _kept, _is_one_per_layer),
    Row(LAYER_NUMBERS, _renumbered, _are_layer_numbers),
    Row(ANY, _unchanged, _is_no_number),
    Row(LEADING_LAYERS, lambda part, value: sum(index < value for index in part.layers), _has_layers),
    Row(SHARED_CACHE, lambda part, value: sum(index >= part.depth - value for index in part.layers), _has_layers),
    Row(LAYER_COUNTS, _fewer_layers, _is_layer_count),
    Row((STACK,), lambda part, value: min(value, len(part.layers)), _is_layer_count),
    Row(VOCABULARY, _vocabulary),
    Row(UNPADDED, _unpadded),
    Row(TOKENS, lambda part, value: min(value, 2), _is_token),
    Row(CHUNKS, lambda part, value: min(value, CHUNK)),
    Row(LINEAR_WIDTHS, _linear_width),
    Row(MAMBA_HEAD, _mamba_head, _is_mamba_head_of_hidden),
    Row(EMBEDDING_WIDTH, lambda part, value: part.own.small, _is_own_width),
    Row(LOW_RANK, _to(LOW_RANK_FLOOR)),
    Row(HIDDEN, lambda part, value: part.own.of(value), lambda part, value: is_count(value)),
    Row(PROJECTORS, _to(PROJECTOR_FLOOR), lambda part, value: part.size.hidden is not Hidden.FULL),
    Row(ROTATED, lambda part, value: _scaled(value, part.own.head_ratio), _has_narrow_heads),
    Row(EXPERT_WIDTHS, _intermediate(EXPERT_FLOOR)),
    Row(INTERMEDIATE, _intermediate(INTERMEDIATE_FLOOR)),
)
# A tower's config. It keeps few layers; its widths are cut if `size` says so, and follow those of the language model.
TOWER = (
    Row(LAYER_COUNTS, _fewer_layers, _is_layer_count),
    Row(ANY, _kept, _is_one_per_layer),
    Row(LAYER_NUMBERS, _renumbered_or_first, _are_layer_numbers),
    Row(PER_LAYER, _of_kept_layers, _is_dict),
    Row(ANY, _unchanged, _keeps_its_widths),
    Row(CODEBOOK, lambda part, value: min(value, CODES)),
    Row(HIDDEN, lambda part, value: value if _is_not_narrow(part, value) else part.own.of(value)),
    Row(WIDTHS, lambda part, value: part.text.small, _is_text_width),
    Row(ANY, _unchanged, _is_not_narrow),
    Row(CHANNELS, lambda part, value: value if value % GROUPS else GROUPS),
    Row(INTERMEDIATE, _intermediate(INTERMEDIATE_FLOOR)),
    Row(WIDTHS, lambda part, value: part.own.small, _is_own_width),
    Row(PROJECTORS + TOWER_OUTPUT, _to(PROJECTOR_FLOOR)),
    Row(VOCODER, lambda part, value: value // max(1, value // VOCODER_FLOOR)),
    Row(EXPERT_WIDTHS, _intermediate(EXPERT_FLOOR)),
)
# The config around those of the towers and the language model: of the projectors between them.
AROUND = (
    Row(TOKENS, lambda part, value: min(value, 2), _is_token),
    Row(ANY, _unchanged, _keeps_its_widths),
    Row(VOCABULARY, _vocabulary),
    Row(UNPADDED, _unpadded),
    Row(TOKEN_OFFSETS, lambda part, value: FIRST_CODE + CODES * part.offsets.index(value)),
    Row(WIDTHS, lambda part, value: part.text.small, _is_text_width),
    Row(ANY, _unchanged, _is_not_narrow),
    Row(PROJECTORS + TOWER_OUTPUT, _to(PROJECTOR_FLOOR)),
)
