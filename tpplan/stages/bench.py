"""What the judgements of one model share, so that it is made once: miniatures, unsharded runs, verdicts."""

from __future__ import annotations

import math
from collections.abc import Collection, Hashable
from typing import TYPE_CHECKING

from tpplan.answers import Usage
from tpplan.miniature.build import Miniature, make_miniature
from tpplan.model.skeleton import Sharding
from tpplan.stages.full_size import UnshardedRuns
from tpplan.stages.load import Saved, save
from tpplan.stages.usage import measure
from tpplan.subject import Subject

if TYPE_CHECKING:
    from tpplan.stages.judge import Judgement

# A miniature for more ranks has wider layers: above this it costs a smaller tp_size more than one of its own.
SHARED_UP_TO = 16


class Bench:
    """For one model and one way to use it (device, purpose, batch, length), whatever the plan and tp_size.

    runs: of the unsharded model at full size.
    """

    def __init__(self, subject: Subject) -> None:
        self._subject = subject
        self.runs: UnshardedRuns = {}
        self._ranks = 1
        self._miniatures: dict[int, Miniature | str] = {}
        self._saved: dict[int, Saved] = {}
        self._unsharded: Usage | None = None
        self._judged: dict[Hashable, Judgement] = {}
        self.share([subject.sharding.tp_size])

    def share(self, tp_sizes: Collection[int]) -> None:
        """Let one miniature serve these numbers of ranks and their divisors: it keeps the remainders by all of them."""
        multiple = math.lcm(*tp_sizes)
        self._ranks = multiple if multiple <= SHARED_UP_TO else 1

    def miniature(self, tp_size: int) -> Miniature:
        """The miniature for this number of ranks. Raises ValueError, with the reason, when the model has none."""
        if self._ranks % tp_size == 0:
            try:
                return self._miniature(self._ranks)
            except ValueError:
                if tp_size == self._ranks:
                    raise
        return self._miniature(tp_size)

    def saved(self, tp_size: int) -> Saved:
        """The same miniature as a checkpoint."""
        miniature = self.miniature(tp_size)
        if id(miniature) not in self._saved:
            self._saved[id(miniature)] = save(miniature)
        return self._saved[id(miniature)]

    def _miniature(self, tp_size: int) -> Miniature:
        if tp_size not in self._miniatures:
            try:
                made: Miniature | str = make_miniature(self._subject.spec, self._subject.skeleton, tp_size)
            except ValueError as error:
                made = str(error)
            self._miniatures[tp_size] = made
        found = self._miniatures[tp_size]
        if isinstance(found, str):
            raise ValueError(found)
        return found

    def unsharded_usage(self) -> Usage | None:
        """The use of the unsharded model; None for training, which keeps no cache."""
        if self._unsharded is None and not self._subject.training:
            self._unsharded = measure(self._subject.spec, Sharding(tp_size=1))
        return self._unsharded

    def remembered(self, subject: Subject, depth: str) -> Judgement | None:
        """The judgement of this very plan, where there was one."""
        return self._judged.get(_key(subject, depth))

    def remember(self, judgement: Judgement, depth: str) -> None:
        """Keep a judgement for the next who asks."""
        self._judged[_key(judgement.subject, depth)] = judgement


def _key(subject: Subject, depth: str) -> Hashable:
    sharding = subject.sharding
    overrides = tuple(sorted(sharding.overrides.items()))
    return sharding.tp_size, sharding.ep_size, overrides, id(subject.file), subject.facts is None, depth
