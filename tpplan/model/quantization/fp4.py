"""MXFP4, the experts of gpt-oss, and NVFP4: 4 bits in groups along the input dim that share a scale of 8 bits."""

from __future__ import annotations

from math import ceil

from tpplan.model.quantization.method import Failure, Method
from tpplan.model.quantization.scheme import Layout, Quantized, Scheme
from tpplan.model.quantization.values import Values

MX_GROUP = 32
# Mxfp4Dequantize transposes blocks (experts, out, in) after they were sliced along the dims of (experts, in, out).
TRANSPOSED_EXPERTS = Failure(
    outcome="from_pretrained raises or loads the wrong slice",
    cause="integrations/mxfp4.py transposes the experts after they were sliced; only the dim of experts can be cut",
)
# quantizers/quantizer_nvfp4.py, update_parallel_plan (update_tp_plan in 5.20 and older): raises ValueError.
REFUSED = Failure(
    outcome="from_pretrained raises", cause="quantizers/quantizer_nvfp4.py refuses tp_size above 1 (ValueError)"
)


def mxfp4_bytes(layout: Layout, out: int, inner: int, itemsize: int) -> int:
    """blocks (out, groups, 16), scales (out, groups)."""
    _, groups = layout.blocks(out, inner)
    return out * ceil(inner / 2) + out * groups * (layout.scale_bytes or itemsize)


def nvfp4_bytes(layout: Layout, out: int, inner: int, itemsize: int) -> int:
    """weight_packed (out, in / 2), weight_scale (out, groups), weight_global_scale; as compressed-tensors writes it."""
    return mxfp4_bytes(layout, out, inner, itemsize) + 4


def _read(method: str, values: Values) -> Scheme:
    values.flag("dequantize")
    return Scheme(
        method=method,
        expert_layout=Layout(stored=mxfp4_bytes, bits=4, block=(1, MX_GROUP), scale_bytes=1),
        ignored=values.names("modules_to_not_convert"),
        dequantized="quantizers/quantizer_mxfp4.py keeps the blocks on cpu only with triton 3.5.0 or newer, the "
        "package kernels and use_kernels=True, and on tpu never",
    )


def _failure(scheme: Scheme, weight: Quantized, cut_dim: int | None) -> Failure | None:
    return None if cut_dim is None else TRANSPOSED_EXPERTS


MXFP4 = Method(
    read=_read,
    facts=("dequantize",),
    lists=("modules_to_not_convert",),
    failure=_failure,
    fused_experts=True,
    dtype="bfloat16",  # gpt-oss names no dtype, and its other weights are so
)
NVFP4 = Method(failure_with_any_plan=lambda scheme: REFUSED)  # how its checkpoints are stored is not described here
