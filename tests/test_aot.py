"""The TPU's compiler and torch_tpu's lowering, really asked: needs the extra `tpplan[aot]`, and no TPU."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import tpplan
from tests.support import configs
from tests.support.aot import Fault, refusal, values_with
from tests.support.readme import HOME, snippet
from tests.support.subjects import rules
from tpplan.child import call_in_child
from tpplan.diagnostics import Status, Verdict
from tpplan.tpu.internals import missing_packages, tpu_internals

pytestmark = pytest.mark.skipif(bool(missing_packages()), reason="needs pip install 'tpplan[aot]'")

# Wide enough for a TPU's tiles to pad nothing, small enough to compile in seconds.
SMALL = {
    "hidden_size": 512,
    "intermediate_size": 1024,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "vocab_size": 2048,
    "num_hidden_layers": 4,
}
TWICE = {"model.layers.*.mlp": "all_reduce"}  # its output was summed already


def test_nothing_that_is_used_has_moved() -> None:
    assert tpu_internals().start_device


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return configs.write(tmp_path_factory.mktemp("model"), configs.llama(**SMALL))


@pytest.fixture(scope="module")
def report(model: str) -> tpplan.Report:
    return tpplan.check(model, 4, device="tpu-v6e", depth="aot", prefill=128, max_length=256)


class TestCompiled:
    def test_it_passes_with_two_programs(self, report: tpplan.Report) -> None:
        assert report.verdict is Verdict.PASS, report
        assert [(one.phase, one.tokens, one.topology) for one in report.programs] == [
            ("prefill", 128, "v6e:2x2"),
            ("decode", 1, "v6e:2x2"),
        ]
        assert list(report.stages) == ["static", "shapes", "numerics", "aot"]

    def test_arguments_are_what_was_predicted(self, report: tpplan.Report) -> None:
        assert report.bytes_per_rank and report.memory
        for program in report.programs:
            assert program.parameters == report.bytes_per_rank.parameters
            counters = 8 * SMALL["num_hidden_layers"]  # the cache's own lengths
            assert program.cache == report.memory.cache + counters
            assert program.arguments == pytest.approx(program.parameters + program.cache, rel=0.01)

    def test_collectives_are_the_model_s(self, report: tpplan.Report) -> None:
        """Two all-reduces of a layer and the embedding's, and the logits' gather; the compiler keeps them."""
        for program in report.programs:
            assert program.traced == {"all_gather": 1, "all_reduce": 2 * SMALL["num_hidden_layers"] + 1}
            assert program.kept == {"all-gather": 1, "all-reduce": 2 * SMALL["num_hidden_layers"] + 1}

    @pytest.mark.sweep
    def test_few_layers_tell_of_all(self, model: str, report: tpplan.Report) -> None:
        full = tpplan.check(model, 4, device="tpu-v6e", depth="aot", prefill=128, max_length=256, full=True)
        for few, every in zip(report.programs, full.programs, strict=True):
            assert few.extrapolated and not every.extrapolated
            for name in ("parameters", "cache", "traced", "kept", "kernels"):
                assert getattr(few, name) == getattr(every, name), name
            assert few.hbm == pytest.approx(every.hbm, rel=0.05)
            assert few.flops == pytest.approx(every.flops, rel=0.01)

    def test_the_report_is_valid_and_readable(self, report: tpplan.Report) -> None:
        from jsonschema import Draft202012Validator

        from tpplan import api
        from tpplan.rendering import as_json, as_text

        Draft202012Validator(api.schema("report")).validate(json.loads(as_json(report)))
        assert "of HBM on v6e:2x2 (extrapolated) for 1 x 128 tokens" in as_text(report).plain


@pytest.mark.sweep
def test_the_compiler_refuses_what_does_not_fit(tmp_path: Path) -> None:
    """22 GiB of weights and cache on the 16 of a v5e: found without compiling every layer."""
    wide = configs.llama(**(SMALL | {"num_hidden_layers": 40, "hidden_size": 8192, "intermediate_size": 28672}))
    report = tpplan.check(configs.write(tmp_path, wide), 4, device="tpu-v5e", depth="aot", prefill=128, max_length=256)
    assert report.verdict is Verdict.FAIL and report.stages["aot"].status is Status.FAILED
    assert {one.code for one in report.errors} == {"TPP601"}


@pytest.mark.sweep
def test_readme_shows_what_it_says() -> None:
    """Seconds apart. About a minute."""
    command, _, output = snippet("aot").removeprefix("$ ").partition("\n")
    done = subprocess.run(
        [sys.executable, "-m", *shlex.split(command.partition(" | ")[0])], cwd=HOME, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "".join(done.stdout.splitlines(keepends=True)[-9:]) == output


@pytest.mark.parametrize("fault", Fault)
def test_a_broken_composition_is_seen(tmp_path: Path, fault: Fault) -> None:
    """GLM's repair at tp 4, every rank's own program; and the same with one thing wrong."""
    model = configs.write(tmp_path / "model", configs.llama(num_attention_heads=8, num_key_value_heads=2))
    overrides = rules("qkvo", "replicated_with_grad_allreduce")
    values = call_in_child(values_with, fault, model, 4, overrides, tmp_path / "saved")
    assert not values.reason
    assert values.passed is (fault is Fault.NONE)
    if values.passed:
        assert values.largest_error < 1e-5
    else:
        assert values.wrong[0].error > 1e-3


def test_a_silently_wrong_plan_is_wrong_as_lowered(tmp_path: Path) -> None:
    model = configs.write(tmp_path / "model", configs.llama(num_attention_heads=8, num_key_value_heads=4))
    values = call_in_child(values_with, Fault.NONE, model, 4, TWICE, tmp_path / "saved")
    assert not values.reason
    assert {one.phase for one in values.wrong} == {"prefill", "decode"} and values.largest_error > 1e-3


def test_tied_weights_before_5_23_are_compared_by_what_the_compiler_refuses() -> None:
    """torch.equal of DTensors reduces an int64 by MIN (torch.distributed.tensor._dispatch); 5.23 took a SUM instead."""
    assert "Supported lowering only of Sum all reduce" in call_in_child(refusal, "i64", "minimum")
    assert call_in_child(refusal, "i64", "add") == ""


@pytest.mark.sweep
def test_the_program_of_a_plan_can_be_taken_along(model: str, tmp_path: Path) -> None:
    from tpplan.cli import main

    file = tmp_path / "decode.stablehlo"
    arguments = f"compile {model} --tp-size 4 --as stablehlo --phase decode --max-length 256 -o {file}"
    assert main(arguments.split()) == 0
    known = tpu_internals()
    with known.context() as context:
        text = str(known.hlo.deserialize_portable_artifact(context, file.read_bytes()))
    assert "num_replicas = 4" in text
    assert text.count("stablehlo.all_reduce") == 2 * SMALL["num_hidden_layers"] + 1


@pytest.mark.sweep
def test_sizes_have_the_compiler_s_word_beside_the_estimate(model: str) -> None:
    from tpplan import api

    found = api.size_candidates(model, [1, 4], device="tpu-v6e", depth="aot", prefill=128, max_length=256)
    assert [one.verdict for one in found] == [Verdict.PASS] * 2
    assert [[program.topology for program in one.report.programs] for one in found] == [
        ["v6e:1x1"] * 2,
        ["v6e:2x2"] * 2,
    ]
