"""What a checkpoint's quantization is: how its weights are stored, which they are, and the bytes that one takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import ceil, prod


@dataclass(frozen=True, kw_only=True)
class Layout:
    """How one weight of (out, in) elements is stored.

    stored: the bytes of its tensors, from (layout, out, in, itemsize of the dtype that weights are loaded in).
    bits: of one element. block: rows and columns that share one scale; None for all of that dim. The blocks of
    bitsandbytes with 4 bits run over the flattened weight and are no rows and columns.
    scale_bytes: of one scale, None for the itemsize.
    """

    stored: Callable[[Layout, int, int, int], int]
    bits: int
    block: tuple[int | None, int | None]
    scale_bytes: int | None = None
    symmetric: bool = True
    group_index: bool = False
    double_quant: bool = False

    def blocks(self, out: int, inner: int) -> tuple[int, int]:
        """How many blocks stand above each other and side by side."""
        rows, columns = self.block
        return 1 if rows is None else ceil(out / rows), 1 if columns is None else ceil(inner / columns)


@dataclass(frozen=True, kw_only=True)
class Scheme:
    """What a quantization_config says.

    method: quant_method as Transformers dispatches on it, bitsandbytes without its suffix. layout: of linear layers,
    None for a method whose storage is not described here. expert_layout: of fused experts. groups: what compressed-
    tensors gives to which targets, the first match holds; layout is None then. ignored: names or patterns of modules
    that are left alone, None where the config has no list. only: ends of the names of the modules that are converted,
    None for all. dequantized: why cpu and TPU ranks hold the weights dequantized, empty where they hold them packed.
    """

    method: str
    layout: Layout | None = None
    expert_layout: Layout | None = None
    groups: tuple[tuple[tuple[str, ...], Layout], ...] = ()
    ignored: tuple[str, ...] | None = None
    only: tuple[str, ...] | None = None
    dequantized: str = ""

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
    quantized: `quantized_weights` of the model; a name that is not in it takes itemsize bytes per element.
    itemsize: of the dtype that the weights are loaded in. Not counted: scales of activations, and the few bytes of
    bitsandbytes that describe the weight itself (`quant_state`, `weight_format`).

    Where Transformers dequantizes as it loads (`Scheme.dequantized`) a rank holds prod(shape) * itemsize instead.
    """
    if name not in quantized:
        return prod(shape) * itemsize
    weight = quantized[name]
    out, inner = weight.out_in(shape)
    return prod(shape[:-2]) * weight.parts * weight.layout.stored(weight.layout, out // weight.parts, inner, itemsize)
