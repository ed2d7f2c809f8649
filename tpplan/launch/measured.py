"""What the ranks of a launch measured: in one line, and rank by rank."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

from tpplan.answers import Usage
from tpplan.launch.findings import Ended, mib
from tpplan.launch.records import RankResult
from tpplan.stages.usage import measure
from tpplan.subject import Subject
from tpplan.units import gib

Value = TypeVar("Value")


def summary(ended: Ended) -> str:
    """What was compared, where all ranks came to their end and it is right, and what the load cost."""
    count = f"{len(ended.ranks)} rank{'s' * (len(ended.ranks) > 1)}"
    return ", ".join((count, *_compared(ended), *_cost(ended.written)))


def _compared(ended: Ended) -> Iterator[str]:
    results = ended.written
    if logits := _of_all(result.logits for result in results):
        yield f"logits within {max(found.error for found in logits):.1e} of the unsharded model's"
    if gradients := _of_all(result.gradients for result in results):
        yield f"{gradients[0].compared} gradients within {max(found.worst for found in gradients):.1e}"
    if tokens := _of_all(result.tokens for result in results):
        equal = ended.unsharded and all(result.first_token is None for result in results)
        yield f"{len(tokens[0])} tokens{' equal' if equal else ''}"


def _cost(results: list[RankResult]) -> Iterator[str]:
    if cache := max(result.cache_bytes or 0 for result in results):
        yield f"static cache {gib(cache)}"
    yield f"load {max(result.load_seconds or 0 for result in results):.1f} s"
    yield f"peak {mib(max(result.peak_bytes or 0 for result in results))} per rank"


def _of_all(values: Iterable[Value | None]) -> list[Value]:
    """The values of all ranks, or an empty list where one has none."""
    listed = list(values)
    found = [value for value in listed if value is not None]
    return found if len(found) == len(listed) else []


def rank_facts(ended: Ended, predicted: int | None, subject: Subject) -> tuple[dict[str, Any], ...]:
    """What each rank measured, for the report's `ranks`; None for what it did not come to."""
    cached = any(result.cache_tokens for result in ended.results.values())
    usage = measure(subject.spec, subject.sharding) if cached else Usage(not_run="no rank has a static cache")
    return tuple(
        {
            "rank": result.rank,
            "phase": str(result.phase),
            "load_seconds": None if result.load_seconds is None else round(result.load_seconds, 3),
            "peak_bytes": result.peak_bytes,
            "parameter_bytes": result.parameter_bytes,
            "predicted_bytes": predicted,
            "cache_bytes": result.cache_bytes,
            "predicted_cache_bytes": _cache_bytes(usage, result.cache_tokens),
            "logits_error": _finite(result.logits.error if result.logits else None),
            "tokens": result.tokens,
            "tokens_equal": result.first_token is None if result.tokens and ended.unsharded else None,
            "first_token": result.first_token,
            "gradients_error": _finite(result.gradients.worst if result.gradients else None),
        }
        for result in ended.written
    )


def _cache_bytes(usage: Usage, tokens: int | None) -> int | None:
    return None if usage.not_run or not tokens else usage.cache_bytes(1, tokens)


def _finite(error: float | None) -> float | None:
    """JSON has no infinity."""
    return error if error is not None and math.isfinite(error) else None
