"""How far a tensor of a sharded run is from the unsharded model's, and what of it is rounding."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

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
    distance = ((got - want).abs() / scale).nan_to_num(nan=math.inf, posinf=math.inf)
    error = distance.max().item()
    if error <= tolerance:
        return Difference(error=error)
    index = tuple((distance > tolerance).nonzero()[0].tolist())
    first = f"at {list(index)} {got[index].item():.4g}, unsharded {want[index].item():.4g}"
    return Difference(error=error, first=first, ratio=_ratio(got, want, tolerance * scale))


def _ratio(got: torch.Tensor, want: torch.Tensor, allowed: float) -> float | None:
    """The factor by which `got` is `want`, within `allowed` of every element, or None."""
    length = (want * want).sum().item()
    if not length or not got.isfinite().all():
        return None
    ratio = (got * want).sum().item() / length
    return ratio if (got - ratio * want).abs().max().item() <= allowed * max(abs(ratio), 1.0) else None
