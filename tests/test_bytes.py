"""Bytes of parameters are those that from_pretrained really holds, for each dtype and quantization that loads here."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import tpplan
from tests.support import configs
from tests.support.quantized import fp8_checkpoint, mxfp4_checkpoint
from tpplan.model.config import load_spec
from tpplan.model.skeleton import build_skeleton
from tpplan.source import read_source

LLAMA = configs.llama(num_key_value_heads=8, head_dim=16)
GPT_OSS = LLAMA | {
    "model_type": "gpt_oss",
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "intermediate_size": 64,
    "layer_types": ["full_attention"],
    "num_hidden_layers": 1,
}
DEEPSEEK = LLAMA | {
    "model_type": "deepseek_v3",
    "n_routed_experts": 4,
    "n_group": 1,
    "topk_group": 1,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 48,
    "first_k_dense_replace": 0,
    "kv_lora_rank": 16,
    "q_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 8,
}
DTYPES = ("float32", "float16", "bfloat16")


class Kind(NamedTuple):
    """How a checkpoint is made. scales: words in the names of tensors that keep their dtype in any checkpoint."""

    save: Callable[[Path], Any]
    scales: tuple[str, ...] = ("scale",)


def save_whole(directory: Path, config: configs.Config) -> None:
    import transformers

    values = {key: value for key, value in config.items() if key not in ("model_type", "dtype")}
    built = transformers.AutoConfig.for_model(config["model_type"], **values)
    transformers.AutoModelForCausalLM.from_config(built).save_pretrained(directory)


KINDS = {
    "whole": Kind(lambda directory: save_whole(directory, LLAMA)),
    "router in float32": Kind(lambda directory: save_whole(directory, DEEPSEEK)),
    "fp8 in blocks": Kind(lambda directory: fp8_checkpoint(directory, LLAMA, 16)),
    "fp8 with one scale": Kind(lambda directory: fp8_checkpoint(directory, LLAMA, None)),
    "mxfp4": Kind(lambda directory: mxfp4_checkpoint(directory, GPT_OSS)),
}


# Kinds of which the load leaves some weights in float32, and the dtypes in which it does.
KEPT = {"router in float32": ("float16", "bfloat16"), "mxfp4": ("float16",)}


def saved(directory: Path, kind: Kind, dtype: str, *, named: bool) -> Path:
    """A checkpoint whose weights are of this dtype, but for scales and quantized ones. named: in the config too."""
    import torch
    from safetensors.torch import load_file, save_file

    kind.save(directory)
    tensors = load_file(directory / "model.safetensors")
    for name, tensor in tensors.items():
        if tensor.dtype == torch.float32 and not any(word in name for word in kind.scales):
            tensors[name] = tensor.to(getattr(torch, dtype))
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    config = {key: value for key, value in read(directory).items() if key not in ("dtype", "torch_dtype")}
    (directory / "config.json").write_text(json.dumps(config | ({"dtype": dtype} if named else {})))
    return directory


def read(directory: Path) -> dict[str, Any]:
    config: dict[str, Any] = json.loads((directory / "config.json").read_text())
    return config


def held(directory: Path) -> tuple[int, set[str]]:
    """Bytes and dtypes of the parameters that from_pretrained holds."""
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(directory)
    parameters = list(model.parameters())
    return sum(p.numel() * p.element_size() for p in parameters), {str(p.dtype) for p in parameters}


@pytest.mark.parametrize("named", [True, False], ids=["named", "not named"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", KINDS)
def test_bytes_are_those_of_the_load(tmp_path: Path, kind: str, dtype: str, named: bool) -> None:
    directory = saved(tmp_path, KINDS[kind], dtype, named=named)
    spec = load_spec(read_source(str(directory)))
    size, dtypes = held(directory)
    assert build_skeleton(spec).bytes == size
    assert spec.dtype == dtype and dtypes <= {f"torch.{dtype}", "torch.float32"} and not spec.dtype_is_assumed
    assert len(dtypes) == (2 if kind in KEPT and dtype in KEPT[kind] else 1)


def test_the_first_file_of_an_index_decides(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    saved(tmp_path, KINDS["whole"], "bfloat16", named=False)
    tensors = load_file(tmp_path / "model.safetensors")
    (tmp_path / "model.safetensors").unlink()
    files = {"b.safetensors": list(tensors)[:3], "a.safetensors": list(tensors)[3:]}
    for file, names in files.items():
        part = {name: tensors[name] if file.startswith("a") else tensors[name].float() for name in names}
        save_file(part, tmp_path / file, metadata={"format": "pt"})
    index = {"metadata": {}, "weight_map": {name: file for file, names in files.items() for name in names}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    spec = load_spec(read_source(str(tmp_path)))
    assert spec.dtype == "bfloat16" and held(tmp_path)[0] == build_skeleton(spec).bytes
    (tmp_path / "a.safetensors").unlink()  # the index alone does not say
    assert load_spec(read_source(str(tmp_path))).dtype_is_assumed


def test_a_config_alone_without_a_dtype(tmp_path: Path) -> None:
    """mxfp4 is dequantized to bfloat16; of what else it is the weights that would say."""
    config = {key: value for key, value in GPT_OSS.items() if key != "dtype"}
    quantized = config | {"quantization_config": {"quant_method": "mxfp4"}}
    for name, raw, dtype in (("plain", config, "float32"), ("mxfp4", quantized, "bfloat16")):
        report = tpplan.check(configs.write(tmp_path / name, raw), 2, depth="static")
        (found,) = (diagnostic for diagnostic in report.diagnostics if diagnostic.code == "TPP312")
        assert f"so {dtype} is used" in found.message
