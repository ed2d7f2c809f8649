"""Tensors of a sharded run against those of the unsharded model."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, kw_only=True)
class Tolerance:
    """The largest difference that is rounding: of a tensor, as a part of its largest absolute value."""

    logits: float
    gradients: float


# Sharding changes the order of sums alone: right plans measure below 1e-6 in float32; the others go by their epsilon.
TOLERANCES = {
    "float32": Tolerance(logits=1e-4, gradients=1e-3),
    "float16": Tolerance(logits=2e-2, gradients=5e-2),
    "bfloat16": Tolerance(logits=5e-2, gradients=1e-1),
}
# Below this part of the largest gradient of the model a gradient is rounding itself.
GRADIENT_FLOOR = 1e-3


@dataclass(frozen=True, kw_only=True)
class Difference:
    """How far `got` is from `want`.

    error: max |got - want| / scale, infinite where shapes differ or a value is not finite. first: the index of the
    first element beyond the tolerance, with both values, as text. ratio: the one factor between them, if there is one.
    """

    error: float
    first: str = ""
    ratio: float | None = None


def difference(got: torch.Tensor, want: torch.Tensor, tolerance: float, floor: float = 0.0) -> Difference:
    """The difference between two tensors; `first` and `ratio` only when it is beyond the tolerance.

    scale: max |want|, but at least `floor`. want: finite.
    """
    if got.shape != want.shape:
        return Difference(error=math.inf, first=f"the shape is {tuple(got.shape)}, unsharded {tuple(want.shape)}")
    got, want = got.double(), want.double()
    scale = max(want.abs().max().item(), floor) or 1.0
    distance = ((got - want).abs() / scale).nan_to_num(nan=math.inf)
    error = distance.max().item()
    if error <= tolerance:
        return Difference(error=error)
    index = tuple((distance > tolerance).nonzero()[0].tolist())
    first = f"at {list(index)} {got[index].item():.4g}, unsharded {want[index].item():.4g}"
    return Difference(error=error, first=first, ratio=_ratio(got, want, tolerance * scale))


def first_unequal(got: Sequence[int], want: Sequence[int]) -> int | None:
    """The index of the first token that differs, counting a missing one, or None."""
    for index, (one, other) in enumerate(zip(got, want)):
        if one != other:
            return index
    return None if len(got) == len(want) else min(len(got), len(want))


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

    def compare_gradients(self, model: Any, scale: float) -> dict[str, Any]:
        """How many gradients were compared, the worst error, and the wrong ones with their Difference.

        Each is gathered over the ranks, in the same order on all. scale: the largest gradient of the unsharded model.
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
                    wrong.append({"parameter": name} | asdict(found))
        return {"compared": compared, "worst": worst, "wrong": wrong}

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
    return dict(zip(named, (counts.cpu() == ranks).tolist()))


def _ratio(got: torch.Tensor, want: torch.Tensor, allowed: float) -> float | None:
    """The factor by which `got` is `want`, within `allowed` of every element, or None."""
    length = (want * want).sum().item()
    if not length or not got.isfinite().all():
        return None
    ratio = (got * want).sum().item() / length
    return ratio if (got - ratio * want).abs().max().item() <= allowed * max(abs(ratio), 1.0) else None
