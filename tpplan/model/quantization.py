"""A checkpoint's quantization: the scheme that its config describes, and the bytes that a weight takes under it.

`quantization_config` reads the scheme, `quantizer` knows which weights it holds for and what Transformers does with them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil, prod

BNB_BLOCK = 64  # bitsandbytes.nn.Linear4bit, elements of the flattened weight
BNB_NESTED_BLOCK = 256  # absmax values that share one nested absmax


@dataclass(frozen=True, kw_only=True)
class Layout:
    """How one weight of (out, in) elements is stored.

    kind: `fp8`, `gptq`, `awq`, `packed`, `nvfp4`, `mxfp4`, `bnb4` or `bnb8`; it names the tensors that are stored.
    bits: of one element. block: rows and columns that share one scale; None for all of that dim. The blocks of `bnb4` run over the flattened
    weight and are no rows and columns.
    scale_bytes: of one scale, None for the itemsize of the dtype that weights are loaded in.
    """

    kind: str
    bits: int
    block: tuple[int | None, int | None]
    scale_bytes: int | None = None
    symmetric: bool = True
    group_index: bool = False
    double_quant: bool = False

    @property
    def whole(self) -> bool:
        """Whether one scale stands for the whole weight."""
        return self.block == (None, None)


@dataclass(frozen=True, kw_only=True)
class Scheme:
    """What a quantization_config says.

    method: quant_method as Transformers dispatches on it, bitsandbytes without its suffix. layout: of linear layers,
    None for a method whose storage is not described here. expert_layout: of fused experts. groups: what compressed-
    tensors gives to which targets, first match counts; layout is None then. ignored: names or patterns of modules that
    are left alone, None where the config has no list. dequantize: the config itself asks for dequantized weights.
    """

    method: str
    layout: Layout | None = None
    expert_layout: Layout | None = None
    groups: tuple[tuple[tuple[str, ...], Layout], ...] = ()
    ignored: tuple[str, ...] | None = None
    only: tuple[str, ...] | None = None
    dequantize: bool = False

    @property
    def described(self) -> bool:
        """Whether the storage of its weights is known here."""
        return self.layout is not None or self.expert_layout is not None or bool(self.groups)


@dataclass(frozen=True, kw_only=True)
class Quantized:
    """A quantized parameter.

    transposed: the model holds it as (in, out), as some fused experts do. parts: how many weights of the checkpoint
    stand above each other in it along the output dim, such as gate and up.
    """

    layout: Layout
    transposed: bool = False
    parts: int = 1

    def out_in(self, shape: tuple[int, ...]) -> tuple[int, int]:
        """(out, in) of the last two dims of `shape`."""
        return (shape[-1], shape[-2]) if self.transposed else (shape[-2], shape[-1])


def quantized_bytes(name: str, shape: tuple[int, ...], quantized: Mapping[str, Quantized], itemsize: int) -> int:
    """Bytes of the parameter `name` of this shape in a checkpoint: weights, scales, zero points, group index.

    shape: unsharded, or the slice of one rank where that is a whole number of blocks; leading dims (experts) multiply.
    quantized: `quantizer.quantized_weights` of the model; a name that is not in it takes itemsize bytes an element.
    itemsize: of the dtype that the weights are loaded in. Not counted: scales of activations, and the few bytes of
    bitsandbytes that describe the weight itself (`quant_state`, `weight_format`).

    Where Transformers dequantizes as it loads (`quantizer.dequantizes`) a rank holds prod(shape) * itemsize instead.
    """
    if name not in quantized:
        return prod(shape) * itemsize
    out, inner = quantized[name].out_in(shape)
    parts = quantized[name].parts
    return prod(shape[:-2]) * parts * _matrix_bytes(quantized[name].layout, out // parts, inner, itemsize)


def _matrix_bytes(layout: Layout, out: int, inner: int, itemsize: int) -> int:
    """Bytes of one (out, inner) weight. Formulas from the packages that write them, each checked against their output."""
    scale = layout.scale_bytes or itemsize
    rows, columns = _blocks(out, layout.block[0]), _blocks(inner, layout.block[1])
    words = ceil(inner * layout.bits / 32) * 4
    match layout.kind:
        case "fp8":  # FP8Linear: weight, weight_scale_inv; compressed-tensors: weight, weight_scale, weight_zero_point
            return out * inner + rows * columns * (scale + (not layout.symmetric))
        case "gptq":  # qweight (in / 32 * bits, out), qzeros (groups, out / 32 * bits), scales (groups, out), g_idx
            zeros = columns * ceil(out * layout.bits / 32) * 4
            return words * out + zeros + columns * out * scale + inner * 4
        case "awq":  # qweight (in, out / 32 * bits), qzeros (groups, out / 32 * bits), scales (groups, out)
            packed = ceil(out * layout.bits / 32) * 4
            return inner * packed + columns * packed + columns * out * scale
        case (
            "packed"
        ):  # weight_packed (out, in / 32 * bits), weight_scale, weight_zero_point, weight_g_idx, weight_shape
            zeros = 0 if layout.symmetric else ceil(out * layout.bits / 32) * 4 * columns
            return out * words + rows * columns * scale + zeros + layout.group_index * inner * 4 + 16
        case "nvfp4":  # weight_packed (out, in / 2), weight_scale (out, groups), weight_global_scale
            return out * ceil(inner / 2) + out * columns * scale + 4
        case "mxfp4":  # blocks (out, groups, 16), scales (out, groups)
            return out * ceil(inner / 2) + out * columns * scale
        case "bnb4":  # weight, absmax, quant_map; with double quantization nested_absmax and nested_quant_map
            blocks = ceil(out * inner / BNB_BLOCK)
            nested = blocks + ceil(blocks / BNB_NESTED_BLOCK) * 4 + 256 * 4
            return ceil(out * inner / 2) + 16 * 4 + (nested if layout.double_quant else blocks * 4)
        case "bnb8":  # weight, SCB
            return out * inner + out * 4
    raise ValueError(f"no layout is of the kind {layout.kind!r}")


def _blocks(size: int, block: int | None) -> int:
    return 1 if block is None else ceil(size / block)
