"""The table of devices that a plan can be made for: what one device holds, and how many of them can run together.

`TARGETS` is the table, `resolve` the entry that a device's name stands for on this machine. A rank is one device, as
torch counts them: `tp_size` ranks need `tp_size` devices. Nothing here imports torch or torch_tpu; what torch_tpu reads
from the PCI bus is read the same way.

Sources: chip counts of a host, devices per chip, HBM and PCI ids are those of torch_tpu 0.2.0
(`torch_tpu/_internal/utils/hardware.py`; tests/test_targets.py compares them with the installed one). Hosts of 2x2
chips in larger slices are its `distributed._CHIPS_PER_HOST`. Neither torch_tpu nor libtpu limits larger slices to those
that exist, so they are the published ones (cloud.google.com/tpu/docs, pages v4, v5e, v5p, v6e and tpu7x): the shapes
listed there, and above 64 chips whole cubes of 4x4x4.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from tpplan.choices import Device

AUTOLOAD = "TORCH_DEVICE_BACKEND_AUTOLOAD"  # 0: torch does not load torch_tpu when it is imported
GIB = 2**30
CHIPS_PER_HOST = 4  # of a slice of several hosts: 2x2x1
CUBE = 64  # chips: 4x4x4
GOOGLE = "0x1ae0"  # PCI vendor
PCI_IDS: Mapping[str, Device] = MappingProxyType(
    {
        "0x005e": Device.TPU_V4,
        "0x0062": Device.TPU_V5P,
        "0x0063": Device.TPU_V5E,
        "0x006f": Device.TPU_V6E,
        "0x0076": Device.TPU_V7,
    }
)

Shape = tuple[int, int, int]


@dataclass(frozen=True, kw_only=True)
class Hardware:
    """One kind of device. All counts are of devices, which are ranks, not of chips.

    device: its name. backend: torch.distributed's for collectives on it. host_counts: how many devices a launch on one
    host can use, ascending; empty where there is no limit or none is known. devices_per_chip: 2 on v7. hbm_bytes:
    memory of one device, None where it is not known (cpu, and `tpu` of no generation). shapes: chips (x, y, z) of the
    slices of several hosts up to one cube, ascending. max_cubes: largest slice of whole 4x4x4 cubes, 0 where there are
    none.
    """

    device: Device
    backend: str
    host_counts: tuple[int, ...] = ()
    devices_per_chip: int = 1
    hbm_bytes: int | None = None
    shapes: tuple[Shape, ...] = ()
    max_cubes: int = 0

    @property
    def has_limits(self) -> bool:
        """Whether the counts of devices and their memory are known: false for cpu and for `tpu` of no generation."""
        return bool(self.host_counts)

    @property
    def devices_per_host(self) -> int:
        """Devices on each host of a slice of several hosts."""
        return CHIPS_PER_HOST * self.devices_per_chip

    def exists(self, tp_size: int) -> bool:
        """Whether `tp_size` devices can run together, on one host or on a slice of several; true without limits."""
        return not self.has_limits or tp_size in self.host_counts or self.slice_shape(tp_size) is not None

    def hosts(self, tp_size: int) -> int:
        """Number of hosts that `tp_size` devices (a count that exists) need; 1 without limits."""
        return 1 if not self.has_limits or tp_size in self.host_counts else tp_size // self.devices_per_host

    def slice_shape(self, tp_size: int) -> Shape | None:
        """Chips (x, y, z) of the slice of several hosts with `tp_size` devices, the one nearest to a cube; or None."""
        chips, rest = divmod(tp_size, self.devices_per_chip)
        if rest:
            return None
        cubes, rest = divmod(chips, CUBE)
        if not rest and 1 <= cubes <= self.max_cubes:
            x, y, z = _nearest_to_a_cube(cubes)
            return 4 * x, 4 * y, 4 * z
        return next((shape for shape in self.shapes if shape[0] * shape[1] * shape[2] == chips), None)

    def topology(self, tp_size: int) -> str:
        """The slice as torch_tpu writes it in TORCH_TPU_TOPOLOGY, such as `4,4,1`, on v7 the devices per chip last.

        Raises ValueError where no slice of several hosts has this count.
        """
        shape = self.slice_shape(tp_size)
        if shape is None:
            raise ValueError(f"no slice of {self.device} has {tp_size} devices")
        return ",".join(map(str, (*shape, self.devices_per_chip) if self.devices_per_chip > 1 else shape))

    def compiler_topology(self, tp_size: int) -> str:
        """The smallest topology with `tp_size` devices (a count that exists) by the name that libtpu's compiler has for
        it, such as `v6e:2x2`; empty where it has none.
        """
        if self.device not in COMPILER_NAMES:
            return ""
        name, deep = COMPILER_NAMES[self.device]
        chips = -(-tp_size // self.devices_per_chip)
        shape = HOST_SHAPES.get(chips) if tp_size in self.host_counts else self.slice_shape(tp_size)
        return f"{name}:{'x'.join(map(str, shape if deep else shape[:2]))}" if shape else ""

    def slice_counts(self) -> tuple[int, ...]:
        """Devices of each slice of several hosts up to one cube, ascending; multiples of the last if max_cubes > 1."""
        return tuple(x * y * z * self.devices_per_chip for x, y, z in self.shapes)


# libtpu's name of a generation, and whether its topologies have three dimensions. Of v4 it names cores, not chips.
COMPILER_NAMES: Mapping[Device, tuple[str, bool]] = MappingProxyType(
    {
        Device.TPU_V5E: ("v5e", False),
        Device.TPU_V5P: ("v5p", True),
        Device.TPU_V6E: ("v6e", False),
        Device.TPU_V7: ("tpu7x", True),
    }
)
HOST_SHAPES: Mapping[int, Shape] = MappingProxyType({1: (1, 1, 1), 2: (2, 1, 1), 4: (2, 2, 1), 8: (2, 4, 1)})  # chips

FLAT_SLICES: tuple[Shape, ...] = ((4, 4, 1), (4, 8, 1), (8, 8, 1), (8, 16, 1), (16, 16, 1))
DEEP_SLICES: tuple[Shape, ...] = ((2, 2, 2), (2, 2, 4), (2, 4, 4), (4, 4, 4))


def _tpu(device: Device, host_counts: tuple[int, ...], gib: int, shapes: tuple[Shape, ...], **more: int) -> Hardware:
    """gib: HBM of a device."""
    return Hardware(
        device=device, backend="tpu_dist", host_counts=host_counts, hbm_bytes=gib * GIB, shapes=shapes, **more
    )


TARGETS: Mapping[Device, Hardware] = MappingProxyType(
    {
        hardware.device: hardware
        for hardware in (
            Hardware(device=Device.CPU, backend="gloo"),
            Hardware(device=Device.TPU, backend="tpu_dist"),
            _tpu(Device.TPU_V4, (1, 2, 4, 8), 32, DEEP_SLICES, max_cubes=4096 // CUBE),
            _tpu(Device.TPU_V5E, (1, 4, 8), 16, FLAT_SLICES),
            _tpu(Device.TPU_V5P, (1, 2, 4, 8), 95, DEEP_SLICES, max_cubes=6144 // CUBE),
            _tpu(Device.TPU_V6E, (1, 4, 8), 32, FLAT_SLICES),
            _tpu(Device.TPU_V7, (2, 4, 8), 192 // 2, DEEP_SLICES, max_cubes=9216 // CUBE, devices_per_chip=2),
        )
    }
)


@dataclass(frozen=True, kw_only=True)
class Attached:
    """TPUs on this machine's PCI bus. usable: devices that /dev/vfio exposes, which is what torch_tpu counts."""

    device: Device
    usable: int


def resolve(device: str, root: str | Path = "/") -> Hardware:
    """The entry of TARGETS for `device`, a value of `Device`; for `tpu` the generation on this machine, if it has one.

    root: the file system whose PCI bus is read. Raises ValueError for a name that is no Device.
    """
    attached = attached_tpus(root) if device == Device.TPU else None
    return TARGETS[attached.device if attached else Device(device)]


def attached_tpus(root: str | Path = "/") -> Attached | None:
    """The TPUs on the PCI bus, of the generation of the first one; None without any that the table knows.

    Reads what torch_tpu's `hardware.get_tpu_device_name` and `get_tpu_device_count` read, and starts no TPU runtime.
    """
    bus = Path(root) / "sys/bus/pci/devices"
    functions = sorted(bus.iterdir()) if bus.is_dir() else []
    found = [(device, function) for function in functions if (device := _tpu_of(function))]
    if not found:
        return None
    return Attached(device=found[0][0], usable=sum(_is_exposed(function, Path(root)) for _, function in found))


def _tpu_of(function: Path) -> Device | None:
    """The TPU that a PCI function is, or None."""
    try:
        vendor = (function / "vendor").read_text(encoding="utf-8").strip()
        identity = (function / "device").read_text(encoding="utf-8").strip()
    except OSError:
        return None  # a function that went away, or that may not be read, is none that torch_tpu counts
    return PCI_IDS.get(identity) if vendor == GOOGLE else None


def _is_exposed(function: Path, root: Path) -> bool:
    try:
        return (root / "dev/vfio" / (function / "iommu_group").readlink().name).exists()
    except OSError:
        return False  # no IOMMU group: not handed to user space


def _nearest_to_a_cube(count: int) -> Shape:
    """x <= y <= z with x * y * z = count and the smallest sum."""
    divisors = [number for number in range(1, count + 1) if count % number == 0]
    shapes = [(x, y, count // (x * y)) for x in divisors for y in divisors if x <= y and count % (x * y) == 0]
    return min((shape for shape in shapes if shape[1] <= shape[2]), key=sum)
