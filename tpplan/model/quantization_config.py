"""Reading the quantization_config of a config.json: the scheme, or the one value that no loader can read."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from tpplan.model.quantization import Layout, Scheme

FP8 = ("fp8", "mxfp8")
BITSANDBYTES = "bitsandbytes"
COMPRESSED = "compressed-tensors"
BITS = (1, 2, 3, 4, 5, 6, 7, 8)
MX_GROUP = 32
MX_FP4_EXPERTS = "fp4"  # FineGrainedFP8Config.expert_dtype: MX groups of 32 along the input dim, two values a byte


class Malformed(ValueError):
    """A quantization_config that no loader can read. key: the value at fault, dotted below quantization_config."""

    def __init__(self, message: str, key: str = "") -> None:
        super().__init__(message)
        self.key = key


def read_scheme(raw: Any, *, expert_dtype: Any = None) -> Scheme | None:
    """The scheme of a quantization_config, None where there is none (the value is null).

    raw: as parsed from config.json. expert_dtype: the model config's own value of that name, which FP8 experts follow.

    Raises Malformed for what no loader can read.
    """
    if raw is None:
        return None
    if not isinstance(raw, dict):
        raise Malformed(f"quantization_config is {_kind(raw)}, must be an object")
    method = _method(raw)
    readers = {"gptq": _read_gptq, "awq": _read_awq, COMPRESSED: _read_compressed, BITSANDBYTES: _read_bitsandbytes}
    readers |= dict.fromkeys(FP8, _read_fp8) | {"mxfp4": _read_mxfp4}
    reader = readers.get(method)
    if reader is None:
        return Scheme(method=method)
    scheme = reader(method, raw) if reader is not _read_fp8 else _read_fp8(method, raw, expert_dtype)
    _check_patterns(scheme)
    return scheme


def _check_patterns(scheme: Scheme) -> None:
    """Refuse names of modules that are to be read as regular expressions and are none."""
    expressions = [*(scheme.ignored or ()), *(pattern for targets, _ in scheme.groups for pattern in targets)]
    if scheme.method == COMPRESSED:
        expressions = [name.removeprefix("re:") for name in expressions if name.startswith("re:")]
    for expression in expressions:
        try:
            re.compile(expression)
        except (re.error, OverflowError, RecursionError) as error:
            raise Malformed(f"the name of a module, {expression!r}, is no regular expression ({error})") from error


def _method(raw: dict) -> str:
    """The key that Transformers dispatches on (quantizers/auto.py, AutoHfQuantizer.supports_quant_method)."""
    if _flag(raw, "load_in_4bit") or _flag(raw, "load_in_8bit"):
        return BITSANDBYTES
    method = raw.get("quant_method")
    if method is None:
        raise Malformed("quantization_config has no quant_method", "quant_method")
    if not isinstance(method, str):
        raise Malformed(f"quant_method is {_kind(method)}, must be a string", "quant_method")
    return method


def _read_fp8(method: str, raw: dict, expert_dtype: Any) -> Scheme:
    block = raw.get("weight_block_size", [128, 128])
    if block is not None:
        block = _pair(block, "weight_block_size")
    fmt = _choice(raw, "scale_fmt", ("float", "ue8m0"), "float")
    scale = 1 if fmt == "ue8m0" else 4
    ignored = _names(raw, "modules_to_not_convert")
    layout = Layout(kind="fp8", bits=8, block=block or (None, None), scale_bytes=scale if block else 4)
    declared = raw.get("expert_dtype", expert_dtype)
    packed = Layout(kind="mxfp4", bits=4, block=(1, MX_GROUP), scale_bytes=scale)
    experts = Layout(kind="fp8", bits=8, block=block or (None, None), scale_bytes=scale)
    return Scheme(
        method=method,
        layout=layout,
        expert_layout=packed if declared == MX_FP4_EXPERTS else experts,
        ignored=_names(raw, "ignored_layers") if ignored is None else ignored,
        dequantize=_flag(raw, "dequantize"),
    )


def _read_gptq(method: str, raw: dict) -> Scheme:
    if "bits" not in raw:
        raise Malformed("quantization_config has no bits", "bits")
    layout = Layout(
        kind="gptq",
        bits=_bits(raw, "bits", (2, 3, 4, 8)),
        block=(1, _group(raw, "group_size", 128)),
        scale_bytes=2,
        symmetric=_flag(raw, "sym", True),
        group_index=_flag(raw, "desc_act"),
    )
    nested = raw.get("modules_in_block_to_quantize")
    if nested is not None and not (isinstance(nested, list) and all(isinstance(part, list) for part in nested)):
        raise Malformed("modules_in_block_to_quantize is not a list of lists", "modules_in_block_to_quantize")
    only = None if nested is None else tuple(str(name) for part in nested for name in part)
    return Scheme(method=method, layout=layout, expert_layout=layout, only=only)


def _read_awq(method: str, raw: dict) -> Scheme:
    layout = Layout(
        kind="awq",
        bits=_bits({"bits": 4} | raw, "bits", (4,)),
        block=(1, _group(raw, "group_size", 128)),
        scale_bytes=2,
        symmetric=not _flag(raw, "zero_point", True),
    )
    ignored = _names(raw, "modules_to_not_convert")
    return Scheme(method=method, layout=layout, expert_layout=layout, ignored=ignored)


def _read_mxfp4(method: str, raw: dict) -> Scheme:
    layout = Layout(kind="mxfp4", bits=4, block=(1, MX_GROUP), scale_bytes=1)
    ignored = _names(raw, "modules_to_not_convert")
    return Scheme(method=method, expert_layout=layout, ignored=ignored, dequantize=_flag(raw, "dequantize"))


def _read_bitsandbytes(method: str, raw: dict) -> Scheme:
    four, eight = _flag(raw, "load_in_4bit"), _flag(raw, "load_in_8bit")
    if four and eight:
        raise Malformed("load_in_4bit and load_in_8bit are both true", "load_in_4bit")
    double = _flag(raw, "bnb_4bit_use_double_quant")
    if four:
        layout = Layout(kind="bnb4", bits=4, block=(None, None), scale_bytes=4, double_quant=double)
    else:
        layout = Layout(kind="bnb8", bits=8, block=(1, None), scale_bytes=4)
    return Scheme(method=method, layout=layout, ignored=_names(raw, "llm_int8_skip_modules"))


def _read_compressed(method: str, raw: dict) -> Scheme:
    groups = raw.get("config_groups")
    if not isinstance(groups, dict):
        raise Malformed(f"config_groups is {_kind(groups)}, must be an object", "config_groups")
    described = []
    for name, group in groups.items():
        key = f"config_groups.{name}"
        if not isinstance(group, dict):
            raise Malformed(f"{key} is {_kind(group)}, must be an object", key)
        targets = _names(group, "targets", key)
        if targets is None:
            raise Malformed(f"{key} has no targets", f"{key}.targets")
        weights = group.get("weights")
        if weights is not None:
            described.append((targets, _compressed_layout(weights, group.get("format") or raw.get("format"), key)))
    return Scheme(
        method=method,
        groups=tuple(described),
        ignored=_names(raw, "ignore") or (),
        dequantize=_flag(raw, "dequantize") or raw.get("run_compressed") is False,
    )


def _compressed_layout(weights: Any, fmt: Any, group: str) -> Layout:
    """The layout of one config group. fmt: the format of the group, else of the whole."""
    key = f"{group}.weights"
    if not isinstance(weights, dict):
        raise Malformed(f"{key} is {_kind(weights)}, must be an object", key)
    bits = _bits({"num_bits": 8} | weights, "num_bits", BITS, key)
    size = _group(weights, "group_size", None, key)
    structure = weights.get("block_structure")
    default = "group" if size else "block" if structure else "tensor"
    strategies = ("tensor", "channel", "group", "tensor_group", "block")
    strategy = _choice(weights, "strategy", strategies, default, key) or default
    if strategy == "block":
        block = _pair(structure, f"{key}.block_structure")
    elif strategy in ("group", "tensor_group"):
        if size is None and weights.get("group_size") != -1:
            raise Malformed(f"{key}.strategy is {strategy} and there is no group_size", f"{key}.group_size")
        block = (1, size)
    else:
        block = (None, None) if strategy == "tensor" else (1, None)
    kind, scale = _compressed_kind(fmt, bits, strategy)
    return Layout(
        kind=kind,
        bits=bits,
        block=block,
        scale_bytes=scale,
        symmetric=_flag(weights, "symmetric", True, key),
        group_index=weights.get("actorder") in (True, "group"),
    )


def _compressed_kind(fmt: Any, bits: int, strategy: str) -> tuple[str, int | None]:
    """(kind, bytes of a scale) of a compressed-tensors format; where none is named its values decide."""
    if fmt == "nvfp4-pack-quantized" or (strategy == "tensor_group" and bits == 4):
        return "nvfp4", 1
    if fmt == "mxfp4-pack-quantized":
        return "mxfp4", 1
    if fmt == "pack-quantized" or bits != 8:
        return "packed", None
    return "fp8", None


# Values of the config, each of the one type that it may have.


def _kind(value: Any) -> str:
    if value is None:
        return "missing"
    names = {
        dict: "an object",
        list: "a list",
        str: "a string",
        bool: "a boolean",
        int: "an integer",
        float: "a number",
    }
    return names.get(type(value), type(value).__name__)


def _key(group: str, key: str) -> str:
    return f"{group}.{key}" if group else key


def _flag(raw: Mapping, key: str, default: bool = False, group: str = "") -> bool:
    value = raw.get(key, default)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise Malformed(f"{_key(group, key)} is {_kind(value)}, must be true or false", _key(group, key))
    return value


def _choice(raw: Mapping, key: str, allowed: tuple[str, ...], default: str, group: str = "") -> str:
    value = raw.get(key)
    if value is None:
        return default
    if value not in allowed:
        raise Malformed(f"{_key(group, key)} is {value!r}, must be one of {', '.join(allowed)}", _key(group, key))
    return value


def _bits(raw: Mapping, key: str, allowed: tuple[int, ...], group: str = "") -> int:
    value = raw[key]
    if type(value) is not int or value not in allowed:
        shown = ", ".join(map(str, allowed))
        raise Malformed(f"{_key(group, key)} is {value!r}, must be one of {shown}", _key(group, key))
    return value


def _group(raw: Mapping, key: str, default: int | None, group: str = "") -> int | None:
    """A group size; -1 means all of the input dim, and is None here."""
    value = raw.get(key, default)
    if value is None or value == -1:
        return None
    if type(value) is not int or value < 1:
        raise Malformed(f"{_key(group, key)} is {value!r}, must be a positive integer or -1", _key(group, key))
    return value


def _pair(value: Any, key: str) -> tuple[int, int]:
    positive = isinstance(value, list | tuple) and all(type(size) is int and size > 0 for size in value)
    if not positive or len(value) != 2:
        raise Malformed(f"{key} is {value!r}, must be two positive integers", key)
    return (value[0], value[1])


def _names(raw: Mapping, key: str, group: str = "") -> tuple[str, ...] | None:
    value = raw.get(key)
    if value is None:
        return None
    if not isinstance(value, list | tuple) or not all(isinstance(name, str) for name in value):
        raise Malformed(f"{_key(group, key)} is not a list of strings", _key(group, key))
    return tuple(value)
