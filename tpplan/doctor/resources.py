"""What a launch takes from the machine: chips that nothing else holds, ports, memory, and the allocator."""

from __future__ import annotations

import errno
import os
import re
import socket
from collections.abc import Iterator
from pathlib import Path

from tpplan.doctor.line import Line, failed, not_applicable, passed
from tpplan.doctor.machine import NO_TPU, Machine
from tpplan.launch.processes import LEAST_PROCESS_BYTES, available_bytes
from tpplan.launcher_variables import BASE_PORT, MASTER_PORT
from tpplan.units import gib

LOCK_FILE = "tmp/libtpu_lockfile"  # libtpu locks it while it holds a chip
CHIP = re.compile(r"/dev/(accel\d+|vfio/\d+)")
ADDRESSES, BASE = "TORCH_TPU_SLICEBUILDER_ADDRESSES", "TORCH_TPU_BASE_PORT"
TCMALLOC = "libtcmalloc"  # as torch_tpu/_tcmalloc_check.py looks for it


def resource_lines(machine: Machine) -> Iterator[Line]:
    """Lines on chips that are held, the allocator, memory, and ports."""
    yield _chips_free(machine)
    yield _allocator(machine)
    yield _memory(machine)
    yield _master_port(machine)
    yield _slice_ports(machine)


def _chips_free(machine: Machine) -> Line:
    """Whether another process has a chip open or holds libtpu's lock; a chip serves one process at a time."""
    name = "chips-free"
    if not machine.wants_tpu:
        return not_applicable(name, NO_TPU)
    if machine.inside_a_rank:
        return not_applicable(name, "this process is a rank: its own launch has the chips")
    devices = _device_files(machine.root)
    if not devices:
        return not_applicable(name, "there is no /dev/accel* and no numbered /dev/vfio")
    holders, unseen = _holders(machine.root)
    lock = machine.root / LOCK_FILE
    if owner := _lock_owner(machine.root, lock):
        holders.setdefault(owner, set()).add(f"/{LOCK_FILE}")
    if holders:
        shown = "; ".join(f"process {pid} has {', '.join(sorted(what))}" for pid, what in sorted(holders.items()))
        fix = f"end {'it' if len(holders) == 1 else 'them'}: kill {' '.join(map(str, sorted(holders)))}"
        return failed(name, shown, code="TPP924", fix=fix)
    if lock.exists() and not os.access(lock, os.R_OK | os.W_OK):
        found = f"/{LOCK_FILE} is another user's, so libtpu cannot lock it"
        return failed(name, found, code="TPP924", fix=f"sudo rm /{LOCK_FILE}")
    if unseen:
        found = f"open files of {unseen} processes of other users cannot be read; the others have no chip open"
        return not_applicable(name, f"{found}: run it as root to know")
    return passed(name, f"no process has one of {', '.join(devices)} open")


def _device_files(root: Path) -> list[str]:
    """Paths of the chips' files, as a process names them."""
    found = [*(root / "dev").glob("accel[0-9]*"), *(root / "dev/vfio").glob("[0-9]*")]
    return sorted(f"/{path.relative_to(root)}" for path in found)


def _holders(root: Path) -> tuple[dict[int, set[str]], int]:
    """Process -> the chips it has open, this process left out; and the number of processes that may not be read."""
    holders: dict[int, set[str]] = {}
    unseen = 0
    for process in (root / "proc").glob("[0-9]*"):
        try:
            links = [os.readlink(link) for link in (process / "fd").iterdir()]
        except PermissionError:
            unseen += 1
            continue
        except OSError:
            continue  # it ended in the meantime
        chips = {link for link in links if CHIP.fullmatch(link)}
        if chips and int(process.name) != os.getpid():
            holders[int(process.name)] = chips
    return holders, unseen


def _lock_owner(root: Path, lock: Path) -> int | None:
    """The process that has `lock` locked, from /proc/locks: `1: POSIX ADVISORY WRITE pid major:minor:inode 0 EOF`."""
    table = root / "proc/locks"
    if not lock.exists() or not table.exists():
        return None
    inode = lock.stat().st_ino
    for line in table.read_text(encoding="utf-8").splitlines():
        fields = line.split()
        if "->" not in fields and len(fields) > 5 and fields[5].rpartition(":")[2] == str(inode):
            return int(fields[4])
    return None


def _allocator(machine: Machine) -> Line:
    name = "allocator"
    if not machine.wants_tpu:
        return not_applicable(name, NO_TPU)
    maps = machine.root / "proc/self/maps"
    if not maps.exists():
        return not_applicable(name, "there is no /proc/self/maps")
    if TCMALLOC in maps.read_text(encoding="utf-8"):
        return passed(name, "tcmalloc is loaded")
    preload = machine.environment.get("LD_PRELOAD", "")
    found = f"tcmalloc is not loaded{f', though LD_PRELOAD is {preload}' if TCMALLOC in preload else ''}"
    fix = "apt-get install libtcmalloc-minimal4; export LD_PRELOAD=/usr/lib/x86_64-linux-gnu/libtcmalloc_minimal.so.4"
    return failed(name, f"{found}: torch_tpu's threads wait for glibc's malloc", code="TPP928", fix=fix)


def _memory(machine: Machine) -> Line:
    """Whether the least that a rank on every device needs is there; what a model needs besides, `verify` knows."""
    name, available = "memory", available_bytes()
    if available is None:
        return not_applicable(name, "there is no /proc/meminfo")
    ranks = max(machine.attached.usable if machine.wants_tpu and machine.attached else 1, 1)
    needed = ranks * LEAST_PROCESS_BYTES
    devices = f"each of {ranks} devices" if ranks > 1 else "one device"
    found = f"{gib(available)} are free; a process for {devices} needs {gib(needed)}, without a model"
    if available < needed:
        return failed(name, found, code="TPP931", fix="end other processes, or raise the container's limit")
    return passed(name, found)


def _master_port(machine: Machine) -> Line:
    """Whether the port where ranks meet can be bound here."""
    name, environment = "master-port", machine.environment
    if machine.inside_a_rank:
        return not_applicable(name, "this process is a rank: its own launch has the port")
    host, text = environment.get("MASTER_ADDR", ""), environment.get("MASTER_PORT", str(MASTER_PORT))
    if not _is_port(text):
        return failed(name, f"MASTER_PORT is {text!r}, not a port", code="TPP930", fix="unset MASTER_PORT")
    if host and not _is_here(host):
        return not_applicable(name, f"MASTER_ADDR is {host}, not an address of this machine")
    problem = _not_free(int(text))
    if problem:
        fix = f"give another: --master_port={_free_port()} to tpplan launch"
        return failed(name, f"port {text} {problem}", code="TPP930", fix=fix)
    return passed(name, f"port {text} is free")


def _slice_ports(machine: Machine) -> Line:
    """Whether the ports where torch_tpu's processes of this host meet the others can be bound."""
    name = "slice-ports"
    if not machine.wants_tpu or machine.inside_a_rank:
        return not_applicable(name, "this process is a rank" if machine.wants_tpu else NO_TPU)
    variable, ports = _ports_of_this_host(machine)
    if not variable:
        return not_applicable(name, "set_tpu_launch_env picks free ports on one host")
    if wrong := [port for port in ports if not _is_port(port)]:
        found = f"{variable}: {', '.join(wrong)} is not a port"
        return failed(name, found, code="TPP930", fix=f"unset {variable}")
    taken = [f"port {port} {problem}" for port in ports if (problem := _not_free(int(port)))]
    if taken:
        fix = f"unset {variable}" if variable == ADDRESSES else f"export {variable}={_free_port()} on every host"
        return failed(name, "; ".join(taken), code="TPP930", fix=fix)
    return passed(name, f"free: {', '.join(ports)}" if ports else "none of the addresses is this machine's")


def _ports_of_this_host(machine: Machine) -> tuple[str, list[str]]:
    """The variable that says them and the ports as it says them; no variable where torch_tpu picks them."""
    if ADDRESSES in machine.environment:
        pairs = [address.rpartition(":") for address in machine.environment[ADDRESSES].split(",")]
        return ADDRESSES, [port for host, _, port in pairs if host and _is_here(host)]
    if not machine.several_hosts:
        return "", []
    first = machine.environment.get(BASE, str(BASE_PORT))
    if not _is_port(first):
        return BASE, [first]
    return BASE, [str(int(first) + number) for number in range(machine.hardware.devices_per_host)]


def _is_port(text: str) -> bool:
    return text.isascii() and text.isdecimal() and 0 < int(text) < 2**16


def _is_here(host: str) -> bool:
    """Whether a name is an address of this machine: whether a socket can be bound to it. False where it is unknown."""
    try:
        found = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return False
    return any(_binds(family, address) is None for family, _, _, _, address in found)


def _not_free(port: int) -> str:
    """Why a port cannot be listened on, on all addresses of this machine, or an empty string."""
    error = _binds(socket.AF_INET, ("", port))
    if error is None:
        return ""
    return "is taken" if error.errno == errno.EADDRINUSE else f"cannot be bound: {error.strerror}"


def _binds(family: int, address: tuple) -> OSError | None:
    try:
        with socket.socket(family, socket.SOCK_STREAM) as trial:
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a closed launch's TIME_WAIT is no obstacle
            trial.bind(address)
    except OSError as error:
        return error
    return None


def _free_port() -> int:
    with socket.socket() as trial:
        trial.bind(("", 0))
        return trial.getsockname()[1]
