"""What tests need of a TPU host where there is none: a PCI bus made of files, and an interpreter with torch_tpu."""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

V6E = ("0x1ae0", "0x006f", True)


def python_with_torch_tpu() -> str:
    """This interpreter where it has torch_tpu, else the one that TPPLAN_TPU_PYTHON names; skips where there is none."""
    python = sys.executable if find_spec("torch_tpu") else os.environ.get("TPPLAN_TPU_PYTHON", "")
    if not python:
        pytest.skip("torch_tpu is not installed here, and TPPLAN_TPU_PYTHON names no interpreter that has it")
    return python


def needs_no_chips() -> None:
    """Skips where this machine has TPUs."""
    if list(Path("/dev/vfio").glob("[0-9]*")):
        pytest.skip("this machine has chips")


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
