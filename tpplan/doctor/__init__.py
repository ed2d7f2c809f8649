"""`tpplan doctor`: this machine, line by line: versions, imports, chips, variables, ports, memory."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tpplan.doctor.environment import environment_lines
from tpplan.doctor.imports import import_lines
from tpplan.doctor.line import Diagnosis, Line, LineStatus
from tpplan.doctor.machine import machine
from tpplan.doctor.packages import package_lines, versions_of_all
from tpplan.doctor.resources import resource_lines

__all__ = ["Diagnosis", "Line", "LineStatus", "diagnose"]
SECONDS = 60.0  # for torch, or torch_tpu and its chips, to answer


def diagnose(
    device: str | None = None,
    *,
    environment: Mapping[str, str] | None = None,
    root: str | Path = "/",
    timeout: float = SECONDS,
) -> Diagnosis:
    """Everything that this machine's packages, chips and environment say about a launch on it.

    device: a value of `tpplan.choices.Device`; None means the TPU on the PCI bus, or cpu where there is none.
    environment: the variables to judge, this process's by default. root: the file system whose /sys, /dev and /proc are
    read. timeout: seconds for each child process. Nothing is changed, and torch is imported in children only.

    Raises ValueError for a device that is none.
    """
    looked_at = machine(device, environment=environment, root=root, timeout=timeout)
    lines = (
        line for part in (package_lines, import_lines, environment_lines, resource_lines) for line in part(looked_at)
    )
    return Diagnosis(device=str(looked_at.device), versions=versions_of_all(), lines=tuple(lines))
