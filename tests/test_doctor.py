"""`tpplan doctor`: what it finds on broken installs and odd machines that the tests make, and on this one."""

from __future__ import annotations

import fcntl
import io
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import redirect_stdout
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from tests.support.time_limit import within
from tests.support.tpu import V6E, bus
from tpplan.cli import main
from tpplan.codes import CODES
from tpplan.doctor import Diagnosis, Line, LineStatus, diagnose, rendering
from tpplan.doctor.environment import environment_lines
from tpplan.doctor.imports import Answers, ask, chips_line, import_lines
from tpplan.doctor.line import failed, passed
from tpplan.doctor.machine import Machine, machine
from tpplan.doctor.packages import package_lines
from tpplan.doctor.resources import resource_lines
from tpplan.launch.processes import state_of

PASSED, FAILED, SKIPPED = LineStatus.PASSED, LineStatus.FAILED, LineStatus.NOT_APPLICABLE
TIMEOUT = 120.0


class Installs:
    """Packages of the test's own, first on the path of this process and of its children."""

    def __init__(self, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.home = home
        home.mkdir()
        monkeypatch.syspath_prepend(home)
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(home), os.environ.get("PYTHONPATH", ""))))
        monkeypatch.delenv("TORCH_DEVICE_BACKEND_AUTOLOAD", raising=False)

    def add(self, name: str, version: str | None, *requires: str, code: str | None = None, extra: str = "") -> Path:
        """Metadata of a package and, with `code`, the package. extra: further lines of the metadata."""
        info = self.home / f"{name}-{version}.dist-info"
        info.mkdir()
        lines = [f"Name: {name}", *[f"Version: {version}"] * (version is not None)]
        lines += [f"Requires-Dist: {text}" for text in requires]
        (info / "METADATA").write_text("Metadata-Version: 2.1\n" + "\n".join(lines) + f"\n{extra}")
        if code is not None:
            (self.home / name).mkdir()
            (self.home / name / "__init__.py").write_text(code)
        return self.home / name

    def torch_tpu(self, code: str) -> Path:
        """A torch_tpu that torch loads as it loads the real one; `code` is in its `load`, or at module level."""
        home = self.add("torch_tpu", "0.0.1", code=code)
        entry = "[torch.backends]\ntorch_tpu = torch_tpu:load\n"
        (self.home / "torch_tpu-0.0.1.dist-info" / "entry_points.txt").write_text(entry)
        return home


@pytest.fixture
def installs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Installs:
    return Installs(tmp_path / "installs", monkeypatch)


@pytest.fixture
def empty(tmp_path: Path) -> Path:
    """A file system with no PCI bus, no chips and no processes."""
    return tmp_path / "empty"


def by_name(lines: Iterable[Line]) -> dict[str, Line]:
    """The lines by name; every name once, every failure with a code that exists."""
    listed = list(lines)
    found = {line.name: line for line in listed}
    assert len(found) == len(listed)
    assert all(line.code in CODES for line in listed if line.status is FAILED)
    return found


def a_machine(device: str | None = "tpu-v6e", root: Path = Path("/nowhere"), **environment: str) -> Machine:
    return machine(device, environment=environment, root=root, timeout=TIMEOUT)


class TestVersions:
    def lines(self, device: str = "cpu") -> dict[str, Line]:
        return by_name(package_lines(a_machine(device)))

    def test_what_is_installed_here_is_in_range(self) -> None:
        lines = self.lines()
        for package in ("python", "torch", "transformers", "accelerate"):
            assert lines[package].status is PASSED, lines[package]

    def test_a_version_outside_another_s_range(self, installs: Installs) -> None:
        installs.add("tokenizers", "0.9")
        line = self.lines()["transformers"]
        assert (line.status, line.code) == (FAILED, "TPP920")
        assert "requires tokenizers<" in line.found and line.found.endswith("tokenizers is 0.9")
        assert line.fix.startswith("pip install 'tokenizers<")

    def test_a_requirement_that_is_missing(self, installs: Installs) -> None:
        installs.add("torch_tpu", "0.2.0", "no-such-package-anywhere>=2", "libtpu>=0.0.50; python_version < '3'")
        line = self.lines()["torch_tpu"]
        assert (line.status, line.code) == (FAILED, "TPP920")
        assert "requires no-such-package-anywhere>=2, which is not installed" in line.found
        assert "libtpu" not in line.found, "its marker does not hold here"

    def test_torch_beyond_torch_tpu_s_range(self, installs: Installs) -> None:
        installs.add("torch_tpu", "0.2.0", "torch>=2.11.0,<=2.15.0")
        assert self.lines()["torch_tpu"].status is PASSED
        installs.add("torch", "2.16.0+cpu")
        line = self.lines()["torch_tpu"]
        assert "torch is 2.16.0+cpu" in line.found
        assert line.fix.startswith("pip install -c constraints.txt 'torch"), "an open range of torch takes a CUDA build"

    def test_a_local_build_of_the_last_release_is_in_range(self, installs: Installs) -> None:
        installs.add("torch_tpu", "0.2.0", "torch>=2.11.0,<=2.15.0")
        installs.add("torch", "2.15.0+cpu")
        assert self.lines()["torch_tpu"].status is PASSED

    def test_an_optional_range_counts_where_the_package_is_installed(self, installs: Installs) -> None:
        installs.add("transformers", "5.24.0", 'kernels<0.19,>=0.18.2; extra == "kernels"', 'jax>9; extra == "all"')
        assert self.lines()["transformers"].status is PASSED
        installs.add("kernels", "0.17.0")
        installs.add("jax", "0.10.2")
        found = self.lines()["transformers"].found
        assert "kernels is 0.17.0" in found and "jax" not in found

    def test_python_outside_a_package_s_range(self, installs: Installs) -> None:
        installs.add("libtpu", "0.0.52", extra="Requires-Python: >=4\n")
        line = self.lines()["python"]
        assert (line.status, line.code) == (FAILED, "TPP920")
        assert "libtpu needs >=4" in line.found

    @pytest.mark.parametrize(
        "broken",
        [
            {"version": None},
            {"version": "new"},
            {"extra": "Requires-Dist: torch>>2\n"},
            {"extra": "Requires-Python: yes\n"},
        ],
        ids=str,
    )
    def test_metadata_that_cannot_be_read(self, installs: Installs, broken: dict) -> None:
        for package in ("torch", "kernels", "transformers", "torch_tpu"):
            installs.add(package, **{"version": "5.24.0"} | broken)
        for device in ("cpu", "tpu"):
            lines = self.lines(device)
            for package in ("torch", "kernels", "transformers", "torch_tpu"):
                assert (lines[package].status, lines[package].code) == (FAILED, "TPP920"), package
                assert "cannot be read" in lines[package].found

    def test_without_torch_tpu(self) -> None:
        if self.lines("tpu")["torch_tpu"].status is PASSED:
            pytest.skip("torch_tpu is installed here")
        assert self.lines("cpu")["torch_tpu"].status is SKIPPED
        assert self.lines("tpu")["torch_tpu"].code == "TPP910"

    @pytest.mark.parametrize(
        ("torch", "status", "says"),
        [
            ("2.10.1", FAILED, "libraries for 2.11.0, 2.13.0"),
            ("2.11.0+cpu", PASSED, "those for torch 2.11.0 serve 2.11.0+cpu"),
            ("2.12.1", PASSED, "those for torch 2.11.0 serve 2.12.1"),
            ("2.14.0.dev20260711", PASSED, "those for torch 2.13.0"),
        ],
    )
    def test_native_libraries(self, installs: Installs, torch: str, status: LineStatus, says: str) -> None:
        home = installs.add("torch_tpu", "0.2.0", code="raise SystemExit('the doctor imports nothing here')")
        (home / "_internal").mkdir()
        for name in ("env_2_11_0.so", "env_2_13_0.so", "plain.so", "libxla_base.so"):
            (home / "_internal" / name).touch()
        installs.add("torch", torch)
        line = self.lines()["torch_tpu-libraries"]
        assert (line.status, line.code) == (status, "TPP921" if status is FAILED else "")
        assert says in line.found

    def test_a_build_without_versioned_libraries(self, installs: Installs) -> None:
        installs.add("torch_tpu", "0.2.0", code="")
        assert self.lines()["torch_tpu-libraries"].status is SKIPPED

    @pytest.mark.parametrize(
        ("kernels", "jax", "says"),
        [
            ("0.16.9", "0.10.2", "0.16.9 has none for TPU"),
            ("0.17.0", None, "jax, which"),
            ("0.18.2", "0.10.2", ""),
            (None, None, ""),
        ],
    )
    def test_hub_kernels(
        self, installs: Installs, monkeypatch: pytest.MonkeyPatch, kernels: str | None, jax: str | None, says: str
    ) -> None:
        without(monkeypatch, *[name for name, version in (("kernels", kernels), ("jax", jax)) if version is None])
        for name, version in (("kernels", kernels), ("jax", jax)):
            if version:
                installs.add(name, version)
        line = self.lines("tpu")["hub-kernels"]
        assert line.status is (FAILED if says else PASSED if kernels else SKIPPED)
        assert says in line.found and line.code == ("TPP929" if says else "")
        assert self.lines("cpu")["hub-kernels"].status is SKIPPED

    @pytest.mark.parametrize(("version", "status"), [("5.22.1", FAILED), ("5.23.0", PASSED), ("5.24.0", PASSED)])
    def test_tied_weights(self, installs: Installs, version: str, status: LineStatus) -> None:
        installs.add("transformers", version)
        line = self.lines("tpu")["tied-weights"]
        assert (line.status, line.code) == (status, "TPP304" if status is FAILED else "")
        assert self.lines("cpu")["tied-weights"].status is SKIPPED

    def test_accelerate_is_needed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        without(monkeypatch, "accelerate")
        line = self.lines()["accelerate"]
        assert (line.status, line.code) == (FAILED, "TPP920")
        assert "distributed_config" in line.found


def without(monkeypatch: pytest.MonkeyPatch, *packages: str) -> None:
    """Let the doctor find no metadata of these packages."""
    from tpplan.doctor import packages as module

    real = module.installed
    monkeypatch.setattr(module, "installed", lambda name: None if name in packages else real(name))


class TestImports:
    """Each with real children, and a torch_tpu that torch loads by its entry point."""

    def lines(self, *roles: str, timeout: float = TIMEOUT, monkeypatch: pytest.MonkeyPatch) -> dict[str, Line]:
        """The lines on imports where only these children are started; the others answer nothing."""
        nothing = {"libraries": Answers()}
        monkeypatch.setattr("tpplan.doctor.imports.ask", lambda here, *_: nothing | ask(here, *roles))
        return by_name(import_lines(machine("cpu", root="/nowhere", timeout=timeout)))

    def test_what_is_installed_here_imports(self) -> None:
        lines = by_name(import_lines(machine("cpu", root="/nowhere", timeout=TIMEOUT)))
        for name in ("import-torch", "import-transformers", "internals"):
            assert lines[name].status is PASSED, lines[name]
        assert lines["chips"].status is SKIPPED

    @pytest.mark.parametrize(
        ("code", "says"),
        [
            ("raise OSError('libtpu.so: cannot open')", "caused by OSError: libtpu.so: cannot open"),
            ("def load():\n    raise ValueError('no topology')", "caused by ValueError: no topology"),
            ("import os, sys\nsys.stderr.write('the last word\\n')\nos.abort()", "ended by SIGABRT: the last word"),
            ("import os\nos.kill(os.getpid(), 11)", "ended by SIGSEGV"),
            ("import os\nos._exit(7)", "ended with 7"),
            (
                "import os\nos.write(2, b'F0000 00:00:1 a.cc:19] Check failed: x\\n=== Trace\\n)\\n')\nos._exit(1)",
                "failed: x",
            ),
            ("raise SystemExit(0)", "SystemExit"),
        ],
    )
    def test_a_torch_tpu_that_breaks(
        self, installs: Installs, monkeypatch: pytest.MonkeyPatch, code: str, says: str
    ) -> None:
        installs.torch_tpu(code)
        line = self.lines("tpu", monkeypatch=monkeypatch)["import-torch_tpu"]
        assert (line.status, line.code) == (FAILED, "TPP922")
        assert says in line.found and line.fix

    def test_one_that_crashes_at_its_end(self, installs: Installs, monkeypatch: pytest.MonkeyPatch) -> None:
        """It answered everything; that the process then crashed is not lost."""
        installs.torch_tpu("import atexit, os\ndef load():\n    atexit.register(os.abort)")
        here = machine("tpu", root=fake_bus(installs), timeout=TIMEOUT)
        line = chips_line(here, ask(here, "tpu")["tpu"])
        assert (line.status, line.code) == (FAILED, "TPP923")
        assert "then the process was ended by SIGABRT" in line.found

    def test_a_broken_torch_tpu_does_not_break_the_rest(self, installs: Installs) -> None:
        installs.torch_tpu("import os\nos.abort()")
        lines = by_name(import_lines(machine("cpu", root="/nowhere", timeout=TIMEOUT)))
        assert [name for name, line in lines.items() if line.status is FAILED] == ["import-torch_tpu"]
        assert lines["import-transformers"].status is PASSED

    def test_one_that_hangs_is_ended_with_all_it_started(
        self, installs: Installs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        pids = tmp_path / "pids"
        installs.torch_tpu(
            "import os, subprocess, time\n"
            "child = subprocess.Popen(['sleep', '600'], start_new_session=True)\n"
            f"open({str(pids)!r}, 'w').write(f'{{os.getpid()}} {{child.pid}}')\n"
            "time.sleep(600)\n"
        )
        with within(200):
            line = self.lines("tpu", timeout=10, monkeypatch=monkeypatch)["import-torch_tpu"]
        assert (line.status, line.code) == (FAILED, "TPP922")
        assert "no answer within 10 s" in line.found
        started = pids.read_text().split()
        assert len(started) == 2 and all(state_of(int(pid)) in ("", "Z") for pid in started)

    def test_a_torch_that_does_not_import(self, installs: Installs, monkeypatch: pytest.MonkeyPatch) -> None:
        installs.add("torch", "2.13.0", code="raise ImportError('libtorch_cpu.so: undefined symbol')")
        lines = self.lines("libraries", monkeypatch=monkeypatch)
        assert (lines["import-torch"].status, lines["import-torch"].code) == (FAILED, "TPP922")
        assert "undefined symbol" in lines["import-torch"].found
        assert lines["import-transformers"].status is SKIPPED, "not reached is not passed"

    def test_a_transformers_whose_names_moved(self, installs: Installs, monkeypatch: pytest.MonkeyPatch) -> None:
        code = "__version__ = '9.0'\nAutoModelForCausalLM = DistributedConfig = None\n"
        installs.add("transformers", "9.0", code=code)
        lines = self.lines("libraries", monkeypatch=monkeypatch)
        assert lines["import-transformers"].status is PASSED
        assert (lines["internals"].status, lines["internals"].code) == (FAILED, "TPP901")

    def test_one_that_torch_does_not_load(self, installs: Installs, monkeypatch: pytest.MonkeyPatch) -> None:
        installs.add("torch_tpu", "0.0.1", code="")
        line = self.lines("tpu", monkeypatch=monkeypatch)["import-torch_tpu"]
        assert line.status is FAILED and "entry point" in line.found

    def test_chips_that_torch_sees(self, installs: Installs) -> None:
        installs.torch_tpu(
            "def load():\n"
            "    import torch, types\n"
            "    torch.accelerator.is_available = lambda: True\n"
            "    torch.accelerator.device_count = lambda: 4\n"
            "    torch.accelerator.current_accelerator = lambda: types.SimpleNamespace(type='tpu')\n"
            "    print('noise on stdout')\n"
        )
        here = machine(None, root=fake_bus(installs), timeout=TIMEOUT)
        line = chips_line(here, ask(here, "tpu")["tpu"])
        assert line.status is PASSED, line
        assert "4 of tpu-v6e on the PCI bus, torch.accelerator sees 4 (tpu)" in line.found


def fake_bus(installs: Installs) -> Path:
    return bus(installs.home.parent / "machine", *[V6E] * 4)


class TestChips:
    """The PCI bus against what torch answers."""

    def line(self, root: Path, device: str | None = None, **seen: object) -> Line:
        answers = Answers(found={"torch_tpu": "", "chips": {"count": 4, "type": "tpu"} | seen})
        return chips_line(a_machine(device, root), answers)

    def test_all_are_seen(self, tmp_path: Path) -> None:
        assert self.line(bus(tmp_path, *[V6E] * 4)).status is PASSED

    @pytest.mark.parametrize(
        ("functions", "device", "seen", "says"),
        [
            ([], "tpu", {}, "no TPU is on the PCI bus"),
            ([V6E] * 4, "tpu-v5e", {}, "tpu-v5e is asked for"),
            ([("0x1ae0", "0x006f", False)] * 4, "tpu", {}, "/dev/vfio exposes none"),
            ([V6E] * 4, "tpu", {"count": 1}, "sees 1 (tpu)"),
            ([V6E] * 4, "tpu", {"type": "none", "count": 0}, "sees 0 (none)"),
            ([V6E] * 3, "tpu", {"count": 3}, "a topology for 1, 4, 8 devices only"),
        ],
    )
    def test_something_is_amiss(self, tmp_path: Path, functions: list, device: str, seen: dict, says: str) -> None:
        line = self.line(bus(tmp_path, *functions), device, **seen)
        assert line.status is FAILED and says in line.found and line.fix
        assert line.code == ("TPP923" if functions else "TPP911")

    def test_torch_that_raises_and_torch_that_was_not_asked(self, tmp_path: Path) -> None:
        here = a_machine(None, bus(tmp_path, *[V6E] * 4))
        line = chips_line(here, Answers(found={"torch_tpu": ""}, step="chips", error="RuntimeError: the TPU is in use"))
        assert line.status is FAILED and "in use" in line.found
        assert chips_line(here, Answers(step="torch_tpu", error="x")).status is SKIPPED
        assert chips_line(here, None).status is SKIPPED

    def test_a_cpu_is_asked_for(self, tmp_path: Path) -> None:
        assert self.line(bus(tmp_path, *[V6E] * 4), "cpu").status is SKIPPED


class TestEnvironment:
    def lines(self, device: str = "tpu-v6e", root: Path = Path("/nowhere"), **environment: str) -> dict[str, Line]:
        return by_name(environment_lines(a_machine(device, root, **environment)))

    def test_a_clean_one_passes(self) -> None:
        for line in self.lines().values():
            assert line.status is (SKIPPED if line.name == "libtpu-path" else PASSED)

    def test_on_cpu_only_the_rank_s_variables_count(self) -> None:
        lines = self.lines("cpu", TORCH_TPU_TOPOLOGY="x", TPU_VISIBLE_CHIPS="0", TORCH_DEVICE_BACKEND_AUTOLOAD="0")
        assert {name for name, line in lines.items() if line.status is not SKIPPED} == {"rank-variables"}

    @pytest.mark.parametrize("name", ["RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"])
    def test_a_rank_s_variable_left_over(self, name: str) -> None:
        line = self.lines("cpu", **{name: "1"})["rank-variables"]
        assert (line.status, line.code, line.fix) == (FAILED, "TPP925", f"unset {name}")

    def test_in_a_rank_of_torchrun_they_belong(self) -> None:
        lines = self.lines(RANK="0", LOCAL_RANK="0", TORCHELASTIC_RUN_ID="none", TPU_VISIBLE_CHIPS="0")
        assert lines["rank-variables"].status is lines["chip-variables"].status is PASSED

    @pytest.mark.parametrize(("value", "status"), [("0", FAILED), ("1", PASSED)])
    def test_torch_told_to_leave_torch_tpu_out(self, value: str, status: LineStatus) -> None:
        line = self.lines(TORCH_DEVICE_BACKEND_AUTOLOAD=value)["backend-loading"]
        assert (line.status, line.code) == (status, "TPP927" if status is FAILED else "")

    @pytest.mark.parametrize("name", ["TPU_VISIBLE_CHIPS", "TPU_PROCESS_BOUNDS", "CLOUD_TPU_TASK_ID"])
    def test_a_chip_s_variable_left_over(self, name: str) -> None:
        line = self.lines(**{name: "1"})["chip-variables"]
        assert (line.status, line.code, line.fix) == (FAILED, "TPP932", f"unset {name}")

    def test_a_libtpu_that_is_not_there(self, tmp_path: Path) -> None:
        line = self.lines(TPU_LIBRARY_PATH=str(tmp_path / "libtpu.so"))["libtpu-path"]
        assert (line.status, line.code) == (FAILED, "TPP932")
        (tmp_path / "libtpu.so").touch()
        assert self.lines(TPU_LIBRARY_PATH=str(tmp_path / "libtpu.so"))["libtpu-path"].status is PASSED

    HOSTS = {"TPU_WORKER_HOSTNAMES": "a,b,c,d", "JOB_COMPLETION_INDEX": "3", "TORCH_TPU_TOPOLOGY": "4,4,1"}

    @pytest.mark.parametrize(
        "environment",
        [
            HOSTS,
            HOSTS | {"NNODES": "4", "NODE_RANK": "3", "TORCH_TPU_XPROF_SESSION_ID": "1"},
            HOSTS | {"TORCH_TPU_TOPOLOGY": "4x4"},
            HOSTS | {"TORCH_TPU_SLICEBUILDER_ADDRESSES": ",".join(f"{h}:{8070 + i}" for h in "abcd" for i in range(4))},
            {"TPU_WORKER_HOSTNAMES": "localhost"},
            {"TORCH_TPU_TOPOLOGY": "2,2,1", "TORCH_TPU_SLICEBUILDER_ADDRESSES": ",".join(["localhost:1"] * 4)},
        ],
    )
    def test_variables_that_agree(self, environment: dict[str, str]) -> None:
        line = self.lines(**environment)["launch-variables"]
        assert line.status is PASSED, line.found

    @pytest.mark.parametrize(
        ("change", "says"),
        [
            ({"TORCH_TPU_TOPOLOGY": None}, "TORCH_TPU_TOPOLOGY is not set"),
            ({"TORCH_TPU_TOPOLOGY": "2,2,1"}, "4 chips, 4 hosts have 16"),
            ({"TORCH_TPU_TOPOLOGY": "big"}, "'big', not chips"),
            ({"TPU_WORKER_HOSTNAMES": None}, "torch_tpu raises"),
            ({"TPU_WORKER_HOSTNAMES": "a,b,c,WARNING: none"}, "not a host name"),
            ({"JOB_COMPLETION_INDEX": "4"}, "0 to 3"),
            ({"JOB_COMPLETION_INDEX": "one"}, "'one'"),
            ({"JOB_COMPLETION_INDEX": None, "TORCH_TPU_TOPOLOGY": None}, "which this is"),
            ({"NNODES": "2"}, "NNODES is 2, TPU_WORKER_HOSTNAMES has 4 hosts"),
            ({"NODE_RANK": "4"}, "NODE_RANK is 4, of 4 hosts"),
            ({"TORCH_TPU_SLICEBUILDER_ADDRESSES": "a:1,localhost:2"}, "has localhost, the hosts are a, b, c, d"),
            ({"TORCH_TPU_SLICEBUILDER_ADDRESSES": "a:1,b:2"}, "2 addresses, the topology 16 devices"),
            ({"TORCH_TPU_SLICEBUILDER_ADDRESSES": "a"}, "not a list of host:port"),
        ],
    )
    def test_variables_at_odds(self, change: dict[str, str | None], says: str) -> None:
        environment = {name: value for name, value in (self.HOSTS | change).items() if value is not None}
        line = self.lines(**environment)["launch-variables"]
        assert (line.status, line.code) == (FAILED, "TPP926")
        assert says in line.found

    def test_the_topology_of_another_host(self, tmp_path: Path) -> None:
        root = bus(tmp_path, *[V6E] * 4)
        line = self.lines("tpu", root, TORCH_TPU_TOPOLOGY="2,4,1")["launch-variables"]
        assert line.status is FAILED and "8 devices, this host has 4" in line.found
        assert self.lines("tpu", root, TORCH_TPU_TOPOLOGY="2,2,1")["launch-variables"].status is PASSED

    def test_devices_of_v7_are_two_a_chip(self) -> None:
        addresses = ",".join(["localhost:1"] * 8)
        both = {"TORCH_TPU_TOPOLOGY": "2,2,1,2", "TORCH_TPU_SLICEBUILDER_ADDRESSES": addresses}
        assert self.lines("tpu-v7", **both)["launch-variables"].status is PASSED
        assert self.lines("tpu-v6e", **both)["launch-variables"].status is FAILED


@pytest.fixture
def taken() -> Iterator[int]:
    """A port of this machine on which something listens."""
    with socket.socket() as server:
        server.bind(("", 0))
        server.listen()
        yield server.getsockname()[1]


class TestResources:
    def lines(self, device: str = "tpu-v6e", root: Path = Path("/nowhere"), **environment: str) -> dict[str, Line]:
        return by_name(resource_lines(a_machine(device, root, **environment)))

    def chips(self, root: Path) -> Path:
        (root / "dev/vfio").mkdir(parents=True)
        for name in ("0", "1", "vfio"):
            (root / "dev/vfio" / name).touch()
        return root

    def test_a_chip_that_a_process_has_open(self, tmp_path: Path) -> None:
        root = self.chips(tmp_path)
        assert self.lines(root=root)["chips-free"].status is PASSED
        for pid, file in ((4242, "/dev/vfio/1"), (4243, "/dev/vfio/vfio"), (os.getpid(), "/dev/vfio/0")):
            (root / f"proc/{pid}/fd").mkdir(parents=True)
            (root / f"proc/{pid}/fd/7").symlink_to(file)
        line = self.lines(root=root)["chips-free"]
        assert (line.status, line.code, line.fix) == (FAILED, "TPP924", "end it: kill 4242")
        assert line.found == "process 4242 has /dev/vfio/1"

    def test_a_lock_that_a_process_holds(self, tmp_path: Path) -> None:
        root = self.chips(tmp_path)
        (root / "tmp").mkdir()
        (root / "proc").mkdir()
        (root / "proc/locks").symlink_to("/proc/locks")
        with (root / "tmp/libtpu_lockfile").open("w") as lock:
            assert self.lines(root=root)["chips-free"].status is PASSED, "a file alone holds nothing"
            fcntl.flock(lock, fcntl.LOCK_EX)
            line = self.lines(root=root)["chips-free"]
        assert (line.status, line.code) == (FAILED, "TPP924")
        assert line.found == f"process {os.getpid()} has /tmp/libtpu_lockfile"

    def test_processes_that_may_not_be_read_are_said(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        root = self.chips(tmp_path)
        (root / "proc/4242/fd").mkdir(parents=True)
        iterdir = Path.iterdir

        def refuse(path: Path) -> Iterator[Path]:
            if path.name == "fd":
                raise PermissionError(13, "Permission denied")
            return iterdir(path)

        monkeypatch.setattr(Path, "iterdir", refuse)
        line = self.lines(root=root)["chips-free"]
        assert line.status is SKIPPED and "open files of 1 processes" in line.found

    def test_without_chips_or_in_a_rank_there_is_nothing_to_hold(self, tmp_path: Path) -> None:
        assert self.lines(root=tmp_path)["chips-free"].status is SKIPPED
        rank = self.lines(root=self.chips(tmp_path), RANK="0", TORCHELASTIC_RUN_ID="none")
        assert rank["chips-free"].status is rank["master-port"].status is rank["slice-ports"].status is SKIPPED

    def test_the_allocator(self, tmp_path: Path) -> None:
        assert self.lines(root=tmp_path)["allocator"].status is SKIPPED
        maps = tmp_path / "proc/self/maps"
        maps.parent.mkdir(parents=True)
        maps.write_text("7f0 r-xp /usr/lib/x86_64-linux-gnu/libc.so.6\n")
        line = self.lines(root=tmp_path, LD_PRELOAD="/no/libtcmalloc.so.4")["allocator"]
        assert (line.status, line.code) == (FAILED, "TPP928")
        assert "though LD_PRELOAD is /no/libtcmalloc.so.4" in line.found
        maps.write_text("7f0 r-xp /usr/lib/x86_64-linux-gnu/libtcmalloc_minimal.so.4\n")
        assert self.lines(root=tmp_path)["allocator"].status is PASSED
        assert self.lines("cpu", tmp_path)["allocator"].status is SKIPPED

    @pytest.mark.parametrize(("free", "status"), [(2**40, PASSED), (2**20, FAILED), (None, SKIPPED)])
    def test_memory(self, monkeypatch: pytest.MonkeyPatch, free: int | None, status: LineStatus) -> None:
        monkeypatch.setattr("tpplan.doctor.resources.available_bytes", lambda: free)
        line = self.lines()["memory"]
        assert (line.status, line.code) == (status, "TPP931" if status is FAILED else "")

    def test_memory_is_for_a_process_on_each_device(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.setattr("tpplan.doctor.resources.available_bytes", lambda: 500 * 2**20)
        assert self.lines("tpu", tmp_path)["memory"].status is PASSED
        assert self.lines("tpu", bus(tmp_path, *[V6E] * 4))["memory"].status is FAILED

    def test_the_port_where_ranks_meet(self, taken: int) -> None:
        line = self.lines("cpu", MASTER_PORT=str(taken))["master-port"]
        assert (line.status, line.code) == (FAILED, "TPP930")
        assert line.found == f"port {taken} is taken"
        other = line.fix.partition("=")[2].split()[0]
        assert self.lines("cpu", MASTER_PORT=other)["master-port"].status is PASSED, "the port of the fix is free"
        assert self.lines("cpu", MASTER_PORT=other, MASTER_ADDR="localhost")["master-port"].status is PASSED

    @pytest.mark.parametrize("port", ["0", "70000", "x", "-1", "²"])
    def test_what_is_no_port(self, port: str) -> None:
        assert self.lines("cpu", MASTER_PORT=port)["master-port"].code == "TPP930"
        assert self.lines(TORCH_TPU_SLICEBUILDER_ADDRESSES=f"localhost:{port}")["slice-ports"].code == "TPP930"
        hosts = self.lines(TPU_WORKER_HOSTNAMES="a,b", TORCH_TPU_BASE_PORT=port)
        assert hosts["slice-ports"].code == "TPP930"

    def test_the_port_of_another_host_is_not_looked_at(self) -> None:
        line = self.lines("cpu", MASTER_ADDR="host.invalid")["master-port"]
        assert line.status is SKIPPED and "host.invalid" in line.found

    def test_the_ports_of_the_slice(self, taken: int) -> None:
        assert self.lines()["slice-ports"].status is SKIPPED
        addresses = f"host.invalid:{taken},localhost:{taken}"
        line = self.lines(TORCH_TPU_SLICEBUILDER_ADDRESSES=addresses)["slice-ports"]
        assert (line.status, line.code) == (FAILED, "TPP930")
        assert line.found == f"port {taken} is taken", "the other host's is not ours to bind"
        line = self.lines(TPU_WORKER_HOSTNAMES="a,b", TORCH_TPU_BASE_PORT=str(taken - 3))["slice-ports"]
        assert line.status is FAILED and f"port {taken} is taken" in line.found


@pytest.fixture(scope="module")
def schema() -> Draft202012Validator:
    printed = io.StringIO()
    with redirect_stdout(printed):
        assert main(["schema", "doctor"]) == 0
    document = json.loads(printed.getvalue())
    Draft202012Validator.check_schema(document)
    return Draft202012Validator(document)


class TestDiagnosis:
    """All of it together: exit codes, the document, the table."""

    def test_a_failed_line_is_exit_code_1(self) -> None:
        assert Diagnosis(device="cpu", lines=(passed("a", "x"),)).exit_code == 0
        assert Diagnosis(device="cpu", lines=(passed("a", "x"), failed("b", "x", code="TPP920"))).exit_code == 1

    def test_one_valid_document_and_nothing_left_behind(self, schema: Draft202012Validator) -> None:
        """A fresh process that runs the doctor has imported neither torch nor Transformers, and changed no variable."""
        code = (
            "import os, sys; from tpplan.cli import main; before = dict(os.environ)\n"
            "code = main(['doctor', '--device', 'tpu-v6e', '--format', 'json'])\n"
            "assert not {'torch', 'transformers', 'torch_tpu'} & set(sys.modules) and before == dict(os.environ)\n"
            "sys.exit(code)"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
        document = json.loads(done.stdout)
        schema.validate(document)
        failing = [line["name"] for line in document["lines"] if line["status"] == "failed"]
        assert done.returncode == (1 if failing else 0) and done.stderr == ""
        assert document["verdict"] == ("fail" if failing else "pass")
        assert document["device"] == "tpu-v6e"
        assert {"torch", "transformers"} <= document["versions"].keys()
        if not list(Path("/dev/vfio").glob("[0-9]*")):
            assert "chips" in failing

    def test_the_schema_refuses_another_shape(self, schema: Draft202012Validator) -> None:
        lines = (passed("a", "x"), failed("b", "x", code="TPP920", fix="do"))
        document = Diagnosis(device="cpu", lines=lines).to_dict()
        schema.validate(document)
        for wrong in (
            document | {"lines": []},
            document | {"device": "gpu"},
            document | {"lines": [{"name": "a", "status": "passed"}]},
            document | {"lines": [document["lines"][0] | {"code": "TPP920"}]},
            document | {"lines": [{"name": "a", "status": "not-applicable", "found": "x"}]},
            {key: value for key, value in document.items() if key != "verdict"},
        ):
            assert not schema.is_valid(wrong), wrong

    def test_the_table_has_every_line_with_its_code_and_fix(self, capsys: pytest.CaptureFixture[str]) -> None:
        from tpplan.cli.printing import write

        lines = (passed("torch", "2.13.0"), failed("chips", "none\x1b[2J", code="TPP911", fix="run it there"))
        write(rendering.as_table(Diagnosis(device="tpu", lines=lines)))
        printed = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
        assert printed == [
            "passed    torch    2.13.0",
            "failed    chips    TPP911: none\\x1b[2J",
            "                   fix: run it there",
            "1 failed  verdict  as tpu",
        ]

    def test_no_device_means_the_one_on_the_bus(self, tmp_path: Path) -> None:
        assert machine(None, root=tmp_path, timeout=1).device == "cpu"
        root = bus(tmp_path, *[V6E] * 4)
        assert machine(None, root=root, timeout=1).device == machine("tpu", root=root, timeout=1).device == "tpu-v6e"
        assert machine("cpu", root=root, timeout=1).device == "cpu"

    def test_bad_usage(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["doctor", "--device", "gpu"]) == 2
        with pytest.raises(ValueError):
            diagnose("gpu")
