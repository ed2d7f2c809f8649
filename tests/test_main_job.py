"""The main job, as a user sees it: judge a model at a tp_size, repair it, emit a DistributedConfig that loads it."""

from __future__ import annotations

import ast
import dataclasses
import json
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from packaging.version import Version
from transformers import CONFIG_MAPPING

import tpplan
from tests.support import configs
from tests.support.checkpoints import write_safetensors
from tests.support.subjects import rules, subject
from tpplan import InputError, PlanError, Report
from tpplan.checks import ties, widths
from tpplan.cli import main
from tpplan.diagnostics import Diagnostic, Status, Verdict
from tpplan.model.releases import has_uneven_gather, transformers_version
from tpplan.model.skeleton import known_styles
from tpplan.plan_files.document import Plan
from tpplan.plan_files.file import read_plan

SUMMED = "replicated_with_grad_allreduce"
SHIPPED = sorted((Path(__file__).parent.parent / "plans").glob("*.yaml"))
measured = pytest.mark.skipif(transformers_version() < (5, 24), reason="measured on 5.24: plans differ")
needs_sarvam = pytest.mark.skipif("sarvam_moe" not in CONFIG_MAPPING, reason="the installed release has no sarvam_moe")
needs_exaone = pytest.mark.skipif("exaone" not in CONFIG_MAPPING, reason="the installed release has no exaone")
needs_replicate = pytest.mark.skipif("replicate" not in known_styles(), reason="the style exists from 5.21")


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with one model directory for each published config, named as the function that makes it."""
    root = tmp_path_factory.mktemp("models")
    for config in configs.PUBLISHED:
        configs.write(root / config.__name__, config())
    return root


@pytest.fixture(autouse=True)
def in_models(models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(models)


@cache
def report(model: str, tp_size: int, **options: Any) -> Report:
    """tpplan.check of a published model. Only called inside `models`."""
    return tpplan.check(model, tp_size, **options)


@cache
def planned(model: str, tp_size: int, **options: Any) -> Plan:
    return tpplan.plan(model, tp_size, **options)


def codes(judged: Report) -> list[str]:
    return [diagnostic.code for diagnostic in judged.diagnostics]


def the(code: str, judged: Report) -> Diagnostic:
    (found,) = [diagnostic for diagnostic in judged.diagnostics if diagnostic.code == code]
    return found


class TestCheck:
    def test_glm_4_runs_at_2(self) -> None:
        judged = report("glm4_9b", 2)
        assert judged.verdict is Verdict.PASS and judged.exit_code == 0
        assert judged.diagnostics == ()
        assert [stage.status for stage in judged.stages.values()] == [Status.PASSED] * 3
        assert judged.bytes_per_rank.ideal == pytest.approx(9.4e9, rel=0.01), "9.4B parameters of 2 bytes over 2 ranks"

    def test_glm_4_fails_at_4_and_why(self) -> None:
        judged = report("glm4_9b", 4)
        assert judged.exit_code == 1
        (heads,) = judged.errors
        assert heads.code == "TPP301" and heads.where.module == "model.layers.*.self_attn"
        arithmetic, shown = heads.evidence.split("; the sharded forward raises in ")
        assert arithmetic.startswith("num_key_value_heads = 2 (config.json); 256 columns / 4 ranks = 64 columns ")
        assert shown.startswith("model.layers.0.self_attn on rank 0 of 4: "), "the first module that stops"
        assert "shape '[1, 12, -1, 128]' is invalid" in shown
        assert "tpplan plan glm4_9b --tp-size 4 " in heads.fix, "and TestPlan shows that this works"
        assert heads.fix.endswith("without overrides, tp_size 1 or 2 works"), "and the test above shows that 2 does"

    def test_every_violated_constraint_at_once(self) -> None:
        judged = report("glm4_9b", 3)
        uneven = [] if has_uneven_gather() else ["TPP309"] * 2
        assert codes(judged) == ["TPP301", "TPP302", *uneven]
        assert "2 key/value heads" in judged.diagnostics[0].message
        assert "32 query heads" in judged.diagnostics[1].message

    def test_a_guard_on_the_heads_would_refuse_phi_4(self) -> None:
        judged = report("phi_4", 4)
        assert configs.phi_4()["num_key_value_heads"] % 4 != 0
        assert judged.exit_code == 0 and judged.errors == ()

    def test_a_model_nested_in_a_multimodal_wrapper(self) -> None:
        assert report("qwen3_vl_30b_a3b", 4, depth="shapes").exit_code == 0
        assert codes(report("qwen3_vl_30b_a3b", 4)) == ["TPP505"], "its experts do not load where they are sharded"
        judged = report("qwen3_vl_30b_a3b", 8)
        assert judged.exit_code == 1
        assert the("TPP301", judged).where.rule == "model.language_model.layers.*.self_attn.k_proj"
        assert "num_key_value_heads = 4 (text_config)" in the("TPP301", judged).evidence

    def test_the_auto_class_is_found_or_named(self) -> None:
        assert subject(configs.qwen3_vl_30b_a3b(), 8).spec.auto_class == "AutoModelForImageTextToText"
        named = report("qwen3_vl_30b_a3b", 8, auto_class="AutoModel")
        assert the("TPP301", named).where.rule == "language_model.layers.*.self_attn.k_proj", "not within `model`"

    @measured
    def test_gpt_oss_runs_and_stays_whole(self) -> None:
        judged = report("gpt_oss_20b", 4)
        assert judged.exit_code == 0
        warning = the("TPP305", judged)
        assert "each rank holds 20.05B of 20.91B parameters" in warning.message
        listed = [part.split()[-2] for part in warning.evidence.split(": ", 2)[2].split(", ")[:-1]]
        sizes = [float(size) for size in listed]
        assert sizes == sorted(sizes, reverse=True) and sizes[0] == 23.73, "the experts, largest first"
        shares = judged.bytes_per_rank
        assert shares.parameters == pytest.approx(20.05e9 * 2, rel=0.001)
        assert shares.whole < shares.parameters < 4 * shares.ideal

    def test_a_model_without_a_plan_says_what_to_do(self) -> None:
        judged = report("gpt2_xl", 5)
        assert judged.exit_code == 1 and codes(judged) == ["TPP205", "TPP312"], "and that its config names no dtype"
        assert judged.stages["shapes"].status is Status.NOT_RUN
        assert the("TPP205", judged).fix.startswith("tpplan plan ") and "--extend" in the("TPP205", judged).fix
        assert report("gpt2_xl", 1).exit_code == 0

    @measured
    def test_gemma_4_has_kinds_of_layers_with_other_heads(self) -> None:
        """16 sliding and 4 full key/value heads: the fewest of any layer decide."""
        assert report("gemma_4_31b", 4).exit_code == 0
        heads = the("TPP301", report("gemma_4_31b", 8, depth="static"))
        assert "does not divide 4 key/value heads" in heads.message
        assert "2048 columns / 8 ranks = 256 columns per rank, one head needs 512" in heads.evidence

    @pytest.mark.parametrize(
        ("text", "code", "said"),
        [
            ('{"model_type": "glm44", "vocab_size": 1}', "TPP111", "'glm44'"),
            ('{"model_type": ', "TPP110", "not JSON"),
            ("[]", "TPP110", "the object that a config is"),
            ('{"hidden_size": 64}', "TPP112", "model_type"),
            ('{"model_type": "glm4", "hidden_size": 64, "vocab_size": 160}', "TPP112", "num_attention_heads"),
            (None, "TPP110", "no config.json"),
        ],
        ids=["unknown type", "cut off", "a list", "no type", "missing fields", "empty directory"],
    )
    def test_input_that_cannot_be_read_is_one_diagnostic(
        self, tmp_path: Path, capsys: pytest.CaptureFixture, text: str | None, code: str, said: str
    ) -> None:
        if text is not None:
            (tmp_path / "config.json").write_text(text, encoding="utf-8")
        assert main(["check", str(tmp_path), "--tp-size", "2"]) == 2
        printed = capsys.readouterr()
        assert printed.out.count(" error TPP") == 1
        assert f" error {code} " in printed.out and said in printed.out
        assert "Traceback" not in printed.out and printed.err == ""

    @pytest.mark.parametrize(
        "odd",
        [
            {"architectures": 5},
            {"model_type": ["llama"]},
            {"model_type": "own", "auto_map": [1]},
            {"layer_types": 7},
            {"quantization_config": ["fp8"]},
            {"vocab_size": None},
            {"num_key_value_heads": 0},
            {"num_hidden_layers": 10**7},
            {"hidden_size": -1},
            {"head_dim": 0},
            {"dtype": "nonsense"},
            {"rope_scaling": {"rope_type": "nope"}},
            {"text_config": 3},
            {"distributed_config": {"tp_size": 4}},
        ],
        ids=str,
    )
    def test_an_odd_config_is_judged_or_refused(self, tmp_path: Path, capsys: pytest.CaptureFixture, odd: dict) -> None:
        """Exit code 3 would be a bug of ours."""
        model = configs.write(tmp_path, configs.llama(**odd))
        exit_code = main(["check", model, "--tp-size", "2", "--depth", "static"])
        printed = capsys.readouterr()
        assert (exit_code, printed.out.count(" error TPP")) in ((0, 0), (2, 1)) and printed.err == ""


def test_a_config_nested_without_end_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    """Python parses what its own recursion, and Transformers', cannot walk."""
    for depth, exit_code in ((40, 0), (500, 2)):
        text = json.dumps(configs.llama())[:-1] + ', "own": ' + '{"a": ' * depth + "1" + "}" * depth + "}"
        (tmp_path / "config.json").write_text(text, encoding="utf-8")
        assert main(["check", str(tmp_path), "--tp-size", "2", "--depth", "static"]) == exit_code
    assert "nested more than 64 deep" in capsys.readouterr().out


def test_half_a_surrogate_pair_stays_an_escape(tmp_path: Path, capfd: pytest.CaptureFixture) -> None:
    text = json.dumps(configs.llama(architectures=["\ud800"]))
    (tmp_path / "config.json").write_text(text, encoding="utf-8")
    assert main(["check", str(tmp_path), "--tp-size", "2", "--depth", "static", "--format", "json"]) == 0
    printed = capfd.readouterr().out
    assert json.loads(printed)["verdict"] == "pass" and "\\ud800" in printed


def test_a_buffer_too_large_to_make_is_no_fault_of_a_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As one would be whose size has no bound."""
    monkeypatch.setattr("tpplan.model.bounds.BOUNDS", ())
    judged = tpplan.check(configs.write(tmp_path, configs.llama(head_dim=10**12)), 2)
    assert judged.verdict is Verdict.INCOMPLETE
    assert judged.stages["shapes"].reason.startswith("the model does not run unsharded either")


class TestCannotRun:
    """What cannot be run says nothing about tensor parallelism: it is neither right nor wrong."""

    def judged(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, stops: Any) -> Report:
        from transformers.models.llama.modeling_llama import LlamaMLP

        forward = LlamaMLP.forward

        def stopping(self, x):
            stops(x)
            return forward(self, x)

        monkeypatch.setattr(LlamaMLP, "forward", stopping)
        return tpplan.check(configs.write(tmp_path, configs.llama()), 2)

    def test_code_that_looks_at_values_runs_on_a_miniature(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        judged = self.judged(monkeypatch, tmp_path, lambda x: x.sum().item())
        assert judged.verdict is Verdict.PASS
        reason = judged.stages["shapes"].reason
        assert reason.startswith("on a miniature, for model.layers.0.mlp cannot be run without weights")

    def test_it_does_not_run_unsharded_either(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        def raises(x: Any) -> None:
            raise RuntimeError("out of order")

        judged = self.judged(monkeypatch, tmp_path, raises)
        assert judged.verdict is Verdict.INCOMPLETE and judged.exit_code == 1
        assert judged.stages["shapes"].status is Status.NOT_RUN
        reason = judged.stages["shapes"].reason
        assert reason.startswith("the model does not run unsharded either, in model.layers.0.mlp")


def test_a_backward_that_stops(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """TPP403, by a layer whose backward is made to raise where it is sharded."""
    import torch
    import torch.distributed as dist
    from transformers.models.llama.modeling_llama import LlamaMLP

    class Stops(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            if dist.is_initialized():
                raise RuntimeError("not while it is sharded")
            return gradient

    forward = LlamaMLP.forward
    monkeypatch.setattr(LlamaMLP, "forward", lambda self, x: forward(self, Stops.apply(x)))
    model = configs.write(tmp_path, configs.llama())
    stop = the("TPP403", tpplan.check(model, 2, purpose="training"))
    assert stop.where.module.startswith("model.layers.0.mlp."), "layer 1 is the same as layer 0 and not run"
    assert "not while it is sharded" in stop.evidence
    assert tpplan.check(model, 2).exit_code == 0, "inference runs no backward"


class TestPlan:
    def test_glm_4_at_4_is_four_rules(self, capsys: pytest.CaptureFixture) -> None:
        assert main(["plan", "glm4_9b", "--tp-size", "4"]) == 0
        printed = capsys.readouterr()
        written = yaml.safe_load(printed.out)
        assert written["overrides"] == rules("qkvo", SUMMED)
        assert written["target"]["tp_size"] == 4
        assert set(written["proven"]["stages"].values()) == {"passed"}
        assert printed.err.startswith("model.layers.*.self_attn: the forward raises; 4 rules overridden (replicate)\n")
        assert "verdict  pass: glm4_9b at tp_size 4" in printed.err

    def test_it_is_written_and_checks_without_the_model(
        self, tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The plan carries the config facts, so neither network nor config.json is needed."""
        file = tmp_path / "glm.yaml"
        assert main(["plan", "glm4_9b", "--tp-size", "4", "-o", str(file)]) == 0
        printed = capsys.readouterr()
        assert printed.out == "" and printed.err.endswith(f"written to {file}\n")

        monkeypatch.chdir(tmp_path)
        assert not Path("glm4_9b").exists()
        assert main(["check", str(file)]) == 0
        assert main(["check", str(file), "--tp-size", "2"]) == 2

    def test_a_bound_that_is_infinite_is_no_fact(self, tmp_path: Path) -> None:
        """As in configs of Mamba: JSON has no such number, Python's reads and writes it, and a plan file has none."""
        model = configs.write(tmp_path / "model", configs.llama(time_step_limit=[0.0, float("inf")]))
        assert "Infinity" in (tmp_path / "model" / "config.json").read_text()
        file = tmp_path / "plan.yaml"
        assert main(["plan", model, "--tp-size", "2", "-o", str(file)]) == 0
        assert "time_step" not in file.read_text()
        assert main(["check", str(file), "--model", model, "--depth", "static"]) == 0

    @needs_replicate
    def test_training_replicates_with_whole_gradients(self) -> None:
        assert planned("glm4_9b", 4, purpose="training").overrides == rules("qkvo", "replicate")

    @needs_replicate
    def test_training_takes_the_norms_along(self) -> None:
        plan = planned("qwen3_4b", 16, purpose="training")
        assert plan.overrides == rules("qkvo", "replicate") | {
            f"model.layers.*.self_attn.{name}_norm": "replicate" for name in "qk"
        }
        assert plan.proven.stages["numerics"] == "passed"

    def test_training_sums_what_sits_on_a_sharded_activation(self, tmp_path: Path) -> None:
        plan = tpplan.plan(configs.write(tmp_path, configs.apertus()), 2, purpose="training")
        assert plan.overrides == {"model.layers.*.mlp.act_fn": SUMMED}

    def test_gather_keeps_the_weights_sharded(self) -> None:
        plan = planned("glm4_9b", 4, strategy="gather")
        assert plan.overrides == rules("qkv", "colwise_gather_output") | rules("o", "rowwise_split_input")
        assert plan.proven.strategy == "gather"

    @pytest.mark.parametrize(("model", "tp_size"), [("phi_4", 4), ("glm4_9b", 2), ("qwen3_06b", 2)])
    def test_no_repair_is_no_override(self, model: str, tp_size: int) -> None:
        plan = planned(model, tp_size)
        assert plan.overrides == {}
        assert plan.proven.strategy is None

    def test_repairs_a_fused_projection(self, tmp_path: Path) -> None:
        """6 heads in one query_key_value at tp_size 4."""
        plan = tpplan.plan(configs.write(tmp_path, configs.gpt_neox()), 4)
        attention = "gpt_neox.layers.*.attention."
        assert plan.overrides == {f"{attention}query_key_value": SUMMED, f"{attention}dense": SUMMED}

    def test_repairs_query_heads_that_do_not_divide(self, tmp_path: Path) -> None:
        config = configs.llama(hidden_size=48, num_attention_heads=6, num_key_value_heads=6)
        assert tpplan.plan(configs.write(tmp_path, config), 4).overrides == rules("qkvo", SUMMED)

    def test_repairs_a_model_inside_a_wrapper(self, tmp_path: Path) -> None:
        config = configs.write(tmp_path, configs.llava())
        inside = "model.language_model.layers.*.self_attn."
        assert tpplan.plan(config, 4).overrides == rules("qkvo", SUMMED, inside)

    def test_one_key_value_head_is_repaired(self, tmp_path: Path) -> None:
        config = configs.write(tmp_path, configs.llama(num_key_value_heads=1))
        plan = tpplan.plan(config, 4)
        assert plan.overrides == rules("qkvo", SUMMED)

    def test_the_fix_counts_every_rule_that_the_plan_overrides(self, tmp_path: Path) -> None:
        judged = tpplan.check(configs.write(tmp_path, configs.llama(num_key_value_heads=1)), 4, depth="numerics")
        assert "4 rules overridden" in the("TPP301", judged).fix

    @needs_sarvam
    def test_weights_that_the_loader_cannot_take_apart_sharded_are_kept_whole(self, tmp_path: Path) -> None:
        """q, k and v are one tensor in the checkpoint, which the loader cuts before it splits it by full sizes."""
        made = tpplan.plan(configs.write(tmp_path, configs.sarvam_moe()), 2)
        assert made.overrides == rules("qkvo", SUMMED) and made.proven.stages["numerics"] == "passed"

    def test_when_nothing_helps_it_says_so_with_the_last_evidence(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from torch.distributed import is_initialized

        from tpplan.stages import load

        real = load.load_sharded

        def only_unsharded(*args, **kwargs):
            if is_initialized():
                raise ValueError("no rank can load this")
            return real(*args, **kwargs)

        monkeypatch.setattr(load, "load_sharded", only_unsharded)
        with pytest.raises(PlanError) as caught:
            tpplan.plan(configs.write(tmp_path, configs.mixtral()), 2)
        (error,) = caught.value.report.errors
        assert error.code == "TPP505" and "no repair is known" in error.evidence

    def test_without_a_plan_there_is_nothing_to_repair(self) -> None:
        with pytest.raises(PlanError, match="TPP205"):
            tpplan.plan("gpt2_xl", 5)


class TestCompile:
    @pytest.mark.parametrize(("model", "tp_size"), [("glm4_9b", 4), ("phi_4", 4)])
    def test_json_is_what_distributed_config_takes(
        self, capsys: pytest.CaptureFixture, model: str, tp_size: int
    ) -> None:
        from transformers import DistributedConfig

        assert main(["compile", model, "--tp-size", str(tp_size), "--as", "json"]) == 0
        printed = json.loads(capsys.readouterr().out)
        config = DistributedConfig.from_dict(printed)
        assert set(printed) <= {field.name for field in dataclasses.fields(config)}, "unknown keys would vanish"
        assert all(getattr(config, key) == value for key, value in printed.items())
        assert ("tp_plan" in printed) is (model == "glm4_9b"), "an empty tp_plan would mean no rule at all"

    def test_python_is_a_call_that_loads_the_model(
        self, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        import torch
        import transformers

        assert main(["compile", "glm4_9b", "--tp-size", "4"]) == 0
        script = capsys.readouterr().out
        imported = [node for node in ast.parse(script).body if isinstance(node, ast.Import | ast.ImportFrom)]
        assert len(imported) == 2

        calls = []
        loader = SimpleNamespace(from_pretrained=lambda *args, **kwargs: calls.append((args, kwargs)))
        monkeypatch.setattr(transformers, "AutoModelForCausalLM", loader)
        exec(compile(script, "compiled.py", "exec"), {})
        (((model,), options),) = calls
        assert model == "glm4_9b" and options["dtype"] is torch.bfloat16
        assert options["distributed_config"].tp_size == 4
        assert options["distributed_config"].tp_plan == rules("qkvo", SUMMED)

    def test_a_plan_that_fails_is_not_compiled(self, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
        good = planned("glm4_9b", 4)
        data = good.to_dict() | {"overrides": rules("kv", SUMMED)}
        (tmp_path / "bad.yaml").write_text(Plan.from_dict(data).to_yaml(), encoding="utf-8")
        assert main(["compile", str(tmp_path / "bad.yaml"), "--as", "json"]) == 1
        printed = capsys.readouterr()
        assert printed.out == "" and "TPP206" in printed.err


class TestLibrary:
    def test_a_model_is_repaired(self) -> None:
        config = tpplan.distributed_config("glm4_9b", tp_size=4)
        assert type(config).__name__ == "DistributedConfig"
        assert config.tp_size == 4 and config.tp_plan == rules("qkvo", SUMMED)

    def test_a_plan_is_used_as_it_is(self, tmp_path: Path) -> None:
        plan = planned("glm4_9b", 4, strategy="gather")
        (tmp_path / "glm.yaml").write_text(plan.to_yaml(), encoding="utf-8")
        for given in (plan, tmp_path / "glm.yaml", str(tmp_path / "glm.yaml")):
            assert tpplan.distributed_config(given).tp_plan == plan.overrides

    def test_no_plan_can_work(self) -> None:
        with pytest.raises(PlanError) as caught:
            tpplan.distributed_config("gpt2_xl", tp_size=5)
        assert caught.value.report.verdict is Verdict.FAIL
        assert "TPP205 no-tp-plan" in str(caught.value)

    @pytest.mark.parametrize("arguments", [("nowhere/at/all", 2), ("glm4_9b", None), ("glm4_9b", 0), ("glm4_9b", True)])
    def test_input_errors_are_their_own_kind(self, arguments: tuple) -> None:
        with pytest.raises(InputError) as caught:
            tpplan.distributed_config(*arguments)
        assert caught.value.report.exit_code == 2

    def test_overrides_can_be_tried_on_a_model(self) -> None:
        assert tpplan.check("glm4_9b", 4, overrides=rules("qkvo", SUMMED)).exit_code == 0
        assert codes(tpplan.check("glm4_9b", 4, overrides=rules("kv", SUMMED))) == ["TPP206"]


class TestTiedWeightsOnTpu:
    """TPU, tied, both names in the checkpoint, Transformers before 5.23: each of the four must hold."""

    BOTH = ("model.embed_tokens.weight", "lm_head.weight", "model.norm.weight")

    def found(
        self,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        *,
        names: tuple[str, ...] | None = BOTH,
        form: str = "index",
        version: tuple[int, ...] = (5, 22, 1),
        device: str = "tpu-v5p",
        tied: bool = True,
        tp_size: int = 2,
    ) -> list[tuple[str, str]]:
        """(code, severity) of what `static` says about a tied model with this checkpoint."""
        monkeypatch.setattr(ties, "transformers_version", lambda: version)
        configs.write(tmp_path, configs.qwen3_06b(tie_word_embeddings=tied))
        if names is not None and form == "index":
            index = {"metadata": {}, "weight_map": dict.fromkeys(names, "model-00001-of-00002.safetensors")}
            (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
        elif names is not None:
            write_safetensors(tmp_path / "model.safetensors", names)
        judged = tpplan.check(str(tmp_path), tp_size, device=device, depth="static")
        return [(diagnostic.code, str(diagnostic.severity)) for diagnostic in judged.diagnostics]

    @pytest.mark.parametrize("form", ["index", "header"])
    def test_fails(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str) -> None:
        assert self.found(tmp_path, monkeypatch, form=form) == [("TPP304", "error")]

    @pytest.mark.parametrize("form", ["index", "header"])
    def test_loads_with_one_name(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str) -> None:
        one = ("model.embed_tokens.weight", "model.norm.weight")
        assert self.found(tmp_path, monkeypatch, names=one, form=form) == []

    def test_is_unknown_without_a_checkpoint(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        assert self.found(tmp_path, monkeypatch, names=None) == [("TPP316", "warning")]

    @pytest.mark.parametrize(
        "otherwise",
        [{"version": (5, 23, 0)}, {"device": "cpu"}, {"tied": False}, {"tp_size": 1}],
        ids=["a newer release", "on cpu", "untied", "on one chip"],
    )
    def test_loads_otherwise(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, otherwise: dict) -> None:
        assert self.found(tmp_path, monkeypatch, **otherwise) == []

    def test_only_the_header_is_read(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """A checkpoint that is not safetensors is said to be unreadable, not taken for one without names."""
        (tmp_path / "model.safetensors").write_bytes(b"\x10\0\0\0\0\0\0\0not a header....")
        with pytest.raises(InputError, match="TPP110"):
            self.found(tmp_path, monkeypatch, names=None)


class TestUnevenGather:
    """A vocabulary of 255 on 4 ranks: Transformers before 5.21 wants equal shards of an output that it gathers."""

    def found(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, vocab_size: int, uneven: bool) -> list[Diagnostic]:
        monkeypatch.setattr(widths, "has_uneven_gather", lambda: uneven)
        config = configs.llama(vocab_size=vocab_size, num_key_value_heads=8)
        return list(tpplan.check(configs.write(tmp_path, config), 4, depth="static").diagnostics)

    def test_is_refused_before_5_21(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (diagnostic,) = self.found(tmp_path, monkeypatch, 255, uneven=False)
        assert diagnostic.code == "TPP309" and diagnostic.where.rule == "lm_head"
        assert "255 columns" in diagnostic.message

    def test_is_taken_from_5_21(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        assert self.found(tmp_path, monkeypatch, 255, uneven=True) == []

    def test_equal_shards_always_are(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        assert self.found(tmp_path, monkeypatch, 256, uneven=False) == []


@pytest.mark.parametrize("file", SHIPPED, ids=lambda file: file.stem)
def test_a_shipped_plan_passes(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Offline, from a directory where nothing of the model is at hand."""
    proven = Version(read_plan(file).plan.proven.versions["transformers"]).release
    if transformers_version() < proven:
        pytest.skip(f"proven with {proven}")
    monkeypatch.chdir(tmp_path)
    assert tpplan.check(file).verdict is Verdict.PASS
    assert f".tp{read_plan(file).plan.target.tp_size}." in file.name


def test_plans_are_shipped() -> None:
    assert len(SHIPPED) >= 5


class TestTruth:
    """What is said about a config must be so."""

    def test_a_value_in_the_nested_config_is_no_default(self) -> None:
        assert "TPP307" not in codes(report("qwen3_vl_30b_a3b", 4))

    @needs_exaone
    def test_an_older_spelling_of_a_value_is_that_value(self, tmp_path: Path) -> None:
        """EXAONE-3.5 writes num_layers, which its config class reads as num_hidden_layers."""
        config = configs.llama(model_type="exaone", num_layers=2)
        del config["num_hidden_layers"]
        judged = tpplan.check(configs.write(tmp_path, config), 2, depth="static")
        assert judged.exit_code == 0

    def test_values_may_be_narrower_than_keys(self) -> None:
        """MiMo-V2-Flash: keys of 192 columns a head, values of 128; 4 heads of each divide by 4."""
        judged = subject(configs.mimo_v2_flash(), 4)
        from tpplan.checks.heads import check_heads

        assert list(check_heads(judged)) == []
