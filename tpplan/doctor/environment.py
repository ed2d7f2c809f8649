"""The variables that a launch reads: left over from another one, at odds with each other, or in the way."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from pathlib import Path

from tpplan.doctor.line import Line, failed, not_applicable, passed
from tpplan.doctor.machine import NO_TPU, Machine
from tpplan.launcher_variables import OF_A_CHIP, OF_A_LAUNCH, OF_A_RANK, OF_A_SLICE
from tpplan.targets import AUTOLOAD, CHIPS_PER_HOST


def environment_lines(machine: Machine) -> Iterator[Line]:
    """Lines on the rank's variables, torch's loading of torch_tpu, the launch's variables, and those of a chip."""
    yield _rank(machine)
    yield _autoload(machine)
    yield _launch(machine)
    yield _chip(machine)
    yield _library(machine)


def _rank(machine: Machine) -> Line:
    name = "rank-variables"
    there = _set(machine, OF_A_RANK)
    if not there:
        return passed(name, "none is set: this process is not a rank")
    if machine.inside_a_rank:
        return passed(name, f"a rank of torchrun: {_shown(there)}")
    found = f"{_shown(there)}, not set by torchrun (no TORCHELASTIC_RUN_ID): a load waits for ranks that may not exist"
    return failed(name, found, code="TPP925", fix=f"unset {' '.join(there)}")


def _autoload(machine: Machine) -> Line:
    name = "backend-loading"
    value = machine.environment.get(AUTOLOAD)
    if not machine.wants_tpu:
        return not_applicable(name, NO_TPU)
    if value not in (None, "1"):
        found = f"{AUTOLOAD}={value}: torch does not load torch_tpu, so there is no tpu device"
        return failed(name, found, code="TPP927", fix=f"unset {AUTOLOAD}")
    return passed(name, "torch loads torch_tpu when it is imported")


def _launch(machine: Machine) -> Line:
    """Whether set_tpu_launch_env would make one launch of what is set; it overwrites nothing."""
    name = "launch-variables"
    if not machine.wants_tpu:
        return not_applicable(name, NO_TPU)
    there = _set(machine, (*OF_A_SLICE, *OF_A_LAUNCH))
    if not there:
        return passed(name, "none is set: set_tpu_launch_env chooses them for one host")
    problems = [*_topology_problems(machine), *_address_problems(machine), *_host_problems(machine)]
    if problems:
        fix = f"unset {' '.join(there)}, then set this launch's values on every host"
        return failed(name, f"{'; '.join(problems)}; set_tpu_launch_env keeps what is set", code="TPP926", fix=fix)
    return passed(name, f"set, kept by set_tpu_launch_env, and not at odds: {' '.join(there)}")


def _topology_problems(machine: Machine) -> Iterator[str]:
    """A topology that cannot be read, that is not the chips of the hosts, or that is missing for several hosts."""
    text = machine.environment.get("TORCH_TPU_TOPOLOGY")
    hosts = max(len(machine.worker_hostnames), 1)
    if text is None:
        if machine.several_hosts and hosts > 1:
            yield "TORCH_TPU_TOPOLOGY is not set: torch_tpu takes the topology of this host for the complete slice"
        return
    chips = _chips(text)
    if chips is None:
        yield f"TORCH_TPU_TOPOLOGY is {text!r}, not chips along each axis such as 2,2,1"
    elif hosts > 1 and chips != hosts * CHIPS_PER_HOST:
        yield f"TORCH_TPU_TOPOLOGY {text} is {chips} chips, {hosts} hosts have {hosts * CHIPS_PER_HOST}"
    elif not machine.several_hosts and machine.attached and machine.attached.usable:
        devices = chips * machine.hardware.devices_per_chip
        if devices > machine.attached.usable:
            yield f"TORCH_TPU_TOPOLOGY {text} is {devices} devices, this host has {machine.attached.usable}"


def _address_problems(machine: Machine) -> Iterator[str]:
    """Addresses that cannot be read, of other hosts, or of another number than the topology's devices."""
    text = machine.environment.get("TORCH_TPU_SLICEBUILDER_ADDRESSES")
    if text is None:
        return
    addresses = [address.rpartition(":") for address in text.split(",")]
    if any(not host or not port.isdecimal() for host, _, port in addresses):
        yield f"TORCH_TPU_SLICEBUILDER_ADDRESSES is {text[:60]!r}, not a list of host:port"
        return
    named = machine.worker_hostnames if machine.several_hosts else ["localhost"]
    others = sorted({host for host, _, _ in addresses} - set(named))
    if named and others:
        yield f"TORCH_TPU_SLICEBUILDER_ADDRESSES has {', '.join(others)}, the hosts are {', '.join(named)}"
    chips = _chips(machine.environment.get("TORCH_TPU_TOPOLOGY", ""))
    devices = chips and chips * machine.hardware.devices_per_chip
    if devices and devices != len(addresses):
        yield f"TORCH_TPU_SLICEBUILDER_ADDRESSES has {len(addresses)} addresses, the topology {devices} devices"


def _host_problems(machine: Machine) -> Iterator[str]:
    """What set_tpu_launch_env raises on, or ranks wait for, where there are several hosts."""
    hosts, environment = machine.worker_hostnames, machine.environment
    yield from _index_problems(machine)
    if any(not re.fullmatch(r"[\w.:\[\]-]+", host) for host in hosts):
        yield "TPU_WORKER_HOSTNAMES has an entry that is not a host name"
    count = max(len(hosts), 1)
    nnodes, rank = environment.get("NNODES"), environment.get("NODE_RANK")
    if nnodes not in (None, str(count)):
        yield f"NNODES is {nnodes}, {f'TPU_WORKER_HOSTNAMES has {count} hosts' if count > 1 else 'there is 1 host'}"
    if rank is not None and not (rank.isdecimal() and int(rank) < count):
        yield f"NODE_RANK is {rank}, of {count} host{'s' * (count > 1)}"


def _index_problems(machine: Machine) -> Iterator[str]:
    """Whether the environment says which of the hosts this one is."""
    hosts, environment = machine.worker_hostnames, machine.environment
    index = environment.get("JOB_COMPLETION_INDEX")
    if index is None:
        if len(hosts) > 1 and not {"NODE_RANK", "TORCH_TPU_TOPOLOGY"} & environment.keys():
            yield f"{len(hosts)} hosts, and neither JOB_COMPLETION_INDEX nor TORCH_TPU_TOPOLOGY says which this is"
    elif not hosts:
        yield "JOB_COMPLETION_INDEX is set and TPU_WORKER_HOSTNAMES is not: torch_tpu raises"
    elif not (index.isdecimal() and int(index) < len(hosts)):
        yield f"JOB_COMPLETION_INDEX is {index!r}, the {len(hosts)} hosts are 0 to {len(hosts) - 1}"


def _chip(machine: Machine) -> Line:
    name = "chip-variables"
    if not machine.wants_tpu:
        return not_applicable(name, NO_TPU)
    there = _set(machine, OF_A_CHIP)
    if there and not machine.inside_a_rank:
        found = f"{_shown(there)}: torch_tpu sets these in each rank, so another launch or another library set them"
        return failed(name, found, code="TPP932", fix=f"unset {' '.join(there)}")
    return passed(name, f"set in this rank: {_shown(there)}" if there else "none is set outside a rank")


def _library(machine: Machine) -> Line:
    name = "libtpu-path"
    path = machine.environment.get("TPU_LIBRARY_PATH")
    if not machine.wants_tpu or not path:
        return not_applicable(name, "TPU_LIBRARY_PATH is not set" if machine.wants_tpu else NO_TPU)
    if not Path(path).is_file():
        found = f"TPU_LIBRARY_PATH is {path}, which is not a file, and it replaces the path of the installed libtpu"
        return failed(name, found, code="TPP932", fix="unset TPU_LIBRARY_PATH")
    return passed(name, f"TPU_LIBRARY_PATH is {path}")


def _chips(topology: str) -> int | None:
    """Chips of a topology as torch_tpu reads it: up to three axes, then devices per chip; else None."""
    parts = [part for part in re.split("[,xX]", topology) if part]
    if not parts or not all(part.isdecimal() for part in parts):
        return None
    return math.prod(int(part) for part in parts[:3])


def _set(machine: Machine, names: tuple[str, ...]) -> dict[str, str]:
    return {name: machine.environment[name] for name in names if name in machine.environment}


def _shown(variables: dict[str, str]) -> str:
    return " ".join(f"{name}={value}" for name, value in variables.items())
