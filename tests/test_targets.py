"""The table of devices against the installed torch_tpu, the sizes it allows, and what `check` says about them."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import tpplan
from tests.support import configs
from tests.support.subjects import subject
from tests.support.tpu import bus, python_with_torch_tpu
from tpplan.checks import targets as checks_of_targets
from tpplan.checks.targets import check_device_count, check_generation, check_training_on_tpu
from tpplan.choices import MAX_TP_SIZE, Device
from tpplan.codes import CODES, Severity
from tpplan.diagnostics import PlanError
from tpplan.targets import CHIPS_PER_HOST, PCI_IDS, TARGETS, Attached, attached_tpus, resolve

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
    environment = {name: value for name, value in os.environ.items() if name != "TORCH_DEVICE_BACKEND_AUTOLOAD"}
    command = [python_with_torch_tpu(), "-c", ASK, json.dumps(sorted(slices()))]
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


# The same, as measured of torch_tpu 0.2.0: GiB of a device, devices that a launch on one host takes, PCI id.
MEASURED = {
    Device.TPU_V4: (32, (1, 2, 4, 8), "0x005e"),
    Device.TPU_V5E: (16, (1, 4, 8), "0x0063"),
    Device.TPU_V5P: (95, (1, 2, 4, 8), "0x0062"),
    Device.TPU_V6E: (32, (1, 4, 8), "0x006f"),
    Device.TPU_V7: (96, (2, 4, 8), "0x0076"),  # two devices a chip of 192 GiB
}


def test_the_table_is_as_measured() -> None:
    found = {
        device: (TARGETS[device].hbm_bytes / 2**30, TARGETS[device].host_counts, identity)
        for identity, device in PCI_IDS.items()
    }
    assert found == MEASURED
    assert {device for device in GENERATIONS if TARGETS[device].devices_per_chip != 1} == {Device.TPU_V7}
    assert TARGETS[Device.TPU_V7].devices_per_chip == 2 and CHIPS_PER_HOST == 4
    assert TARGETS[Device.CPU].hbm_bytes is TARGETS[Device.TPU].hbm_bytes is None


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


class TestCheck:
    """TPP320 to TPP323, on a machine without a TPU and on one made of files."""

    def found(self, tp_size: int, device: str, **options: Any) -> dict[str, str]:
        """code -> message and evidence of what the checks of targets say."""
        judged = replace(subject(configs.llama(), tp_size, **options), device=device)
        checks = (check_device_count, check_generation, check_training_on_tpu)
        return {d.code: f"{d.message}; {d.evidence}; {d.fix}" for check in checks for d in check(judged)}

    @pytest.fixture(autouse=True)
    def no_tpu(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        self.machine(monkeypatch, tmp_path / "none")

    def machine(self, monkeypatch: pytest.MonkeyPatch, root: Path) -> None:
        """Let the checks look at the bus under `root`."""
        monkeypatch.setattr(checks_of_targets, "resolve", lambda device: resolve(device, root))

    @pytest.mark.parametrize(
        ("device", "sizes"),
        [("tpu-v5e", (2, 3, 5, 6, 7, 12, 24, 48, 512)), ("tpu-v5p", (3, 6, 12, 96, 100)), ("tpu-v7", (3, 12, 6, 192))],
    )
    def test_a_size_that_does_not_exist(self, device: str, sizes: tuple[int, ...]) -> None:
        for size in sizes:
            assert list(self.found(size, device)) == ["TPP320"], size

    def test_the_sizes_that_exist_are_listed(self) -> None:
        said = self.found(3, "tpu-v5e")["TPP320"]
        assert "one host runs 1, 4 or 8 devices, several run 16, 32, 64, 128, 256" in said
        assert "--tp-size 4 --device tpu-v5e judges" in said
        assert "multiples of 64" in self.found(3, "tpu-v5p")["TPP320"]
        assert "--tp-size 256 " in self.found(MAX_TP_SIZE, "tpu-v6e")["TPP320"], "the largest, when none is larger"

    @pytest.mark.parametrize("device", GENERATIONS)
    def test_a_fix_names_a_size_that_exists(self, device: Device) -> None:
        for size in (3, 5, 9, 17, 33, 100, 257, 5000, MAX_TP_SIZE):
            if not TARGETS[device].exists(size):
                fix = self.found(size, device)["TPP320"].rpartition("; ")[2].split()
                assert TARGETS[device].exists(int(fix[fix.index("--tp-size") + 1]))

    @pytest.mark.parametrize("device", GENERATIONS)
    def test_sizes_of_one_host_and_a_single_rank_are_silent(self, device: Device) -> None:
        for size in (1, *TARGETS[device].host_counts):
            assert self.found(size, device) == {}

    def test_several_hosts_are_a_note_that_says_what_they_need(self) -> None:
        said = self.found(16, "tpu-v5e")
        assert list(said) == ["TPP321"]
        assert CODES["TPP321"].severity is Severity.NOTE
        for part in ("takes 4 tpu-v5e hosts of 4 devices", "TORCH_TPU_TOPOLOGY=4,4,1", "(0 to 3)", "per_node=4"):
            assert part in said["TPP321"]
        assert "2 tpu-v7 hosts of 8 devices" in self.found(16, "tpu-v7")["TPP321"]

    def test_the_hosts_of_a_note_are_what_torch_tpu_prints(self) -> None:
        """The variables that the note names, given to the real set_tpu_launch_env: no chip for several hosts."""
        given = {
            "TPU_WORKER_HOSTNAMES": "host-a,host-b,host-c,host-d",
            "JOB_COMPLETION_INDEX": "2",
            "TORCH_TPU_TOPOLOGY": TARGETS[Device.TPU_V5E].topology(16),
            "PYTHONPATH": str(Path(checks_of_targets.__file__).parents[2]),
        }
        command = [python_with_torch_tpu(), "-m", "tpplan", "launch", "--device", "tpu", "--print-env"]
        done = subprocess.run(command, env=os.environ | given, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        printed = dict(line.split("=", 1) for line in done.stdout.splitlines())
        wanted = {"NNODES": "4", "NODE_RANK": "2", "MASTER_ADDR": "host-a", "MASTER_PORT": "29500"}
        assert {name: printed.get(name) for name in wanted} == wanted

    def test_cpu_has_no_limits(self) -> None:
        assert self.found(3, "cpu") == self.found(1000, "cpu") == self.found(3, "cpu", training=True) == {}

    def test_any_tpu_is_said_to_be_unchecked(self) -> None:
        assert list(self.found(3, "tpu")) == ["TPP323"]

    def test_any_tpu_is_the_one_on_the_bus(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        self.machine(monkeypatch, bus(tmp_path / "v6e", *[("0x1ae0", "0x006f", True)] * 4))
        assert self.found(4, "tpu") == {}
        assert "tpu-v6e is what this machine's PCI bus has" in self.found(3, "tpu")["TPP320"]

    def test_training_on_tpu_is_a_warning(self) -> None:
        assert list(self.found(4, "tpu-v6e", training=True)) == ["TPP322"]
        assert list(self.found(1, "tpu-v6e", training=True)) == ["TPP322"]

    def test_a_plan_is_pointed_at_by_line(self, tmp_path: Path) -> None:
        text = (Path(__file__).parent / "cases/TPP103-passing/plan.yaml").read_text(encoding="utf-8")
        plan = tmp_path / "plan.yaml"
        plan.write_text(text.replace("tpu-v5p", "tpu-v5e"), encoding="utf-8")
        where = {d.code: d.where.line for d in tpplan.check(str(plan), depth="static").diagnostics}
        line = {text.splitlines()[number - 1].strip() for number in where.values()}
        assert where.keys() == {"TPP320", "TPP322"} and line == {"tp_size: 2", "purpose: training"}

    def test_no_plan_is_made_for_a_size_that_does_not_exist(self, tmp_path: Path) -> None:
        configs.write(tmp_path, configs.llama())
        with pytest.raises(PlanError, match="TPP320"):
            tpplan.plan(str(tmp_path), 2, device="tpu-v5e")
