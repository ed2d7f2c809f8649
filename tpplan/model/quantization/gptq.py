"""GPTQ and AWQ: weights of a few bits packed into integers, groups along the input dim that share a scale."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from math import ceil
from typing import TYPE_CHECKING

from tpplan.model.quantization.method import Failure, Method, converted_modules
from tpplan.model.quantization.scheme import Layout, Scheme
from tpplan.model.quantization.values import Malformed, Values

if TYPE_CHECKING:
    from torch.nn import Module

# gptqmodel registers qweight, scales, qzeros as buffers, which no style shards, and multiplies them by a DTensor.
BUFFERS = Failure(
    outcome="the first forward raises",
    cause="the packed weights are buffers, which distributed/tensor_parallel.py leaves replicated, and are multiplied "
    "by a sharded input (RuntimeError, mixed torch.Tensor and DTensor; measured with gptqmodel 7.7.0)",
)


def gptq_bytes(layout: Layout, out: int, inner: int, itemsize: int) -> int:
    """qweight (in / 32 * bits, out), qzeros (groups, out / 32 * bits), scales (groups, out), g_idx (in)."""
    _, groups = layout.blocks(out, inner)
    words, zeros = ceil(inner * layout.bits / 32) * 4, ceil(out * layout.bits / 32) * 4
    return words * out + groups * (zeros + out * (layout.scale_bytes or itemsize)) + inner * 4


def awq_bytes(layout: Layout, out: int, inner: int, itemsize: int) -> int:
    """qweight (in, out / 32 * bits), qzeros (groups, out / 32 * bits), scales (groups, out)."""
    _, groups = layout.blocks(out, inner)
    words = ceil(out * layout.bits / 32) * 4
    return inner * words + groups * (words + out * (layout.scale_bytes or itemsize))


def _read_gptq(method: str, values: Values) -> Scheme:
    layout = Layout(
        stored=gptq_bytes,
        bits=values.bits("bits", (2, 3, 4, 8)),
        block=(1, values.group_size(128)),
        scale_bytes=2,
        symmetric=values.flag("sym", True),
        group_index=values.flag("desc_act"),
    )
    nested = values.raw.get("modules_in_block_to_quantize")
    if nested is not None and not (isinstance(nested, list) and all(isinstance(part, list) for part in nested)):
        raise Malformed("modules_in_block_to_quantize is not a list of lists", "modules_in_block_to_quantize")
    only = None if nested is None else tuple(str(name) for part in nested for name in part)
    return Scheme(method=method, layout=layout, expert_layout=layout, only=only)


def _read_awq(method: str, values: Values) -> Scheme:
    layout = Layout(
        stored=awq_bytes,
        bits=values.bits("bits", (4,), default=4),
        block=(1, values.group_size(128)),
        scale_bytes=2,
        symmetric=not values.flag("zero_point", True),
    )
    return Scheme(method=method, layout=layout, expert_layout=layout, ignored=values.names("modules_to_not_convert"))


def _gptq_modules(model: Module, scheme: Scheme) -> Iterator[tuple[str, Module, Layout]]:
    """optimum's GPTQQuantizer converts the linear layers of the repeated blocks, or those the config lists."""
    for name, module, layout in converted_modules(model, scheme, default_skips=True):
        in_a_block = re.search(r"\.\d+\.", name) and not re.search(r"(^|\.)(visual|vision\w*)\.", name)
        if in_a_block if scheme.only is None else name.endswith(scheme.only):
            yield name, module, layout


GPTQ = Method(
    read=_read_gptq,
    facts=("bits", "group_size", "desc_act", "sym", "modules_in_block_to_quantize"),
    nulls=("group_size",),
    failure=lambda scheme, weight, cut_dim: BUFFERS,
    modules=_gptq_modules,
)
AWQ = Method(
    read=_read_awq,
    facts=("bits", "group_size", "zero_point"),
    lists=("modules_to_not_convert",),
    nulls=("group_size",),
    failure=lambda scheme, weight, cut_dim: BUFFERS,
    modules=partial(converted_modules, default_skips=True),
)
