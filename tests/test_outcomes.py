"""A verdict to a file, an exit code and a DistributedConfig: what does not pass is written and handed out nowhere.

The faults are planted in Transformers, never in tpplan, so that every entry has the same ones to find.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from torch.distributed.tensor import DTensor
from transformers.models.llama import modeling_llama

import tpplan
from tests.support import configs, faults
from tests.support.subjects import rules
from tpplan.cli import main
from tpplan.difference import Difference
from tpplan.launch.findings import Ended
from tpplan.launch.records import Gradients, Raised, RankResult, WrongGradient
from tpplan.launch.run import Launch
from tpplan.plan_files.document import ModelFacts, Plan, Target

SUMMED = "replicated_with_grad_allreduce"
CUT = configs.llama()  # 2 key/value heads, which 4 ranks cut: a step of repair replicates the attention
RIGHT = configs.llama(num_key_value_heads=8)
OLD = "# what was there before\n"


@pytest.fixture
def cut(tmp_path: Path) -> str:
    return configs.write(tmp_path / "cut", CUT)


@pytest.fixture
def right(tmp_path: Path) -> str:
    return configs.write(tmp_path / "right", RIGHT)


def write_plan(tmp_path: Path, config: configs.Config, tp_size: int, **overrides: str) -> str:
    """A plan file of these overrides, whatever becomes of it."""
    made = Plan(
        model=ModelFacts(id="nobody/model", auto_class="AutoModelForCausalLM", config=config),
        target=Target(tp_size=tp_size),
        overrides=overrides,
    )
    path = tmp_path / "plan.yaml"
    path.write_text(made.to_yaml(), encoding="utf-8")
    return str(path)


class TestRepairedAndWrong:
    """One step of repair makes it run, and it is wrong on the last rank, which no step mends."""

    @pytest.fixture(autouse=True)
    def wrong(self, monkeypatch: pytest.MonkeyPatch) -> None:
        faults.add_to_logits(monkeypatch, 3, 4, 1.0)

    def test_no_plan_is_written(self, cut: str, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
        old = tmp_path / "old.yaml"
        old.write_text(OLD)
        assert main(["plan", cut, "--tp-size", "4", "-o", str(old)]) == 1
        assert "TPP501" in capsys.readouterr().err and old.read_text() == OLD
        assert main(["plan", cut, "--tp-size", "4"]) == 1
        assert capsys.readouterr().out == ""

    def test_nor_where_costs_are_weighed(self, cut: str, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
        new = tmp_path / "new.yaml"
        assert main(["plan", cut, "--tp-size", "4", "--optimize", "memory", "-o", str(new)]) == 1
        assert capsys.readouterr().out == "" and not new.exists()

    def test_nothing_is_handed_out(self, cut: str, capsys: pytest.CaptureFixture) -> None:
        assert main(["compile", cut, "--tp-size", "4", "--as", "json"]) == 1
        assert capsys.readouterr().out == ""
        for call in (tpplan.plan, tpplan.distributed_config):
            with pytest.raises(tpplan.PlanError) as caught:
                call(cut, 4)
            assert "TPP501" in {error.code for error in caught.value.report.errors}
            assert str(caught.value.report.verdict) == "fail"

    def test_nor_offered(self, cut: str) -> None:
        """Not for a check without numbers either: what is offered is run with them."""
        (error,) = tpplan.check(cut, 4, depth="shapes").errors
        assert error.fix == "without overrides, tp_size 1 works"
        assert "no repair is known: strategy replicate was tried on model.layers.*.self_attn" in error.evidence

    def test_nor_launched(self, cut: str, capsys: pytest.CaptureFixture) -> None:
        assert main(["verify", cut, "--tp-size", "4", "--format", "json"]) == 1
        document = json.loads(capsys.readouterr().out)
        assert (document["verdict"], document["stages"]["launch"]["status"]) == ("fail", "not-run")

    def test_a_size_is_judged_to_the_depth_that_was_asked_for(self, cut: str, capsys: pytest.CaptureFixture) -> None:
        assert main(["sizes", cut, "--tp-size", "4", "--format", "json"]) == 1
        (size,) = json.loads(capsys.readouterr().out)["sizes"]
        assert size["verdict"] == "fail" and size["stages"]["numerics"]["status"] == "failed"
        assert main(["sizes", cut, "--tp-size", "4", "--depth", "shapes"]) == 0, "without the numbers it passes"


class TestOptimize:
    """Gathered attention has the fewest bytes on a rank; here it is wrong wherever a rank has a part of the queries."""

    @pytest.fixture
    def gather_is_wrong(self, monkeypatch: pytest.MonkeyPatch) -> None:
        forward = modeling_llama.LlamaAttention.forward

        def wrong(self: Any, *args: Any, **given: Any) -> Any:
            states, weights = forward(self, *args, **given)
            is_cut = isinstance(self.q_proj.weight, DTensor) and self.q_proj.weight.placements[0].is_shard()
            by = faults.on_rank(3, 4, 1.0) if is_cut and faults.is_simulated(states) else 0.0
            return states + by, weights

        monkeypatch.setattr(modeling_llama.LlamaAttention, "forward", wrong)

    def test_takes_the_fewest_bytes(self, cut: str, tmp_path: Path) -> None:
        plan = tmp_path / "plan.yaml"
        assert main(["plan", cut, "--tp-size", "4", "--optimize", "memory", "-o", str(plan)]) == 0
        assert "colwise_gather_output" in plan.read_text()

    def test_never_takes_one_that_fails(self, cut: str, tmp_path: Path, gather_is_wrong: None) -> None:
        plan = tmp_path / "plan.yaml"
        assert main(["plan", cut, "--tp-size", "4", "--optimize", "memory", "-o", str(plan)]) == 0
        assert "colwise_gather_output" not in plan.read_text() and SUMMED in plan.read_text()
        assert tpplan.check(plan, depth="numerics").exit_code == 0

    def test_what_is_written_passes_whatever_was_asked_for(
        self, cut: str, tmp_path: Path, gather_is_wrong: None
    ) -> None:
        plan = tmp_path / "plan.yaml"
        exit_code = main(["plan", cut, "--tp-size", "4", "--strategy", "gather", "-o", str(plan)])
        assert exit_code == (0 if plan.exists() else 1)
        assert not plan.exists() or tpplan.check(plan, depth="numerics").exit_code == 0


class TestOfAPlanFile:
    def test_that_is_right(self, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
        plan = write_plan(tmp_path, CUT, 4, **rules("qkvo", SUMMED))
        assert main(["check", plan]) == 0
        assert main(["check", plan, "--depth", "numerics"]) == 0
        capsys.readouterr()
        assert main(["compile", plan, "--as", "json"]) == 0
        assert json.loads(capsys.readouterr().out) == {"tp_size": 4, "tp_plan": rules("qkvo", SUMMED)}
        config = tpplan.distributed_config(plan)
        assert (config.tp_size, config.tp_plan) == (4, rules("qkvo", SUMMED))

    @pytest.mark.parametrize(
        ("overrides", "stage", "code"),
        [
            (rules("kv", SUMMED), "numerics", "TPP206"),
            (rules("qkv", SUMMED), "shapes", "TPP207"),
            (rules("q", "no_such_style"), "static", "TPP203"),
        ],
        ids=["wrong numbers", "raises", "is rejected"],
    )
    def test_that_fails_is_handed_out_nowhere(
        self, tmp_path: Path, capsys: pytest.CaptureFixture, overrides: dict[str, str], stage: str, code: str
    ) -> None:
        plan = write_plan(tmp_path, CUT, 4, **overrides)
        report = tpplan.check(plan, depth="numerics")
        assert str(report.stages[stage].status) == "failed" and code in {error.code for error in report.errors}
        later = list(report.stages)[list(report.stages).index(stage) + 1 :]
        assert {str(report.stages[name].status) for name in later} <= {"not-run"}
        assert (str(report.verdict), report.exit_code) == ("fail", 1)
        capsys.readouterr()
        assert main(["compile", plan]) == 1
        assert capsys.readouterr().out == ""
        with pytest.raises(tpplan.PlanError) as caught:
            tpplan.distributed_config(plan)
        assert code in {error.code for error in caught.value.report.errors}

    def test_whose_numbers_alone_are_wrong(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
    ) -> None:
        """Neither arithmetic nor a run without weights tells."""
        plan = write_plan(tmp_path, RIGHT, 2)
        faults.add_to_logits(monkeypatch, 1, 2, 1.0)
        assert main(["check", plan, "--depth", "shapes"]) == 0
        capsys.readouterr()
        assert main(["compile", plan]) == 1
        assert capsys.readouterr().out == ""
        with pytest.raises(tpplan.PlanError) as caught:
            tpplan.distributed_config(plan)
        assert [error.code for error in caught.value.report.errors] == ["TPP501"]


class TestSizes:
    """GPT-2 has no plan: it runs on 1 rank, and nothing tpplan knows makes it run on more."""

    @pytest.mark.parametrize(("sizes", "exit_code"), [((1,), 0), ((1, 2), 0), ((2,), 1), ((2, 3), 1)])
    def test_one_that_passes_is_enough(
        self, tmp_path: Path, capsys: pytest.CaptureFixture, sizes: tuple[int, ...], exit_code: int
    ) -> None:
        model = configs.write(tmp_path / "gpt2", configs.gpt2_xl(n_embd=64, n_head=4, n_layer=1, vocab_size=160))
        asked = [option for size in sizes for option in ("--tp-size", str(size))]
        assert main(["sizes", model, *asked, "--format", "json"]) == exit_code
        found = json.loads(capsys.readouterr().out)["sizes"]
        assert [size["verdict"] for size in found] == ["pass" if size == 1 else "fail" for size in sizes]
        assert [size["verdict"] for size in tpplan.sizes(model, sizes)] == [size["verdict"] for size in found]


def done(rank: int, **changes: Any) -> RankResult:
    right = Difference(error=1e-7)
    made = RankResult(rank=rank, pid=rank, phase="done", logits=right, tokens=[5, 6], parameter_bytes=None)
    return replace(made, load_seconds=0.1, peak_bytes=1, **changes)


WHOLE = RankResult(rank=0, pid=1, phase="done", tokens=[5, 6], margins=[0.5, 0.5], cache="static")
BEYOND = Difference(error=1.1e-4, first="at [0]")
WITHIN = Difference(error=0.9e-4)
NOT_FINITE = Difference(error=float("nan"), first="at [0]")
RAISED = Raised(type="KeyError", message="rope", at=1.0, memory=False)
GRADIENTS = Gradients(compared=1, worst=1.0, wrong=(WrongGradient(parameter="a", error=1.0),))


class TestVerify:
    """What the last rank wrote down, to the status of the stage, the verdict and the exit code. Nothing is started."""

    @pytest.mark.parametrize(
        ("last", "how", "codes", "status", "verdict", "exit_code"),
        [
            ({}, {}, [], "passed", "pass", 0),
            ({"logits": WITHIN}, {}, [], "passed", "pass", 0),
            ({"logits": BEYOND}, {}, ["TPP514"], "failed", "fail", 1),
            ({"logits": NOT_FINITE}, {}, ["TPP514"], "failed", "fail", 1),
            ({"gradients": GRADIENTS}, {}, ["TPP516"], "failed", "fail", 1),
            ({"tokens": [5, 7], "first_token": 1}, {}, ["TPP515"], "failed", "fail", 1),
            ({"missing": ["a"]}, {}, ["TPP522"], "failed", "fail", 1),
            ({"phase": "load", "error": RAISED}, {"exit_codes": {1: 1}}, ["TPP510"], "failed", "fail", 1),
            ({"phase": "load"}, {"exit_codes": {1: -11}}, ["TPP511"], "failed", "fail", 1),
            ({"phase": "load"}, {"after": 9.0, "states": {1: "S"}}, ["TPP512"], "failed", "fail", 1),
            ({"phase": "load"}, {"launcher": (1, "no")}, ["TPP913"], "not-run", "incomplete", 1),
        ],
        ids=str,
    )
    def test_ranks(
        self,
        right: str,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture,
        last: dict[str, Any],
        how: dict[str, Any],
        codes: list[str],
        status: str,
        verdict: str,
        exit_code: int,
    ) -> None:
        results = {0: done(0), 1: replace(done(1), **last)}
        ended = Ended(ranks=(0, 1), results=results, unsharded=WHOLE, **how)
        monkeypatch.setattr(Launch, "run_unsharded", lambda _: (WHOLE, []))
        monkeypatch.setattr(Launch, "run_ranks", lambda *_: ended)
        plan = write_plan(Path(right).parent, RIGHT, 2)
        assert main(["verify", plan, "--format", "json"]) == exit_code
        document = json.loads(capsys.readouterr().out)
        found = [d["code"] for d in document["diagnostics"] if d["severity"] == "error"]
        assert (found, document["stages"]["launch"]["status"], document["verdict"]) == (codes, status, verdict)

    def test_ranks_that_were_compared_with_nothing(
        self, right: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
    ) -> None:
        ended = Ended(ranks=(0, 1), results={rank: done(rank, first_token=None) for rank in (0, 1)})
        monkeypatch.setattr(Launch, "run_unsharded", lambda launch: (None, [launch.not_compared("it was ended")]))
        monkeypatch.setattr(Launch, "run_ranks", lambda *_: ended)
        assert main(["verify", write_plan(Path(right).parent, RIGHT, 2), "--format", "json"]) == 1
        document = json.loads(capsys.readouterr().out)
        assert (document["stages"]["launch"]["status"], document["verdict"]) == ("not-run", "incomplete")
