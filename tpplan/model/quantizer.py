"""What the installed Transformers does with a quantized checkpoint: which weights it holds for, and whether they shard.

Measured on CPU with Transformers 5.19.0 to 5.24.0: saved checkpoints of each method, loaded with a DistributedConfig
by real gloo ranks (fp8, mxfp4 also as one rank at a time) and compared with the unsharded load.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterable, Iterator
from typing import Any

from tpplan.model.config import ModelSpec
from tpplan.model.internals import internals
from tpplan.model.quantization import Layout, Quantized, Scheme
from tpplan.model.quantization_config import BITSANDBYTES, COMPRESSED, FP8
from tpplan.model.releases import MEASURED_UP_TO, transformers_version

FUSED = ("gate_up_proj",)  # two projections of the checkpoint in one parameter of fused experts
PLAIN = re.compile(r"[\w.-]*")  # a pattern without any character that a regular expression would read as more than one

# What happens at a tp_size above 1 to methods that fail there, and where. The sizes do not matter.
FAILURES: dict[str, str] = {
    # gptqmodel registers qweight, scales, qzeros as buffers, which no style shards, and multiplies them by a DTensor.
    **dict.fromkeys(
        ("gptq", "awq"),
        "the first forward raises: the packed weights are buffers, which distributed/tensor_parallel.py leaves whole, and "
        "are multiplied by a sharded input (RuntimeError, mixed torch.Tensor and DTensor; measured with gptqmodel 7.7.0)",
    ),
    # core_model_loading.py slices absmax, quant_map and quant_state (SCB with 8 bits) as if they were the weight.
    BITSANDBYTES: "from_pretrained raises: core_model_loading.py slices absmax and quant_state, or SCB, like the weight "
    "(IndexError; measured with bitsandbytes 0.50.2)",
    # compressed_tensors.offload.from_accelerate dispatches the model in its first forward and reads forward.__func__.
    COMPRESSED: "the first forward raises: compressed_tensors expects methods where distributed/tensor_parallel.py has "
    "put functions (AttributeError __func__; measured with compressed-tensors 0.20.1)",
    # quantizers/quantizer_nvfp4.py, update_parallel_plan (update_tp_plan in 5.20 and older): raises ValueError.
    "nvfp4": "from_pretrained raises: quantizers/quantizer_nvfp4.py refuses tp_size above 1 (ValueError)",
}
# Those that fail with any plan; the others run where the plan leaves their weights whole (measured with diffllama).
FAILING_WITH_ANY_PLAN = (COMPRESSED, "nvfp4")
# The same for weights that are dequantized while they load.
PER_TENSOR = (
    # DtensorShardOperation.shard_tensor, distributed/sharding_utils.py: a scalar has no dim to slice.
    "from_pretrained raises: distributed/sharding_utils.py slices the one scale of each weight like the weight "
    "(IndexError)"
)
DEQUANTIZED_NOT_SHARDED = (
    # Measured with channel, group: weight_scale (out, 1) and weight_shape (2,) are sliced along the weight's dims.
    "from_pretrained raises: core_model_loading.py slices weight_scale and weight_shape like the weight "
    "(measured with compressed-tensors 0.20.1)"
)
TRANSPOSED_EXPERTS = (
    # Mxfp4Dequantize transposes blocks (experts, out, in) after they were sliced along the dims of (experts, in, out).
    "from_pretrained raises or fills in the wrong slice: integrations/mxfp4.py transposes the experts after they were "
    "sliced; only the dim of experts can be cut"
)


def is_known(method: str) -> bool:
    """Whether the installed Transformers has a quantizer for this method; others it skips with a warning."""
    names = internals().quantization_configs
    return method in names or (method == BITSANDBYTES and f"{method}_4bit" in names)


def is_measured() -> bool:
    """Whether the installed Transformers is one of those that this module describes."""
    return transformers_version()[:2] <= MEASURED_UP_TO


def dequantizes(scheme: Scheme) -> bool:
    """Whether cpu and TPU ranks hold dequantized weights: `validate_environment` of the quantizers sets it.

    fp8 has kernels for CUDA and XPU only (quantizers/quantizer_finegrained_fp8.py); mxfp4 has them on cpu with
    `use_kernels=True` (quantizers/quantizer_mxfp4.py), which a load with a DistributedConfig alone does not ask for.
    """
    return scheme.method in (*FP8, "mxfp4") or (scheme.method == COMPRESSED and scheme.dequantize)


def failure_with_any_plan(scheme: Scheme) -> str:
    """What goes wrong at any tp_size above 1 whatever the plan cuts, or an empty string."""
    if scheme.method not in FAILING_WITH_ANY_PLAN or dequantizes(scheme):
        return ""
    return FAILURES[scheme.method]


def failure(scheme: Scheme, quantized: Quantized, cut_dim: int | None) -> str:
    """What goes wrong with a weight that the plan cuts whatever the sizes, or an empty string.

    cut_dim: the dim of a (out, in) weight that is cut, None for the dim of experts.
    """
    if scheme.method in FP8:
        return PER_TENSOR if quantized.layout.whole else ""
    if scheme.method == "mxfp4":
        return TRANSPOSED_EXPERTS if cut_dim is not None else ""
    if scheme.method == COMPRESSED and scheme.dequantize:
        return "" if _is_blocked(quantized.layout) else DEQUANTIZED_NOT_SHARDED
    return FAILURES.get(scheme.method, "")


def _is_blocked(layout: Layout) -> bool:
    return layout.kind == "fp8" and None not in layout.block and layout.block[0] != 1


def quantized_weights(model: Any, scheme: Scheme) -> dict[str, Quantized]:
    """The parameters of `model` that are quantized in the checkpoint, by name. Empty for a scheme without a layout.

    model: on the meta device, its ties known. Modules are chosen as the quantizers of Transformers choose them.
    """
    chosen = dict(_modules(model, scheme))
    found = {}
    for name, layout in chosen.items():
        module = model.get_submodule(name)
        transposed = bool(getattr(module, "is_transposed", False)) or scheme.method == "mxfp4"
        for parameter, tensor in module.named_parameters(recurse=False):
            if tensor.ndim == 3 or (tensor.ndim == 2 and parameter == "weight"):
                parts = 2 if tensor.ndim == 3 and parameter in FUSED and scheme.method != "mxfp4" else 1
                found[f"{name}.{parameter}"] = Quantized(
                    layout=layout, transposed=transposed and tensor.ndim == 3, parts=parts
                )
    return found


def _modules(model: Any, scheme: Scheme) -> Iterator[tuple[str, Layout]]:
    candidates = list(_candidates(model))
    if scheme.method == COMPRESSED:
        yield from _compressed_modules(candidates, scheme)
        return
    skipped = [(pattern, _literal_parts(pattern)) for pattern in _skipped(model, scheme)]
    for name, module in candidates:
        layout = scheme.expert_layout if _is_experts(module) else scheme.layout
        if layout is None or (scheme.method == "gptq" and not _in_a_block(name, scheme)):
            continue
        near = [pattern for pattern, parts in skipped if all(part in name for part in parts)]
        if internals().should_convert_module(name, near):
            yield name, layout


def _candidates(model: Any) -> Iterator[tuple[str, Any]]:
    """Linear layers and fused experts: what quantizers replace."""
    import torch

    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear) or _is_experts(module):
            yield name, module


def _is_experts(module: Any) -> bool:
    """Whether a module holds fused experts: weights of three dims, the first of which counts experts."""
    return any(tensor.ndim == 3 and name.endswith("proj") for name, tensor in module.named_parameters(recurse=False))


def _skipped(model: Any, scheme: Scheme) -> list[str]:
    """The patterns of modules that stay as they are, as the quantizer of the method gathers them."""
    ignored = None if scheme.ignored is None else list(scheme.ignored)
    if scheme.method in FP8 and ignored:
        ignored = _renamed(model, ignored)
    return internals().quantizer.get_modules_to_not_convert(
        model,
        ignored,
        getattr(model, "_keep_in_fp32_modules", None),
        # AWQ and optimum's GPTQ leave the output embeddings alone whatever the config says
        add_default_skips=scheme.method in ("awq", "gptq"),
    )


def _renamed(model: Any, names: Iterable[str]) -> list[str]:
    """Names of a published checkpoint as the model's own: FineGrainedFP8HfQuantizer._normalize_modules_to_not_convert."""
    renamings = [rename for rename in internals().conversion_mapping(model) if hasattr(rename, "rename_source_key")]
    found = []
    for name in names:
        renamed = f"{name}."
        for rename in renamings:
            renamed, _ = rename.rename_source_key(renamed)
        found.append(renamed.removesuffix("."))
    return found


def _literal_parts(pattern: str) -> tuple[str, ...]:
    """What a name must contain for `should_convert_module` to find `pattern` in it, the rarest first; empty if unclear.

    Published lists hold thousands of names, and each of them is compiled as a regular expression there.
    """
    return tuple(reversed(pattern.split("."))) if PLAIN.fullmatch(pattern) else ()


def _in_a_block(name: str, scheme: Scheme) -> bool:
    """optimum's GPTQQuantizer converts the linear layers of the repeated blocks, or those the config lists."""
    if scheme.only is not None:
        return name.endswith(scheme.only)
    return re.search(r"\.\d+\.", name) is not None and not re.search(r"(^|\.)(visual|vision\w*)\.", name)


def _compressed_modules(candidates: list[tuple[str, Any]], scheme: Scheme) -> Iterator[tuple[str, Layout]]:
    ignored = scheme.ignored or ()
    for name, module in candidates:
        names = [f"{name}.0.{part}" for part in ("gate_proj", "down_proj")] if _is_experts(module) else [name]
        classes = {"Linear"} if _is_experts(module) else {cls.__name__ for cls in type(module).__mro__}
        if any(_targets(names, classes, pattern) for pattern in ignored):
            continue
        for targets, layout in scheme.groups:
            if any(_targets(names, classes, pattern) for pattern in targets):
                yield name, layout
                break


def _targets(names: Iterable[str], classes: set[str], pattern: str) -> bool:
    """compressed_tensors.utils.match.is_match: a class of the module, its exact name, or `re:` and an expression.

    Fused experts are separate linear layers in the checkpoint; the first of them stands for all.
    """
    if pattern.startswith("re:"):
        return any(re.match(pattern.removeprefix("re:"), name) for name in names)
    return pattern in classes or any(pattern == name for name in names)


def dropped_rules(spec: ModelSpec, scheme: Scheme) -> tuple[str, ...]:
    """Rules of the model's own plan that the quantizer takes away, below the base model; sorted.

    In 5.20 and older the fp8 quantizer replaced the plan of every Qwen3 config by one of a dense model
    (FineGrainedFP8HfQuantizer.update_tp_plan), so that fused experts stay whole on every rank.
    """
    if scheme.method not in FP8:
        return ()
    quantizer = internals().fp8_quantizer
    if not hasattr(quantizer, "update_tp_plan"):
        return ()
    config = copy.deepcopy(spec.config)
    before = dict(getattr(config, "base_model_tp_plan", None) or {})
    quantizer.update_tp_plan(object.__new__(quantizer), config)
    after = getattr(config, "base_model_tp_plan", None) or {}
    return tuple(sorted(rule for rule in before if rule not in after and f"{rule}.weight" not in after))
