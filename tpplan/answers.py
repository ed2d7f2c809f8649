"""The values that the engine answers with, and what they are made of: plain, so that they can be kept and sent."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from tpplan.diagnostics import BytesPerRank, Memory, Report, Verdict
from tpplan.plan_files.document import Plan

if TYPE_CHECKING:
    from tpplan.subject import Subject


@dataclass(frozen=True, kw_only=True)
class LayerCache:
    """The cache of one layer for one sequence on one rank.

    key_values: bytes of a token's keys and values. window: most tokens that these hold, None where they grow without
    end. growth: bytes per token of what else grows. constant: bytes of state of a fixed size.
    """

    key_values: int = 0
    window: int | None = None
    growth: float = 0.0
    constant: int = 0

    def bytes(self, tokens: int) -> int:
        """Bytes for a sequence of `tokens`, as a static cache of that length holds them."""
        return self.key_values * min(tokens, self.window or tokens) + round(self.growth * tokens) + self.constant


@dataclass(frozen=True, kw_only=True)
class Collective:
    """One kind of collective in one forward. count: calls, bytes: of the whole tensors that the calls complete, for one
    token; both of all layers, or of what stands outside of them."""

    kind: str
    count: int
    bytes: int
    in_layers: bool


@dataclass(frozen=True, kw_only=True)
class Usage:
    """One rank's use at inference.

    layers: number of layers that ran or were counted. cache: of every layer that keeps something. flops: floating-point
    operations per token, of matrix products and convolutions, at a short context. activations: bytes per token of all
    tensors that the largest layer makes, never all alive at once. not_run: why nothing was measured, or empty.
    """

    layers: int = 0
    cache: tuple[LayerCache, ...] = ()
    collectives: tuple[Collective, ...] = ()
    flops: int = 0
    activations: int = 0
    not_run: str = ""

    def cache_bytes(self, batch: int, tokens: int) -> int:
        """Bytes of a static cache for `batch` sequences of `tokens`."""
        return batch * sum(layer.bytes(tokens) for layer in self.cache)


@dataclass(frozen=True, kw_only=True)
class Costs:
    """share: parameter bytes. memory: what else a rank holds, and its device has. usage: what it moves and computes."""

    share: BytesPerRank
    memory: Memory
    usage: Usage

    def to_dict(self) -> dict:
        """Bytes, and per token the collectives (bytes of the tensors that they complete) and FLOPs of one rank."""
        usage = self.usage
        return {
            "bytes_per_rank": self.share.to_dict(),
            "memory": self.memory.to_dict(),
            "layers": usage.layers,
            "collectives": [
                {"kind": c.kind, "in_layers": c.in_layers, "count": c.count, "bytes_per_token": c.bytes}
                for c in usage.collectives
            ],
            "flops_per_token": usage.flops or None,
            "not_measured": usage.not_run,
        }


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """One proposal. block: the module it is about, with `*` for layer numbers. reason: what it mends. ep_size: ranks
    that the experts are sharded over by the model's expert plan. adds: its rules are for what none was for."""

    block: str
    reason: str
    overrides: dict[str, str] = field(default_factory=dict)
    ep_size: int | None = None
    adds: bool = False

    def describe(self) -> str:
        """What it changes, in a few words."""
        if self.ep_size:
            return f"experts sharded over ep_size {self.ep_size}"
        count = f"{len(self.overrides)} rule{'s' * (len(self.overrides) > 1)}"
        return f"{count} added" if self.adds else f"{count} overridden"

    def applied_to(self, subject: Subject) -> Subject:
        """The subject with these overrides over its own, and with this ep_size."""
        sharding = subject.sharding
        overrides, ep_size = {**sharding.overrides, **self.overrides}, self.ep_size or sharding.ep_size
        return replace(subject, sharding=replace(sharding, overrides=overrides, ep_size=ep_size))


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """One plan that was tried, the model's own or repaired, as plain values.

    report: as `check` has it. costs: None where its shapes stage did not pass. strategy: None where nothing is
    overridden. attempts: the steps of its repair.
    """

    report: Report
    costs: Costs | None
    strategy: str | None
    attempts: tuple[Attempt, ...]
    ep_size: int | None

    @property
    def tp_size(self) -> int:
        assert self.report.tp_size is not None
        return self.report.tp_size

    @property
    def verdict(self) -> Verdict:
        return self.report.verdict

    def to_dict(self) -> dict:
        """The verdict, how the plan was repaired and why, what it costs, and what stands against it."""
        report = self.report
        costs = self.costs.to_dict() if self.costs else dict.fromkeys(("bytes_per_rank", "memory"))
        return {
            "tp_size": self.tp_size,
            "ep_size": self.ep_size,
            "verdict": str(self.verdict),
            "strategy": self.strategy,
            "overrides": report.overrides,
            "repairs": [
                {"block": attempt.block, "reason": attempt.reason, "change": attempt.describe()}
                for attempt in self.attempts
            ],
            "stages": {name: stage.to_dict() for name, stage in report.stages.items()},
            "diagnostics": [diagnostic.to_dict() for diagnostic in report.diagnostics],
            **costs,
            **({"programs": [program.to_dict() for program in report.programs]} if report.programs else {}),
            **({"remembered": report.remembered} if report.remembered else {}),
        }


@dataclass(frozen=True, kw_only=True)
class Found:
    """A plan that passes, with the report on it and the steps that led there.

    attempts, refused: proposals that helped, and that did not. strategy: the one that was followed. candidates: of the
    strategies, where all were asked for; chosen: the one that the plan follows.
    """

    report: Report
    plan: Plan
    attempts: tuple[Attempt, ...] = ()
    refused: tuple[Attempt, ...] = ()
    strategy: str | None = None
    candidates: tuple[Candidate, ...] = ()
    chosen: Candidate | None = None


@dataclass(frozen=True, kw_only=True)
class Compiled:
    """A plan that passes, for the loader. arguments: of DistributedConfig. python: a script that loads the model."""

    arguments: dict
    python: str

    def json(self) -> str:
        """What `DistributedConfig.from_dict` takes. It drops keys that it does not know, so there are none."""
        return json.dumps(self.arguments, indent=2) + "\n"
