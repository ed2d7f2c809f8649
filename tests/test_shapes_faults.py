"""The run without weights, proven: faults put into the model on one rank, in one phase or in the width of its output.

Each is planted in Transformers, never in tpplan. Where the model's code looks at values, the miniature stands in,
and one that could not run proves nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from transformers.models.llama import modeling_llama

import tpplan
from tests.support import configs, faults
from tests.support.subjects import miniature, model
from tpplan.cli import main
from tpplan.diagnostics import Report
from tpplan.model.releases import has_uneven_gather
from tpplan.model.skeleton import Sharding
from tpplan.stages.full_size import Phase, ShapesOutcome, run_shapes
from tpplan.stages.stand_in import run_stand_in

EVEN = configs.llama(num_key_value_heads=8)
UNEVEN = configs.llama(num_key_value_heads=8, vocab_size=163, intermediate_size=98)
needs_uneven = pytest.mark.skipif(not has_uneven_gather(), reason="refused at load before 5.21")


def shapes(config: configs.Config, tp_size: int = 2, *, training: bool = False, **more: Any) -> ShapesOutcome:
    return run_shapes(model(config)[0], Sharding(tp_size=tp_size, **more), training=training)


def stop_on(monkeypatch: pytest.MonkeyPatch, rank: int) -> None:
    """Let the MLP raise on this rank; without ranks it runs."""

    def stop(_: Any, output: Any) -> Any:
        if dist.is_initialized() and dist.get_rank() == rank:
            raise ValueError(f"on rank {rank}")
        return output

    faults.change_output(monkeypatch, modeling_llama.LlamaMLP, stop)


class TestRanks:
    @needs_uneven
    @pytest.mark.parametrize("tp_size", [2, 4])
    def test_the_last_one_is_run_where_shards_are_uneven(self, monkeypatch: pytest.MonkeyPatch, tp_size: int) -> None:
        assert shapes(UNEVEN, tp_size).ranks == (0, tp_size - 1)
        assert shapes(UNEVEN, tp_size).passed
        stop_on(monkeypatch, tp_size - 1)
        outcome = shapes(UNEVEN, tp_size)
        assert outcome.stop is not None and not outcome.passed
        assert (outcome.stop.rank, outcome.stop.module) == (tp_size - 1, "model.layers.0.mlp")
        assert outcome.stop.error == f"ValueError: on rank {tp_size - 1}"

    def test_the_last_one_is_run_where_it_shares_experts(self) -> None:
        assert shapes(configs.mixtral(), ep_size=2).ranks == (0, 1)

    @pytest.mark.parametrize("config", [EVEN, pytest.param(UNEVEN, marks=needs_uneven)], ids=["even", "uneven"])
    def test_the_first_one_is_run_first(self, monkeypatch: pytest.MonkeyPatch, config: configs.Config) -> None:
        stop_on(monkeypatch, 0)
        outcome = shapes(config)
        assert outcome.stop is not None and outcome.stop.rank == 0 and outcome.ranks == (0,)

    def test_one_stands_for_all_where_shards_are_even(self) -> None:
        assert shapes(EVEN, 4).ranks == (0,)
        assert shapes(UNEVEN, 1).ranks == (0,)

    @needs_uneven
    def test_the_last_one_decides_a_check(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        stop_on(monkeypatch, 1)
        report = check(tmp_path, UNEVEN)
        assert [error.code for error in report.errors] == ["TPP402"]
        assert "rank 1 of 2" in report.errors[0].message
        assert (statuses(report)["shapes"], report.exit_code) == ("failed", 1)


class TestPhases:
    def test_a_backward_that_raises_is_found_in_training(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        def hooked(_: Any, output: Any) -> Any:
            if dist.is_initialized() and output.requires_grad:
                output.register_hook(lambda gradient: 1 // 0)
            return output

        faults.change_output(monkeypatch, modeling_llama.LlamaMLP, hooked)
        assert shapes(EVEN).passed
        outcome = shapes(EVEN, training=True)
        assert outcome.stop is not None and outcome.stop.phase is Phase.BACKWARD and not outcome.passed
        assert "ZeroDivisionError" in outcome.stop.error
        assert [error.code for error in check(tmp_path, EVEN, purpose="training").errors] == ["TPP403"]

    def test_what_raises_unsharded_too_proves_nothing(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        def stop(_: Any, output: Any) -> Any:
            raise ValueError("everywhere")

        faults.change_output(monkeypatch, modeling_llama.LlamaMLP, stop)
        outcome = shapes(EVEN)
        assert outcome.stop is None and not outcome.passed and "unsharded either" in outcome.not_run
        report = check(tmp_path, EVEN)
        assert statuses(report) == {"static": "passed", "shapes": "not-run"}
        assert (str(report.verdict), report.exit_code) == ("incomplete", 1)


class TestWidth:
    """Logits of another width than the unsharded model's, which nothing in the config or the plan tells."""

    @pytest.fixture
    def narrow(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def last_one_off(_: Any, output: Any) -> Any:
            if dist.is_initialized() and not faults.is_simulated(output.logits):
                output.logits = output.logits[..., :-1]
            return output

        faults.change_output(monkeypatch, modeling_llama.LlamaForCausalLM, last_one_off)

    def test_is_measured(self, narrow: None) -> None:
        outcome = shapes(EVEN)
        assert (outcome.logits_width, outcome.whole_width) == (159, 160)
        assert outcome.stop is None and outcome.not_run == "" and not outcome.passed

    def test_is_an_error(self, narrow: None, tmp_path: Path) -> None:
        report = check(tmp_path, EVEN)
        assert [error.code for error in report.errors] == ["TPP208"]
        assert "159 columns of logits where the unsharded one returns 160" in report.errors[0].message
        assert (statuses(report)["shapes"], str(report.verdict), report.exit_code) == ("failed", "fail", 1)

    def test_that_the_unsharded_model_has_too_is_none(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def last_one_off(_: Any, output: Any) -> Any:
            output.logits = output.logits[..., :-1]
            return output

        faults.change_output(monkeypatch, modeling_llama.LlamaForCausalLM, last_one_off)
        outcome = shapes(EVEN)
        assert (outcome.logits_width, outcome.whole_width) == (159, 159) and outcome.passed


def exhaust() -> None:
    if dist.is_initialized():
        raise torch.OutOfMemoryError


class TestStandIn:
    """Code that looks at values: the outcome is that of the miniature, and never that of nothing."""

    def stand_in(
        self, monkeypatch: pytest.MonkeyPatch, then: Callable[[], None], config: configs.Config = EVEN, **how: Any
    ) -> ShapesOutcome:
        small = miniature(config, 2)
        faults.look_at_values(monkeypatch, then)
        outcome = shapes(config)
        assert outcome.needs_weights and outcome.stop is None and not outcome.passed
        return run_stand_in(small, Sharding(tp_size=2), outcome, **how)

    def test_that_runs_passes_and_says_so(self, monkeypatch: pytest.MonkeyPatch) -> None:
        outcome = self.stand_in(monkeypatch, lambda: None)
        assert outcome.passed and "cannot be run without weights" in outcome.on_miniature
        assert "model.layers.*.mlp" in outcome.entered

    def test_without_memory_is_neither_a_pass_nor_a_failure(self, monkeypatch: pytest.MonkeyPatch) -> None:
        outcome = self.stand_in(monkeypatch, exhaust)
        assert not outcome.passed and outcome.stop is None
        assert "on a miniature there is not enough memory" in outcome.not_run

    def test_that_raises_fails(self, monkeypatch: pytest.MonkeyPatch) -> None:
        outcome = self.stand_in(monkeypatch, lambda: 1 // (not dist.is_initialized()))
        assert outcome.stop is not None and not outcome.passed and outcome.not_run == ""
        assert (outcome.stop.rank, outcome.stop.phase, outcome.stop.module) == (0, "forward", "model.layers.0.mlp")

    @needs_uneven
    def test_is_the_last_rank_too_where_shards_are_uneven(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def stop() -> None:
            if dist.is_initialized() and dist.get_rank() == 1:
                raise ValueError("on rank 1")

        small = miniature(UNEVEN, 2)
        faults.look_at_values(monkeypatch, stop)
        stopped = ShapesOutcome(ranks=(0, 1), not_run="values are looked at", needs_weights=True)
        outcome = run_stand_in(small, Sharding(tp_size=2), stopped)
        assert outcome.stop is not None and outcome.stop.rank == 1 and not outcome.passed

    def test_runs_a_backward_in_training(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def hooked(_: Any, output: Any) -> Any:
            if dist.is_initialized() and output.requires_grad:
                output.register_hook(lambda gradient: 1 // 0)
            return output

        faults.change_output(monkeypatch, modeling_llama.LlamaRMSNorm, hooked)
        outcome = self.stand_in(monkeypatch, lambda: None, training=True)
        assert outcome.stop is not None and outcome.stop.phase is Phase.BACKWARD and not outcome.passed

    def test_that_could_not_run_passes_no_check(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture
    ) -> None:
        faults.look_at_values(monkeypatch, exhaust)
        report = check(tmp_path, EVEN)
        assert statuses(report) == {"static": "passed", "shapes": "not-run"}
        assert "there is not enough memory" in report.stages["shapes"].reason and report.errors == ()
        assert (str(report.verdict), report.exit_code) == ("incomplete", 1)
        directory, new = str(tmp_path / "model"), tmp_path / "new.yaml"
        assert main(["plan", directory, "--tp-size", "2", "-o", str(new)]) == 1
        assert main(["sizes", directory, "--tp-size", "2"]) == 1
        assert not new.exists()

    def test_without_a_miniature_it_proves_nothing(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        def stop() -> None:
            raise ValueError("never with values")

        faults.look_at_values(monkeypatch, stop)
        report = check(tmp_path, EVEN)
        assert statuses(report) == {"static": "passed", "shapes": "not-run"}
        assert "it has no miniature" in report.stages["shapes"].reason
        assert (str(report.verdict), report.exit_code) == ("incomplete", 1)

    def test_that_runs_passes_a_check(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        faults.look_at_values(monkeypatch)
        report = check(tmp_path, EVEN)
        assert statuses(report) == {"static": "passed", "shapes": "passed"} and report.exit_code == 0
        assert report.stages["shapes"].reason.startswith("on a miniature, for ")


def check(tmp_path: Path, config: configs.Config, **options: Any) -> Report:
    return tpplan.check(configs.write(tmp_path / "model", config), 2, depth="shapes", **options)


def statuses(report: Report) -> dict[str, str]:
    return {name: str(stage.status) for name, stage in report.stages.items()}
