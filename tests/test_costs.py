"""What a plan costs a rank: the cache against Transformers' own, collectives and FLOPs against torch's counts."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from jsonschema import Draft202012Validator
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, StaticCache

import tpplan
from tests.support import configs
from tests.support.subjects import rules, subject
from tpplan.answers import Usage
from tpplan.choices import Optimize
from tpplan.cli import main
from tpplan.model.cache import read_cache
from tpplan.model.skeleton import Sharding
from tpplan.planner.candidates import all_sizes, all_strategies, best
from tpplan.stages.bench import Bench
from tpplan.stages.judge import judge, measured_costs
from tpplan.stages.usage import measure
from tpplan.units import gib

SUMMED = "replicated_with_grad_allreduce"
GIB = 2**30


def usage(config: configs.Config, tp_size: int = 1, overrides: dict | None = None, ep_size: int | None = None) -> Usage:
    sharding = Sharding(tp_size=tp_size, overrides=overrides or {}, ep_size=ep_size)
    measured = measure(subject(config, tp_size).spec, sharding)
    assert measured.not_run == ""
    return measured


def small(model_type: str, **values: object) -> configs.Config:
    """The default config of a type with these values."""
    return CONFIG_MAPPING[model_type](**values).to_dict() | {"dtype": "float32"}


SMALL = {
    "dtype": "float32",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 160,
    "pad_token_id": 0,
}
KINDS = {
    "llama": SMALL | {"num_hidden_layers": 3},
    "gemma3_text": SMALL | {"num_hidden_layers": 7, "sliding_window": 24},
    "gpt_oss": SMALL | {"num_hidden_layers": 4, "sliding_window": 24, "num_local_experts": 4},
    "qwen3_next": SMALL
    | {
        "num_experts_per_tok": 2,
        "num_hidden_layers": 8,
        "num_experts": 4,
        "moe_intermediate_size": 32,
        "shared_expert_intermediate_size": 32,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 16,
        "linear_value_head_dim": 16,
    },
    "deepseek_v3": SMALL
    | {
        "num_hidden_layers": 4,
        "num_key_value_heads": 4,
        "n_routed_experts": 4,
        "n_group": 1,
        "topk_group": 1,
        "moe_intermediate_size": 32,
        "num_experts_per_tok": 2,
        "kv_lora_rank": 16,
        "q_lora_rank": 16,
        "head_dim": 8,
        "qk_rope_head_dim": 8,
        "qk_nope_head_dim": 16,
        "v_head_dim": 16,
    },
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("batch", "length"), [(1, 40), (3, 128)])
def test_the_cache_is_as_large_as_a_static_one(kind: str, batch: int, length: int) -> None:
    """Full and sliding attention, latents, states of linear attention: bytes of a real StaticCache of that length."""
    config = CONFIG_MAPPING[kind](**KINDS[kind])
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    cache = StaticCache(config=config, max_cache_len=length)
    with torch.no_grad():
        output = model(torch.ones(batch, 8, dtype=torch.long), past_key_values=cache, use_cache=True)
    held = sum(state.key_values + state.other for state in read_cache(output).values())
    assert held > 0
    assert usage(small(kind, **KINDS[kind])).cache_bytes(batch, length) == held


def test_the_cache_of_a_rank_has_the_heads_that_it_keeps() -> None:
    config = small("llama", **KINDS["llama"])
    whole = usage(config).cache_bytes(1, 100)
    assert whole == 3 * 2 * 2 * 16 * 4 * 100, "3 layers, keys and values, 2 heads of 16, 4 bytes, 100 tokens"
    assert usage(config, 2).cache_bytes(1, 100) == whole // 2
    assert usage(config, 2, rules("qkvo", SUMMED)).cache_bytes(1, 100) == whole
    gathered = rules("qkv", "colwise_gather_output") | rules("o", "rowwise_split_input")
    assert usage(config, 4, gathered).cache_bytes(1, 100) == whole


def test_collectives_of_a_layer_are_counted_and_weighed() -> None:
    """A llama layer sums its attention and its MLP: twice the hidden size a token, whatever the number of layers."""
    measured = usage(small("llama", **KINDS["llama"]), 2)
    inside = [c for c in measured.collectives if c.in_layers]
    assert [(c.kind, c.count, c.bytes) for c in inside] == [("all-reduce", 3 * 2, 3 * 2 * 64 * 4)]
    outside = {c.kind: (c.count, c.bytes) for c in measured.collectives if not c.in_layers}
    assert outside["all-gather"] == (1, 160 * 4), "the logits"
    assert outside.get("all-reduce", (1, 64 * 4)) == (1, 64 * 4), "the embedding, which 5.19 leaves whole"
    replicated = usage(small("llama", **KINDS["llama"]), 2, rules("qkvo", SUMMED))
    assert [(c.kind, c.count) for c in replicated.collectives if c.in_layers] == [("all-reduce", 3)]


@pytest.mark.parametrize("kind", KINDS)
def test_flops_are_those_that_torch_counts(kind: str) -> None:
    """Of the unsharded model with real weights, every layer run; attention scores of a few tokens on top."""
    from torch.utils.flop_counter import FlopCounterMode

    config = CONFIG_MAPPING[kind](**KINDS[kind])
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(torch.ones(1, 16, dtype=torch.long))
    counted = counter.get_total_flops() / 16
    assert usage(small(kind, **KINDS[kind])).flops == pytest.approx(counted, rel=0.01)


def test_flops_fall_with_the_ranks_and_not_where_a_block_is_whole() -> None:
    config = small("llama", **KINDS["llama"])
    whole = usage(config).flops
    assert usage(config, 2).flops == whole // 2
    assert whole // 2 < usage(config, 2, rules("qkvo", SUMMED)).flops < whole


def test_what_cannot_run_is_said() -> None:
    measured = measure(subject(configs.glm4_9b(), 4).spec, Sharding(tp_size=4))
    assert "shape" in measured.not_run and measured.cache == ()


def test_a_cache_that_cannot_be_measured_is_not_counted(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    """Code that looks at values runs on the miniature, which says nothing of the full model's cache."""
    from transformers.models.llama.modeling_llama import LlamaMLP

    forward = LlamaMLP.forward

    def looks(self, x):
        x.sum().item()
        return forward(self, x)

    monkeypatch.setattr(LlamaMLP, "forward", looks)
    model = configs.write(tmp_path, configs.llama())
    assert main(["check", model, "--tp-size", "2", "--batch", "8", "--format", "json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["memory"]["cache"] is None and report["memory"]["parameters"] > 0
    assert [diagnostic["code"] for diagnostic in report["diagnostics"]] == ["TPP342"]


class TestFit:
    def memory(self, tp_size: int, device: str = "tpu-v5e", **more: object) -> tpplan.Report:
        judged = replace(subject(configs.glm4_9b(), tp_size), device=device, **more)
        bench = Bench(judged)
        return measured_costs(judge(judged, "shapes", bench=bench), bench).memory

    def test_glm_4_at_1_and_2(self) -> None:
        """9.4B parameters of 2 bytes are over 16 GiB whole, and half of that at 2."""
        assert self.memory(1).fits is False and self.memory(1).held > 16 * GIB
        memory = self.memory(2)
        assert memory.fits is True and memory.held == memory.parameters + memory.cache
        assert memory.cache == memory.cache_even == 40 * 2 * 128 * 2 * 4096, "one head of 128 on each rank, 2 bytes"

    def test_a_batch_is_too_much(self) -> None:
        """Room for 7 GiB of cache: 80 MiB a sequence."""
        assert self.memory(2, batch=64).held < 16 * GIB < self.memory(2, batch=100).held

    def test_training_holds_gradients_and_no_cache(self) -> None:
        memory = self.memory(2, training=True)
        assert memory.cache is None and memory.gradients == memory.parameters
        assert memory.fits is False

    def test_an_even_split_of_what_was_not_measured_is_not_known(self, monkeypatch: pytest.MonkeyPatch) -> None:
        judged = subject(configs.glm4_9b(), 2)
        bench = Bench(judged)
        monkeypatch.setattr(bench, "unsharded_usage", lambda: Usage(not_run="the unsharded model does not run"))
        costs = measured_costs(judge(judged, "shapes", bench=bench), bench)
        assert costs.memory.cache > 0 and costs.memory.cache_even is None

    def test_cpu_has_no_limit(self) -> None:
        assert self.memory(1, device="cpu").fits is None


@pytest.fixture
def glm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    configs.write(tmp_path / "glm", configs.glm4_9b())
    return "glm"


class TestSizes:
    def test_every_size_of_the_device(self, glm: str, capsys: pytest.CaptureFixture) -> None:
        assert main(["sizes", glm, "--device", "tpu-v5e", "--format", "json"]) == 0
        document = json.loads(capsys.readouterr().out)
        assert main(["schema", "sizes"]) == 0
        schema = json.loads(capsys.readouterr().out)
        Draft202012Validator.check_schema(schema)
        Draft202012Validator(schema).validate(document)
        one, four, eight = document["sizes"]
        assert [size["tp_size"] for size in (one, four, eight)] == [1, 4, 8]
        assert [size["verdict"] for size in (one, four, eight)] == ["fail", "pass", "pass"]
        assert [diagnostic["code"] for diagnostic in one["diagnostics"]] == ["TPP340"], "as check says"
        assert [size["memory"]["fits"] for size in (one, four, eight)] == [False, True, True]
        assert one["overrides"] == {} and four["overrides"] == rules("qkvo", SUMMED)
        assert four["repairs"][0]["block"] == "model.layers.*.self_attn"
        assert four["memory"]["cache"] == 4 * four["memory"]["cache_even"], "attention is whole on every rank"
        assert one["collectives"] == [] and {c["kind"] for c in four["collectives"]} == {"all-reduce", "all-gather"}
        assert tpplan.sizes(glm, 4, device="tpu-v5e")[0]["overrides"] == four["overrides"]

    def test_the_table(self, glm: str, capsys: pytest.CaptureFixture) -> None:
        assert main(["sizes", glm, "--tp-size", "4", "--device", "tpu-v5e"]) == 0
        printed = capsys.readouterr().out
        (row,) = [line for line in printed.splitlines() if line.split()[:2] == ["4", "pass"]]
        assert "model.layers.*.self_attn: the forward raises, 4 rules overridden (replicate)" in row
        (size,) = tpplan.sizes(glm, [4], device="tpu-v5e")
        assert gib(size["bytes_per_rank"]["parameters"]) in row and "yes, " in row and "1 all-reduce 8 KiB" in row
        assert "KV cache: static, 1 x 4096 tokens" in printed

    def test_a_size_that_nothing_mends(self, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
        model = configs.write(tmp_path, configs.gpt2_xl(n_embd=64, n_head=4, n_layer=1))
        assert main(["sizes", model, "--tp-size", "1", "--tp-size", "2"]) == 0
        printed = capsys.readouterr().out
        assert "tp_size 2: " in printed and "fail" in printed
        assert main(["sizes", model, "--tp-size", "2"]) == 1

    @pytest.mark.parametrize(
        "arguments",
        [["--tp-size", "0"], ["--depth", "static"], ["--batch", "0"], ["--max-length", "-1"]],
        ids=" ".join,
    )
    def test_bad_values(self, glm: str, capsys: pytest.CaptureFixture, arguments: list[str]) -> None:
        assert main(["sizes", glm, *arguments]) == 2
        printed = capsys.readouterr()
        assert "TPP130" in printed.out + printed.err


class TestStrategies:
    def test_memory_gathers_and_latency_replicates(self) -> None:
        glm = subject(configs.glm4_9b(), 4)
        candidates = [candidate for _, candidate in all_strategies(glm, Bench(glm), depth="shapes")]
        assert [candidate.strategy for candidate in candidates] == ["replicate", "gather"]
        replicate, gather = candidates
        assert best(candidates, Optimize.MEMORY) is gather and best(candidates, Optimize.LATENCY) is replicate
        assert gather.costs.share.parameters < replicate.costs.share.parameters
        assert gather.costs.usage.flops < replicate.costs.usage.flops
        assert gather.costs.memory.cache == replicate.costs.memory.cache, "both keep all heads"

    def test_one_alone_where_nothing_is_overridden(self) -> None:
        glm = subject(configs.glm4_9b(), 2)
        assert len(all_strategies(glm, Bench(glm), depth="shapes")) == 1

    def test_the_plan_that_is_written(self, glm: str, capsys: pytest.CaptureFixture) -> None:
        assert main(["plan", glm, "--tp-size", "4", "--optimize", "memory"]) == 0
        printed = capsys.readouterr()
        assert "q_proj: colwise_gather_output" in printed.out and "strategy: gather" in printed.out
        (chosen,) = [line for line in printed.err.splitlines() if line.strip().startswith("*")]
        assert "gather" in chosen and "4 all-gather 62.5 KiB" in chosen
        assert main(["plan", glm, "--tp-size", "4", "--explain"]) == 0
        printed = capsys.readouterr()
        assert f"q_proj: {SUMMED}" in printed.out and "replicate" in printed.err and "gather" in printed.err


def test_sizes_in_order_whatever_was_asked() -> None:
    llama = subject(configs.llama(), 1)
    found = all_sizes(llama, Bench(llama), [4, 2, 4], depth="shapes")
    assert [candidate.tp_size for candidate in found] == [2, 4]


def test_packed_weights_count_as_they_are_packed() -> None:
    """GPTQ of 4 bits in groups of 128: half a byte an element, and for each group of a column a scale of 2 bytes and a
    zero point of 4 bits; 4 bytes of group index for each input. Embedding, head and norms stay as they are."""
    config = configs.llama(
        dtype="float16",
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        head_dim=64,
        quantization_config={"quant_method": "gptq", "bits": 4, "group_size": 128, "sym": True, "desc_act": False},
    )

    def linear(inputs: int, outputs: int) -> int:
        groups = inputs // 128
        return inputs * outputs // 2 + groups * outputs * 2 + groups * outputs // 2 + inputs * 4

    layer = 4 * linear(256, 256) + 2 * linear(256, 512) + linear(512, 256) + 2 * 256 * 2
    outside = 2 * config["vocab_size"] * 256 * 2 + 256 * 2
    assert judge(subject(config, 1), "shapes").share.parameters == 2 * layer + outside
    plain = {name: value for name, value in config.items() if name != "quantization_config"}
    assert judge(subject(plain, 1), "shapes").share.parameters > 2 * (2 * layer)
