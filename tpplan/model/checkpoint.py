"""Checkpoints: a model saved in the layout in which such models are published, and loaded sharded."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from tpplan.model.internals import internals
from tpplan.model.quiet import quiet
from tpplan.model.skeleton import Sharding


def save_as_published(model: Any, directory: str | Path) -> None:
    """Save `model` (unsharded) to `directory` as safetensors and config.json, for from_pretrained.

    save_pretrained undoes the conversions that loading makes, all but one kind: a transpose that is made only where the
    shapes differ. Published checkpoints have the transposed layout there, and a sharded load takes another path for it.
    """
    with quiet():
        model.save_pretrained(directory, max_shard_size="100GB")
    if hasattr(model, "load_speakers"):  # Qwen2.5-Omni's from_pretrained reads its voices from a file of their own
        import torch

        torch.save({}, Path(directory) / "spk_dict.pt")
    patterns = _transposed_where_shapes_differ(model)
    if patterns:
        _transpose(Path(directory) / "model.safetensors", patterns, model)


def load_sharded(auto_class: str, directory: str | Path, sharding: Sharding, **extra: Any) -> Any:
    """`from_pretrained` with the DistributedConfig of `sharding`, in float32 unless told."""
    import torch
    import transformers

    extra.setdefault("dtype", torch.float32)
    config = transformers.DistributedConfig(**sharding.arguments())
    return getattr(transformers, auto_class).from_pretrained(directory, distributed_config=config, **extra)


def _transposed_where_shapes_differ(model: Any) -> dict[str, tuple[int, int]]:
    """Source pattern -> the two dims that loading swaps when the checkpoint's shape is not the model's."""
    patterns = {}
    for converter in internals().conversion_mapping(model) or ():
        for operation in getattr(converter, "operations", None) or ():
            if getattr(operation, "check_dims", False):
                dims = (operation.dim0, operation.dim1)
                patterns.update(dict.fromkeys(converter.source_patterns, dims))
    return patterns


def _transpose(file: Path, patterns: dict[str, tuple[int, int]], model: Any) -> None:
    from safetensors.torch import load_file, save_file

    tensors = load_file(file)
    shapes = {name: parameter.shape for name, parameter in model.named_parameters()}
    for name, tensor in tensors.items():
        dims = next((dims for pattern, dims in patterns.items() if re.search(pattern, name)), None)
        if dims and tensor.shape == shapes.get(name):
            tensors[name] = tensor.transpose(*dims).contiguous()
    save_file(tensors, file, metadata={"format": "pt"})
