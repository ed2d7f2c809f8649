"""`check --format json`: exactly one document on stdout, valid against report.schema.json, whatever happens."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from tests.support import configs
from tests.support.subjects import rules
from tpplan import api
from tpplan.cli import main
from tpplan.diagnostics import Diagnostic, Place, Report
from tpplan.plan_files.document import ModelFacts, Plan, Target
from tpplan.rendering import as_json

SUMMED = "replicated_with_grad_allreduce"


@pytest.fixture(scope="module")
def schema(request: pytest.FixtureRequest) -> Draft202012Validator:
    """The schema as a user gets it."""
    import contextlib
    import io

    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        assert main(["schema", "report"]) == 0
    document = json.loads(printed.getvalue())
    Draft202012Validator.check_schema(document)
    return Draft202012Validator(document)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    configs.write(tmp_path / "llama", configs.llama())
    configs.write(tmp_path / "unplanned", configs.gpt2_xl(n_embd=64, n_head=4, n_layer=1))
    configs.write(tmp_path / "unknown", configs.llama(model_type="lama"))
    facts = ModelFacts(id="llama", auto_class="AutoModelForCausalLM", config=configs.llama())
    plans = {"good": rules("qkvo", SUMMED), "bad": rules("kv", SUMMED), "stray": {"q_proj": SUMMED}}
    for name, overrides in plans.items():
        plan = Plan(model=facts, target=Target(tp_size=4), overrides=overrides)
        (tmp_path / f"{name}.yaml").write_text(plan.to_yaml(), encoding="utf-8")
    (tmp_path / "broken.yaml").write_text("version: [1\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "exit_code", "verdict", "codes"),
    [
        ("llama --tp-size 2", 0, "pass", []),
        ("llama --tp-size 2 --depth static", 0, "pass", []),
        ("llama --tp-size 2 --depth numerics --purpose training", 0, "pass", []),
        ("llama --tp-size 4", 1, "fail", ["TPP301"]),
        ("good.yaml", 0, "pass", ["TPP305"]),
        ("bad.yaml", 1, "fail", ["TPP206"]),
        ("stray.yaml", 1, "fail", ["TPP201", "TPP207", "TPP301"]),
        ("unplanned --tp-size 2", 1, "fail", ["TPP205", "TPP312"]),
        ("unknown --tp-size 2", 2, "incomplete", ["TPP111"]),
        ("broken.yaml", 2, "incomplete", ["TPP102"]),
        ("missing.yaml", 2, "incomplete", ["TPP101"]),
        ("no/such/model/here --tp-size 2", 2, "incomplete", ["TPP110"]),
        ("llama", 2, "incomplete", ["TPP130"]),
        ("llama --tp-size 0", 2, "incomplete", ["TPP130"]),
        ("llama --tp-size two", 2, "incomplete", ["TPP130"]),
        ("llama --tp-size 2 --device gpu", 2, "incomplete", ["TPP130"]),
        ("llama --tp-size 2 --no-such-option", 2, "incomplete", ["TPP130"]),
        ("--tp-size 2", 2, "incomplete", ["TPP130"]),
    ],
)
def test_one_valid_document(
    folder: Path,
    schema: Draft202012Validator,
    capsys: pytest.CaptureFixture,
    arguments: str,
    exit_code: int,
    verdict: str,
    codes: list[str],
) -> None:
    assert main(["check", *arguments.split(), "--format", "json"]) == exit_code
    printed = capsys.readouterr()
    document = json.loads(printed.out)
    schema.validate(document)
    assert document["verdict"] == verdict
    assert sorted({diagnostic["code"] for diagnostic in document["diagnostics"]}) == codes
    assert printed.err == "", "what is wrong is in the document"


def test_the_same_input_gives_the_same_bytes(folder: Path, capsys: pytest.CaptureFixture) -> None:
    outputs = []
    for _ in range(2):
        main(["check", "llama", "--tp-size", "4", "--format", "json"])
        document = json.loads(capsys.readouterr().out)
        for stage in document["stages"].values():
            del stage["seconds"]
        outputs.append(json.dumps(document))
    assert outputs[0] == outputs[1]


def test_the_schema_refuses_another_shape(schema: Draft202012Validator) -> None:
    report = Report(model="m", diagnostics=(Diagnostic(code="TPP301", message="x", where=Place(line=1)),)).to_dict()
    schema.validate(report)
    for wrong in (
        report | {"verdict": "maybe"},
        report | {"extra": 1},
        {key: value for key, value in report.items() if key != "stages"},
        report | {"stages": {"shape": {"status": "passed", "seconds": 0}}},
        report | {"diagnostics": [report["diagnostics"][0] | {"severity": "fatal"}]},
        report | {"bytes_per_rank": {"parameters": 1}},
    ):
        assert not schema.is_valid(wrong), wrong


def test_the_document_is_the_report_of_the_library(folder: Path, capsys: pytest.CaptureFixture) -> None:
    main(["check", "llama", "--tp-size", "4", "--depth", "static", "--format", "json"])
    printed, called = json.loads(capsys.readouterr().out), json.loads(as_json(api.check("llama", 4, depth="static")))
    for document in (printed, called):
        document["stages"]["static"]["seconds"] = 0
    assert printed == called


def test_a_bare_call_is_help_and_no_bug(capsys: pytest.CaptureFixture) -> None:
    assert main([]) in (0, 2)
    printed = capsys.readouterr()
    assert "Usage: tpplan" in printed.out + printed.err and "bug" not in printed.err
