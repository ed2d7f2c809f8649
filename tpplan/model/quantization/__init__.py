"""A checkpoint's quantization, one row of METHODS for each method.

A method is added as one module with its `Method` and one row here. What a row says of loading was measured on CPU with
Transformers 5.19.0 to 5.24.0: saved checkpoints of the method, loaded with a DistributedConfig by real gloo ranks (fp8
and mxfp4 also as one rank at a time) and compared with the unsharded load.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tpplan.model.internals import internals
from tpplan.model.quantization.bitsandbytes import BITSANDBYTES
from tpplan.model.quantization.compressed_tensors import COMPRESSED_TENSORS
from tpplan.model.quantization.fp4 import MXFP4, NVFP4
from tpplan.model.quantization.fp8 import FP8
from tpplan.model.quantization.gptq import AWQ, GPTQ
from tpplan.model.quantization.method import Method
from tpplan.model.quantization.scheme import Quantized, Scheme
from tpplan.model.quantization.values import Malformed, Values, kind_of
from tpplan.model.releases import MEASURED_UP_TO, transformers_version

if TYPE_CHECKING:
    from torch.nn import Module

METHODS: dict[str, Method] = {
    "fp8": FP8,
    "mxfp8": FP8,
    "gptq": GPTQ,
    "awq": AWQ,
    "compressed-tensors": COMPRESSED_TENSORS,
    "bitsandbytes": BITSANDBYTES,
    "mxfp4": MXFP4,
    "nvfp4": NVFP4,
}
FUSED = ("gate_up_proj",)  # two projections of the checkpoint in one parameter of fused experts


def method_of(name: str) -> Method:
    """The row of a method; an empty one, which describes nothing, where there is none."""
    return METHODS.get(name, Method())


def is_known(method: str) -> bool:
    """Whether the installed Transformers has a quantizer for this method; others it skips with a warning."""
    return bool({method, f"{method}_4bit"} & set(internals().quantization_configs))


def is_measured() -> bool:
    """Whether the installed Transformers is one of those for which METHODS holds."""
    return transformers_version()[:2] <= MEASURED_UP_TO


def read_scheme(raw: object, *, expert_dtype: object = None) -> Scheme | None:
    """The scheme of a quantization_config, None where there is none (the value is null).

    raw: as parsed from config.json. expert_dtype: the model config's own value of that name, which FP8 experts follow.

    Raises Malformed for what no loader can read.
    """
    if raw is None:
        return None
    values = Values.of(raw)
    name = _method_name(values)
    return method_of(name).read(name, Values(raw={"expert_dtype": expert_dtype, **values.raw}))


def _method_name(values: Values) -> str:
    """The key that Transformers dispatches on (quantizers/auto.py, AutoHfQuantizer.supports_quant_method)."""
    if values.flag("load_in_4bit") or values.flag("load_in_8bit"):
        return "bitsandbytes"
    name = values.raw.get("quant_method")
    if name is None:
        raise Malformed("quantization_config has no quant_method", "quant_method")
    if not isinstance(name, str):
        raise Malformed(f"quant_method is {kind_of(name)}, must be a string", "quant_method")
    return name


def quantized_weights(model: Module, scheme: Scheme) -> dict[str, Quantized]:
    """The parameters of `model` that are quantized in the checkpoint, by name. Empty for a scheme without a layout.

    model: on the meta device, its ties known. Modules are chosen as the quantizers of Transformers choose them.
    """
    method = method_of(scheme.method)
    found = {}
    for name, module, layout in method.modules(model, scheme):
        transposed = method.fused_experts or bool(getattr(module, "is_transposed", False))
        for parameter, tensor in module.named_parameters(recurse=False):
            if tensor.ndim == 3:
                parts = 2 if parameter in FUSED and not method.fused_experts else 1
                found[f"{name}.{parameter}"] = Quantized(layout=layout, transposed=transposed, parts=parts)
            elif tensor.ndim == 2 and parameter == "weight":
                found[f"{name}.{parameter}"] = Quantized(layout=layout)
    return found
