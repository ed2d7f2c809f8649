"""Plain operators in place of those that only a TPU has kernels for: for a run of the values on CPU alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def plain_operators() -> Mapping[Any, Any]:
    """Operator -> what it is traced as. Those that are not used by a model cost nothing."""
    import torch

    aten = torch.ops.aten
    return {
        aten._scaled_dot_product_cudnn_attention.default: _attention,
        aten._scaled_dot_product_flash_attention.default: _attention_without_mask,
        aten._grouped_mm.default: _grouped_product,
    }


def _attention(
    query: Any,
    key: Any,
    value: Any,
    mask: Any,
    compute_log_sumexp: bool,
    dropout: float = 0.0,
    is_causal: bool = False,
    return_debug_mask: bool = False,
    *,
    scale: float | None = None,
) -> tuple[Any, ...]:
    """softmax(query @ key^T * scale + mask) @ value, with the other results of the operator, which nothing reads."""
    import torch

    repeats = query.shape[1] // key.shape[1]
    if repeats > 1:
        key, value = (one.repeat_interleave(repeats, dim=1) for one in (key, value))
    scores = query @ key.transpose(-2, -1) * (query.shape[-1] ** -0.5 if scale is None else scale)
    if is_causal:
        rows, columns = (torch.arange(size, device=query.device) for size in scores.shape[-2:])
        scores = scores.masked_fill(columns[None, :] > rows[:, None], float("-inf"))
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf")) if mask.dtype == torch.bool else scores + mask
    result = torch.softmax(scores, dim=-1) @ value
    nothing = torch.zeros((), dtype=torch.int64, device=query.device)
    lengths = query.shape[-2], key.shape[-2]
    return result, scores.logsumexp(-1), nothing, nothing, *lengths, nothing, nothing, nothing


def _attention_without_mask(
    query: Any,
    key: Any,
    value: Any,
    dropout: float = 0.0,
    is_causal: bool = False,
    return_debug_mask: bool = False,
    *,
    scale: float | None = None,
) -> tuple[Any, ...]:
    return _attention(query, key, value, None, False, dropout, is_causal, scale=scale)


def _grouped_product(rows: Any, matrices: Any, ends: Any = None, bias: Any = None, dtype: Any = None) -> Any:
    """Each row times the matrix of its group. rows: (n, k); matrices: (groups, k, m); ends: where each group ends.

    Rows of no group, which the operator leaves undefined, are zero.
    """
    import torch

    if rows.ndim == 3:
        return torch.bmm(rows, matrices)
    place = torch.arange(rows.shape[0], device=rows.device)
    group = (place[:, None] >= ends[None, :]).sum(-1)
    inside = group < matrices.shape[0]
    own = matrices[group.clamp(max=matrices.shape[0] - 1)]
    product = torch.bmm(rows.unsqueeze(1), own).squeeze(1)
    return torch.where(inside[:, None], product, torch.zeros_like(product)).to(dtype or rows.dtype)
