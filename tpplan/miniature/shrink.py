"""The config of a miniature: the values of a model's config, with smaller widths and fewer layers.

Head counts, KV groups, experts and routing stay as they are, and head widths where the config gives them, but for those
of linear attention. What is shrunk keeps its remainder by 8 * tp_size, so that what is uneven stays uneven.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from tpplan.miniature.widths import HIDDEN, ROTATED, Hidden, Size, Towers, Widths, is_count, smaller
from tpplan.model.config import config_value

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
STACK = "num_layers_per_stack"  # num_hidden_layers is a multiple of it: each stack of layers is run several times
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
CHANNELS = "base_channels"  # of convolutions that are normed in groups, GROUPS of them
GROUPS = 32
VOCODER = "upsample_initial_channel"  # halved by each upsampling
PROJECTORS = ("projector_hidden_size", "projection_hidden_dim", "moe_hidden_size", "moe_latent_size")
INDEX_LISTS = ("_indices", "_idxs", "_indexes", "_layers")  # lists of layer numbers
LEADING_LAYERS = ("first_k_dense_replace", "num_dense_layers")  # how many of the first layers have no experts
SHARED_CACHE = "num_kv_shared_layers"  # how many of the last layers read the cache of earlier ones
PER_LAYER = "per_layer_config"  # layer number -> values of its own
# Heads of linear attention: its code loops over a chunk with a state of width x width for each of them.
LINEAR_HEADS = ("linear_num_heads", "linear_num_key_heads", "linear_num_value_heads")
LINEAR_WIDTHS = ("linear_head_dim", "linear_key_head_dim", "linear_value_head_dim")
LINEAR_FOLD, LINEAR_FLOOR = 8, 8
EMBEDDING_WIDTH = "word_embed_proj_dim"  # where it is not the hidden size, there is a projection between the two
LOW_RANK = ("q_lora_rank", "kv_lora_rank", "o_lora_rank")
VOCABULARY = ("vocab_size", "vocab_size_per_layer_input")
UNPADDED = "unpadded_vocab_size"  # at most vocab_size
# Ranges of tokens that stand for the codes of a tower, one after the other: each becomes CODES long.
TOKEN_OFFSET, CODEBOOK, FIRST_CODE, CODES = "_token_offset", "codebook_size", 8, 16
SECTIONS = "mrope_section"
# Names of values that are some other module's width where they are the same number.
WIDTH_ENDINGS = ("_size", "_dim", "_width", "_channel", "_channels", "_channels_out")
# Different from one another and HIDDEN_FLOOR, so that two widths which are mixed up do not fit by chance.
LOW_RANK_FLOOR, INTERMEDIATE_FLOOR, VOCABULARY_FLOOR = 72, 96, 160
EXPERT_FLOOR, PROJECTOR_FLOOR, VOCODER_FLOOR = 48, 80, 192
# Parts of a model that text does not run through, by words in the names of their modules and configs.
TOWERS = (
    "vision",
    "visual",
    "audio",
    "image",
    "speech",
    "video",
    "talker",
    "token2wav",
    "code2wav",
    "vqmodel",
    "vq_config",
)


def is_tower(name: str) -> bool:
    """Whether this module, or nested config, belongs to a part that text does not run through."""
    return any(word in name for word in TOWERS)


def shrink(config: Any, text: Any, size: Size) -> tuple[dict, dict[str, tuple[Any, Any]]]:
    """The plain values of the smaller config, and what was changed: dotted name -> (full size, miniature).

    text: the part of `config` that describes the language model.
    """
    values, changes = config.to_dict(), {}
    _shrink(values, config, "", Widths(text, size), size, changes)
    return values, changes


def _shrink(values: dict, config: Any, path: str, text: Widths, size: Size, changes: dict) -> None:
    """Change `values`, the plain form of `config`, in place; nested configs likewise."""
    new_value = _rule(config, path, text, size)
    for name, value in list(values.items()):
        nested = config_value(config, name) if isinstance(value, dict) else None
        where = f"{path}.{name}" if path else name
        if nested is not None and hasattr(nested, "to_dict"):
            _shrink(value, nested, where, text, size, changes)
            continue
        new = new_value(name, value)
        if new != value:
            changes[where] = (_brief(value), _brief(new))
            values[name] = new


def _rule(config: Any, path: str, text: Widths, size: Size) -> Callable[[str, Any], Any]:
    """What becomes of a value of this config, by its name."""
    if is_tower(path):
        own = Widths(config, replace(size, hidden=Hidden.HEADS))
        return partial(_tower_value, config=config, own=own, text=text, size=size)
    if config is text.config:
        return partial(_text_value, config=config, own=text, size=size)
    if not getattr(config, "sub_configs", None):
        return partial(_text_value, config=config, own=Widths(config, size), size=size)
    values = config.to_dict()
    offsets = sorted(values[name] for name in values if name.endswith(TOKEN_OFFSET))
    return partial(_around, text=text, size=size, offsets=offsets)


def _around(name: str, value: Any, *, text: Widths, size: Size, offsets: list[int]) -> Any:
    """A value beside the nested configs: of the projectors between towers and language model."""
    if not is_count(value) or size.towers is Towers.FULL:
        return _token(name, value, size)
    if name in VOCABULARY or name == UNPADDED:
        return _vocabulary(name, value, size)
    if name.endswith(TOKEN_OFFSET):
        return FIRST_CODE + CODES * offsets.index(value)
    if value == text.full and name.endswith(WIDTH_ENDINGS):
        return text.small
    if size.towers is Towers.NARROW and name in (*PROJECTORS, "out_hidden_size"):
        return smaller(value, size.tp_size, PROJECTOR_FLOOR)
    return _token(name, value, size)


def _tower_value(name: str, value: Any, *, config: Any, own: Widths, text: Widths, size: Size) -> Any:
    """A tower keeps its first layer; its widths are cut if `size` says so and follow those of the language model."""
    depth = _depth(config)
    layers = size.tower_layers.get(depth or 0, (0,))
    if name in LAYER_COUNTS and is_count(value):
        return min(value, len(layers))
    if isinstance(value, list) and depth and len(value) == depth:
        return [value[index] for index in layers]
    if depth and name.endswith(INDEX_LISTS) and _are_layers(value, depth):
        kept = [position for position, index in enumerate(layers) if index in value]
        return kept or value and [0]  # classes take the first of them
    if name == PER_LAYER and isinstance(value, dict):
        return _of_layers(value, layers)
    if size.towers is Towers.FULL or not is_count(value):
        return value
    if name == CODEBOOK:
        return min(value, CODES)
    if value == text.full and name.endswith(WIDTH_ENDINGS) and name not in HIDDEN:
        return text.small
    if size.towers is Towers.FOLLOW:
        return value
    if name == CHANNELS:
        return GROUPS if value % GROUPS == 0 else value
    if name in HIDDEN:
        return own.of(value)
    if value == own.full and name.endswith(WIDTH_ENDINGS) and name not in INTERMEDIATE:
        return own.small
    if name in (*PROJECTORS, "out_hidden_size"):
        return smaller(value, size.tp_size, PROJECTOR_FLOOR)
    if name == VOCODER:
        return value // max(1, value // VOCODER_FLOOR)
    return _intermediate(name, value, own, size)


def _text_value(name: str, value: Any, *, config: Any, own: Widths, size: Size) -> Any:
    if isinstance(value, (list, dict)):
        return _text_collection(name, value, config, own, size)
    if isinstance(value, bool) or not isinstance(value, int):
        return value
    depth = _depth(config) if size.layers else None
    if depth and name in LEADING_LAYERS:
        return sum(index < value for index in size.layers)
    if depth and name == SHARED_CACHE:
        return sum(index >= depth - value for index in size.layers)
    if name in (*LAYER_COUNTS, STACK) and size.layers:
        return _layer_count(name, value, config, size)
    if name in VOCABULARY or name == UNPADDED:
        return _vocabulary(name, value, size)
    if name in LINEAR_WIDTHS and value:
        return _linear_width(value, config, size)
    if name == EMBEDDING_WIDTH and value == own.full:
        return own.small
    if name in LOW_RANK:
        return smaller(value, size.tp_size, LOW_RANK_FLOOR)
    if name in HIDDEN and is_count(value):
        return own.of(value)
    if name in PROJECTORS and size.hidden is not Hidden.FULL:
        return smaller(value, size.tp_size, PROJECTOR_FLOOR)
    if name in ROTATED and own.head_ratio:
        return _scaled(value, own.head_ratio)
    return _token(name, _intermediate(name, value, own, size), size)


def _text_collection(name: str, value: Any, config: Any, own: Widths, size: Size) -> Any:
    depth = _depth(config) if size.layers else None
    if name == PER_LAYER and isinstance(value, dict):
        kept = _of_layers(value, size.layers) if size.layers else value
        return {position: _each(item, config, own, size) for position, item in kept.items()}
    if isinstance(value, dict):
        return _with_sections(name, value, own, size)
    if depth and depth > 1 and len(value) == depth:
        value = [value[index] for index in size.layers if index < depth]
    elif depth and name.endswith(INDEX_LISTS) and _are_layers(value, depth):
        return [position for position, index in enumerate(size.layers) if index in value]
    if name in INTERMEDIATE + EXPERT_WIDTHS and all(map(is_count, value)):
        new: dict[int, int] = {}
        for width in sorted(set(value)):  # widths that differ stay different
            new[width] = _intermediate(name, width, own, size, new.values())
        return [new[width] for width in value]
    return value


def _of_layers(per_layer: dict, layers: tuple[int, ...]) -> dict[int, Any]:
    by_layer = {int(key): item for key, item in per_layer.items()}
    return {position: by_layer[index] for position, index in enumerate(layers) if index in by_layer}


def _each(values: Any, config: Any, own: Widths, size: Size) -> Any:
    """The values of one layer."""
    if not isinstance(values, dict):
        return values
    return {name: _text_value(name, value, config=config, own=own, size=size) for name, value in values.items()}


def _with_sections(name: str, value: dict, own: Widths, size: Size) -> dict:
    """Rotary parameters with their sections scaled as the heads are; those that only the code has are written down."""
    if not own.head_ratio or not name.startswith("rope"):
        return value
    if SECTIONS in value or size.sections:
        sections = value.get(SECTIONS) or size.sections
        return value | {SECTIONS: _scaled_sections(sections, own.head_ratio)}
    return value


def _scaled_sections(sections: Sequence[int], ratio: tuple[int, int]) -> list[int]:
    """The sections in proportion, their sum exactly scaled: what is left over goes to those that lost most."""
    parts = [_scaled(section, ratio) for section in sections]
    lost = sorted(range(len(parts)), key=lambda index: -(sections[index] * ratio[0] % ratio[1]))
    for index in lost[: _scaled(sum(sections), ratio) - sum(parts)]:
        parts[index] += 1
    return parts


def _layer_count(name: str, value: int, config: Any, size: Size) -> int:
    stack = config_value(config, STACK)
    if is_count(stack) and name != STACK and value % stack == 0:
        return value // stack * min(stack, len(size.layers))
    return min(value, len(size.layers))


def _vocabulary(name: str, value: int, size: Size) -> int:
    if not size.vocabulary:
        return value
    lower = 8 * size.tp_size if name == UNPADDED else 0
    return smaller(value, size.tp_size, max(1, VOCABULARY_FLOOR - lower))


def _linear_width(value: int, config: Any, size: Size) -> int:
    """An eighth of the width of a linear-attention head, where its projections then divide as they did."""
    narrow = value // LINEAR_FOLD
    heads = [count for name in LINEAR_HEADS if is_count(count := config_value(config, name))]
    alike = all((count * value) % size.tp_size == (count * narrow) % size.tp_size for count in heads)
    return narrow if value % LINEAR_FOLD == 0 and narrow >= LINEAR_FLOOR and alike else value


def _intermediate(name: str, value: int, own: Widths, size: Size, taken: Collection[int] = ()) -> int:
    """taken: widths that others have which are not `value`.

    The hidden size is another of them: a loader tells by the shape of an expert's weight whether to transpose it
    (`Transpose` with check_dims), which a square one does not show.
    """
    if name not in INTERMEDIATE + EXPERT_WIDTHS:
        return value
    taken = {*taken, own.small} if value != own.full else set(taken)
    new = smaller(value, size.tp_size, EXPERT_FLOOR if name in EXPERT_WIDTHS else INTERMEDIATE_FLOOR)
    while new in taken and new < value:
        new = smaller(value, size.tp_size, new + 1)
    return new


def _token(name: str, value: Any, size: Size) -> Any:
    is_token = name.endswith(("_token_id", "_token_index")) and isinstance(value, int)
    return min(value, 2) if is_token and size.vocabulary else value


def _depth(config: Any) -> int | None:
    counts: Iterable[Any] = (config_value(config, name) for name in LAYER_COUNTS)
    return next((count for count in counts if isinstance(count, int)), None)


def _scaled(value: int, ratio: tuple[int, int]) -> int:
    return value * ratio[0] // ratio[1]


def _are_layers(value: Any, depth: int) -> bool:
    return isinstance(value, list) and all(isinstance(index, int) and 0 <= index < depth for index in value)


def _brief(value: Any) -> Any:
    return f"[{len(value)}]" if isinstance(value, (list, dict)) else value
