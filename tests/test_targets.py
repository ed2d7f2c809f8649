"""The table of devices against the installed torch_tpu, the sizes it allows, and what `check` says about them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tpplan.choices import MAX_TP_SIZE, Device
from tpplan.targets import CHIPS_PER_HOST, PCI_IDS, TARGETS, Attached, attached_tpus, resolve

# An interpreter that has torch_tpu, for when this one has not: TPPLAN_TPU_PYTHON=/path/to/python.
TPU_PYTHON = sys.executable if find_spec("torch_tpu") else os.environ.get("TPPLAN_TPU_PYTHON", "")
GENERATIONS = [device for device in Device if device not in (Device.CPU, Device.TPU)]

ASK = """
import inspect, json, sys
sys.stdout, answers = sys.stderr, sys.stdout
import torch
from torch_tpu import _loader
from torch_tpu._internal.utils import hardware
from torch_tpu._internal.distributed import distributed
told = {
    "counts": {identity: sorted(counts) for identity, counts in hardware._TOPOLOGY_BY_TPU_PCI_DEVICE_ID.items()},
    "names": dict(hardware._PCI_DEVICE_ID_TO_NAME),
    "hbm": {version.value: size for version, size in hardware._HBM_BYTES_PER_CHIP.items()},
    "devices": {version.value: hardware._DEVICES_PER_CHIP.get(version, 1) for version in hardware.TpuVersion},
    "vendor": hardware._GOOGLE_PCI_VENDOR_ID,
    "chips_per_host": distributed._CHIPS_PER_HOST,
    "registers": inspect.getsource(_loader._init_device_impl),
    "attached": [hardware.get_tpu_device_name(), hardware.get_tpu_device_count()],
    "hosts": {topology: len(distributed._get_slice_host_coordinates(topology)) for topology in json.loads(sys.argv[1])},
}
print(json.dumps(told), file=answers)
"""


def slices() -> dict[str, int]:
    """The topology of every size of every generation that needs several hosts -> hosts, as the table has them."""
    found = {}
    for device in GENERATIONS:
        for tp_size in range(1, 1025):
            if TARGETS[device].exists(tp_size) and TARGETS[device].hosts(tp_size) > 1:
                found[TARGETS[device].topology(tp_size)] = TARGETS[device].hosts(tp_size)
    return found


@pytest.fixture(scope="module")
def torch_tpu() -> dict[str, Any]:
    """What the installed torch_tpu says."""
    if not TPU_PYTHON:
        pytest.skip("torch_tpu is not installed here, and TPPLAN_TPU_PYTHON names no interpreter that has it")
    environment = {name: value for name, value in os.environ.items() if name != "TORCH_DEVICE_BACKEND_AUTOLOAD"}
    command = [TPU_PYTHON, "-c", ASK, json.dumps(sorted(slices()))]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_the_table_is_torch_tpu_s(torch_tpu: dict[str, Any]) -> None:
    names = {f"TPU {device.removeprefix('tpu-')}": device for device in GENERATIONS}
    assert {identity: names[name] for identity, name in torch_tpu["names"].items()} == dict(PCI_IDS)
    for identity, device in PCI_IDS.items():
        assert list(TARGETS[device].host_counts) == torch_tpu["counts"][identity], device
    for name, device in names.items():
        assert TARGETS[device].devices_per_chip == torch_tpu["devices"][name]
        assert TARGETS[device].hbm_bytes == torch_tpu["hbm"][name] // torch_tpu["devices"][name]
    assert set(torch_tpu["hbm"]) == set(names)
    for device in (Device.TPU, *GENERATIONS):  # registered where there is a chip
        assert f'register_backend(\n        "{TARGETS[device].backend}"' in torch_tpu["registers"]
    x, y, z = torch_tpu["chips_per_host"]
    assert x * y * z == CHIPS_PER_HOST


def test_hosts_of_a_slice_are_counted_as_torch_tpu_counts_them(torch_tpu: dict[str, Any]) -> None:
    assert torch_tpu["hosts"] == slices()


def test_the_bus_is_read_as_torch_tpu_reads_it(torch_tpu: dict[str, Any]) -> None:
    attached = attached_tpus()
    name = f"TPU {attached.device.removeprefix('tpu-')}" if attached else "TPU"
    assert torch_tpu["attached"] == [name, attached.usable if attached else 0]


def test_the_backends_are_the_ones_that_transformers_takes() -> None:
    from transformers.distributed.utils import DISTRIBUTED_BACKEND_MAP as backends

    assert TARGETS[Device.CPU].backend == backends["cpu"]
    assert {TARGETS[device].backend for device in (Device.TPU, *GENERATIONS)} == {backends["tpu"]}


def test_every_device_has_an_entry() -> None:
    assert list(TARGETS) == list(Device)
    assert set(PCI_IDS.values()) == set(GENERATIONS)


@pytest.mark.parametrize(
    ("device", "exist"),
    [
        ("tpu-v4", [1, 2, 4, 8, 16, 32, 64, 128, 192, 256]),
        ("tpu-v5e", [1, 4, 8, 16, 32, 64, 128, 256]),
        ("tpu-v5p", [1, 2, 4, 8, 16, 32, 64, 128, 192, 256]),
        ("tpu-v6e", [1, 4, 8, 16, 32, 64, 128, 256]),
        ("tpu-v7", [2, 4, 8, 16, 32, 64, 128, 256]),
    ],
)
def test_which_sizes_exist(device: str, exist: list[int]) -> None:
    assert [size for size in range(1, 257) if TARGETS[Device(device)].exists(size)] == exist


@pytest.mark.parametrize(("device", "largest"), [("tpu-v4", 4096), ("tpu-v5p", 6144), ("tpu-v7", 18432)])
def test_the_largest_slice(device: str, largest: int) -> None:
    sizes = [size for size in range(1, MAX_TP_SIZE + 1) if TARGETS[Device(device)].exists(size)]
    assert max(sizes) == largest


@pytest.mark.parametrize("device", GENERATIONS)
def test_a_slice_has_the_devices_it_is_asked_for(device: Device) -> None:
    hardware = TARGETS[device]
    for size in filter(hardware.slice_shape, range(1, 2049)):
        x, y, z = hardware.slice_shape(size)
        assert x * y * z * hardware.devices_per_chip == size
        if hardware.hosts(size) > 1:
            assert hardware.hosts(size) * hardware.devices_per_host == size
    assert set(hardware.slice_counts()) <= set(filter(hardware.exists, range(1, 257)))
    with pytest.raises(ValueError):
        hardware.topology(3)


def test_slices_are_written_as_torch_tpu_writes_them() -> None:
    assert TARGETS[Device.TPU_V5E].topology(16) == "4,4,1"
    assert TARGETS[Device.TPU_V5P].topology(1024) == "8,8,16"
    assert TARGETS[Device.TPU_V7].topology(16) == "2,2,2,2"


@pytest.mark.parametrize("device", [Device.CPU, Device.TPU])
def test_without_limits_every_size_exists(device: Device) -> None:
    hardware = TARGETS[device]
    assert not hardware.has_limits and hardware.hbm_bytes is None
    assert all(hardware.exists(size) and hardware.hosts(size) == 1 for size in (1, 3, 7, 1000))


def bus(root: Path, *functions: tuple[str, str, bool]) -> Path:
    """A file system with PCI functions of (vendor, device id, exposed)."""
    for number, (vendor, identity, exposed) in enumerate(functions):
        function = root / f"sys/bus/pci/devices/0000:00:{number:02x}.0"
        function.mkdir(parents=True)
        (function / "vendor").write_text(f"{vendor}\n")
        (function / "device").write_text(f"{identity}\n")
        group = root / f"sys/kernel/iommu_groups/{number}"
        group.mkdir(parents=True)
        (function / "iommu_group").symlink_to(group)
        if exposed:
            (root / "dev/vfio").mkdir(parents=True, exist_ok=True)
            (root / f"dev/vfio/{number}").touch()
    return root


def test_a_generation_is_found_on_the_bus(tmp_path: Path) -> None:
    root = bus(
        tmp_path,
        ("0x8086", "0x006f", True),
        ("0x1ae0", "0x0042", True),
        *[("0x1ae0", "0x006f", True)] * 4,
        ("0x1ae0", "0x006f", False),
    )
    assert attached_tpus(root) == Attached(device=Device.TPU_V6E, usable=4)
    assert resolve("tpu", root) is TARGETS[Device.TPU_V6E]
    assert resolve("tpu-v4", root) is TARGETS[Device.TPU_V4], "what is named is not looked for"
    assert resolve("cpu", root) is TARGETS[Device.CPU]


def test_without_tpus_a_generic_tpu_stays_generic(tmp_path: Path) -> None:
    assert attached_tpus(tmp_path) is None
    assert attached_tpus(bus(tmp_path / "other", ("0x1ae0", "0x0042", True))) is None
    assert resolve("tpu", tmp_path) is TARGETS[Device.TPU]
