"""FP8, and its MX form: weights of 8 bits in blocks that share a scale, fused experts maybe in MX FP4."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tpplan.model.internals import internals
from tpplan.model.quantization.fp4 import MX_GROUP, mxfp4_bytes
from tpplan.model.quantization.method import Failure, Method, converted_modules
from tpplan.model.quantization.scheme import Layout, Quantized, Scheme
from tpplan.model.quantization.values import Values

if TYPE_CHECKING:
    from torch.nn import Module

PER_TENSOR = Failure(
    # DtensorShardOperation.shard_tensor, distributed/sharding_utils.py: a scalar has no dim to slice.
    outcome="from_pretrained raises",
    cause="distributed/sharding_utils.py slices the one scale of each weight like the weight (IndexError)",
)


def fp8_bytes(layout: Layout, out: int, inner: int, itemsize: int) -> int:
    """FP8Linear: weight, weight_scale_inv; compressed-tensors: weight, weight_scale, weight_zero_point."""
    rows, columns = layout.blocks(out, inner)
    return out * inner + rows * columns * ((layout.scale_bytes or itemsize) + (not layout.symmetric))


def _read(method: str, values: Values) -> Scheme:
    values.flag("dequantize")
    missing = "weight_block_size" not in values.raw
    per_tensor = not missing and values.raw["weight_block_size"] is None
    block = (128, 128) if missing else (None, None) if per_tensor else values.pair("weight_block_size")
    scale = 1 if values.choice("scale_fmt", ("float", "ue8m0"), "float") == "ue8m0" else 4
    blocks = Layout(stored=fp8_bytes, bits=8, block=block, scale_bytes=scale)
    # FineGrainedFP8Config.expert_dtype: MX groups of 32 along the input dim, two values a byte
    groups = Layout(stored=mxfp4_bytes, bits=4, block=(1, MX_GROUP), scale_bytes=scale)
    ignored = values.names("modules_to_not_convert")
    return Scheme(
        method=method,
        layout=replace(blocks, scale_bytes=4) if per_tensor else blocks,
        expert_layout=groups if values.raw.get("expert_dtype") == "fp4" else blocks,
        ignored=values.names("ignored_layers") if ignored is None else ignored,
        dequantized="quantizers/quantizer_finegrained_fp8.py dequantizes where there is no CUDA or XPU device",
    )


def _modules(model: Module, scheme: Scheme) -> Iterator[tuple[str, Module, Layout]]:
    """The config names modules as the published checkpoint does: _normalize_modules_to_not_convert of the quantizer."""
    if not scheme.ignored:
        return converted_modules(model, scheme)
    renamings = [rename for rename in internals().conversion_mapping(model) if hasattr(rename, "rename_source_key")]
    ignored = []
    for name in scheme.ignored:
        renamed = f"{name}."
        for rename in renamings:
            renamed, _ = rename.rename_source_key(renamed)
        ignored.append(renamed.removesuffix("."))
    return converted_modules(model, replace(scheme, ignored=tuple(ignored)))


def _failure(scheme: Scheme, weight: Quantized, cut_dim: int | None) -> Failure | None:
    return PER_TENSOR if weight.layout.block == (None, None) else None


def dropped_rules(config: Any) -> tuple[str, ...]:
    """Rules of the model's own plan that the quantizer takes away, below the base model; sorted.

    In 5.20 and older the fp8 quantizer replaced the plan of every Qwen3 config by one of a dense model
    (FineGrainedFP8HfQuantizer.update_tp_plan), so that fused experts stay replicated.
    """
    quantizer = internals().fp8_quantizer
    if not hasattr(quantizer, "update_tp_plan"):
        return ()
    config = copy.deepcopy(config)
    before = dict(getattr(config, "base_model_tp_plan", None) or {})
    quantizer.update_tp_plan(object.__new__(quantizer), config)
    after = getattr(config, "base_model_tp_plan", None) or {}
    return tuple(sorted(rule for rule in before if rule not in after and f"{rule}.weight" not in after))


FP8 = Method(
    read=_read,
    facts=("weight_block_size", "scale_fmt", "expert_dtype", "dequantize"),
    lists=("modules_to_not_convert", "ignored_layers"),
    nulls=("weight_block_size",),
    failure=_failure,
    modules=_modules,
    spreads_scales=True,
    dropped_rules=dropped_rules,
)
