"""Tensors of a sharded run against those of the unsharded model."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tpplan.difference import GRADIENT_FLOOR, TOLERANCES, Difference, difference
from tpplan.launch.records import Gradients, WrongGradient

if TYPE_CHECKING:
    import torch


def first_unequal(got: Sequence[int], want: Sequence[int]) -> int | None:
    """The index of the first token that differs, counting a missing one, or None."""
    pairs = enumerate(zip_longest(got, want))
    return next((index for index, (one, other) in pairs if one != other), None)


class UnshardedNumbers:
    """The unsharded model's logits and gradients, in one safetensors file that the ranks read tensor by tensor."""

    def __init__(self, path: Path, dtype: str) -> None:
        self._path = path
        self._tolerance = TOLERANCES[dtype]

    def save(self, logits: torch.Tensor, gradients: Mapping[str, torch.Tensor]) -> None:
        from safetensors.torch import save_file

        tensors = {"logits": logits} | {f"gradient.{name}": value for name, value in gradients.items()}
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, self._path)

    def compare_logits(self, logits: torch.Tensor) -> Difference:
        with self._open() as saved:
            return difference(logits, saved.get_tensor("logits"), self._tolerance.logits)

    def compare_gradients(self, model: Any, scale: float) -> Gradients:
        """The gradients of `model` beside the unsharded ones, each gathered over the ranks, in the same order on all.

        scale: the largest gradient of the unsharded model.
        """
        named = dict(model.named_parameters())
        present = _on_every_rank(named)
        wrong, worst, compared = [], 0.0, 0
        with self._open() as saved:
            known = set(saved.keys())
            for name in sorted(named):
                wanted = f"gradient.{name}" in known
                if not wanted and not present[name]:
                    continue
                compared += 1
                if wanted and present[name]:
                    got, want = on_cpu(named[name].grad), saved.get_tensor(f"gradient.{name}")
                    found = difference(got, want, self._tolerance.gradients, GRADIENT_FLOOR * scale)
                else:
                    found = Difference(error=math.inf, first="missing" if wanted else "there, unsharded there is none")
                worst = max(worst, found.error)
                if found.error > self._tolerance.gradients:
                    wrong.append(WrongGradient(parameter=name, **asdict(found)))
        return Gradients(compared=compared, worst=worst, wrong=tuple(wrong))

    def _open(self) -> Any:
        from safetensors import safe_open

        return safe_open(self._path, framework="pt")


def local_part(tensor: Any) -> Any:
    """The part of a tensor that this rank holds."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def on_cpu(tensor: Any) -> torch.Tensor:
    """The whole tensor in float32 on cpu, gathered from the ranks where it is sharded."""
    whole = tensor.detach()
    whole = whole.full_tensor() if hasattr(whole, "full_tensor") else whole
    return whole.float().cpu()


def _on_every_rank(named: Mapping[str, Any]) -> dict[str, bool]:
    """Parameter -> whether every rank has its gradient: one that only some have cannot be gathered."""
    import torch
    import torch.distributed as dist

    counts = torch.tensor([parameter.grad is not None for parameter in named.values()], dtype=torch.float32)
    ranks = 1
    if dist.is_initialized():
        counts = counts.to(local_part(next(iter(named.values()))).device)
        dist.all_reduce(counts)  # a sum: the TPU backend lowers no MIN
        ranks = dist.get_world_size()
    return dict(zip(named, (counts.cpu() == ranks).tolist(), strict=True))
