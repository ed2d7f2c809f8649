"""A small model of the same structure, with real weights: the same heads, layer kinds, experts, ties and remainders.

Head counts, head widths, KV groups, experts and routing stay as they are. Shrunk are the widths that every rank splits
or reads alike (hidden, intermediate, MLA's low ranks, vocabulary: each keeps its remainder by 8 * tp_size, so what is
uneven stays uneven), the number of layers (one of each kind that occurs), and the depth of towers that text does not
reach.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tpplan.diagnostics import InputError
from tpplan.model.checkpoint import save_as_published
from tpplan.model.config import ModelSpec, config_value, text_config
from tpplan.model.quiet import quiet
from tpplan.model.repeats import first_of_each_kind
from tpplan.model.simulation import one_thread
from tpplan.model.skeleton import Skeleton, build_skeleton, build_whole, tie
from tpplan.shapes import example_inputs, main_output, runnable

SEED = 20240229
MAX_PARAMETERS = 600_000_000  # 2.4 GB in float32, several times over while ranks are simulated
LAYER_COUNTS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "encoder_layers", "decoder_layers", "num_blocks", "depth")
HIDDEN = ("hidden_size", "n_embd", "d_model", "dim")
INTERMEDIATE = (
    "intermediate_size",
    "moe_intermediate_size",
    "shared_expert_intermediate_size",
    "moe_shared_expert_intermediate_size",
    "intermediate_size_mlp",
    "ffn_dim",
    "encoder_ffn_dim",
    "decoder_ffn_dim",
    "n_inner",
    "ffn_hidden_size",
    "shared_intermediate_size",
    "expert_intermediate_size",
    "dense_intermediate_size",
)
INDEX_LISTS = ("_indices", "_idxs", "_layers")  # lists of layer numbers
LEADING_LAYERS = ("first_k_dense_replace", "num_dense_layers")  # how many of the first layers have no experts
SHARED_CACHE = "num_kv_shared_layers"  # how many of the last layers read the cache of earlier ones
PER_LAYER = "per_layer_config"  # layer number -> values of its own
LOW_RANK = ("q_lora_rank", "kv_lora_rank", "o_lora_rank")
VOCABULARY = ("vocab_size", "vocab_size_per_layer_input")
# Different, so that two widths which are mixed up do not fit by chance.
HIDDEN_FLOOR, LOW_RANK_FLOOR, INTERMEDIATE_FLOOR, VOCABULARY_FLOOR = 64, 72, 96, 160
# Names of nested configs that text does not run through: only their depth is cut.
TOWERS = ("vision_config", "audio_config", "vision_encoder_config", "speech_config", "encoder_config", "video_config")


@dataclass(frozen=True, kw_only=True)
class Miniature:
    """A spec that builds small, its skeleton, and what was changed: dotted config name -> (full size, miniature).

    model: the unsharded miniature on cpu in float32 and eval mode, with seeded weights none of which is zero or constant.
    """

    spec: ModelSpec
    skeleton: Skeleton
    changes: dict[str, tuple[Any, Any]]
    model: Any

    def describe(self) -> str:
        """What was changed, in one line."""
        changes = ", ".join(f"{name} {old} -> {new}" for name, (old, new) in self.changes.items())
        return changes or "as large as the model"


def make_miniature(spec: ModelSpec, skeleton: Skeleton, tp_size: int) -> Miniature:
    """The smallest miniature of the model that builds, has the same rules and kinds of layers, and runs unsharded.

    Raises ValueError, with the reason of the last try, when none does.
    """
    reason = "no size was tried"
    for hidden in ("narrow", "per head", "full"):
        for layers in _layer_choices(skeleton):
            try:
                made = _try(spec, skeleton, tp_size, hidden, layers)
            except Exception as error:  # config and model classes refuse sizes with exceptions of many kinds
                reason = _reason(error)
                continue
            if isinstance(made, Miniature):
                return made
            reason = made
    raise ValueError(reason)


def _reason(error: Exception) -> str:
    if isinstance(error, InputError):
        return error.diagnostics[0].evidence
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"


def save_miniature(subject: Any, directory: str | Path) -> Path:
    """Save the seeded miniature of `subject`'s model as a checkpoint that from_pretrained loads. Returns `directory`."""
    made = make_miniature(subject.spec, subject.skeleton, subject.sharding.tp_size)
    save_as_published(made.model, directory)
    return Path(directory)


def _reference(spec: ModelSpec) -> Any:
    import torch

    with torch.random.fork_rng(devices=[]), quiet():
        torch.manual_seed(SEED)
        model = build_whole(spec, dtype=torch.float32)
        tie(model)
    generator = torch.Generator().manual_seed(SEED)
    saved = model.state_dict().keys()
    with torch.no_grad():
        for parameter in model.parameters():
            _fill(parameter, generator)
        for name, buffer in model.named_buffers():
            if name in saved and buffer.is_floating_point() and not buffer.any():
                buffer.copy_(torch.rand(buffer.shape, generator=generator) * 0.01)
    return model.eval()


def _fill(parameter: Any, generator: Any) -> None:
    """Matrices: normal, scaled by their fan-in. Vectors (norms, biases, sinks, activations): uniform in 0.25 to 0.75."""
    import torch

    if not parameter.is_floating_point():
        return
    if parameter.ndim < 2:
        parameter.copy_(torch.rand(parameter.shape, generator=generator) * 0.5 + 0.25)
    else:
        parameter.copy_(torch.randn(parameter.shape, generator=generator) * parameter.shape[-1] ** -0.5)


def _try(spec: ModelSpec, skeleton: Skeleton, tp_size: int, hidden: str, layers: list[int]) -> Miniature | str:
    """The miniature of these sizes, or why it does not stand for the model."""
    import torch

    values, changes = copy.deepcopy(spec.config.to_dict()), {}
    _shrink(values, spec.config, text_config(spec.config), "", tp_size, hidden, layers, changes)
    with quiet():
        config = type(spec.config).from_dict(values)
    small = replace(spec, config=config, dtype="float32")
    built = build_skeleton(small)
    reason = _differs(skeleton, built)
    if reason:
        return reason
    model = _reference(small)
    with torch.no_grad(), quiet(), one_thread():
        output = main_output(runnable(model)(**example_inputs(small)))
    if not torch.isfinite(output).all():
        return "the miniature computes values that are not finite"
    return Miniature(spec=small, skeleton=built, changes=changes, model=model)


def _differs(full: Skeleton, small: Skeleton) -> str:
    """Why the miniature does not stand for the model, or an empty string."""
    missing = {rule for rule in full.default_plan if rule in full.rules} - small.rules
    if missing:
        return f"the miniature has nothing for the rules {', '.join(sorted(missing)[:3])}"
    if bool(full.ties) != bool(small.ties):
        return "the miniature is tied differently"
    if len(_kinds(small)) < len(_kinds(full)):
        return f"the miniature has {len(_kinds(small))} kinds of layers, the model {len(_kinds(full))}"
    size = sum(parameter.bytes for parameter in small.parameters.values()) // 4
    return f"the miniature has {size:,} parameters" if size > MAX_PARAMETERS else ""


def _kinds(skeleton: Skeleton) -> list[int]:
    """Index of the first layer of each kind, in the list of layers that has most kinds and is no tower."""
    lists = [kinds for name, kinds in first_of_each_kind(skeleton.model).items() if not _is_tower(name)]
    return max(lists, key=len, default=[0])


def _is_tower(name: str) -> bool:
    return any(word in name for word in ("vision", "visual", "audio", "image", "speech", "video"))


def _layer_choices(skeleton: Skeleton) -> Iterator[list[int]]:
    """Which layers to keep: one of each kind if the config lists its layers, else all up to the last new kind."""
    chosen = _kinds(skeleton)
    if chosen != list(range(len(chosen))):
        yield chosen
    yield list(range(max(chosen) + 1))


def _shrink(
    values: dict, config: Any, text: Any, path: str, tp_size: int, hidden: str, layers: list[int], changes: dict
) -> None:
    """Change `values`, the plain form of `config`, in place; nested configs likewise."""
    is_text = config is text or not getattr(config, "sub_configs", None)
    in_tower = path.split(".")[0] in TOWERS
    for name, value in list(values.items()):
        nested = config_value(config, name) if isinstance(value, dict) else None
        where = f"{path}.{name}" if path else name
        if nested is not None and hasattr(nested, "to_dict"):
            _shrink(value, nested, text, where, tp_size, hidden, layers, changes)
        elif in_tower:
            new = _tower_value(name, value, config)
            if new != value:
                _set(values, name, new, where, changes)
        elif is_text:
            new = _new_value(name, value, config, tp_size, hidden, layers)
            if new != value:
                _set(values, name, new, where, changes)


def _set(values: dict, name: str, new: Any, where: str, changes: dict) -> None:
    changes[where] = (_brief(values[name]), _brief(new))
    values[name] = new


def _brief(value: Any) -> Any:
    return f"[{len(value)}]" if isinstance(value, (list, dict)) else value


def _tower_value(name: str, value: Any, config: Any) -> Any:
    """A tower that text does not run through keeps its widths and its first layer."""
    depth = next((v for key in LAYER_COUNTS if isinstance(v := config_value(config, key), int)), None)
    if name in LAYER_COUNTS and isinstance(value, int):
        return min(value, 1)
    if isinstance(value, list) and depth and len(value) == depth:
        return value[:1]
    if name == PER_LAYER and isinstance(value, dict):
        return {key: item for key, item in value.items() if int(key) == 0}
    return value


def _new_value(name: str, value: Any, config: Any, tp_size: int, hidden: str, layers: list[int]) -> Any:
    depth = next((v for key in LAYER_COUNTS if isinstance(v := config_value(config, key), int)), None)
    if isinstance(value, list) and depth and len(value) == depth and depth > 1:
        return [value[index] for index in layers if index < depth]
    if depth and name.endswith(INDEX_LISTS) and _are_layers(value, depth):
        return [position for position, index in enumerate(layers) if index in value]
    if depth and name in LEADING_LAYERS and isinstance(value, int):
        return sum(index < value for index in layers)
    if depth and name == SHARED_CACHE and isinstance(value, int):
        return sum(index >= depth - value for index in layers)
    if name == PER_LAYER and isinstance(value, dict):
        by_layer = {int(key): item for key, item in value.items()}
        return {position: by_layer[index] for position, index in enumerate(layers) if index in by_layer}
    if name.endswith(("_token_id", "_token_index")) and isinstance(value, int):
        return min(value, 2)
    if not isinstance(value, int) or isinstance(value, bool):
        return value
    if name in LAYER_COUNTS:
        return min(value, len(layers))
    if name in VOCABULARY:
        return _smaller(value, tp_size, VOCABULARY_FLOOR)
    if name in LOW_RANK:
        return _smaller(value, tp_size, LOW_RANK_FLOOR)
    if name in INTERMEDIATE:
        return _smaller(value, tp_size, INTERMEDIATE_FLOOR)
    if name in HIDDEN:
        heads = config_value(config, "num_attention_heads")
        if hidden == "narrow" and "head_dim" in config.to_dict():
            return _smaller(value, tp_size, HIDDEN_FLOOR)
        if hidden != "full" and isinstance(heads, int) and value % heads == 0:
            return heads * min(16, value // heads)
    return value


def _are_layers(value: Any, depth: int) -> bool:
    return isinstance(value, list) and all(isinstance(index, int) and 0 <= index < depth for index in value)


def _smaller(value: int, tp_size: int, floor: int) -> int:
    """The smallest width of at least `floor` with the same remainder by 8 * tp_size."""
    modulus = 8 * tp_size
    remainder = value % modulus
    return min(value, remainder + modulus * max(0, -(-(floor - remainder) // modulus)))
