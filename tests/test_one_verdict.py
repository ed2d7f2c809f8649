"""One plan has one verdict: `check`, `plan`, `compile`, `sizes`, `verify` and the library always say the same."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import tpplan
from tests.support import configs
from tests.support.subjects import rules
from tpplan import PlanError, Report, api
from tpplan.codes import Severity
from tpplan.diagnostics import Stage, Status, Verdict
from tpplan.launch import verify as launch
from tpplan.stages import bench
from tpplan.subject import Subject

SUMMED = "replicated_with_grad_allreduce"
# Heads that divide; heads that do not; a plan whose gradients are wrong; no plan.
SMALL: dict[str, configs.Config] = {
    "divides": configs.llama(num_attention_heads=8, num_key_value_heads=4),
    "repaired": configs.llama(num_attention_heads=8, num_key_value_heads=2),
    "gradients": configs.apertus(),
    "unplanned": configs.gpt2_xl(n_embd=64, n_head=4, n_layer=1),
}
few = settings(
    max_examples=4,
    deadline=None,
    derandomize=True,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)


@pytest.fixture(scope="module", autouse=True)
def judged_once():
    """What a plan is judged from is made once for a model and a use of it: each entry still asks in its own way."""
    benches: dict[str, bench.Bench] = {}

    def shared(subject: Subject) -> bench.Bench:
        use = (subject.device, subject.training, subject.batch, subject.max_length, subject.spec.dtype)
        key = json.dumps([subject.spec.config.to_dict(), subject.spec.source.name, *use], default=str, sort_keys=True)
        return benches.setdefault(key, real(subject))

    real = bench.Bench
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bench, "Bench", shared)
        patch.setattr(launch, "launch_stage", lambda *_: launch.LaunchResult(stage=Stage(status=Status.PASSED)))
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("models")
    for name, config in {**SMALL, "large": configs.llama_2_70b()}.items():
        configs.write(directory / name, config)
    return directory


def said(report: Report) -> tuple:
    """What a report says of a plan. Notes are about the file that a model was read from, which a plan is not."""
    return (
        report.verdict,
        report.exit_code,
        [(d.code, d.message, d.fix) for d in report.diagnostics if d.severity is not Severity.NOTE],
        {name: str(stage.status) for name, stage in report.stages.items() if name != "launch"},
        report.bytes_per_rank,
        report.memory,
    )


def asked(call: Callable[..., object], *args: object, **kwargs: object) -> object:
    """What a call returns, or the report of the error that it raises."""
    try:
        return call(*args, **kwargs)
    except PlanError as error:
        return error.report


@given(
    name=st.sampled_from(sorted(SMALL)),
    tp_size=st.sampled_from([1, 2, 4, 8]),
    device=st.sampled_from(["cpu", "tpu-v5e", "tpu-v6e"]),
    purpose=st.sampled_from(["inference", "training"]),
)
@few
def test_every_entry_says_the_same(folder: Path, name: str, tp_size: int, device: str, purpose: str) -> None:
    model, options = str(folder / name), {"device": device, "purpose": purpose}
    made = asked(api.find_plan, model, tp_size, **options)
    (size,) = api.size_candidates(model, tp_size, **options)
    verified = asked(tpplan.verify, model, tp_size, **options)
    loaded = asked(tpplan.distributed_config, model, tp_size, **options)
    repaired = made if isinstance(made, Report) else made.report
    assert said(size.report) == said(verified) == said(repaired)
    if isinstance(made, Report):
        assert isinstance(loaded, Report) and said(loaded) == said(made) and made.verdict is not Verdict.PASS
        if not made.overrides:
            assert said(tpplan.check(model, tp_size, **options)) == said(made), "the same plan: the model's own"
        return
    file = folder / "plan.yaml"
    file.write_text(made.plan.to_yaml(), encoding="utf-8")
    assert made.report.verdict is Verdict.PASS
    for entry in (file, made.plan):
        assert said(tpplan.check(entry)) == said(made.report)
        assert said(tpplan.verify(entry)) == said(made.report)
    arguments = {"tp_size": tp_size, "tp_plan": made.plan.overrides}
    for config in (loaded, tpplan.distributed_config(file)):
        assert {key: getattr(config, key) or {} for key in arguments} == arguments


class TestWhatDoesNotFit:
    """Llama-2-70B on four v5e: 33 GiB of parameters per rank, 16 GiB of memory."""

    @pytest.fixture
    def large(self, folder: Path) -> str:
        return str(folder / "large")

    def test_no_plan_is_written_and_sizes_that_fit_are_named(self, large: str, tmp_path: Path, capsys) -> None:
        from tpplan.cli import main

        file = tmp_path / "p.yaml"
        assert main(["plan", large, "--tp-size", "4", "--device", "tpu-v5e", "-o", str(file)]) == 1
        printed = capsys.readouterr().err
        assert not file.exists() and "TPP340" in printed and "verdict  fail" in printed
        assert "--tp-size 16 --device tpu-v5e writes a plan that fits, the smallest size that does" in printed
        assert api.find_plan(large, 16, device="tpu-v5e").report.verdict is Verdict.PASS

    def test_a_plan_made_for_another_device_is_handed_out_by_none(self, large: str, tmp_path: Path) -> None:
        file = tmp_path / "p.yaml"
        file.write_text(tpplan.plan(large, 4).to_yaml(), encoding="utf-8")
        report = tpplan.check(file, device="tpu-v5e")
        assert [error.code for error in report.errors] == ["TPP340"]
        for call in (tpplan.distributed_config, api.compiled):
            with pytest.raises(PlanError) as caught:
                call(file, device="tpu-v5e")
            assert said(caught.value.report) == said(report)
        assert said(tpplan.verify(file, device="tpu-v5e")) == said(report)

    def test_a_fix_offers_nothing_that_does_not_fit(self, tmp_path: Path) -> None:
        """GLM-4-9B at tp 4 fails its heads; 17.5 GiB on one v5e would not fit, and 2 is no number of v5e devices."""
        model = configs.write(tmp_path / "glm", configs.glm4_9b())
        (error,) = tpplan.check(model, 4, device="tpu-v5e").errors
        assert (
            error.code == "TPP301" and "writes a plan that passes" in error.fix and "without overrides" not in error.fix
        )

    def test_nor_a_repair_that_does_not_fit(self, tmp_path: Path) -> None:
        """Heads that do not divide, and more parameters than four v5e hold even if split evenly."""
        model = configs.write(tmp_path / "wide", configs.llama_2_70b(num_key_value_heads=2))
        (error,) = tpplan.check(model, 4, device="tpu-v5e").errors
        assert error.code == "TPP301"
        command = f"tpplan plan {model} --tp-size 8 --device tpu-v5e"
        assert error.fix == f"{command} writes a plan that fits, the smallest size that does"

    def test_another_strategy_is_taken_where_it_fits(self, tmp_path: Path) -> None:
        """With its attention replicated a rank would hold more than it has, with it gathered it does not."""
        sizes = {"intermediate_size": 8192, "num_hidden_layers": 60, "num_key_value_heads": 2}
        model = configs.write(tmp_path, configs.llama_2_70b(**sizes))
        with pytest.raises(PlanError, match="TPP340"):
            tpplan.plan(model, 4, device="tpu-v5e", strategy="replicate")
        found = api.find_plan(model, 4, device="tpu-v5e")
        assert found.strategy == "gather" and found.report.exit_code == 0


def test_a_plan_that_fails_is_not_launched(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "launch_stage", lambda *_: pytest.fail("launched"))
    plan = tpplan.plan(folder / "repaired", 4)
    wrong = tpplan.Plan.from_dict(plan.to_dict() | {"overrides": rules("kv", SUMMED)})
    report = tpplan.verify(wrong)
    assert report.verdict is Verdict.FAIL and report.stages["launch"].status is Status.NOT_RUN


class TestOneCause:
    """What the arithmetic finds and a run shows is one diagnostic, with the run as its evidence."""

    @staticmethod
    @cache
    def of(overrides: tuple[tuple[str, str], ...] = (), **values: int) -> Report:
        import tempfile

        with tempfile.TemporaryDirectory() as directory:
            return tpplan.check(configs.write(Path(directory), configs.llama(**values)), 4, overrides=dict(overrides))

    def test_heads_that_do_not_divide(self) -> None:
        report = self.of()
        (error,) = report.errors
        assert error.code == "TPP301" and "raises in model.layers.0.self_attn on rank 0 of 4" in error.evidence
        assert [str(stage.status) for stage in report.stages.values()] == ["failed", "failed", "not-run"]

    def test_keys_and_values_alone(self) -> None:
        report = self.of(tuple(rules("kv", SUMMED).items()))
        (error,) = report.errors
        assert error.code == "TPP206" and "gives logits different" in error.evidence
        assert report.stages["numerics"].status is Status.FAILED

    def test_a_head_that_leaves_its_logits_cut(self) -> None:
        (error,) = self.of((("lm_head", "colwise"),), num_key_value_heads=4).errors
        assert error.code == "TPP208" and "columns of logits" in error.evidence

    def test_two_causes_are_two(self) -> None:
        """The heads, and an MLP whose gate is gathered while the partner expects it cut."""
        gate = tuple(rules("gate", "colwise_gather_output", "model.layers.*.mlp.").items())
        codes = {error.code for error in self.of(gate).errors}
        assert "TPP301" in codes and len(codes) == 2
