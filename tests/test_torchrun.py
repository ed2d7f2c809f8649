"""`tpplan launch`: arguments and exit codes pass through; the TPU environment, of the real torch_tpu and imitated."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.support import checkpoints
from tests.support.launches import launched
from tests.support.tpu import needs_no_chips, python_with_torch_tpu
from tpplan.diagnostics import PlanError, Status
from tpplan.launch.torchrun import AUTOLOAD, launch, tpu_environment

SCRIPT = """
import json, os, signal, sys, time
directory, what = sys.argv[1:]
told = {"arguments": sys.argv[1:], "world": os.environ["WORLD_SIZE"]}
told |= {name: value for name, value in os.environ.items() if name.startswith(("TORCH_TPU", "TORCH_DEVICE", "FAKE_"))}
with open(os.path.join(directory, "rank" + os.environ["RANK"]), "w") as file:
    json.dump(told, file)
if what == "signal":
    os.kill(os.getpid(), signal.SIGKILL)
if what == "wait":
    time.sleep(120)
sys.exit(int(what) if what.isdigit() else 0)
"""

# A torch_tpu for a machine without one: torch loads it as its own, and it has what tpplan calls.
IMITATION = """
import os, sys, types
def load():
    import torch
    {load}
    torch.accelerator.device_count = lambda: {chips}
    def set_tpu_launch_env(*, nnodes=None, nproc_per_node=None):
        print("noise on stdout")
        if not {chips}:
            raise ValueError("none")
        os.environ.setdefault("TORCH_TPU_TOPOLOGY", "2,2,1")
        os.environ.setdefault("FAKE_RANKS", str(nproc_per_node))
    torch.tpu = types.SimpleNamespace(distributed=types.SimpleNamespace(set_tpu_launch_env=set_tpu_launch_env))
"""


@pytest.fixture(autouse=True)
def autoload_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the command line has it."""
    monkeypatch.setenv(AUTOLOAD, "0")


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    return path


def told(directory: Path, rank: int = 0) -> dict[str, str]:
    return json.loads((directory / f"rank{rank}").read_text())


def imitate(directory: Path, monkeypatch: pytest.MonkeyPatch, chips: int, load: str = "pass") -> None:
    """Install the imitation for this process's metadata and for its children."""
    if find_spec("torch_tpu"):
        pytest.skip("the real torch_tpu is installed here, the imitation cannot be loaded beside it")
    home = directory / "imitation"
    info = home / "torch_tpu-0.0.1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: torch_tpu\nVersion: 0.0.1\n")
    (info / "entry_points.txt").write_text("[torch.backends]\ntorch_tpu = imitated_tpu:load\n")
    (home / "imitated_tpu.py").write_text(IMITATION.format(chips=chips, load=load))
    monkeypatch.syspath_prepend(home)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(home), os.environ.get("PYTHONPATH", ""))))


def test_arguments_and_environment_pass_unchanged(script: Path, tmp_path: Path) -> None:
    assert launch(["--nproc-per-node=2", str(script), str(tmp_path), "done"], device="cpu") == 0
    for rank in (0, 1):
        assert told(tmp_path, rank) == {"arguments": [str(tmp_path), "done"], "world": "2", AUTOLOAD: "0"}


@pytest.mark.parametrize(("what", "code"), [("7", 7), ("signal", 128 + signal.SIGKILL)])
def test_the_exit_code_is_the_script_s(what: str, code: int, script: Path, tmp_path: Path) -> None:
    assert launch(["--nproc-per-node=1", str(script), str(tmp_path), what], device="cpu") == code


def test_torchrun_s_own_usage_error_is_its_own(capfd: pytest.CaptureFixture[str]) -> None:
    assert launch(["--no-such-option"], device="cpu") == 2
    assert "usage: torchrun" in capfd.readouterr().err


@pytest.mark.parametrize("option", ["--nproc-per-node=foo", "--nproc-per-node=0"])
def test_options_that_torchrun_raises_on_are_bad_usage(
    option: str, script: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert launch([option, str(script), str(tmp_path)], device="cpu") == 2
    (line,) = [line for line in capfd.readouterr().err.splitlines() if "torchrun does not take" in line]
    assert "Error" in line


def test_a_signal_ends_torchrun_and_its_script(script: Path, tmp_path: Path) -> None:
    arguments = [str(script), str(tmp_path), "wait"]
    code = f"import sys; from tpplan.launch.torchrun import launch; sys.exit(launch({arguments!r}, 'cpu'))"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "5"}
    child = subprocess.Popen([sys.executable, "-c", code], env=environment, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 120
        while not (tmp_path / "rank0").exists():
            assert child.poll() is None and time.monotonic() < deadline
            time.sleep(0.05)
        child.send_signal(signal.SIGINT)
        assert child.wait(timeout=60) == 128 + signal.SIGINT
    finally:
        child.kill()
    assert not [path for path in Path("/proc").glob("[0-9]*/cmdline") if str(script).encode() in read(path)]


def read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def test_print_env_prints_and_runs_nothing(script: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert launch([str(script), str(tmp_path), "7"], device="cpu", print_env=True) == 0
    assert capsys.readouterr().out == f"{AUTOLOAD}=0\n"
    assert not (tmp_path / "rank0").exists()


def test_chips_that_are_present_are_prepared(
    script: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    imitate(tmp_path, monkeypatch, chips=4)
    assert launch([str(script), str(tmp_path), "0"], print_env=True) == 0
    assert capsys.readouterr().out == "FAKE_RANKS=None\nTORCH_TPU_TOPOLOGY=2,2,1\n"
    assert launch([str(script), str(tmp_path), "0"]) == 0
    assert told(tmp_path)["TORCH_TPU_TOPOLOGY"] == "2,2,1"
    assert AUTOLOAD not in told(tmp_path)


def test_ranks_on_a_tpu_get_the_launch_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole way of --device tpu, with an imitation whose ranks then compute on cpu."""
    name = f"{str(tmp_path / 'loaded')!r} + os.environ['RANK'] + os.environ.get('FAKE_RANKS', '-')"
    imitate(tmp_path, monkeypatch, chips=4, load=f"'RANK' in os.environ and os.mkdir({name})")
    model = checkpoints.llama(tmp_path / "model")
    report = launched(str(model), 2, device="tpu-v5p")
    assert report.diagnostics == ()
    assert report.stages["launch"].status is Status.PASSED
    assert sorted(path.name for path in tmp_path.glob("loaded*")) == ["loaded02", "loaded12"]


def test_without_chips_nothing_is_set(script: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    imitate(tmp_path, monkeypatch, chips=0)
    assert launch([str(script), str(tmp_path), "0"]) == 0
    assert told(tmp_path).keys() == {"arguments", "world", AUTOLOAD}


def test_a_torch_tpu_that_does_not_load_is_a_finding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    imitate(tmp_path, monkeypatch, chips=4, load="raise OSError('libtpu is broken')")
    with pytest.raises(PlanError) as error:
        tpu_environment()
    [diagnostic] = error.value.report.diagnostics
    assert diagnostic.code == "TPP912"
    assert "torch_tpu 0.0.1" in diagnostic.evidence


@pytest.mark.skipif(find_spec("torch_tpu") is not None, reason="torch_tpu is installed")
def test_without_torch_tpu_a_tpu_is_refused(script: Path, tmp_path: Path) -> None:
    with pytest.raises(PlanError) as error:
        launch([str(script), str(tmp_path), "0"], device="tpu")
    assert [diagnostic.code for diagnostic in error.value.report.diagnostics] == ["TPP910"]
    model = checkpoints.llama(tmp_path / "model")
    report = launched(str(model), 2, device="tpu")
    assert [diagnostic.code for diagnostic in report.diagnostics] == ["TPP910"]
    assert report.stages["launch"].status is Status.NOT_RUN
    assert report.exit_code == 1


def test_the_real_torch_tpu_without_a_chip_is_a_finding(tmp_path: Path) -> None:
    """In this interpreter where it has torch_tpu, else in the one that TPPLAN_TPU_PYTHON names."""
    python = python_with_torch_tpu()
    needs_no_chips()
    model = checkpoints.llama(tmp_path / "model")
    code = (
        "import json; from tests.support.launches import launched\n"
        f"report = launched({str(model)!r}, 2, device='tpu')\n"
        "print(json.dumps(report.to_dict() | {'exit_code': report.exit_code}))"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(launch.__code__.co_filename).parent.parent)}
    done = subprocess.run([python, "-c", code], env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert [diagnostic["code"] for diagnostic in report["diagnostics"]] == ["TPP911"]
    assert "ValueError" in report["diagnostics"][0]["evidence"]
    assert report["stages"]["launch"]["status"] == "not-run"
    assert report["exit_code"] == 1
    assert "torch_tpu" in report["versions"]
