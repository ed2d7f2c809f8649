"""The stages behind a verdict, in the order in which they run. A stage is its module and its row here.

Depths, help and schemas follow from this table. Nothing heavy is imported here: a stage's module is when it runs.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tpplan.stages.bench import Bench
    from tpplan.stages.result import StageResult
    from tpplan.subject import Subject

LAUNCH = "launch"  # the stage of `verify`, on real ranks: it follows these


@dataclass(frozen=True, kw_only=True)
class StageEntry:
    """name: as depths and reports have it. adds: what it adds to the stages before it, in a few words.

    module: has `run(subject, earlier, bench) -> StageResult`. always: whether a verdict needs it; the others run where
    a check names them.
    """

    name: str
    adds: str
    module: str
    always: bool = True

    def run(self, subject: Subject, earlier: Mapping[str, StageResult], bench: Bench) -> StageResult:
        """What the stage finds. earlier: the results of the stages before it, by name."""
        result: StageResult = importlib.import_module(self.module).run(subject, earlier, bench)
        return result


STAGES: tuple[StageEntry, ...] = (
    StageEntry(name="static", adds="arithmetic on the config and the rules", module="tpplan.stages.static"),
    StageEntry(name="shapes", adds="the model run without weights", module="tpplan.stages.shapes"),
    StageEntry(name="numerics", adds="a miniature's numbers compared", module="tpplan.stages.numerics"),
    StageEntry(
        name="aot",
        adds="a rank's programs compiled by the TPU's compiler",
        module="tpplan.stages.aot",
        always=False,
    ),
)


def depths() -> tuple[str, ...]:
    """How far a check can go: the name of the last stage that it runs."""
    return tuple(stage.name for stage in STAGES)


def needed() -> tuple[str, ...]:
    """The stages without which a verdict leaves something out."""
    return tuple(stage.name for stage in STAGES if stage.always)


def deepest() -> str:
    """The depth of a verdict that leaves nothing out."""
    return needed()[-1]


def least(depth: str) -> str:
    """The depth to look for a plan at: this one, or where it is of a stage that a verdict does not need, without it."""
    return depth if depth in needed() else deepest()


def up_to(depth: str) -> tuple[StageEntry, ...]:
    """The stages of a check of this depth."""
    before = STAGES[: depths().index(depth)]
    return (*(stage for stage in before if stage.always), STAGES[depths().index(depth)])


def names() -> tuple[str, ...]:
    """Every stage that a report may have."""
    return (*depths(), LAUNCH)
