"""tpplan's answer against the oracle's, and what a disagreement means."""

from __future__ import annotations

from enum import StrEnum

BROKEN = ("crash", "timeout")


class Agreement(StrEnum):
    """SAME: both pass, both fail, or both cannot judge. MOOT: tpplan fails a model that does not run unsharded.
    REFUSED: tpplan will not read a config that Transformers reads, or builds from defaults."""

    SAME = "same"
    FALSE_PASS = "false pass"
    FALSE_FAIL = "false refusal"
    REFUSED = "refused, yet it builds"
    NOT_RUN = "not run"
    MOOT = "moot"
    BROKEN = "tpplan crashed"
    NO_ORACLE = "no oracle"


class Holding(StrEnum):
    """What became of a failure: a repair that the oracle runs, one that it does not, or none. PROVEN: the model's own
    plan needed none, which only numerics that were asked for can say."""

    PROVEN = "own plan proven"
    HOLDS = "repair holds"
    FAILS = "repair does not hold"
    INCOMPLETE = "repair not proven"
    NONE = "no repair"
    BROKEN = "repair crashed"
    NO_ORACLE = "no oracle"


def compare(verdict: str, status: str) -> Agreement:
    """verdict: of tpplan's check to the depth of shapes. status: of the oracle's run of the same plan."""
    if verdict in BROKEN:
        return Agreement.BROKEN
    if status in BROKEN or status == "unsupported":
        return Agreement.NO_ORACLE
    if verdict == "refused":
        return Agreement.SAME if status == "refused" else Agreement.REFUSED
    if verdict == "pass":
        return Agreement.SAME if status == "runs" else Agreement.FALSE_PASS
    if verdict == "incomplete":
        return Agreement.SAME if status in ("refused", "unsharded-raises") else Agreement.NOT_RUN
    if status == "runs":
        return Agreement.FALSE_FAIL
    return Agreement.MOOT if status in ("refused", "unsharded-raises") else Agreement.SAME


def holding(verdict: str, repaired: bool, status: str | None) -> Holding:
    """verdict: of the plan that was proven. repaired: whether it has overrides. status: of the oracle's run of it."""
    if verdict in BROKEN:
        return Holding.BROKEN
    if verdict == "incomplete":
        return Holding.INCOMPLETE
    if verdict != "pass":
        return Holding.NONE
    if status is None or status in BROKEN or status == "unsupported":
        return Holding.NO_ORACLE
    if status != "runs":
        return Holding.FAILS
    return Holding.HOLDS if repaired else Holding.PROVEN
