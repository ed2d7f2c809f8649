"""Shapes, numerics and a real launch, on the same plans: no stage passes what a later one finds wrong.

Where it can see it. Each case launches tp_size gloo processes, and all take some minutes, so they are run by hand, and
print the table. The plans of tests/test_launch.py, which are run always, are held to the same there.

    python -m pytest -n 0 -s -m sweep tests/test_agreement.py
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

import tpplan
from tests.support import configs
from tests.support.launches import launched
from tests.support.subjects import rules
from tpplan.diagnostics import Report
from tpplan.plan_files.document import ModelFacts, Plan, Target

SUMMED = "replicated_with_grad_allreduce"


@dataclass(frozen=True, kw_only=True)
class Case:
    """A plan, and what each stage must say: shapes, numerics, launch. Static findings are tested elsewhere."""

    name: str
    config: configs.Config
    tp_size: int
    overrides: dict[str, str]
    expected: tuple[str, str, str]
    purpose: str = "inference"
    auto_class: str = "AutoModelForCausalLM"


def _case(name: str, config: configs.Config, tp_size: int, overrides: dict, *expected: str, **extra: str) -> Case:
    return Case(name=name, config=config, tp_size=tp_size, overrides=overrides, expected=expected, **extra)


RIGHT = ("passed", "passed", "passed")
WRONG_NUMBERS = ("passed", "failed", "failed")
RAISES = ("failed", "not-run", "failed")
MLP_OF_FALCON = {"transformer.h.*.mlp.dense_h_to_4h": "colwise", "transformer.h.*.mlp.dense_4h_to_h": "rowwise"}
LLAMA = configs.llama(num_attention_heads=8, num_key_value_heads=2)
CASES = [
    _case("llama", LLAMA, 2, {}, *RIGHT),
    _case("output left rowwise, two ranks", LLAMA, 2, rules("qkv", SUMMED), *RAISES),
    _case("keys and values alone, two ranks", LLAMA, 2, rules("kv", "colwise_gather_output"), *WRONG_NUMBERS),
    _case("heads that do not divide", LLAMA, 4, {}, *RAISES),
    _case("replicated attention", LLAMA, 4, rules("qkvo", SUMMED), *RIGHT),
    _case("keys and values alone, whole", LLAMA, 4, rules("kv", SUMMED), *WRONG_NUMBERS),
    _case("keys and values alone, gathered", LLAMA, 4, rules("kv", "colwise_gather_output"), *WRONG_NUMBERS),
    _case("output left rowwise", LLAMA, 4, rules("qkv", SUMMED), *RAISES),
    _case(
        "gathered attention",
        LLAMA,
        4,
        rules("qkv", "colwise_gather_output") | rules("o", "rowwise_split_input"),
        *RIGHT,
        purpose="training",
    ),
    _case(
        "one key/value head, alone",
        configs.llama(num_attention_heads=8, num_key_value_heads=1),
        4,
        rules("kv", SUMMED),
        *WRONG_NUMBERS,
        purpose="training",
    ),
    _case("gradients summed", LLAMA, 4, rules("qkvo", SUMMED), *WRONG_NUMBERS, purpose="training"),
    _case("gradients whole", LLAMA, 4, rules("qkvo", "replicate"), *RIGHT, purpose="training"),
    _case(
        "norms left behind",
        configs.qwen3(num_attention_heads=8, num_key_value_heads=2),
        4,
        rules("qkvo", "replicate"),
        *WRONG_NUMBERS,
        purpose="training",
    ),
    _case("apertus", configs.apertus(), 2, {}, *WRONG_NUMBERS, purpose="training"),
    _case("apertus repaired", configs.apertus(), 2, {"model.layers.*.mlp.act_fn": SUMMED}, *RIGHT, purpose="training"),
    _case("narrow logits", configs.llama(), 2, {"lm_head": "colwise"}, "failed", "failed", "failed"),
    _case("tied", configs.qwen3(tie_word_embeddings=True), 2, {}, *RIGHT),
    _case("tied clash", configs.qwen3(tie_word_embeddings=True), 2, {"lm_head": "replicate"}, *RAISES),
    _case("fused", configs.phi3(), 4, {}, *RIGHT),
    _case("converted experts", configs.sarvam_moe(), 2, {}, *WRONG_NUMBERS),
    _case("added in place", configs.falcon(), 2, MLP_OF_FALCON, *RIGHT),
]


@pytest.mark.sweep
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_stages_agree(case: Case, tmp_path: Path) -> None:
    model = configs.write(tmp_path / "model", case.config)
    plan = Plan(
        model=ModelFacts(id=model, auto_class=case.auto_class, config=case.config),
        target=Target(tp_size=case.tp_size, purpose=case.purpose),
        overrides=case.overrides,
    )
    # The facts of a plan are those that differ from the class default; here the whole config stands for them.
    checked = tpplan.check(plan, depth="numerics")
    ranks = launched(plan, timeout=240)
    found = tuple(
        _status(report, stage) for report, stage in ((checked, "shapes"), (checked, "numerics"), (ranks, "launch"))
    )
    codes = sorted({d.code for report in (checked, ranks) for d in report.errors})
    print(f"\n| {case.name} | {case.config['model_type']} | {case.tp_size} | {' | '.join(found)} | {' '.join(codes)} |")
    assert found == case.expected, [d.to_dict() for report in (checked, ranks) for d in report.diagnostics]


def _status(report: Report, stage: str) -> str:
    return str(report.stages[stage].status)
