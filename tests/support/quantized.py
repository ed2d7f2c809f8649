"""Small quantized checkpoints of each method on disk, for tests that load them.

Run as a module under torchrun it is one rank: it loads the checkpoint sharded, runs a forward and prints what happened.

    torchrun --nproc-per-node 2 -m tests.support.quantized DIRECTORY
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from tests.support import configs

GROUP = 32


def fp8_checkpoint(directory: Path, config: configs.Config, block: int | None) -> dict[str, Any]:
    """Save a model of this config with linear layers in fp8 and return its dequantized weights by checkpoint name.

    block: side of the square blocks that share a scale, None for one scale a weight.
    """
    import torch

    tensors, whole = {}, {}
    for name, tensor in _published(directory, config).items():
        if not _is_linear(name, tensor):
            tensors[name] = whole[name] = tensor
            continue
        tensors[name], scale, whole[name] = _to_fp8(tensor, block)
        tensors[f"{name}_scale_inv"] = scale
        if block is None:
            tensors[f"{name.removesuffix('weight')}activation_scale"] = torch.ones(())
    scheme = {"quant_method": "fp8", "modules_to_not_convert": ["lm_head", "mlp.gate"]}
    _save(directory, tensors, scheme | _fp8_values(block))
    return whole


def _fp8_values(block: int | None) -> dict[str, Any]:
    if block is None:
        return {"activation_scheme": "static", "weight_block_size": None}
    return {"activation_scheme": "dynamic", "weight_block_size": [block, block]}


def _to_fp8(weight: Any, block: int | None) -> tuple[Any, Any, Any]:
    """(fp8 weight, scales, dequantized weight), each block by its largest value; the last ones may be short."""
    import torch

    rows, columns = weight.shape
    high, wide = (rows, columns) if block is None else (block, block)
    padded = torch.zeros(-(-rows // high) * high, -(-columns // wide) * wide)
    padded[:rows, :columns] = weight
    tiles = padded.view(padded.shape[0] // high, high, padded.shape[1] // wide, wide)
    scale = tiles.abs().amax((1, 3)).clamp(min=1e-6) / 448
    spread = scale.repeat_interleave(high, 0)[:rows].repeat_interleave(wide, 1)[:, :columns]
    quantized = (weight / spread).to(torch.float8_e4m3fn)
    return quantized, scale.reshape(()) if block is None else scale, quantized.float() * spread


def mxfp4_checkpoint(directory: Path, config: configs.Config) -> None:
    """Save a gpt_oss model with its experts in MX blocks."""
    import torch

    tensors = {}
    for name, tensor in _published(directory, config).items():
        if not name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            tensors[name] = tensor
            continue
        experts, inner, out = tensor.shape
        tensors[f"{name}_blocks"] = torch.randint(0, 256, (experts, out, inner // 32, 16), dtype=torch.uint8)
        tensors[f"{name}_scales"] = torch.randint(118, 124, (experts, out, inner // 32), dtype=torch.uint8)
    _save(directory, tensors, {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]})


def packed_checkpoint(directory: Path, config: configs.Config, method: str) -> None:
    """Save a model with the projections of its layers in the layout of `gptq` or `awq`, 4 bits."""
    import torch

    tensors = {}
    for name, tensor in _published(directory, config).items():
        if not name.endswith("_proj.weight"):
            tensors[name] = tensor
            continue
        out, inner = tensor.shape
        base = name.removesuffix(".weight")
        shape = (inner // 8, out) if method == "gptq" else (inner, out // 8)
        tensors[f"{base}.qweight"] = torch.randint(0, 2**31 - 1, shape, dtype=torch.int32)
        tensors[f"{base}.qzeros"] = torch.full((inner // GROUP, out // 8), 0x77777777, dtype=torch.int32)
        tensors[f"{base}.scales"] = (torch.rand(inner // GROUP, out) / 100).half()
        if method == "gptq":
            tensors[f"{base}.g_idx"] = (torch.arange(inner) // GROUP).to(torch.int32)
    scheme = {"quant_method": method, "bits": 4, "group_size": GROUP}
    own = {"desc_act": False, "sym": True} if method == "gptq" else {"version": "gemm", "zero_point": True}
    _save(directory, tensors, scheme | own)


def bitsandbytes_checkpoint(directory: Path, config: configs.Config, bits: int) -> None:
    """Save a model that bitsandbytes has quantized."""
    import torch
    import transformers

    _published(directory, config)
    scheme = transformers.BitsAndBytesConfig(load_in_4bit=bits == 4, load_in_8bit=bits == 8)
    arguments = {"quantization_config": scheme, "dtype": torch.float32, "device_map": {"": "cpu"}}
    model = transformers.AutoModelForCausalLM.from_pretrained(directory, **arguments)
    model.save_pretrained(directory)


def compressed_checkpoint(directory: Path, config: configs.Config) -> None:
    """Save a model in the layout of compressed-tensors: fp8 with one scale a row."""
    import torch

    tensors = {}
    for name, tensor in _published(directory, config).items():
        tensors[name] = tensor
        if _is_linear(name, tensor):
            scale = tensor.abs().amax(1, keepdim=True) / 448
            tensors[name], tensors[f"{name}_scale"] = (tensor / scale).to(torch.float8_e4m3fn), scale
    weights = {"num_bits": 8, "type": "float", "strategy": "channel", "symmetric": True, "dynamic": False}
    group = {"targets": ["Linear"], "weights": weights}
    scheme = {"quant_method": "compressed-tensors", "format": "float-quantized", "quantization_status": "compressed"}
    _save(directory, tensors, scheme | {"ignore": ["lm_head"], "config_groups": {"group_0": group}})


def _published(directory: Path, config: configs.Config) -> dict[str, Any]:
    """The tensors of a model with random weights, as its checkpoint names them; its config.json is in `directory`."""
    import torch
    import transformers
    from safetensors.torch import load_file

    torch.manual_seed(0)
    values = {key: value for key, value in config.items() if key not in ("model_type", "quantization_config")}
    built = transformers.AutoConfig.for_model(config["model_type"], **values)
    transformers.AutoModelForCausalLM.from_config(built, dtype=torch.float32).save_pretrained(directory)
    return load_file(directory / "model.safetensors")


def _is_linear(name: str, tensor: Any) -> bool:
    return name.endswith("_proj.weight") and tensor.ndim == 2


def _save(directory: Path, tensors: dict[str, Any], scheme: dict[str, Any]) -> None:
    from safetensors.torch import save_file

    contiguous = {name: tensor.contiguous() for name, tensor in tensors.items()}
    save_file(contiguous, directory / "model.safetensors", metadata={"format": "pt"})
    file = directory / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"quantization_config": scheme}))


def _rank(directory: str) -> None:
    import torch
    import torch.distributed as dist
    import transformers

    dist.init_process_group("gloo")
    sharding = transformers.DistributedConfig(tp_size=dist.get_world_size())
    stage = "load"
    try:
        model = transformers.AutoModelForCausalLM.from_pretrained(
            directory, dtype=torch.float32, distributed_config=sharding
        )
        stage = "forward"
        with torch.no_grad():
            model(input_ids=torch.arange(6)[None])
    except Exception as error:
        print(f"{stage} raises {type(error).__name__}", flush=True)
        os._exit(1)  # the other rank waits for this one in a collective
    print("runs", flush=True)


if __name__ == "__main__":
    _rank(sys.argv[1])
