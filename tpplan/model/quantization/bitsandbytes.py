"""bitsandbytes: 4 bits in blocks of the flattened weight, or 8 bits with a scale per row."""

from __future__ import annotations

from math import ceil

from tpplan.model.quantization.method import Failure, Method
from tpplan.model.quantization.scheme import Layout, Scheme
from tpplan.model.quantization.values import Malformed, Values

BLOCK = 64  # bitsandbytes.nn.Linear4bit, elements of the flattened weight
NESTED_BLOCK = 256  # absmax values that share one nested absmax
# core_model_loading.py slices absmax, quant_map and quant_state (SCB with 8 bits) as if they were the weight.
SLICED = Failure(
    outcome="from_pretrained raises",
    cause="core_model_loading.py slices absmax and quant_state, or SCB, like the weight (IndexError; measured with "
    "bitsandbytes 0.50.2)",
)


def bytes_of_4_bits(layout: Layout, out: int, inner: int, itemsize: int) -> int:
    """weight, absmax, quant_map; with double quantization nested_absmax and nested_quant_map."""
    blocks = ceil(out * inner / BLOCK)
    nested = blocks + ceil(blocks / NESTED_BLOCK) * 4 + 256 * 4
    return ceil(out * inner / 2) + 16 * 4 + (nested if layout.double_quant else blocks * 4)


def bytes_of_8_bits(layout: Layout, out: int, inner: int, itemsize: int) -> int:
    """weight, SCB."""
    return out * inner + out * 4


def _read(method: str, values: Values) -> Scheme:
    four, double = values.flag("load_in_4bit"), values.flag("bnb_4bit_use_double_quant")
    if four and values.flag("load_in_8bit"):
        raise Malformed("load_in_4bit and load_in_8bit are both true", "load_in_4bit")
    if four:
        layout = Layout(stored=bytes_of_4_bits, bits=4, block=(None, None), scale_bytes=4, double_quant=double)
    else:
        layout = Layout(stored=bytes_of_8_bits, bits=8, block=(1, None), scale_bytes=4)
    return Scheme(method=method, layout=layout, ignored=values.names("llm_int8_skip_modules"))


BITSANDBYTES = Method(
    read=_read,
    facts=("load_in_4bit", "load_in_8bit", "bnb_4bit_use_double_quant"),
    lists=("llm_int8_skip_modules",),
    failure=lambda scheme, weight, cut_dim: SLICED,
)
