"""The proof, proven: faults put into the model or its loader, on one rank or in one part of a run, are all found.

Each is planted in Transformers, never in tpplan, and stands beside one so small that it is rounding: a comparison of
the wrong rank, of the wrong part, with itself, or by another tolerance fails here.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers.models.llama import modeling_llama

import tpplan
from tests.support import configs, faults
from tests.support.subjects import miniature, rules
from tpplan.cli import main
from tpplan.diagnostics import Report
from tpplan.model.forward import example_inputs
from tpplan.model.skeleton import Sharding
from tpplan.stages.comparison import GradientFault, Numerics, Part, run_numerics
from tpplan.stages.load import Load, run_load, save
from tpplan.stages.result import GradientError

LLAMA = configs.llama(num_key_value_heads=8)  # its own plan is right at 2 and 4 ranks
LOGITS = 1e-4  # of the largest: the tolerance, as a number and not by its name
GRADIENTS = 1e-3
PARTS = [str(part) for part in Part if part is not Part.BACKWARD]
LAST_NORM = "model.norm.weight"


def numerics(tp_size: int = 2, *, training: bool = False, **overrides: str) -> Numerics:
    return run_numerics(miniature(LLAMA, 4), Sharding(tp_size=tp_size, overrides=overrides), training=training)


@cache
def largest_logit() -> float:
    """The largest absolute logit that the unsharded miniature gives anywhere in the prompt."""
    small = miniature(LLAMA, 4)
    with torch.no_grad():
        return small.model(**example_inputs(small.spec)).logits.abs().max().item()


class TestLogits:
    @pytest.mark.parametrize(("tp_size", "rank"), [(2, 0), (2, 1), (4, 2), (4, 3)])
    def test_one_rank_alone_is_wrong(self, monkeypatch: pytest.MonkeyPatch, tp_size: int, rank: int) -> None:
        faults.add_to_logits(monkeypatch, rank, tp_size, largest_logit())
        (difference,) = numerics(tp_size).differences
        assert (difference.part, difference.ranks) == (Part.FORWARD, (rank,))
        assert difference.error == pytest.approx(1.0, rel=1e-3)

    @pytest.mark.parametrize("part", PARTS)
    def test_one_part_alone_is_wrong(self, monkeypatch: pytest.MonkeyPatch, part: str) -> None:
        """On the last rank, and within ten tolerances: what the step gives is not what the prefill gives."""
        faults.add_to_logits(monkeypatch, 1, 2, 10 * LOGITS * largest_logit(), part)
        result = numerics()
        (difference,) = result.differences
        assert (str(difference.part), difference.ranks) == (part, (1,))
        assert not result.passed
        assert [str(ran) for ran in result.ran] == PARTS[: PARTS.index(part) + 1], "what follows is not run"

    @pytest.mark.parametrize(("part", "sign"), list(zip(PARTS, (1, -1, 1), strict=True)))
    def test_the_tolerance_is_a_ten_thousandth(self, monkeypatch: pytest.MonkeyPatch, part: str, sign: int) -> None:
        """A quarter passes and twice as much does not: the largest logit of a step is not the prompt's."""
        with monkeypatch.context() as half:
            faults.add_to_logits(half, 0, 2, sign * 0.25 * LOGITS * largest_logit(), part)
            result = numerics()
            assert result.passed and result.largest_error > 0.2 * LOGITS, "it was seen, and is rounding"
        faults.add_to_logits(monkeypatch, 0, 2, sign * 2.0 * LOGITS * largest_logit(), part)
        assert not numerics().passed

    def test_the_tolerance_of_the_forward_to_a_tenth(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with monkeypatch.context() as within:
            faults.add_to_logits(within, 1, 2, 0.95 * LOGITS * largest_logit())
            assert numerics().passed
        faults.add_to_logits(monkeypatch, 1, 2, 1.05 * LOGITS * largest_logit())
        assert not numerics().passed

    @pytest.mark.parametrize("value", [float("nan"), float("inf")])
    def test_what_is_not_finite_is_wrong(self, monkeypatch: pytest.MonkeyPatch, value: float) -> None:
        faults.add_to_logits(monkeypatch, 1, 2, value)
        (difference,) = numerics().differences
        assert difference.ranks == (1,) and difference.error == float("inf")

    def test_an_unsharded_model_that_gives_no_numbers_proves_nothing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def not_finite(_: Any, output: Any) -> Any:
            output.logits = output.logits * float("nan")
            return output

        small = miniature(LLAMA, 4)
        faults.change_output(monkeypatch, modeling_llama.LlamaForCausalLM, not_finite)
        result = run_numerics(small, Sharding(tp_size=2))
        assert not result.passed and result.differences == ()
        assert result.not_run.startswith("the forward of the unsharded miniature gives logits")

    def test_fewer_columns_are_wrong(self) -> None:
        result = numerics(lm_head="colwise")
        (difference,) = result.differences
        assert (difference.width, difference.ranks, result.passed) == ((80, 160), (0, 1), False)


class TestGradients:
    """Of the norms' weights, which every rank holds: of one of them, on one rank, by a little more than rounding."""

    @staticmethod
    def scaled(monkeypatch: pytest.MonkeyPatch, rank: int, tp_size: int, by: float) -> Numerics:
        faults.change_gradients(monkeypatch, lambda gradient: gradient * faults.on_rank(rank, tp_size, 1 + by, 1.0))
        return numerics(tp_size, training=True)

    @pytest.mark.parametrize(("tp_size", "rank"), [(2, 0), (2, 1), (4, 3)])
    def test_one_rank_alone_is_wrong(self, monkeypatch: pytest.MonkeyPatch, tp_size: int, rank: int) -> None:
        result = self.scaled(monkeypatch, rank, tp_size, 1.0)
        found = {fault.parameter: (fault.ranks, fault.kind) for fault in result.gradients}
        assert found[LAST_NORM] == ((rank,), GradientError.OTHER)
        assert all("norm" in name for name in found) and not result.passed

    @pytest.mark.parametrize("by", [0.9 * GRADIENTS, -0.9 * GRADIENTS])
    def test_just_within_the_tolerance(self, monkeypatch: pytest.MonkeyPatch, by: float) -> None:
        result = self.scaled(monkeypatch, 1, 2, by)
        assert result.passed and result.largest_error > 0.8 * GRADIENTS

    @pytest.mark.parametrize("by", [1.1 * GRADIENTS, -1.1 * GRADIENTS])
    def test_just_beyond_the_tolerance(self, monkeypatch: pytest.MonkeyPatch, by: float) -> None:
        assert LAST_NORM in {fault.parameter for fault in self.scaled(monkeypatch, 1, 2, by).gradients}

    def test_one_that_is_missing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        faults.drop_gradients(monkeypatch)
        result = numerics(training=True)
        norms = {fault.parameter for fault in result.gradients}
        assert LAST_NORM in norms and "model.layers.0.input_layernorm.weight" in norms
        missing = GradientFault(parameter=LAST_NORM, kind=GradientError.MISSING, error=1.0, ranks=(0, 1))
        assert missing in result.gradients and not result.passed

    def test_each_parameter_s_is_compared(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Twice the loss is twice every gradient."""
        faults.change_output(monkeypatch, modeling_llama.LlamaForCausalLM, _with_twice_the_gradients)
        result = numerics(training=True)
        assert {fault.parameter for fault in result.gradients} == set(miniature(LLAMA, 4).skeleton.parameters)
        assert {fault.kind for fault in result.gradients} == {GradientError.TIMES_TP_SIZE}, "2 ranks, 2 times"
        assert {fault.ranks for fault in result.gradients} == {(0, 1)}

    def test_twice_is_not_times_tp_size_at_4(self, monkeypatch: pytest.MonkeyPatch) -> None:
        faults.change_output(monkeypatch, modeling_llama.LlamaForCausalLM, _with_twice_the_gradients)
        assert {fault.kind for fault in numerics(4, training=True).gradients} == {GradientError.OTHER}

    def test_a_part_on_each_rank(self, monkeypatch: pytest.MonkeyPatch) -> None:
        faults.change_gradients(monkeypatch, lambda gradient: gradient * faults.on_rank(1, 2, 0.75, 0.25))
        (last,) = [fault for fault in numerics(training=True).gradients if fault.parameter == LAST_NORM]
        assert last.kind is GradientError.PARTIAL and last.ranks == (0, 1)

    def test_gradients_that_are_not_finite_unsharded_prove_nothing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        forward = modeling_llama.LlamaRMSNorm.forward

        def poisoned(self: Any, states: Any) -> Any:
            if torch.is_grad_enabled() and not faults.is_simulated(states):
                self.weight.register_hook(lambda gradient: gradient * float("nan"))
            return forward(self, states)

        config = configs.llama(num_key_value_heads=8, vocab_size=161)  # of its own: the hook stays on its weights
        small = miniature(config, 2)
        monkeypatch.setattr(modeling_llama.LlamaRMSNorm, "forward", poisoned)
        result = run_numerics(small, Sharding(tp_size=2), training=True)
        assert not result.passed and result.gradients == ()
        assert "gradients of model.layers.0.input_layernorm.weight" in result.not_run

    def test_inference_asks_for_none(self, monkeypatch: pytest.MonkeyPatch) -> None:
        faults.drop_gradients(monkeypatch)
        result = numerics()
        assert result.passed and Part.BACKWARD not in result.ran


def _with_twice_the_gradients(_: dict[str, Any], output: Any) -> Any:
    if faults.is_simulated(output.logits) and output.logits.requires_grad:
        output.logits.register_hook(lambda gradient: 2 * gradient)
    return output


class TestRaises:
    @pytest.mark.parametrize("part", PARTS)
    def test_in_one_part_alone(self, monkeypatch: pytest.MonkeyPatch, part: str) -> None:
        def stop(given: dict[str, Any], output: Any) -> Any:
            if faults.is_simulated(output.logits) and faults.CALLS[part](given):
                raise ValueError("on all ranks")
            return output

        faults.change_output(monkeypatch, modeling_llama.LlamaForCausalLM, stop)
        result = numerics()
        assert result.raised == (part, "ValueError: on all ranks") and not result.passed

    @pytest.mark.parametrize("part", [Part.DYNAMIC_CACHE, Part.STATIC_CACHE])
    def test_what_the_unsharded_model_cannot_do_is_skipped_and_said(
        self, monkeypatch: pytest.MonkeyPatch, part: Part
    ) -> None:
        def stop(given: dict[str, Any], output: Any) -> Any:
            if faults.CALLS[str(part)](given):
                raise ValueError("nowhere")
            return output

        faults.change_output(monkeypatch, modeling_llama.LlamaForCausalLM, stop)
        result = numerics()
        assert result.passed and part not in result.ran
        assert result.skipped == {part: "the unsharded model raises ValueError"}

    def test_memory_that_ran_out_in_a_step_proves_nothing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def exhaust(given: dict[str, Any], output: Any) -> Any:
            if faults.CALLS[str(Part.DYNAMIC_CACHE)](given):
                raise MemoryError
            return output

        faults.change_output(monkeypatch, modeling_llama.LlamaForCausalLM, exhaust)
        result = numerics()
        assert not result.passed and result.raised is None and result.skipped == {}
        assert result.not_run == "there is not enough memory for the decode with a dynamic cache: MemoryError"


def load(tp_size: int = 2) -> Load:
    return run_load(save(miniature(LLAMA, 4)), Sharding(tp_size=tp_size))


def _shard(model: Any) -> Any:
    return model.model.layers[0].mlp.up_proj.weight.data.to_local()


class TestLoad:
    @pytest.mark.parametrize(("tp_size", "rank"), [(2, 0), (2, 1), (4, 3)])
    @pytest.mark.parametrize(
        "change", [lambda shard: shard[-1, -1].add_(1e-6), lambda shard: shard.copy_(shard.flip(0))]
    )
    def test_one_rank_alone_gets_other_values(
        self, monkeypatch: pytest.MonkeyPatch, tp_size: int, rank: int, change: Callable[[Any], Any]
    ) -> None:
        faults.change_loaded(monkeypatch, lambda model, at: change(_shard(model)) if at == rank else None)
        found = load(tp_size)
        assert found.wrong == (rank, "model.layers.0.mlp.up_proj.weight")
        assert found.failed and not found.passed and found.not_run == ""

    def test_the_slice_of_another_rank(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Rank 1 gets what is rank 0's."""
        slices: list[Any] = []

        def mixed(model: Any, rank: int) -> None:
            if rank == 0:
                slices.append(_shard(model).clone())
            else:
                _shard(model).copy_(slices[0])

        faults.change_loaded(monkeypatch, mixed)
        assert load().wrong == (1, "model.layers.0.mlp.up_proj.weight")

    def test_a_whole_parameter_is_compared_too(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def changed(model: Any, rank: int) -> None:
            model.model.norm.weight.data[0] += rank

        faults.change_loaded(monkeypatch, changed)
        assert load().wrong == (1, LAST_NORM)

    @pytest.mark.parametrize("rank", [0, 1])
    def test_one_rank_alone_raises(self, monkeypatch: pytest.MonkeyPatch, rank: int) -> None:
        def stop(_: Any, at: int) -> None:
            if at == rank:
                raise KeyError("rope")

        faults.change_loaded(monkeypatch, stop)
        found = load()
        assert found.raised == (rank, "KeyError: 'rope'") and found.failed and not found.passed

    def test_a_checkpoint_that_cannot_be_saved_proves_nothing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(modeling_llama.LlamaForCausalLM, "save_pretrained", _raise)
        found = load()
        assert not found.passed and not found.failed
        assert found.not_run == "save_pretrained of the miniature raises OSError: no"


def _raise(*_: Any, **__: Any) -> None:
    raise OSError("no")


@pytest.fixture
def model(tmp_path: Path) -> str:
    return configs.write(tmp_path / "llama", LLAMA)


def check(model: str, depth: str = "numerics", **options: Any) -> Report:
    return tpplan.check(model, 2, depth=depth, **options)


class TestOfACheck:
    """The same faults through the front door: the status of the stage, the verdict, the exit code, and no file."""

    @pytest.fixture
    def wrong_logits(self, monkeypatch: pytest.MonkeyPatch) -> None:
        faults.add_to_logits(monkeypatch, 1, 2, 2 * LOGITS * largest_logit())

    def test_right(self, model: str) -> None:
        report = check(model, purpose="training")
        assert statuses(report) == {"static": "passed", "shapes": "passed", "numerics": "passed"}
        assert (str(report.verdict), report.exit_code, report.diagnostics) == ("pass", 0, ())

    def test_wrong_logits_on_the_last_rank(self, model: str, wrong_logits: None) -> None:
        report = check(model)
        assert statuses(report) == {"static": "passed", "shapes": "passed", "numerics": "failed"}
        (error,) = report.errors
        assert error.code == "TPP501" and "rank 1" in error.evidence and "0.0001" in error.evidence
        assert (str(report.verdict), report.exit_code) == ("fail", 1)

    def test_are_not_seen_where_they_were_not_asked_for(self, model: str, wrong_logits: None) -> None:
        report = check(model, depth="shapes")
        assert "numerics" not in report.stages and str(report.verdict) == "pass"

    def test_a_missing_gradient(self, model: str, monkeypatch: pytest.MonkeyPatch) -> None:
        faults.drop_gradients(monkeypatch)
        report = check(model, purpose="training")
        assert {error.code for error in report.errors} == {"TPP502"}
        assert all("is missing" in error.message for error in report.errors)
        assert (statuses(report)["numerics"], str(report.verdict), report.exit_code) == ("failed", "fail", 1)
        assert check(model).exit_code == 0, "for inference none is needed"

    def test_a_gradient_that_is_wrong_on_one_rank(self, model: str, monkeypatch: pytest.MonkeyPatch) -> None:
        faults.change_gradients(monkeypatch, lambda gradient: gradient * faults.on_rank(1, 2, 1.01, 1.0))
        report = check(model, purpose="training")
        assert {error.code for error in report.errors} == {"TPP502"} and report.exit_code == 1
        assert statuses(report)["numerics"] == "failed"

    @pytest.mark.parametrize("part", PARTS)
    def test_each_part_raises(self, model: str, monkeypatch: pytest.MonkeyPatch, part: str) -> None:
        def stop(given: dict[str, Any], output: Any) -> Any:
            if faults.is_simulated(output.logits) and faults.CALLS[part](given):
                raise ValueError("on all ranks")
            return output

        faults.change_output(monkeypatch, modeling_llama.LlamaForCausalLM, stop)
        report = check(model)
        assert [error.code for error in report.errors] == ["TPP504"]
        assert (statuses(report)["numerics"], report.exit_code) == ("failed", 1)

    @pytest.mark.parametrize(
        ("change", "code"),
        [
            (lambda model, rank: _shard(model).add_(rank), "TPP506"),
            (lambda model, rank: [][1 - rank] if rank else None, "TPP505"),
        ],
        ids=["wrong", "raises"],
    )
    def test_the_load_of_the_last_rank(
        self, model: str, monkeypatch: pytest.MonkeyPatch, change: Callable, code: str
    ) -> None:
        faults.change_loaded(monkeypatch, change)
        report = check(model)
        assert [error.code for error in report.errors] == [code]
        assert "rank 1 of 2" in report.errors[0].message
        assert (statuses(report)["numerics"], str(report.verdict), report.exit_code) == ("failed", "fail", 1)


def out_of_memory(given: dict[str, Any], output: Any) -> Any:
    if faults.is_simulated(output.logits):
        raise torch.OutOfMemoryError
    return output


def no_memory_to_load(_: Any, rank: int) -> None:
    if rank == 1:
        raise MemoryError


class TestNothingIsProven:
    """What did not run is no pass, whatever else passed: not for `check`, nor for a plan, nor for the library."""

    CAUSES: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
        "the load did not run": lambda patch: patch.setattr(modeling_llama.LlamaForCausalLM, "save_pretrained", _raise),
        "no memory for a rank's load": lambda patch: faults.change_loaded(patch, no_memory_to_load),
        "no memory for the numbers": lambda patch: faults.change_output(
            patch, modeling_llama.LlamaForCausalLM, out_of_memory
        ),
    }

    @pytest.mark.parametrize("cause", CAUSES)
    def test_the_stage_did_not_run(
        self, tmp_path: Path, model: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture, cause: str
    ) -> None:
        self.CAUSES[cause](monkeypatch)
        report = check(model)
        assert statuses(report) == {"static": "passed", "shapes": "passed", "numerics": "not-run"}
        assert report.stages["numerics"].reason and report.errors == ()
        assert (str(report.verdict), report.exit_code) == ("incomplete", 1)
        assert main(["plan", model, "--tp-size", "2", "-o", str(tmp_path / "new.yaml")]) == 1
        assert capsys.readouterr().out == "" and not (tmp_path / "new.yaml").exists()

    def test_no_entry_passes(
        self, tmp_path: Path, model: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
    ) -> None:
        plan, new = str(tmp_path / "right.yaml"), tmp_path / "new.yaml"
        assert main(["plan", model, "--tp-size", "2", "-o", plan]) == 0
        monkeypatch.setattr(modeling_llama.LlamaForCausalLM, "save_pretrained", _raise)
        capsys.readouterr()
        assert main(["plan", model, "--tp-size", "2", "--optimize", "memory", "-o", str(new)]) == 1
        assert main(["compile", plan, "--require-proof"]) == 1
        assert main(["compile", model, "--tp-size", "2"]) == 1
        assert capsys.readouterr().out == "" and not new.exists()
        assert main(["check", plan, "--depth", "numerics", "--format", "json"]) == 1
        assert json.loads(capsys.readouterr().out)["verdict"] == "incomplete"
        assert main(["sizes", model, "--tp-size", "2", "--depth", "numerics"]) == 1
        for call in (tpplan.plan, tpplan.distributed_config):
            with pytest.raises(tpplan.PlanError) as caught:
                call(model, 2)
            assert str(caught.value.report.verdict) == "incomplete"
        with pytest.raises(tpplan.PlanError):
            tpplan.distributed_config(plan, trust="never")

    def test_a_model_without_a_miniature(self, model: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        def only_without_weights(_: dict[str, Any], output: Any) -> Any:
            if type(output.logits) is torch.Tensor:
                raise ValueError("no value may be looked at")
            return output

        faults.change_output(monkeypatch, modeling_llama.LlamaForCausalLM, only_without_weights)
        report = check(model)
        assert statuses(report) == {"static": "passed", "shapes": "passed", "numerics": "not-run"}
        assert "no value may be looked at" in report.stages["numerics"].reason
        assert main(["plan", model, "--tp-size", "2", "-o", str(tmp_path / "new.yaml")]) == 1
        assert not (tmp_path / "new.yaml").exists()

    def test_shapes_that_fail_leave_the_numbers_not_run(self, model: str) -> None:
        report = check(model, overrides=rules("qkv", "replicated_with_grad_allreduce"))
        assert statuses(report)["shapes"] == "failed" and statuses(report)["numerics"] == "not-run"
        assert (str(report.verdict), report.exit_code) == ("fail", 1)


def statuses(report: Report) -> dict[str, str]:
    return {name: str(stage.status) for name, stage in report.stages.items()}
