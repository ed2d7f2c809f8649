"""The few values of a quantization_config that decide, as a plan file carries them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tpplan.model.config import ModelSpec, config_value
from tpplan.model.internals import internals
from tpplan.model.quantization_config import COMPRESSED, read_scheme
from tpplan.model.quantizer import quantized_weights

VALUES = frozenset(
    """quant_method weight_block_size scale_fmt expert_dtype dequantize run_compressed bits group_size desc_act sym
    zero_point load_in_4bit load_in_8bit bnb_4bit_use_double_quant modules_in_block_to_quantize format""".split()
)
LISTS = frozenset(("modules_to_not_convert", "ignored_layers", "ignore", "llm_int8_skip_modules"))
GROUP_VALUES = frozenset(("targets", "format"))
WEIGHT_VALUES = frozenset("num_bits type strategy group_size block_structure symmetric actorder".split())


def quantization_facts(spec: ModelSpec, model: Any) -> dict | None:
    """The part of the quantization_config on which the verdict depends, None for a model that is not quantized.

    model: of this spec, on the meta device. What is returned reads as a quantization_config that holds for the same
    weights in the same way: lists of modules are shortened only where that changes nothing.
    """
    raw = spec.quantization_config
    if spec.scheme is None or raw is None:
        return None
    kept = {key: value for key, value in raw.items() if key in VALUES and value is not None}
    if "weight_block_size" in raw:
        kept["weight_block_size"] = raw["weight_block_size"]  # null there means one scale a weight
    if spec.scheme.method == COMPRESSED:
        kept["config_groups"] = {name: _group(group) for name, group in raw["config_groups"].items()}
    lists = {key: list(raw[key]) for key in sorted(LISTS & raw.keys()) if raw[key] is not None}
    short = {key: _general(names) for key, names in lists.items()}
    expected = quantized_weights(model, spec.scheme)
    for candidate in (short, lists):
        scheme = read_scheme(kept | candidate, expert_dtype=config_value(spec.config, "expert_dtype"))
        if scheme is not None and quantized_weights(model, scheme) == expected:
            return kept | candidate
    raise AssertionError("the full lists hold for the same weights")


def _general(names: Iterable[str]) -> list[str]:
    """The names with `*` for layer numbers, each once; expressions stay as they are."""
    return sorted({name if name.startswith("re:") else internals().wildcard(name) for name in names})


def _group(group: dict) -> dict:
    weights = group.get("weights")
    kept = {key: value for key, value in group.items() if key in GROUP_VALUES and value is not None}
    if weights is not None:
        kept["weights"] = {key: value for key, value in weights.items() if key in WEIGHT_VALUES and value is not None}
    return kept
