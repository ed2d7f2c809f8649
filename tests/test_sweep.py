"""The sweep's own machinery on one small model; the full sweep with `-m sweep`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.shared import UNSET, collection
from tests.support.time_limit import within
from tests.sweep import children, summary
from tests.sweep.agreement import Agreement, Holding, compare, holding
from tests.sweep.cases import Case, chosen, config_cases

REPOSITORY = Path(__file__).parents[1]

LLAMA = {
    "model_type": "llama",
    "vocab_size": 96,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "architectures": ["LlamaForCausalLM"],
}


@pytest.fixture
def configs(tmp_path: Path) -> Path:
    directory = tmp_path / "configs"
    directory.mkdir()
    (directory / "b.json").write_text(json.dumps(LLAMA))
    (directory / "a.json").write_text(json.dumps(LLAMA | {"num_key_value_heads": 8}))
    (directory / "other.json").write_text(json.dumps({"model_type": "gpt2"}))
    gptq = {"quant_method": "gptq", "bits": 4, "group_size": 32}
    (directory / "quantized.json").write_text(json.dumps(LLAMA | {"quantization_config": gptq}))
    return directory


def sweep(*arguments: object) -> subprocess.CompletedProcess:
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tests.sweep", *map(str, arguments)]
    return subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True)


def test_a_sweep_judges_repairs_and_resumes(configs: Path, tmp_path: Path) -> None:
    arguments = (
        "--kind",
        "configs",
        "--configs",
        configs,
        "--only",
        "b",
        "--tp",
        2,
        "--tp",
        4,
        "--results",
        tmp_path / "out",
    )
    done = sweep(*arguments)
    assert done.returncode == 0, done.stderr
    assert "agreement: 2 same" in done.stdout and "1 repair holds" in done.stdout
    by_size = {record["tp_size"]: record for record in summary.read(tmp_path / "out" / "results.jsonl")}
    assert by_size[2]["check"]["verdict"] == "pass" and by_size[2]["oracle"]["status"] == "runs"
    assert by_size[4]["check"]["verdict"] == "fail" and by_size[4]["oracle"]["module"] == "model.layers.0.self_attn"
    assert by_size[4]["repair"]["stages"]["numerics"][0] == "passed" and by_size[4]["oracle_repair"]["status"] == "runs"
    again = sweep(*arguments)
    assert again.stdout == done.stdout and "b tp" not in again.stderr


def test_configs_are_asked_for_where_there_are_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sweep of nothing would be a success of nothing."""
    monkeypatch.delenv("TPPLAN_SHARED", raising=False)
    done = sweep("--kind", "configs", "--results", tmp_path / "out")
    assert done.returncode == 2 and "needs --configs" in done.stderr


def test_the_oracle_shares_no_code_with_what_it_judges() -> None:
    source = (REPOSITORY / "tests" / "sweep" / "oracle.py").read_text()
    imports = [line.split() for line in source.splitlines() if line.strip().startswith(("import ", "from "))]
    assert imports and not [words for words in imports if "tpplan" in words[1] or words[1].startswith(".")]


def test_cases_of_new_model_types_come_first(configs: Path) -> None:
    assert [case.name for case in config_cases(configs)] == ["a", "other", "b", "quantized"]


def test_a_sample_is_the_same_each_time() -> None:
    cases = [Case(name=f"case {number}", model_type="llama") for number in range(20)]
    assert chosen(cases, "case 1*", 4) == chosen(cases, "case 1*", 4)
    assert len(chosen(cases, "case 1*", 4)) == 4
    assert chosen(cases, "gpt2", None) == []


def test_a_child_that_dies_or_hangs_is_recorded(tmp_path: Path) -> None:
    def dies():
        yield 1
        os.kill(os.getpid(), signal.SIGKILL)

    def raises():
        yield 1
        raise RuntimeError("of the child")

    def hangs():
        yield 1
        while True:
            pass

    for work, words in ((dies, "ended with -9"), (raises, "of the child"), (hangs, "timeout")):
        limits = children.Limits(seconds=5.0 if work is hangs else 120.0)
        with within(240):
            child = children.run(work, 2, limits, tmp_path / "log")
        assert child.said == [1] and words in child.failure
    whole = children.run(lambda: [1, 2], 2, children.Limits(), tmp_path / "log")
    assert whole.said == [1, 2] and not whole.failure and whole.peak_mib


def test_the_oracle_judges_the_structure_of_a_quantized_checkpoint(configs: Path, tmp_path: Path) -> None:
    arguments = ("--kind", "configs", "--configs", configs, "--only", "quantized", "--results", tmp_path / "out")
    done = sweep(*arguments, "--tp", 2, "--tp", 4)
    assert done.returncode == 0 and "agreement: 2 same" in done.stdout, done.stdout + done.stderr
    halves, quarters = sorted(summary.read(tmp_path / "out" / "results.jsonl"), key=lambda record: record["tp_size"])
    assert (halves["check"]["verdict"], halves["check"]["structure"], halves["oracle"]["status"]) == (
        "fail",
        "pass",
        "runs",
    )
    assert quarters["check"]["structure"] == "fail" and quarters["oracle"]["status"] == "raises"


@pytest.mark.parametrize(
    ("verdict", "status", "agreement"),
    [
        ("pass", "runs", Agreement.SAME),
        ("pass", "raises", Agreement.FALSE_PASS),
        ("pass", "wrong-width", Agreement.FALSE_PASS),
        ("pass", "unsharded-raises", Agreement.FALSE_PASS),
        ("fail", "raises", Agreement.SAME),
        ("fail", "runs", Agreement.FALSE_FAIL),
        ("fail", "unsharded-raises", Agreement.MOOT),
        ("incomplete", "unsharded-raises", Agreement.SAME),
        ("incomplete", "runs", Agreement.NOT_RUN),
        ("refused", "refused", Agreement.SAME),
        ("refused", "runs", Agreement.REFUSED),
        ("crash", "runs", Agreement.BROKEN),
        ("pass", "timeout", Agreement.NO_ORACLE),
    ],
)
def test_agreement(verdict: str, status: str, agreement: Agreement) -> None:
    assert compare(verdict, status) is agreement


@pytest.mark.parametrize(
    ("verdict", "repaired", "status", "held"),
    [
        ("pass", True, "runs", Holding.HOLDS),
        ("pass", False, "runs", Holding.PROVEN),
        ("pass", True, "raises", Holding.FAILS),
        ("pass", True, None, Holding.NO_ORACLE),
        ("fail", True, None, Holding.NONE),
        ("incomplete", False, "runs", Holding.INCOMPLETE),
        ("crash", False, None, Holding.BROKEN),
    ],
)
def test_holding(verdict: str, repaired: bool, status: str | None, held: Holding) -> None:
    assert holding(verdict, repaired, status) is held


@pytest.mark.sweep
@pytest.mark.parametrize("purpose", ["inference", "training"])
@pytest.mark.parametrize("kind", ["configs", "architectures"])
def test_every_case_agrees_with_the_oracle(tmp_path: Path, kind: str, purpose: str) -> None:
    if kind == "configs" and collection() is None:
        pytest.skip(UNSET)
    done = sweep("--kind", kind, "--purpose", purpose, "--results", tmp_path)
    assert done.returncode == 0, done.stderr
    records = summary.read(tmp_path / "results.jsonl")
    assert len(records) > 100
    bad = [
        record
        for record in records
        if record.get("agreement") in (Agreement.FALSE_PASS, Agreement.FALSE_FAIL, Agreement.BROKEN)
        or record.get("holding") in (Holding.FAILS, Holding.BROKEN)
    ]
    assert not bad, done.stdout
