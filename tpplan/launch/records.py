"""The files of a launch: the job that its processes read, and the result that each of them writes."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from tpplan.difference import Difference
from tpplan.launch.processes import peak_bytes

UNSHARDED = "unsharded.json"
NUMBERS = "unsharded.safetensors"


class LaunchPhase(StrEnum):
    """In the order in which they run; `compare` is the comparison of gradients."""

    START = "start"
    LOAD = "load"
    FORWARD = "forward"
    BACKWARD = "backward"
    COMPARE = "compare"
    GENERATE = "generate"
    DONE = "done"


@dataclass(frozen=True, kw_only=True)
class Job:
    """What all processes of one launch are told.

    checkpoint: a directory with weights. distributed: arguments of DistributedConfig. inputs: of one forward, name ->
    nested lists. results: the directory of the result files. compare: whether the unsharded numbers are there.
    """

    checkpoint: str
    auto_class: str
    dtype: str
    distributed: dict[str, Any]
    inputs: dict[str, list]
    training: bool
    tpu: bool
    new_tokens: int
    results: str
    compare: bool
    trust_remote_code: bool = False

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self)), encoding="utf-8")


def read_job(path: Path) -> Job:
    return Job(**json.loads(path.read_text(encoding="utf-8")))


@dataclass(frozen=True, kw_only=True)
class Raised:
    """What ended a process: name of the error's type, message, when (seconds of the clock), whether memory ran out."""

    type: str
    message: str
    at: float
    memory: bool = False


@dataclass(frozen=True, kw_only=True)
class WrongGradient(Difference):
    parameter: str


@dataclass(frozen=True, kw_only=True)
class Gradients:
    """How many gradients were compared, the largest error, and those that are wrong."""

    compared: int
    worst: float
    wrong: tuple[WrongGradient, ...] = ()


@dataclass(frozen=True, kw_only=True)
class RankResult:
    """What one process found, as far as it came. None: it did not come to that.

    phase: where it is. load_seconds; peak_bytes: of the process's memory; parameter_bytes: that this rank holds.
    missing: weights that the checkpoint lacks. logits: how far they are from the unsharded ones. tokens: those
    generated; margins: of the unsharded model, for each token the distance to the runner-up, as a part of the largest
    logit. cache: its implementation; cache_bytes: that a static one holds on this rank, for cache_tokens of one
    sequence. first_token: index of the first that differs. generate_error: why none were. gradient_scale: the largest
    of the unsharded gradients. error: what ended it.
    """

    rank: int
    pid: int
    phase: LaunchPhase = LaunchPhase.START
    load_seconds: float | None = None
    peak_bytes: int | None = None
    parameter_bytes: int | None = None
    missing: list[str] = field(default_factory=list)
    finite: bool = True
    logits: Difference | None = None
    tokens: list[int] | None = None
    margins: list[float] = field(default_factory=list)
    cache: str | None = None
    cache_bytes: int | None = None
    cache_tokens: int | None = None
    first_token: int | None = None
    generate_error: str = ""
    gradient_scale: float = 0.0
    gradients: Gradients | None = None
    error: Raised | None = None


def read_result(path: Path) -> RankResult | None:
    """The result in the file, or None while there is none."""
    if not path.exists():
        return None
    values = json.loads(path.read_text(encoding="utf-8"))
    parts = {name: read(values[name]) for name, read in PARTS.items() if values[name] is not None}
    return RankResult(**values | parts | {"phase": LaunchPhase(values["phase"])})


def _gradients(values: dict[str, Any]) -> Gradients:
    return Gradients(**values | {"wrong": tuple(WrongGradient(**wrong) for wrong in values["wrong"])})


PARTS: Mapping[str, Callable[[dict[str, Any]], Any]] = {
    "logits": lambda values: Difference(**values),
    "gradients": _gradients,
    "error": lambda values: Raised(**values),
}


class ResultFile:
    """The result of this process in its file: rewritten, beside and then renamed, at each change."""

    def __init__(self, path: Path, rank: int) -> None:
        self._path = path
        self._result = RankResult(rank=rank, pid=os.getpid())
        self.enter(LaunchPhase.START)

    def enter(self, phase: LaunchPhase) -> None:
        self.put(phase=phase)

    def put(self, **values: Any) -> None:
        self._result = replace(self._result, **values, peak_bytes=peak_bytes())
        beside = self._path.with_suffix(".tmp")
        beside.write_text(json.dumps(asdict(self._result)), encoding="utf-8")
        beside.replace(self._path)
