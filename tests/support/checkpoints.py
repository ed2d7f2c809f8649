"""Tiny checkpoints with real weights, saved by save_pretrained, for tests that load models; and one of names alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

SMALL = {
    "vocab_size": 96,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "max_position_embeddings": 128,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}


def glm4(directory: Path, **changes: Any) -> Path:
    """GLM-4-9B-0414's heads: 32 query heads and 2 key/value heads, in two narrow layers."""
    from transformers import Glm4Config

    heads = {"num_attention_heads": 32, "num_key_value_heads": 2, "head_dim": 8}
    return save(Glm4Config(**SMALL | heads | changes), directory)


def llama(directory: Path, **changes: Any) -> Path:
    """A Llama with 8 query heads and 2 key/value heads, in two narrow layers."""
    from transformers import LlamaConfig

    heads = {"num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 8}
    return save(LlamaConfig(**SMALL | heads | changes), directory)


def save(config: Any, directory: Path, auto_class: str = "AutoModelForCausalLM") -> Path:
    """Save a model of `config` with seeded float32 weights, so large that each layer counts. Returns `directory`."""
    import torch
    import transformers

    torch.manual_seed(20240229)
    model = getattr(transformers, auto_class).from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(0.0, 1.5 / parameter.shape[-1] ** 0.5)
            else:
                parameter.uniform_(0.5, 1.5)
    model.save_pretrained(directory)
    return directory


def write_safetensors(file: Path, names: tuple[str, ...]) -> None:
    """A file that holds these names, each for two bytes."""
    entries = {
        name: {"dtype": "BF16", "shape": [1], "data_offsets": [2 * index, 2 * index + 2]}
        for index, name in enumerate(names)
    }
    header = json.dumps(entries).encode()
    file.write_bytes(len(header).to_bytes(8, "little") + header + bytes(2 * len(names)))
