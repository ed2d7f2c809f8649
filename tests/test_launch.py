"""Real ranks over gloo on tiny checkpoints: right and wrong plans, every way a launch ends, and nothing left behind."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

import tpplan
from tests.support import checkpoints
from tests.support.launches import launched
from tests.support.time_limit import within
from tpplan import api
from tpplan.diagnostics import InputError, Report, Status
from tpplan.launch import checkpoint as launch_checkpoint
from tpplan.launch import verify as launch_verify
from tpplan.launch.records import LaunchPhase, RankResult, read_result
from tpplan.launch.run import Launch
from tpplan.model.skeleton import known_styles
from tpplan.plan_files.document import ModelFacts, Plan, Target

ATTENTION = [f"model.layers.*.self_attn.{name}_proj" for name in "qkvo"]


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkpoints.llama(tmp_path_factory.mktemp("llama"))


@pytest.fixture(scope="module")
def glm4(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkpoints.glm4(tmp_path_factory.mktemp("glm4"))


@pytest.fixture(scope="module")
def odd_heads(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """3 key/value heads, which are one and a half on each of 2 ranks, as GLM-4's 2 are a half on each of 4."""
    return checkpoints.glm4(tmp_path_factory.mktemp("odd"), num_attention_heads=6, num_key_value_heads=3)


@pytest.fixture(autouse=True)
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where launches have their temporary files. After each test it is empty, and no process knows of it."""
    directory = tmp_path / "scratch"
    directory.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(directory))
    monkeypatch.setenv("TORCH_DEVICE_BACKEND_AUTOLOAD", "0")
    yield directory
    assert processes_that_know(directory) == []
    assert list(directory.iterdir()) == []


@pytest.fixture
def no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine on which the unsharded model does not fit."""
    monkeypatch.setattr(launch_checkpoint, "available_bytes", lambda: 0)


def processes_that_know(directory: Path) -> list[str]:
    """Command lines of the processes with the directory in their environment."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if str(directory).encode() in (process / "environ").read_bytes():
                found.append((process / "cmdline").read_text().replace("\0", " "))
        except OSError:
            continue
    return found


def plan(model: Path, tp_size: int, overrides: dict[str, str], **target: Any) -> Plan:
    config = json.loads((model / "config.json").read_text())
    facts = ModelFacts(id=str(model), auto_class="AutoModelForCausalLM", config=config)
    return Plan(model=facts, target=Target(tp_size=tp_size, **target), overrides=overrides)


def codes(report: Report) -> list[str]:
    """Codes of the diagnostics, after the checks that hold for every report of a launch."""
    schema = api.schema("report")
    jsonschema.validate(report.to_dict(), schema)
    json.dumps(report.to_dict(), allow_nan=False)
    assert list(report.stages) == ["launch"]
    return [diagnostic.code for diagnostic in report.diagnostics]


def agrees(report: Report, given: Plan, shapes: str, numerics: str) -> None:
    """The stages before the launch, on the same plan: shapes and numerics each say what it is given here."""
    checked = tpplan.check(given)
    found = [str(checked.stages[name].status) for name in ("shapes", "numerics")]
    assert found == [shapes, numerics], [one.to_dict() for one in checked.diagnostics]
    assert (checked.exit_code == 0) == (report.exit_code == 0)


def when_rank_is_there(scratch: Path, rank: int, act: Callable[[RankResult], None]) -> threading.Thread:
    """Call `act` with the first result of a rank, from another thread."""

    def watch() -> None:
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            for path in scratch.glob(f"tpplan-launch-*/rank-{rank}.json"):
                act(read_result(path))
                return
            time.sleep(0.02)

    thread = threading.Thread(target=watch)
    thread.start()
    return thread


def test_glm4_at_tp_4_is_repaired_and_right(glm4: Path) -> None:
    heard: list[tuple[str, float]] = []
    report = launched(str(glm4), 4, progress=lambda what, done: heard.append((what, done)))
    assert codes(report) == []
    assert report.exit_code == 0
    assert set(report.overrides) >= set(ATTENTION)
    assert [rank["rank"] for rank in report.ranks] == [0, 1, 2, 3]
    for rank in report.ranks:
        assert rank["parameter_bytes"] == rank["predicted_bytes"] > 0
        assert rank["logits_error"] < 1e-5
        assert rank["tokens_equal"] is True and len(set(rank["tokens"])) > 1
        assert rank["load_seconds"] > 0 and rank["peak_bytes"] > 50 * 2**20
    assert "4 ranks, logits within" in report.stages["launch"].reason
    assert {what.split(":")[0] for what, _ in heard} == {"unsharded model", "4 ranks"}
    assert all(0 <= done <= 1 for _, done in heard)


def test_heads_that_do_not_divide_raise_in_the_forward(odd_heads: Path) -> None:
    given = plan(odd_heads, 2, {})
    report = launched(given)
    assert codes(report) == ["TPP510"]
    agrees(report, given, "failed", "not-run")
    assert report.exit_code == 1 and report.stages["launch"].status is Status.FAILED
    [diagnostic] = report.diagnostics
    assert diagnostic.message == "both ranks raised RuntimeError in forward"
    assert "shape '[1, 12, -1, 8]' is invalid" in diagnostic.evidence
    assert "modeling_glm4.py" in diagnostic.evidence


def test_gradients_of_summed_replicas_are_tp_size_times_too_large(glm4: Path) -> None:
    overrides = dict.fromkeys(ATTENTION, "replicated_with_grad_allreduce")
    report = launched(plan(glm4, 2, overrides, purpose="training"))
    assert codes(report) == ["TPP516"]
    [diagnostic] = report.diagnostics
    assert diagnostic.message == "the gradients of 14 parameters are 2 times the unsharded ones"
    cure = f"give the style `replicate` to {', '.join(sorted(ATTENTION))}"
    assert diagnostic.fix == (cure if "replicate" in known_styles() else "")
    assert [rank["logits_error"] < 1e-5 and rank["tokens_equal"] for rank in report.ranks] == [True] * 2
    agrees(report, plan(glm4, 2, overrides, purpose="training"), "passed", "failed")


def test_keys_and_values_alone_are_wrong_numbers(llama: Path) -> None:
    given = plan(llama, 2, dict.fromkeys(ATTENTION[1:3], "colwise_gather_output"))
    report = launched(given)
    assert codes(report) == ["TPP514"]
    agrees(report, given, "passed", "failed")
    assert report.diagnostics[0].message == "the logits on both ranks are not the unsharded model's"
    assert [rank["logits_error"] > 0.1 for rank in report.ranks] == [True] * 2


def test_training_with_the_model_s_own_plan_is_right(llama: Path) -> None:
    report = launched(str(llama), 2, purpose="training")
    assert codes(report) == []
    assert report.overrides == {}
    agrees(report, plan(llama, 2, {}, purpose="training"), "passed", "passed")
    assert [rank["gradients_error"] < 1e-4 for rank in report.ranks] == [True] * 2


def test_a_miniature_is_launched_where_there_are_no_weights(llama: Path, tmp_path: Path) -> None:
    model = tmp_path / "config-only"
    model.mkdir()
    shutil.copy(llama / "config.json", model)
    saved = []

    def save(subject: Any, directory: Path) -> Path:
        saved.append(subject)
        return checkpoints.llama(directory, num_hidden_layers=1)

    report = launched(str(model), 2, miniature_dir=save)
    assert codes(report) == ["TPP520"]
    assert report.exit_code == 0
    assert saved[0].spec.source.name == report.model == str(model)
    assert len(report.ranks) == 2
    for rank in report.ranks:
        assert rank["tokens_equal"] is True
        assert rank["parameter_bytes"] == rank["predicted_bytes"]


def test_a_killed_rank_is_named(llama: Path, scratch: Path, no_room: None) -> None:
    killer = when_rank_is_there(scratch, 1, lambda result: os.kill(result.pid, signal.SIGKILL))
    report = launched(str(llama), 2)
    killer.join()
    assert codes(report) == ["TPP511", "TPP518"]
    assert report.diagnostics[0].message.startswith("SIGKILL ended rank 1 of 2 in ")
    assert report.exit_code == 1


def test_ranks_whose_numbers_were_compared_with_nothing_did_not_pass(
    llama: Path, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The unsharded model fits, and its process is killed: the ranks run, and nothing says that they are right."""
    monkeypatch.setattr(Launch, "run_unsharded", lambda self: (None, [self.not_compared("SIGKILL ended it")]))
    report = launched(str(llama), 2)
    assert codes(report) == ["TPP518"] and [bool(rank["tokens"]) for rank in report.ranks] == [True] * 2
    assert (report.verdict, report.exit_code) == ("incomplete", 1)
    assert report.stages["launch"].reason.startswith("nothing was compared; the ranks ran: 2 ranks, ")


@pytest.mark.parametrize("endpoint", ["", "no such host:x", "host:"])
def test_a_place_to_meet_that_is_none(llama: Path, endpoint: str) -> None:
    with pytest.raises(InputError, match="rdzv_endpoint is"):
        launched(str(llama), 2, nnodes=2, rdzv_endpoint=endpoint)


def test_a_rank_that_hangs_is_named_when_time_is_up(llama: Path, scratch: Path, no_room: None) -> None:
    stopper = when_rank_is_there(scratch, 1, lambda result: os.kill(result.pid, signal.SIGSTOP))
    with within(120):  # a stopped rank never ends by itself
        report = launched(str(llama), 2, timeout=15)
    stopper.join()
    assert codes(report) == ["TPP512", "TPP518"]
    hang = report.diagnostics[0]
    assert hang.message.startswith("rank 1 of 2 did not finish ")
    assert hang.message.endswith(" within 15 s, and all were ended")
    assert "stopped by a signal" in hang.evidence
    assert "rank 0 in " in hang.evidence


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=lambda number: number.name)
def test_nothing_outlives_the_caller(number: signal.Signals, llama: Path, scratch: Path) -> None:
    code = (
        "from tpplan.launch import checkpoint; from tests.support.launches import launched\n"
        "checkpoint.available_bytes = lambda: 0\n"
        f"launched({str(llama)!r}, 2)"
    )
    environment = {**os.environ, "TMPDIR": str(scratch), "PYTHONPATH": os.pathsep.join(sys.path)}
    child = subprocess.Popen([sys.executable, "-c", code], env=environment, stderr=subprocess.PIPE)

    def stop_rank_and_end_caller(result: RankResult) -> None:
        os.kill(result.pid, signal.SIGSTOP)  # so that no rank comes to its end by itself
        child.send_signal(number)

    when_rank_is_there(scratch, 1, stop_rank_and_end_caller).join()
    try:
        child.communicate(timeout=60)
    finally:
        child.kill()
    assert child.returncode != 0
    if number is signal.SIGKILL:  # it can clean up nothing, but the kernel ends its children
        deadline = time.monotonic() + 20
        while processes_that_know(scratch) and time.monotonic() < deadline:
            time.sleep(0.1)
        for directory in scratch.glob("tpplan-launch-*"):
            shutil.rmtree(directory)
    if number is signal.SIGTERM:
        assert child.returncode == 128 + signal.SIGTERM


def test_two_hosts_meet_at_the_endpoint(llama: Path, scratch: Path, no_room: None) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        endpoint = f"127.0.0.1:{free.getsockname()[1]}"
    code = (
        "from tpplan.launch import checkpoint; from tests.support.launches import launched\n"
        "checkpoint.available_bytes = lambda: 0\n"
        f"report = launched({str(llama)!r}, 2, nnodes=2, node_rank=1, "
        f"rdzv_endpoint={endpoint!r}, timeout=90)\n"
        "import json; print(json.dumps(report.to_dict()))"
    )
    environment = {**os.environ, "TMPDIR": str(scratch), "PYTHONPATH": os.pathsep.join(sys.path)}
    other = subprocess.Popen([sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE)
    report = launched(str(llama), 2, nnodes=2, rdzv_endpoint=endpoint, timeout=90)
    there = json.loads(other.communicate(timeout=120)[0])
    assert codes(report) == ["TPP518"]
    assert [rank["rank"] for rank in report.ranks] == [0]
    assert [rank["rank"] for rank in there["ranks"]] == [1]
    assert report.ranks[0]["phase"] == there["ranks"][0]["phase"] == LaunchPhase.DONE
    assert report.ranks[0]["tokens"] == there["ranks"][0]["tokens"]
    assert report.ranks[0]["tokens_equal"] is None


def test_a_checkpoint_that_does_not_load_unsharded_says_nothing_about_the_plan(llama: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(llama, other)
    config = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps(config | {"intermediate_size": 80}))  # the weights have 96
    report = launched(plan(other, 2, {}))
    assert codes(report) == ["TPP521"]
    assert "raises in load" in report.diagnostics[0].message
    assert (report.verdict, report.exit_code) == ("incomplete", 1)
    assert report.stages["launch"].status is Status.NOT_RUN and report.exit_code == 1


def test_ranks_that_cannot_fit_are_not_started(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch_verify, "available_bytes", lambda: 2**20)
    report = launched(plan(llama, 2, {}))
    assert codes(report) == ["TPP523"]
    assert report.stages["launch"].status is Status.NOT_RUN


def test_a_quantized_checkpoint_is_not_run(llama: Path, tmp_path: Path) -> None:
    quantized = tmp_path / "quantized"
    shutil.copytree(llama, quantized)
    config = json.loads((quantized / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "fp8", "weight_block_size": [8, 8]}
    (quantized / "config.json").write_text(json.dumps(config))
    report = launched(str(quantized), 2)
    assert codes(report) == []
    assert report.stages["launch"].status is Status.NOT_RUN
    assert "quantized (fp8)" in report.stages["launch"].reason
    assert report.exit_code == 1


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"nnodes": 3, "rdzv_endpoint": "a:1"}, "not spread over 3 hosts evenly"),
        ({"nnodes": 2}, "several hosts need a place to meet"),
        ({"nnodes": 2, "node_rank": 2, "rdzv_endpoint": "a:1"}, "node_rank is 2 of 2"),
        ({"timeout": 0}, "timeout is 0"),
    ],
    ids=["hosts", "endpoint", "node_rank", "timeout"],
)
def test_calls_that_make_no_sense_are_refused(llama: Path, options: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=f"TPP130.*{words}"):
        launched(plan(llama, 2, {}), **options)
