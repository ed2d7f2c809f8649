"""The strategies for a block that cannot be sharded: which override each rule of the block gets."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from tpplan.choices import Strategy
from tpplan.styles import STYLES, WHOLE_STYLES, Flow

GRADIENTS_SUMMED = "replicated_with_grad_allreduce"
GRADIENTS_WHOLE = "replicate"


GATHERED = {
    "colwise": "colwise_gather_output",
    "rowwise": "rowwise_split_input",
}


def overrides_for(
    rules: Mapping[str, str], strategy: Strategy, *, training: bool, styles: Collection[str]
) -> dict[str, str]:
    """The overrides (rule -> style) that take a block's rules to `strategy`; rules that need no change are left out.

    styles: those that the installed Transformers has. A rule that would need another one keeps what it has.

    For training, a parameter that computes on whole activations has whole gradients on every rank, which
    `replicated_with_grad_allreduce` would sum: it gets `replicate`. At inference the two do the same, and only
    the former exists in every Transformers release from 5.19.
    """
    whole = GRADIENTS_WHOLE if training else GRADIENTS_SUMMED
    changed = {}
    for rule, style in rules.items():
        if strategy is Strategy.GATHER and style in GATHERED:
            changed[rule] = GATHERED[style]
        elif strategy is Strategy.GATHER and _is_gathered(style):
            continue
        elif style in WHOLE_STYLES and not training:
            continue
        elif style != whole:
            changed[rule] = whole
    return {rule: style for rule, style in changed.items() if style in styles}


def _is_gathered(style: str) -> bool:
    """Whether the style already takes and leaves whole activations."""
    known = STYLES.get(style)
    return bool(known and known.cut_dim is not None and known.reads is Flow.WHOLE and known.leaves is Flow.WHOLE)
