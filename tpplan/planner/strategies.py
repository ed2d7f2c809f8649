"""The strategies for a block that cannot be sharded: which override each rule of the block gets.

A strategy is its row in STRATEGIES and the function that the row names. Help and schemas follow from the table.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from tpplan.styles import STYLES, WHOLE_STYLES, Flow

GRADIENTS_SUMMED = "replicated_with_grad_allreduce"
GRADIENTS_WHOLE = "replicate"
GATHERED = {
    "colwise": "colwise_gather_output",
    "rowwise": "rowwise_split_input",
}


def replicated(style: str, training: bool) -> str | None:
    """The block is replicated: every rank holds and computes all of it.

    For training, a parameter that computes on whole activations has whole gradients on every rank, which
    `replicated_with_grad_allreduce` would sum: it gets `replicate`. At inference the two do the same, and only
    the former exists in every Transformers release from 5.19.
    """
    if style in WHOLE_STYLES and not training:
        return None
    return GRADIENTS_WHOLE if training else GRADIENTS_SUMMED


def gathered(style: str, training: bool) -> str | None:
    """Weights stay cut, activations are gathered; what is neither cut nor gathered is replicated."""
    known = STYLES.get(style)
    if known and known.cut_dim is not None and known.reads is Flow.WHOLE and known.leaves is Flow.WHOLE:
        return None  # it takes and leaves whole activations already
    return GATHERED.get(style) or replicated(style, training)


@dataclass(frozen=True, kw_only=True)
class StrategyEntry:
    """summary: for help. style: (style of a rule, whether for training) -> the style it gets, None to leave it.

    needs: (purpose is training) -> a style without which the strategy is not to be had.
    """

    name: str
    summary: str
    style: Callable[[str, bool], str | None]
    needs: Callable[[bool], str | None] = lambda training: None


STRATEGIES: dict[str, StrategyEntry] = {
    entry.name: entry
    for entry in (
        StrategyEntry(
            name="replicate",
            summary="the block is replicated, so every rank computes all of it",
            style=replicated,
            needs=lambda training: GRADIENTS_WHOLE if training else None,
        ),
        StrategyEntry(
            name="gather",
            summary="weights stay sharded, activations are gathered",
            style=gathered,
        ),
    )
}
REPLICATE = "replicate"


def overrides_for(
    rules: Mapping[str, str], strategy: str, *, training: bool, styles: Collection[str]
) -> dict[str, str]:
    """The overrides (rule -> style) that take a block's rules to `strategy`; rules that need no change are left out.

    styles: those that the installed Transformers has. A rule that would need another one keeps what it has.
    """
    wanted = {rule: STRATEGIES[strategy].style(style, training) for rule, style in rules.items()}
    return {
        rule: style for rule, style in wanted.items() if style is not None and style != rules[rule] and style in styles
    }


def available(training: bool, styles: Collection[str]) -> tuple[str, ...]:
    """The strategies that the installed Transformers has the styles for, the preferred one first."""
    return tuple(
        name for name, entry in STRATEGIES.items() if (need := entry.needs(training)) is None or need in styles
    )
