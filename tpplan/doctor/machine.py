"""The machine that is looked at: its devices, its environment and its file system."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tpplan.choices import Device
from tpplan.launcher_variables import inside_a_rank
from tpplan.targets import TARGETS, Attached, Hardware, attached_tpus

NO_TPU = "the device is cpu"


@dataclass(frozen=True, kw_only=True)
class Machine:
    """What every line looks at.

    device: what the machine is judged as. attached: TPUs on its PCI bus. environment: of this process.
    root: the file system, for /proc, /dev and /sys. timeout: seconds for each child process.
    """

    device: Device
    attached: Attached | None
    environment: Mapping[str, str]
    root: Path
    timeout: float

    @property
    def wants_tpu(self) -> bool:
        """Whether TPUs are here or were asked for."""
        return self.device is not Device.CPU

    @property
    def hardware(self) -> Hardware:
        return TARGETS[self.device]

    @property
    def inside_a_rank(self) -> bool:
        """Whether this process is a rank that torchrun started."""
        return inside_a_rank(self.environment)

    @property
    def worker_hostnames(self) -> list[str]:
        """The hosts in TPU_WORKER_HOSTNAMES, read as torch_tpu reads them."""
        return [name for name in self.environment.get("TPU_WORKER_HOSTNAMES", "").split(",") if name]

    @property
    def several_hosts(self) -> bool:
        """Whether set_tpu_launch_env would prepare a launch over several hosts (torch_tpu's `is_multihost`)."""
        return len(self.worker_hostnames) > 1 or "JOB_COMPLETION_INDEX" in self.environment


def machine(
    device: str | None, *, environment: Mapping[str, str] | None = None, root: str | Path = "/", timeout: float
) -> Machine:
    """The machine at `root`. device: a value of `Device`; `tpu`, and None, take the generation from the PCI bus."""
    attached = attached_tpus(root)
    found = attached.device if attached else None
    named = Device(device) if device else (found or Device.CPU)
    return Machine(
        device=found if named is Device.TPU and found else named,
        attached=attached,
        environment=dict(os.environ if environment is None else environment),
        root=Path(root),
        timeout=timeout,
    )
