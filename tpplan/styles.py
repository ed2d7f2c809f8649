"""What each parallel style of Transformers does to the activations and to the weight of the module it names.

`tests/test_styles.py` compares this table with the installed registry and the placements with what is really cut.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Flow(StrEnum):
    """Whether an activation's last dim is whole on every rank or cut over the ranks."""

    WHOLE = "whole"
    CUT = "cut"
    SAME = "same"  # the style does not touch it


@dataclass(frozen=True, kw_only=True)
class Style:
    """reads, leaves: the input a module needs and the output it leaves. cut_dim: dim of a 2-d weight (out, in for a
    linear layer; vocabulary, width for an embedding) that is split over the ranks, None when every rank holds it
    whole. experts: it belongs to expert parallelism or to fused expert weights."""

    reads: Flow = Flow.SAME
    leaves: Flow = Flow.SAME
    cut_dim: int | None = None
    experts: bool = False


STYLES: dict[str, Style] = {
    "all_reduce": Style(leaves=Flow.WHOLE),
    "colwise": Style(reads=Flow.WHOLE, leaves=Flow.CUT, cut_dim=0),
    "colwise_gather_output": Style(reads=Flow.WHOLE, leaves=Flow.WHOLE, cut_dim=0),
    "colwise_rep": Style(reads=Flow.WHOLE, leaves=Flow.WHOLE, cut_dim=0),
    "embedding_colwise": Style(leaves=Flow.WHOLE, cut_dim=1),
    "embedding_rowwise": Style(leaves=Flow.WHOLE, cut_dim=0),
    "ep_dispatch_experts": Style(experts=True),
    "ep_router": Style(experts=True),
    "grouped_gemm": Style(cut_dim=0, experts=True),
    "local_params": Style(),
    "megamoe_experts": Style(experts=True),
    "megamoe_router": Style(experts=True),
    "mla_kv_a_proj": Style(),
    "moe_identity_expert": Style(experts=True),
    "moe_tp_experts": Style(reads=Flow.WHOLE, leaves=Flow.WHOLE, experts=True),
    "packed_colwise": Style(reads=Flow.WHOLE, leaves=Flow.CUT, cut_dim=0),
    "packed_rowwise": Style(reads=Flow.CUT, leaves=Flow.WHOLE, cut_dim=1),
    "replicate": Style(),
    "replicated_with_grad_allreduce": Style(),
    "rowwise": Style(reads=Flow.CUT, leaves=Flow.WHOLE, cut_dim=1),
    "rowwise_rep": Style(reads=Flow.WHOLE, leaves=Flow.WHOLE, cut_dim=1),
    "rowwise_split_input": Style(reads=Flow.WHOLE, leaves=Flow.WHOLE, cut_dim=1),
    "sequence_parallel": Style(),
}
UNTOUCHED = Style()
# Styles that do nothing to activations, weights or gradients that arrive whole.
WHOLE_STYLES = frozenset({"replicate", "replicated_with_grad_allreduce"})


def style(name: str | None) -> Style:
    """What the style of this name does; a style that is not in the table is one that another package registered."""
    return STYLES.get(name, UNTOUCHED) if name else UNTOUCHED
