"""What can be chosen about a launch, and what of it makes no sense."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tpplan.choices import Device, usage_error
from tpplan.subject import Subject

HOST_AND_PORT = re.compile(r"([^\s:]+|\[[\da-fA-F:.]+\])(:\d{1,5})?")

Progress = Callable[[str, float], None]
SaveMiniature = Callable[[Subject, Path], str | Path]


@dataclass(frozen=True, kw_only=True)
class LaunchOptions:
    """miniature: launch a small model of the same structure although there are weights. miniature_dir: writes it and
    returns where, `tpplan.miniature.build.save_miniature` if left out. timeout: seconds for all processes together.
    nnodes, node_rank, rdzv_endpoint (HOST:PORT where the hosts meet): as torchrun's; on TPU the last two may be left to
    torch_tpu. progress: called several times a second with what runs and the part done, 0 to 1.
    """

    miniature: bool = False
    miniature_dir: SaveMiniature | None = None
    timeout: float = 600
    nnodes: int = 1
    node_rank: int = 0
    rdzv_endpoint: str | None = None
    progress: Progress | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Another process has no one to tell of its progress."""
        return {**vars(self), "progress": None}


def check_usage(options: LaunchOptions, subject: Subject) -> None:
    """Raise InputError (TPP130) for options that make no sense, together or for `subject`."""
    tp_size, nnodes, endpoint = subject.sharding.tp_size, options.nnodes, options.rdzv_endpoint
    said = fix = ""
    if not options.timeout > 0:
        said, fix = f"timeout is {options.timeout} s", "give the seconds that all processes may take"
    elif nnodes < 1 or tp_size % nnodes:
        said, fix = f"tp_size {tp_size} is not spread over {nnodes} hosts evenly", "give --nnodes that divides tp_size"
    elif not 0 <= options.node_rank < nnodes:
        said, fix = f"node_rank is {options.node_rank} of {nnodes} hosts", f"give a number from 0 to {nnodes - 1}"
    elif endpoint is not None and not HOST_AND_PORT.fullmatch(endpoint):
        said, fix = f"rdzv_endpoint is {endpoint!r}", "give HOST:PORT of the first host"
    elif nnodes > 1 and endpoint is None and subject.device is Device.CPU:
        said, fix = "several hosts need a place to meet", "give --rdzv-endpoint HOST:PORT of the first host on each"
    if said:
        raise usage_error(said, fix=fix, model=subject.spec.source.name)
