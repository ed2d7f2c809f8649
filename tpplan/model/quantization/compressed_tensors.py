"""compressed-tensors: groups of modules, each with a format, a strategy for its scales and the modules it is for."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from math import ceil
from typing import TYPE_CHECKING

from tpplan.model.quantization.fp4 import mxfp4_bytes, nvfp4_bytes
from tpplan.model.quantization.fp8 import fp8_bytes
from tpplan.model.quantization.method import Failure, Method, candidates, is_experts
from tpplan.model.quantization.scheme import Layout, Quantized, Scheme
from tpplan.model.quantization.values import Malformed, Values

if TYPE_CHECKING:
    from torch.nn import Module

BITS = (1, 2, 3, 4, 5, 6, 7, 8)
EXPRESSION = "re:"
# compressed_tensors.offload.from_accelerate dispatches the model in its first forward and reads forward.__func__.
PACKED = Failure(
    outcome="the first forward raises",
    cause="compressed_tensors expects methods where distributed/tensor_parallel.py has put functions (AttributeError "
    "__func__; measured with compressed-tensors 0.20.1)",
)
# Measured with channel, group: weight_scale (out, 1) and weight_shape (2,) are sliced along the weight's dims.
DEQUANTIZED = Failure(
    outcome="from_pretrained raises",
    cause="core_model_loading.py slices weight_scale and weight_shape like the weight (measured with "
    "compressed-tensors 0.20.1)",
)


def packed_bytes(layout: Layout, out: int, inner: int, itemsize: int) -> int:
    """weight_packed (out, in / 32 * bits), weight_scale, weight_zero_point, weight_g_idx, weight_shape."""
    rows, columns = layout.blocks(out, inner)
    words = ceil(inner * layout.bits / 32) * 4
    zeros = 0 if layout.symmetric else ceil(out * layout.bits / 32) * 4 * columns
    scales = rows * columns * (layout.scale_bytes or itemsize)
    return out * words + scales + zeros + layout.group_index * inner * 4 + 16


def _read(method: str, values: Values) -> Scheme:
    whole_format, groups = values.raw.get("format"), values.object("config_groups")
    described = []
    for name in groups.raw:
        group = groups.object(name)
        targets = group.names("targets", expressions=EXPRESSION)
        if targets is None:
            raise Malformed(f"{group.inside} has no targets", group.dotted("targets"))
        if group.raw.get("weights") is not None:
            described.append((targets, _layout(group.object("weights"), group.raw.get("format") or whole_format)))
    asked = values.flag("dequantize") or values.raw.get("run_compressed") is False
    return Scheme(
        method=method,
        groups=tuple(described),
        ignored=values.names("ignore", expressions=EXPRESSION) or (),
        dequantized="quantization_config asks for it: dequantize is true or run_compressed is false" if asked else "",
    )


def _layout(weights: Values, fmt: object) -> Layout:
    """The layout of a config group. fmt: the format of the group, else of the whole; without one the values decide."""
    bits, size = weights.bits("num_bits", BITS, default=8), weights.group_size(None)
    default = "group" if size else "block" if weights.raw.get("block_structure") else "tensor"
    strategy = weights.choice("strategy", ("tensor", "channel", "group", "tensor_group", "block"), default)
    block: tuple[int | None, int | None] = (None, None) if strategy == "tensor" else (1, None)
    if strategy == "block":
        block = weights.pair("block_structure")
    elif strategy in ("group", "tensor_group"):
        if size is None and weights.raw.get("group_size") != -1:
            said = f"{weights.dotted('strategy')} is {strategy} and there is no group_size"
            raise Malformed(said, weights.dotted("group_size"))
        block = (1, size)
    stored = packed_bytes if fmt == "pack-quantized" or bits != 8 else fp8_bytes
    if fmt == "nvfp4-pack-quantized" or (strategy == "tensor_group" and bits == 4):
        stored = nvfp4_bytes
    elif fmt == "mxfp4-pack-quantized":
        stored = mxfp4_bytes
    return Layout(
        stored=stored,
        bits=bits,
        block=block,
        scale_bytes=1 if stored in (nvfp4_bytes, mxfp4_bytes) else None,
        symmetric=weights.flag("symmetric", True),
        group_index=weights.raw.get("actorder") in (True, "group"),
    )


def _modules(model: Module, scheme: Scheme) -> Iterator[tuple[str, Module, Layout]]:
    for name, module in candidates(model):
        fused = is_experts(module)
        names = [f"{name}.0.{part}" for part in ("gate_proj", "down_proj")] if fused else [name]
        classes = {"Linear"} if fused else {cls.__name__ for cls in type(module).__mro__}
        if _matches(names, classes, scheme.ignored or ()):
            continue
        for targets, layout in scheme.groups:
            if _matches(names, classes, targets):
                yield name, module, layout
                break


def _matches(names: list[str], classes: set[str], patterns: Iterable[str]) -> bool:
    """compressed_tensors.utils.match.is_match: a class of the module, its exact name, or `re:` and an expression.

    Fused experts are separate linear layers in the checkpoint; the first of them stands for all.
    """
    return any(
        any(re.match(pattern.removeprefix(EXPRESSION), name) for name in names)
        if pattern.startswith(EXPRESSION)
        else pattern in classes or pattern in names
        for pattern in patterns
    )


def _failure(scheme: Scheme, weight: Quantized, cut_dim: int | None) -> Failure | None:
    if not scheme.dequantized:
        return PACKED
    rows, columns = weight.layout.block
    blocked = weight.layout.stored is fp8_bytes and rows not in (None, 1) and columns is not None
    return None if blocked else DEQUANTIZED


WEIGHTS = "num_bits type strategy group_size block_structure symmetric actorder"
COMPRESSED_TENSORS = Method(
    read=_read,
    facts=(
        *("format", "dequantize", "run_compressed", "config_groups.*.targets", "config_groups.*.format"),
        *(f"config_groups.*.weights.{name}" for name in WEIGHTS.split()),
    ),
    lists=("ignore",),
    failure=_failure,
    failure_with_any_plan=lambda scheme: None if scheme.dequantized else PACKED,
    modules=_modules,
    spreads_scales=True,
)
