"""Verdicts that differ by the release of Transformers, each as it is in the installed one.

Nothing is patched: what a release does is what its own code does here. The numbers were compared with real gloo ranks.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import tpplan
from tests.support import configs
from tests.support.checkpoints import write_safetensors
from tests.support.subjects import rules, subject
from tpplan import PlanError, Report
from tpplan.diagnostics import Status, Verdict
from tpplan.model.internals import internals
from tpplan.model.releases import transformers_version
from tpplan.model.skeleton import Sharding, known_styles
from tpplan.stages.full_size import Phase, run_shapes
from tpplan.stages.judge import judge

BEFORE_5_21 = transformers_version() < (5, 21)
BEFORE_5_23 = transformers_version() < (5, 23)
KINDS = ["sliding_attention", "full_attention"]
GPT_OSS = configs.gpt_oss_20b(
    hidden_size=64,
    intermediate_size=96,
    num_hidden_layers=2,
    vocab_size=160,
    num_attention_heads=8,
    num_key_value_heads=4,
    head_dim=8,
    num_local_experts=4,
    layer_types=KINDS,
)


def codes(report: Report) -> list[str]:
    return [diagnostic.code for diagnostic in report.errors]


class TestUnevenVocabulary:
    """255 columns that are gathered from 4 ranks."""

    @pytest.fixture
    def model(self, tmp_path: Path) -> str:
        return configs.write(tmp_path, configs.llama(vocab_size=255, num_key_value_heads=8))

    def test_is_refused_at_load_before_5_21_and_right_from_then(self, model: str) -> None:
        judged = tpplan.check(model, 4, depth="numerics")
        if not BEFORE_5_21:
            assert judged.verdict is Verdict.PASS
            return
        assert codes(judged) == ["TPP309"]
        assert "ValueError: The output size of `lm_head` (255)" in judged.errors[0].evidence

    def test_is_repaired_for_inference_either_way(self, model: str) -> None:
        overrides = tpplan.plan(model, 4).overrides
        assert overrides == ({"lm_head": "replicated_with_grad_allreduce"} if BEFORE_5_21 else {})


class TestUnevenIntermediate:
    """126 columns of an MLP on 4 ranks, 32 on each but the last."""

    @pytest.fixture
    def model(self, tmp_path: Path) -> str:
        return configs.write(tmp_path, configs.llama(intermediate_size=126, num_key_value_heads=8))

    def test_runs_at_inference(self, model: str) -> None:
        assert tpplan.check(model, 4, depth="numerics").verdict is Verdict.PASS

    def test_stops_when_gradients_are_on_before_5_21(self, model: str) -> None:
        judged = tpplan.check(model, 4, purpose="training", depth="shapes")
        assert codes(judged) == (["TPP402"] if BEFORE_5_21 else [])
        if BEFORE_5_21:
            assert judged.errors[0].where.module == "model.layers.0.mlp.down_proj"
            assert "[12, 128] X [126, 64]" in judged.errors[0].evidence


class TestReplicate:
    """The style came with 5.21; before, nothing keeps the gradient of a parameter whole that every rank has whole."""

    def test_is_known_when_transformers_takes_it(self) -> None:
        judged = subject(configs.llama(), 4)
        sharding = Sharding(tp_size=4, overrides=rules("qkvo", "replicate"))
        outcome = run_shapes(judged.spec, sharding)
        assert ("replicate" in known_styles()) is outcome.passed is not BEFORE_5_21
        assert BEFORE_5_21 is bool(outcome.stop and outcome.stop.phase is Phase.SHARDING), "ValueError at load"
        report = judge(replace(judged, sharding=sharding), "shapes").report()
        assert set(codes(report)) == ({"TPP203"} if BEFORE_5_21 else set())

    @pytest.mark.parametrize("strategy", ["replicate", "gather"])
    def test_norms_inside_attention_need_it_to_train(self, tmp_path: Path, strategy: str) -> None:
        """qwen3: gathered heads come whole to q_norm, whose own rule sums a gradient that every rank has."""
        model = configs.write(tmp_path, configs.qwen3())
        if not BEFORE_5_21:
            norms = {f"model.layers.*.self_attn.{name}_norm": "replicate" for name in "qk"}
            assert norms.items() <= tpplan.plan(model, 4, purpose="training", strategy=strategy).overrides.items()
            return
        with pytest.raises(PlanError) as caught:
            tpplan.plan(model, 4, purpose="training", strategy=strategy)
        assert codes(caught.value.report) == ["TPP502", "TPP502"]
        assert "has no style replicate" in caught.value.report.errors[0].evidence

    def test_without_norms_training_is_repaired(self, tmp_path: Path) -> None:
        plan = tpplan.plan(configs.write(tmp_path, configs.llama()), 4, purpose="training")
        assert plan.proven.strategy == ("gather" if BEFORE_5_21 else "replicate")

    def test_experts_that_load_wrong_are_not_given_a_style_that_is_not_there(self, tmp_path: Path) -> None:
        """What is proposed is never TPP203."""
        for name, config in {"mixtral": configs.mixtral(), "gpt_oss": GPT_OSS}.items():
            plan = tpplan.plan(configs.write(tmp_path / name, config), 2, purpose="training")
            assert set(plan.overrides.values()) <= set(known_styles())


class TestTiedWeightsOnTpu:
    """Transformers compared both names of a tied pair by an operation that TPUs lack; 5.23 replaced it."""

    def found(self, tmp_path: Path, names: tuple[str, ...]) -> list[str]:
        configs.write(tmp_path, configs.qwen3_06b())
        write_safetensors(tmp_path / "model.safetensors", names)
        judged = tpplan.check(str(tmp_path), 2, device="tpu-v6e", depth="static")
        return [code for code in codes(judged) if code == "TPP304"]

    def test_with_both_names(self, tmp_path: Path) -> None:
        both = ("model.embed_tokens.weight", "lm_head.weight", "model.norm.weight")
        assert self.found(tmp_path, both) == (["TPP304"] if BEFORE_5_23 else [])

    def test_with_one_name(self, tmp_path: Path) -> None:
        assert self.found(tmp_path, ("model.embed_tokens.weight", "model.norm.weight")) == []

    def test_the_release_has_the_comparison_that_is_named(self) -> None:
        import inspect

        source = inspect.getsource(internals().model.tie_weights)
        assert ("torch.equal(" in source) is BEFORE_5_23


class TestExpertsOnOtherRanks:
    """ep_size. A rank alone gets no tokens from the others, and 5.19 wraps the model in FSDP besides."""

    @pytest.mark.parametrize("purpose", ["inference", "training"])
    @pytest.mark.parametrize("config", [configs.mixtral(), GPT_OSS], ids=["mixtral", "gpt_oss"])
    def test_is_right(self, config: configs.Config, purpose: str) -> None:
        judged = replace(subject(config, 2), training=purpose == "training")
        report = judge(replace(judged, sharding=Sharding(tp_size=2, ep_size=2))).report()
        assert codes(report) == []
        assert [stage.status for stage in report.stages.values()] == [Status.PASSED] * 3
        assert ("backward" in report.stages["numerics"].reason) is (purpose == "training")

    def test_experts_that_do_not_divide_are_refused(self) -> None:
        judged = subject(
            configs.mixtral(num_attention_heads=9, num_key_value_heads=3, hidden_size=72, vocab_size=162), 3
        )
        report = judge(replace(judged, sharding=Sharding(tp_size=3, ep_size=3)), "shapes").report()
        assert codes(report) == ["TPP310"]
        assert "4 experts" in report.errors[0].message + report.errors[0].evidence

    def test_heads_that_do_not_divide_still_stop(self) -> None:
        """The exchange of tokens excuses the experts alone."""
        judged = subject(configs.mixtral(num_key_value_heads=2), 4)
        report = judge(replace(judged, sharding=Sharding(tp_size=4, ep_size=4)), "shapes").report()
        assert codes(report) == ["TPP301"]
        assert "raises in model.layers.0.self_attn on 4 ranks" in report.errors[0].evidence

    def test_a_fault_after_the_exchange_is_found(self) -> None:
        judged = subject(configs.mixtral(), 2)
        sharding = Sharding(tp_size=2, ep_size=2, overrides={"lm_head": "rowwise"})
        report = judge(replace(judged, sharding=sharding), "shapes").report()
        assert report.verdict is Verdict.FAIL

    def test_a_repair_for_training_shares_experts(self, tmp_path: Path) -> None:
        assert tpplan.plan(configs.write(tmp_path, GPT_OSS), 2, purpose="training").target.ep_size == 2
