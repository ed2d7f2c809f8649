"""Rules that tpplan finds for layers that no rule of the model shards: which, and that only what passes is kept."""

from __future__ import annotations

from pathlib import Path

import pytest

import tpplan
from tests.support import configs
from tests.support.subjects import rules, subject
from tpplan.cli import main
from tpplan.model.releases import transformers_version
from tpplan.planner import extend
from tpplan.planner.extend import Whole, extended, whole_layers
from tpplan.planner.repair import Repair, repair
from tpplan.stages.bench import Bench

OPT_ATTENTION = [f"model.decoder.layers.*.self_attn.{name}" for name in ("q_proj", "k_proj", "v_proj", "out_proj")]


def opt(**changes: object) -> configs.Config:
    """No rule at all; its attention views its output as the config's number of heads, so heads cannot be cut."""
    sizes = {
        "hidden_size": 64,
        "ffn_dim": 96,
        "num_attention_heads": 8,
        "word_embed_proj_dim": 64,
        "num_hidden_layers": 2,
    }
    return {"model_type": "opt", "vocab_size": 160, "max_position_embeddings": 64, "dtype": "float32"} | sizes | changes


def qwen3_vl(**text: object) -> configs.Config:
    """Its plan names the embedding and the head and nothing else."""
    sizes = {"vocab_size": 160, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "head_dim": 8}
    heads = {"num_attention_heads": 8, "num_key_value_heads": 4}
    rope = {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 1, 1]}}
    vision = {"depth": 1, "hidden_size": 32, "intermediate_size": 64, "num_heads": 2, "out_hidden_size": 64}
    tokens = {"image_token_id": 150, "video_token_id": 151, "vision_start_token_id": 152, "vision_end_token_id": 153}
    return {
        "model_type": "qwen3_vl",
        "architectures": ["Qwen3VLForConditionalGeneration"],
        "dtype": "float32",
        "text_config": {"model_type": "qwen3_vl_text", **sizes, **heads, **rope, **text},
        "vision_config": {"model_type": "qwen3_vl", "deepstack_visual_indexes": [0], **vision},
        **tokens,
    }


def extension(config: configs.Config, tp_size: int, *, training: bool = False) -> Repair:
    given = subject(config, tp_size, training=training)
    bench = Bench(given)
    return extended(repair(given, bench=bench), bench)


def test_a_model_without_rules_gets_those_that_pass() -> None:
    """Heads that cannot be cut are gathered, the MLP is cut over its inner width, the tied pair over the vocabulary."""
    found = extension(opt(), 2)
    assert found.judgement.passed and found.overrides == {
        **dict.fromkeys(OPT_ATTENTION, "colwise_gather_output"),
        "model.decoder.layers.*.fc1": "colwise",
        "model.decoder.layers.*.fc2": "rowwise",
        "model.decoder.embed_tokens": "embedding_rowwise",
        "lm_head": "colwise_gather_output",
    }
    assert found.judgement.share.parameters < 1.2 * found.judgement.share.ideal


def test_its_gradients_are_right_too() -> None:
    found = extension(opt(), 2, training=True)
    assert found.judgement.passed and found.judgement.stages["numerics"].status == "passed"
    assert "backward" in found.judgement.stages["numerics"].reason
    assert found.judgement.share.parameters < 1.2 * found.judgement.share.ideal


def test_what_is_added_in_place_is_right_on_every_rank() -> None:
    """Under torchrun it is: test_agreement launches it. A tensor that ranks shared would get the addend from each."""
    mlp = {"transformer.h.*.mlp.dense_h_to_4h": "colwise", "transformer.h.*.mlp.dense_4h_to_h": "rowwise"}
    assert mlp.items() <= extension(configs.falcon(), 2).overrides.items()


@pytest.mark.skipif(transformers_version() < (5, 24), reason="the plan as measured on 5.24")
def test_a_plan_of_few_rules_is_completed() -> None:
    found = extension(qwen3_vl(), 2)
    inside = "model.language_model.layers.*."
    assert found.judgement.passed and found.overrides == {
        **rules("qkv", "colwise", f"{inside}self_attn."),
        f"{inside}self_attn.o_proj": "rowwise",
        f"{inside}mlp.gate_proj": "colwise",
        f"{inside}mlp.up_proj": "colwise",
        f"{inside}mlp.down_proj": "rowwise",
    }


@pytest.mark.skipif(transformers_version() < (5, 24), reason="the plan as measured on 5.24")
def test_heads_that_do_not_divide_are_gathered() -> None:
    attention = {r: s for r, s in extension(qwen3_vl(), 8).overrides.items() if "self_attn" in r}
    assert attention == rules("qkvo", "colwise_gather_output", "model.language_model.layers.*.self_attn.")


@pytest.mark.skipif(transformers_version() < (5, 24), reason="the plan as measured on 5.24")
def test_norms_of_cut_heads_get_their_gradients() -> None:
    found = extension(qwen3_vl(), 2, training=True)
    norms = {r: s for r, s in found.overrides.items() if r.endswith("_norm")}
    assert found.judgement.passed and set(norms.values()) == {"replicated_with_grad_allreduce"} and len(norms) == 2


@pytest.mark.skipif(transformers_version() < (5, 24), reason="the plan as measured on 5.24")
def test_a_rule_that_cuts_a_block_of_scales_is_not_kept() -> None:
    """96 columns are 6 blocks of 16: four ranks would hold one and a half each."""
    config = qwen3_vl() | {"quantization_config": {"quant_method": "fp8", "weight_block_size": [16, 16]}}
    assert not any(".mlp." in rule for rule in extension(config, 4).overrides)
    assert any(".mlp." in rule for rule in extension(config, 2).overrides)


def test_the_three_kinds_of_a_mixer_of_one_name() -> None:
    """nemotron_h: attention cut over heads, MLP over its inner width, Mamba gathered, all under the name `mixer`."""
    kinds = {"layers_block_type": ["mamba", "attention", "mlp"], "num_attention_heads": 4, "num_key_value_heads": 2}
    mamba = {"mamba_num_heads": 4, "mamba_head_dim": 16, "ssm_state_size": 8, "n_groups": 2, "head_dim": 16}
    sizes = {"hidden_size": 64, "intermediate_size": 96, "vocab_size": 160, "chunk_size": 8}
    found = {
        kind.block: kind.ways for kind in whole_layers(subject(_nemotron(kinds | mamba | sizes), 2), _Everything())
    }
    best = {rule.rpartition(".")[2]: style for rule, style in found["model.layers.*.mixer"][0].items()}
    assert best == {
        **dict.fromkeys(("q_proj", "k_proj", "v_proj", "up_proj"), "colwise"),
        **dict.fromkeys(("o_proj", "down_proj"), "rowwise"),
        **dict.fromkeys(("in_proj", "out_proj"), "colwise_gather_output"),
    }


class _Everything(tuple):
    def __contains__(self, _: object) -> bool:
        return True


def _nemotron(values: configs.Config) -> configs.Config:
    return {"model_type": "nemotron_h", "dtype": "float32", **values}


@pytest.mark.parametrize("config", [configs.llama(), configs.mixtral()], ids=lambda config: config["model_type"])
def test_a_complete_plan_stays_as_it_is(config: configs.Config) -> None:
    """In 5.19 it names no embedding; that is added."""
    assert not any(".layers." in rule for rule in extension(config, 2).overrides)


def test_a_repaired_block_stays_repaired() -> None:
    config = configs.llama(num_attention_heads=8, num_key_value_heads=2)
    found = {rule: style for rule, style in extension(config, 4).overrides.items() if ".layers." in rule}
    assert found == rules("qkvo", "replicated_with_grad_allreduce")


def test_a_tower_that_text_does_not_reach_stays_whole() -> None:
    """Nothing that runs would prove a rule in it."""
    config = configs.llava()
    config["vision_config"] |= {"hidden_size": 256, "intermediate_size": 512}
    assert not any("vision" in rule for rule in extension(config, 2).overrides)


def test_where_nothing_passes_it_says_what_was_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    half_a_pair = Whole(block="model.decoder.layers.*", bytes=1, ways=({"model.decoder.layers.*.fc1": "colwise"},))
    monkeypatch.setattr(extend, "whole_layers", lambda *_: iter([half_a_pair]))
    found = extension(opt(), 2)
    assert not found.judgement.passed and [error.code for error in found.judgement.report().errors] == ["TPP205"]
    assert found.tried == "model.decoder.layers.*"


def test_one_command_and_one_call(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    model = configs.write(tmp_path, opt())
    assert main(["check", model, "--tp-size", "2"]) == 1
    assert f"tpplan plan {model} --tp-size 2 --extend tries rules" in capsys.readouterr().out
    with pytest.raises(tpplan.PlanError):
        tpplan.plan(model, 2)
    made = tpplan.plan(model, 2, extend=True)
    plan = tmp_path / "plan.yaml"
    assert main(["plan", model, "--tp-size", "2", "--extend", "-o", str(plan)]) == 0
    assert "model.decoder.layers.*: no rule shards it; 2 rules added" in capsys.readouterr().err
    assert plan.read_text() == made.to_yaml()
    assert main(["check", str(plan), "--model", model, "--depth", "numerics"]) == 0
