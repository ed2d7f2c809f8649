"""tpplan says what is right for each report of `tests.support.public_reports`, and makes the plan that mends it."""

from __future__ import annotations

import importlib.metadata
import json
import re
from functools import cache
from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet
from transformers import CONFIG_MAPPING

import tpplan
from tests.support import configs
from tests.support.public_models import Model, Numbers, qwen3_5
from tests.support.public_reports import NO_PLAN, NOT_TRANSFORMERS, OWN_TEST, ROWS, Right, Row
from tests.support.shared import reports
from tests.support.subjects import subject
from tpplan import InputError, PlanError, Report
from tpplan.codes import CODES
from tpplan.diagnostics import Severity, Verdict
from tpplan.opening import facts
from tpplan.plan_files.document import ModelFacts, Plan, Target
from tpplan.units import joined

RELEASE = importlib.metadata.version("transformers")
# Every report that was reduced, but for the quantized ones (F).
REPORTS = """
A01 A03 A05 A07 A08 A14 A15 A16 A17 A18 A19 A20 A21 A24 A26 A27 A28 A32 A33 A35 A36 B02 B05 B06 B07 B09 B11 B12 B13 B14
C02 C03 C04 C05 C06 D01 D03 D12 D13 D14 D15 D16 E01 E04 E05 E06 E07 E08 E09 G01 G02 G04 G06 G08 G09 G10 G12 G13 G14
""".split()


def test_every_report_has_a_row_a_test_or_a_reason() -> None:
    rows = {row.id for row in ROWS}
    assert rows | OWN_TEST.keys() | NOT_TRANSFORMERS.keys() == set(REPORTS)
    assert not rows & NOT_TRANSFORMERS.keys() and not OWN_TEST.keys() & NOT_TRANSFORMERS.keys()


def test_the_reports_are_the_ones_that_were_collected() -> None:
    collected = re.findall(r"(?m)^\| ([A-Z]\d\d) \|", reports())
    assert sorted(id for id in collected if not id.startswith("F")) == sorted(REPORTS)


@pytest.mark.parametrize(
    "row", [pytest.param(row, id=row.name, marks=[pytest.mark.sweep] if row.slow else []) for row in ROWS]
)
def test_report(row: Row, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not SpecifierSet(row.versions).contains(RELEASE):
        pytest.skip(f"holds for Transformers {row.versions}")
    monkeypatch.chdir(tmp_path)
    config = written(row.model)
    configs.write(tmp_path / "model", config)

    report = tpplan.check(reported(row, config), None if row.ep_size else row.tp_size, **options(row))

    assert [diagnostic.code for diagnostic in report.diagnostics] == list(row.codes), shown(report)
    assert report.verdict is (Verdict.PASS if row.right in (Right.RUNS, Right.WASTE) else Verdict.FAIL)
    assert all(text in shown(report) for text in row.says)
    if row.gib:
        assert report.bytes_per_rank.parameters / 2**30 == pytest.approx(row.gib, rel=0.01)
    {Right.FIX: mended, Right.FAILS: not_mended, Right.SILENT: silent}.get(row.right, lambda *_: None)(row, report)


def mended(row: Row, report: Report) -> None:
    """The fix names the sizes, and the plan that is made is the one expected; making it proves it, numbers included."""
    (fix,) = {diagnostic.fix for diagnostic in report.errors if diagnostic.fix.startswith("tpplan")}
    assert f"tpplan plan model --tp-size {row.tp_size} writes a plan that " in fix
    assert fix.endswith(f"without overrides, tp_size {joined(row.sizes, 'or')} works")
    plan = tpplan.plan("model", row.tp_size)
    assert plan.overrides == row.repaired and plan.target.ep_size == row.repaired_ep_size
    assert plan.proven.stages["numerics"] == "passed"


def not_mended(row: Row, report: Report) -> None:
    """A model that has no plan gets none; a plan that was given and fails is not replaced in silence."""
    if row.codes == NO_PLAN:
        assert "--extend" in report.errors[0].fix
    if not row.overrides and not row.ep_size:
        with pytest.raises(PlanError):
            tpplan.plan("model", row.tp_size, purpose=row.purpose)


def silent(row: Row, report: Report) -> None:
    """Nothing raises: the shapes stage passes, and the numbers are what fails."""
    assert str(report.stages["shapes"].status) == "passed"
    assert str(report.stages["numerics"].status) == "failed"


def reported(row: Row, config: Numbers) -> str | Plan:
    """The model, or the plan of the report where it shares experts, which only a plan can say."""
    if not row.ep_size:
        return "model"
    judged = subject(config, row.tp_size)
    made_for = ModelFacts(id="model", auto_class=judged.spec.auto_class, config=facts(judged))
    return Plan(model=made_for, target=Target(tp_size=row.tp_size, ep_size=row.ep_size), overrides=dict(row.overrides))


def options(row: Row) -> dict:
    given = {"overrides": row.overrides} if row.overrides else {}
    return {"depth": row.depth, "purpose": row.purpose} | given


def written(model: Model) -> Numbers:
    """The config.json of the model: its values over the class defaults, all of them in the file."""
    return _written(json.dumps(model))


@cache
def _written(model: str) -> Numbers:
    model_type, values = json.loads(model)
    return json.loads(CONFIG_MAPPING[model_type](**values).to_json_string(use_diff=False))


def shown(report: Report) -> str:
    return "\n".join(f"{d.code} {d.message} {d.evidence} {d.fix}" for d in report.diagnostics) or str(report.stages)


OWN_CONFIG = """
from transformers import LlamaConfig

class OwnConfig(LlamaConfig):
    model_type = "own"
    base_model_tp_plan = None
"""
OWN_MODEL = """
from transformers import LlamaForCausalLM

from .configuration_own import OwnConfig

class OwnModel(LlamaForCausalLM):
    config_class = OwnConfig
    _tp_plan = None
"""


def test_e04_a_class_that_the_checkpoint_brings_has_no_plan(tmp_path: Path) -> None:
    code = {"AutoConfig": "configuration_own.OwnConfig", "AutoModelForCausalLM": "modeling_own.OwnModel"}
    model = configs.write(tmp_path / "own", configs.llama(model_type="own", auto_map=code))
    for name, text in (("configuration_own.py", OWN_CONFIG), ("modeling_own.py", OWN_MODEL)):
        (tmp_path / "own" / name).write_text(text, encoding="utf-8")
    report = tpplan.check(model, 2, trust_remote_code=True)
    assert [diagnostic.code for diagnostic in report.diagnostics] == list(NO_PLAN)
    assert "--extend" in report.errors[0].fix
    assert all(way in CODES["TPP205"].action for way in ("overrides", "base_model_tp_plan", "_tp_plan"))


def test_e07_values_that_are_missing_are_no_defaults_without_a_word(tmp_path: Path) -> None:
    flat = configs.llama()
    del flat["num_attention_heads"]
    with pytest.raises(InputError) as refused:
        tpplan.check(configs.write(tmp_path / "flat", flat), 2)
    assert [diagnostic.code for diagnostic in refused.value.diagnostics] == ["TPP112"]
    model_type, values = qwen3_5()
    del values["text_config"]["num_key_value_heads"]
    report = tpplan.check(configs.write(tmp_path / "nested", {"model_type": model_type} | values), 4)
    (note,) = [diagnostic for diagnostic in report.diagnostics if diagnostic.severity is Severity.NOTE]
    assert note.code == "TPP307" and "num_key_value_heads = 4" in note.evidence
