"""What the target itself allows: how many ranks, on how many hosts, and for what purpose."""

from __future__ import annotations

from collections.abc import Iterator

from tpplan.choices import Device
from tpplan.diagnostics import Diagnostic
from tpplan.subject import Subject
from tpplan.targets import CUBE, Hardware, resolve
from tpplan.units import joined

SOURCE = "torch_tpu's hardware table and the slices that Google publishes"


def check_device_count(subject: Subject) -> Iterator[Diagnostic]:
    """TPP320 and TPP321: tp_size is no number of devices that the target has, or needs several hosts.

    One rank needs no launch, so size 1 is not looked at: it runs on one device of any host.
    """
    hardware, tp_size = resolve(subject.device), subject.sharding.tp_size
    if tp_size == 1 or not hardware.has_limits:
        return
    if not hardware.exists(tp_size):
        yield _no_such_count(subject, hardware)
    elif hardware.hosts(tp_size) > 1:
        yield _several_hosts(subject, hardware)


def check_generation(subject: Subject) -> Iterator[Diagnostic]:
    """TPP323: the target is any TPU, so its limits are unknown."""
    if subject.device == Device.TPU and not resolve(subject.device).has_limits:
        yield Diagnostic(
            code="TPP323",
            message="no generation of TPU is named, so neither the number of devices nor their memory was checked",
            where=subject.place_of_target("device"),
            evidence="device is tpu, and this machine has no TPU to take the generation from",
            fix=f"give --device {joined((device for device in Device if device.startswith('tpu-')), 'or')}",
        )


def check_training_on_tpu(subject: Subject) -> Iterator[Diagnostic]:
    """TPP322: training on TPU is not finished in Transformers."""
    if subject.training and subject.device.startswith("tpu"):
        yield Diagnostic(
            code="TPP322",
            message="training on TPU is still being integrated into Transformers, so nothing here shows that it trains",
            where=subject.place_of_target("purpose"),
            evidence="the Transformers guide to TPU lists it under its limits",
            fix="run `tpplan verify --purpose training` on the TPU host: it runs a backward there",
        )


def _no_such_count(subject: Subject, hardware: Hardware) -> Diagnostic:
    name, tp_size = subject.spec.source.name, subject.sharding.tp_size
    above = next((size for size in range(tp_size + 1, 2 * tp_size + CUBE) if hardware.exists(size)), None)
    below = next((size for size in range(tp_size - 1, 1, -1) if hardware.exists(size)), None)
    nearest = above or below
    return Diagnostic(
        code="TPP320",
        message=f"no {hardware.device} host or slice has {tp_size} devices, so {tp_size} ranks cannot be launched",
        where=subject.place_of_target("tp_size"),
        evidence=f"{_counts(hardware)} ({SOURCE}){_detected(subject, hardware)}",
        fix=f"tpplan check {name} --tp-size {nearest} --device {subject.device} judges the nearest size that exists",
    )


def _several_hosts(subject: Subject, hardware: Hardware) -> Diagnostic:
    tp_size = subject.sharding.tp_size
    hosts, each, topology = hardware.hosts(tp_size), hardware.devices_per_host, hardware.topology(tp_size)
    return Diagnostic(
        code="TPP321",
        message=f"tp_size {tp_size} takes {hosts} {hardware.device} hosts of {each} devices, and each must be launched",
        where=subject.place_of_target("tp_size"),
        evidence=f"{_counts(hardware)} ({SOURCE}){_detected(subject, hardware)}",
        fix=f"on each host set TPU_WORKER_HOSTNAMES (all {hosts}, comma-separated), JOB_COMPLETION_INDEX (0 to "
        f"{hosts - 1}) and TORCH_TPU_TOPOLOGY={topology}, then give tpplan launch --nproc_per_node={each} the options "
        "--nnodes, --node_rank, --master_addr and --master_port with what tpplan launch --device tpu --print-env "
        "prints",
    )


def _counts(hardware: Hardware) -> str:
    """Every number of devices that exists, in words."""
    *most, last = hardware.host_counts
    cubes = f" and multiples of {hardware.slice_counts()[-1]}" if hardware.max_cubes > 1 else ""
    slices = ", ".join(map(str, hardware.slice_counts()))
    return f"one host runs {', '.join(map(str, most))} or {last} devices, several run {slices}{cubes}"


def _detected(subject: Subject, hardware: Hardware) -> str:
    return f"; {hardware.device} is what this machine's PCI bus has" if subject.device != hardware.device else ""
