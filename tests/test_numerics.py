"""The numerics stage: what is wrong and does not raise is found, what is right passes.

Every wrong plan stands next to a right one that differs in the rules that matter, so neither can hold by accident.
Facts are measured: the sharded model of the installed Transformers against the unsharded one, float32.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
import torch.distributed as dist
from transformers import CONFIG_MAPPING, AutoConfig
from transformers.models.llama.modeling_llama import LlamaMLP

from tests.support import configs
from tests.support.subjects import ATTENTION, miniature, model, rules, subject
from tpplan.miniature.build import make_miniature
from tpplan.miniature.shrink import shrink
from tpplan.miniature.widths import Hidden, Size, Towers
from tpplan.model.config import config_value, text_config
from tpplan.model.errors import out_of_memory
from tpplan.model.internals import internals
from tpplan.model.releases import has_uneven_gather, transformers_version
from tpplan.model.skeleton import Sharding, known_styles
from tpplan.stages import load
from tpplan.stages import numerics as numerics_stage
from tpplan.stages.bench import Bench
from tpplan.stages.comparison import GradientFault, Numerics, Part, run_numerics
from tpplan.stages.load import run_load, save
from tpplan.stages.result import GradientError

SUMMED = "replicated_with_grad_allreduce"
GATHER = rules("qkv", "colwise_gather_output") | rules("o", "rowwise_split_input")
needs_replicate = pytest.mark.skipif("replicate" not in known_styles(), reason="the style exists from 5.21")


def numerics(
    config: configs.Config, tp_size: int, overrides: Mapping[str, str] | None = None, *, training: bool = False
) -> Numerics:
    sharding = Sharding(tp_size=tp_size, overrides=dict(overrides or {}))
    return run_numerics(miniature(config, tp_size), sharding, training=training)


def kinds(result: Numerics) -> dict[str, GradientError]:
    """The wrong gradients of the first layer and of what is outside layers: short parameter name -> how it is wrong."""
    assert result.differences == () and result.raised is None and result.not_run == ""
    faults: tuple[GradientFault, ...] = result.gradients
    return {fault.parameter.removeprefix("model.layers.0."): fault.kind for fault in faults}


class TestWrongLogits:
    @pytest.mark.parametrize(
        "style", [SUMMED, pytest.param("replicate", marks=needs_replicate), "colwise_gather_output"]
    )
    def test_keys_and_values_alone_meet_the_wrong_queries(self, style: str) -> None:
        result = numerics(configs.llama(), 4, rules("kv", style))
        (difference,) = result.differences
        assert difference.part is Part.FORWARD
        assert difference.error > 0.1
        assert difference.ranks == (0, 1, 2, 3)
        assert difference.module == "model.layers.0.self_attn.o_proj", "q, k and v are right"

        assert numerics(configs.llama(), 4, rules("qkvo", SUMMED)).passed

    def test_a_cut_head_returns_its_part_of_the_vocabulary(self) -> None:
        (difference,) = numerics(configs.llama(), 2, {"lm_head": "colwise"}).differences
        assert difference.width == (80, 160)

        assert numerics(configs.llama(), 2, {"lm_head": "colwise_gather_output"}).passed

    @pytest.mark.parametrize(
        "overrides",
        [
            {"model.embed_tokens": SUMMED},
            {"model.embed_tokens": "embedding_colwise"},
            {"lm_head": SUMMED},
            {"lm_head": "rowwise_split_input"},
        ],
        ids=str,
    )
    def test_a_tied_pair_must_be_cut_alike(self, overrides: dict[str, str]) -> None:
        if not set(overrides.values()) <= set(known_styles()):
            pytest.skip("the installed Transformers has no such style")
        tied = numerics(configs.llama(tie_word_embeddings=True), 2, overrides)
        assert tied.raised or tied.differences

        assert numerics(configs.llama(), 2, overrides).passed, "each is right on an untied model"
        assert numerics(configs.llama(tie_word_embeddings=True), 2).passed

    def test_a_module_is_compared_as_it_returned_and_not_as_a_later_operation_left_it(self) -> None:
        """gemma3n scales `per_layer_model_projection`'s output in place, which is right; its sparse MLP is wrong."""
        (difference,) = numerics(configs.gemma3n_text(), 2).differences
        assert difference.module == "model.layers.0.mlp.act_fn"

        mlp = {f"model.layers.*.mlp.{name}_proj": SUMMED for name in ("gate", "up", "down")}
        assert numerics(configs.gemma3n_text(), 2, mlp).passed


class TestWrongGradients:
    @needs_replicate
    def test_replicated_attention_must_not_sum_its_gradients(self) -> None:
        result = numerics(configs.llama(), 4, rules("qkvo", SUMMED), training=True)
        assert kinds(result) == {f"self_attn.{name}_proj.weight": GradientError.TIMES_TP_SIZE for name in "qkvo"}
        assert all(fault.error == pytest.approx(3.0, abs=1e-3) for fault in result.gradients), "4 times is 3 too many"
        assert {fault.ranks for fault in result.gradients} == {(0, 1, 2, 3)}

        assert numerics(configs.llama(), 4, rules("qkvo", "replicate"), training=True).passed
        assert numerics(configs.llama(), 4, rules("qkvo", SUMMED)).passed, "and for inference both are right"

    @needs_replicate
    def test_norms_inside_replicated_attention_must_follow_it(self) -> None:
        projections = rules("qkvo", "replicate")
        result = numerics(configs.qwen3(), 4, projections, training=True)
        norms = {"self_attn.q_norm.weight", "self_attn.k_norm.weight"}
        assert kinds(result) == dict.fromkeys(norms, GradientError.TIMES_TP_SIZE)

        followed = projections | {f"{ATTENTION}{name}_norm": "replicate" for name in "qk"}
        assert numerics(configs.qwen3(), 4, followed, training=True).passed

    def test_a_parameter_on_a_sharded_activation_must_sum(self) -> None:
        result = numerics(configs.apertus(), 2, training=True)
        assert kinds(result) == {
            "mlp.act_fn.alpha_n": GradientError.PARTIAL,
            "mlp.act_fn.alpha_p": GradientError.PARTIAL,
        }

        summed = {"model.layers.*.mlp.act_fn": SUMMED}
        assert numerics(configs.apertus(), 2, summed, training=True).passed


class TestRightPlans:
    @pytest.mark.parametrize("tp_size", [2, 4])
    def test_one_key_value_head_is_every_query_head_s(self, tp_size: int) -> None:
        result = numerics(configs.llama(num_key_value_heads=1), tp_size, rules("kv", SUMMED))
        assert {Part.FORWARD, Part.DYNAMIC_CACHE} <= set(result.ran)
        assert result.differences == () and result.largest_error < 1e-6

        two_heads = numerics(configs.llama(num_key_value_heads=2), 4, rules("kv", SUMMED))
        assert two_heads.differences and two_heads.largest_error > 0.1

    def test_one_key_value_head_alone_stops_with_a_static_cache(self) -> None:
        """Transformers packs queries by num_key_value_groups of the whole model, 8 here, and a rank has 2 queries."""
        if transformers_version() < (5, 24):
            pytest.skip("sdpa packs queries from 5.24")
        result = numerics(configs.llama(num_key_value_heads=1), 4, rules("kv", SUMMED))
        assert result.raised and result.raised[0] is Part.STATIC_CACHE

        assert Part.STATIC_CACHE in numerics(configs.llama(num_key_value_heads=1), 4, rules("qkvo", SUMMED)).ran

    @pytest.mark.parametrize("training", [False, True])
    def test_the_fused_projection_of_phi_4_gathers(self, training: bool) -> None:
        """20 query and 5 key/value heads over 4 ranks: the remainders of phi-4's 40 and 10."""
        result = numerics(configs.phi3(), 4, training=training)
        assert result.passed
        assert (Part.BACKWARD in result.ran) is training

    def test_gathered_attention_is_right_in_both_directions(self) -> None:
        assert numerics(configs.llama(), 4, GATHER, training=True).passed

    @pytest.mark.skipif(not has_uneven_gather(), reason="refused at load before 5.21")
    def test_an_uneven_vocabulary_is_right(self) -> None:
        config = configs.llama(vocab_size=255, num_key_value_heads=8)
        assert miniature(config, 4).spec.config.vocab_size % 4 == 3
        assert numerics(config, 4, training=True).passed

    def test_every_part_runs_where_all_is_right(self) -> None:
        result = numerics(configs.llama(), 2, training=True)
        assert result.passed and result.skipped == {}
        assert result.ran == tuple(Part)
        assert 0 < result.largest_error < 1e-5, "zero would mean that the model was compared with itself"


class TestEveryPartIsCompared:
    """A fault of the ranks that shows in one part alone: the model is right in the others, and unsharded in all."""

    @pytest.mark.parametrize("part", list(Part))
    def test_and_finds_what_only_it_can(self, part: Part, monkeypatch: pytest.MonkeyPatch) -> None:
        break_on_ranks(part, monkeypatch)
        result = numerics(configs.llama(), 2, training=True)
        assert result.ran == tuple(Part)[: list(Part).index(part) + 1] and result.raised is None
        if part is Part.BACKWARD:
            assert result.differences == () and len(result.gradients) >= 3, "of what lies below the last MLP"
        else:
            assert [wrong.part for wrong in result.differences] == [part] and result.differences[0].ranks == (0, 1)


def break_on_ranks(part: Part, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the model compute something else where it runs on ranks, in this part."""
    from transformers.cache_utils import DynamicLayer, StaticLayer

    if part in (Part.DYNAMIC_CACHE, Part.STATIC_CACHE):
        layer = DynamicLayer if part is Part.DYNAMIC_CACHE else StaticLayer
        update = layer.update

        def twice_the_values(self: Any, keys: Any, values: Any, *args: Any, **kwargs: Any) -> Any:
            on_ranks, is_decode = isinstance(keys, internals().LocalTensor), keys.shape[-2] == 1
            keys, values = update(self, keys, values, *args, **kwargs)
            return keys, values * 2 if on_ranks and is_decode else values

        monkeypatch.setattr(layer, "update", twice_the_values)
        return
    forward = LlamaMLP.forward

    def changed(self: Any, x: Any) -> Any:
        if not isinstance(x, internals().LocalTensor):
            return forward(self, x)
        return forward(self, TwiceTheGradient.apply(x)) if part is Part.BACKWARD else forward(self, x) * 2

    monkeypatch.setattr(LlamaMLP, "forward", changed)


class TwiceTheGradient(torch.autograd.Function):
    @staticmethod
    def forward(_: Any, x: Any) -> Any:
        return x.clone()

    @staticmethod
    def backward(_: Any, gradient: Any) -> Any:
        return gradient * 2


class TestWhatCannotRun:
    """A limit of the simulation is not the model's fault: nothing was learned, and that is said."""

    EXPERTS = Sharding(tp_size=2, ep_size=2)

    def test_the_forward_of_expert_parallelism_is_compared(self) -> None:
        assert run_numerics(miniature(configs.mixtral(), 2), self.EXPERTS).passed

    def test_the_backward_of_expert_parallelism_is_compared(self) -> None:
        training = run_numerics(miniature(configs.mixtral(), 2), self.EXPERTS, training=True)
        assert training.passed and Part.BACKWARD in training.ran

    @pytest.mark.skipif(not has_uneven_gather(), reason="the backward really stops before 5.21")
    def test_an_uneven_width_is_not_wrong_because_the_simulation_cannot_hash_it(self) -> None:
        """126 columns over 4 ranks train right (four gloo processes): a pass, or not run, but no fault."""
        result = numerics(configs.llama(intermediate_size=126, num_key_value_heads=8), 4, training=True)
        assert result.raised is None


class TestMemory:
    """Running out of memory says nothing about a plan: the stage was not run."""

    @staticmethod
    def exhaust(*_: Any, **__: Any) -> None:
        torch.empty(2**50)  # a pebibyte, which the allocator itself refuses

    def test_the_numbers_were_not_run(self, monkeypatch: pytest.MonkeyPatch) -> None:
        small = miniature(configs.llama(), 2)
        monkeypatch.setattr(LlamaMLP, "forward", self.exhaust)
        result = run_numerics(small, Sharding(tp_size=2))
        assert result.raised is None
        assert result.not_run.startswith("there is not enough memory for the forward: RuntimeError")

        monkeypatch.setattr(LlamaMLP, "forward", lambda *_: 1 // 0)
        assert run_numerics(small, Sharding(tp_size=2)).raised

    def test_the_load_was_not_run(self, monkeypatch: pytest.MonkeyPatch) -> None:
        real, small = load.load_sharded, miniature(configs.llama(), 2)

        def no_room_for_a_rank(*args: Any, **given: Any) -> Any:
            return self.exhaust() if dist.is_initialized() else real(*args, **given)

        monkeypatch.setattr(load, "load_sharded", no_room_for_a_rank)
        result = run_load(save(small), Sharding(tp_size=2))
        assert not result.failed
        assert result.not_run.startswith("there is not enough memory to load the miniature")

    def test_it_is_known_by_the_system_s_word_wherever_it_was_raised_from(self) -> None:
        def raised(work: Callable[[], Any]) -> Exception:
            with pytest.raises(Exception) as caught:  # any type: the classification is tested
                work()
            return caught.value

        def wrapped() -> None:
            try:
                self.exhaust()
            except RuntimeError as error:
                raise ValueError("the loader's own word") from error

        assert out_of_memory(raised(self.exhaust))
        assert out_of_memory(raised(wrapped))
        assert out_of_memory(MemoryError())
        assert not out_of_memory(raised(lambda: torch.ones(2) @ torch.ones(3)))


class TestLoad:
    """from_pretrained itself, as the first and as the last rank."""

    def test_a_fault_of_the_loader_is_seen_nowhere_else(self) -> None:
        if "sarvam_moe" not in CONFIG_MAPPING:
            pytest.skip("the installed Transformers has no sarvam_moe")
        small = miniature(configs.sarvam_moe(), 2)
        loaded = run_load(save(small), Sharding(tp_size=2))
        assert loaded.raised and loaded.raised[0] == 0
        assert "self_attn" in loaded.raised[1], "the conversion that failed, not the loader's word that one did"

        assert run_numerics(small, Sharding(tp_size=2)).passed, "sharded after it was loaded it runs, and is right"
        assert run_load(save(small), Sharding(tp_size=1)).passed

    @pytest.mark.parametrize("config", [configs.llama(), configs.llama(tie_word_embeddings=True), configs.phi3()])
    def test_each_rank_gets_its_slice(self, config: configs.Config) -> None:
        loaded = run_load(save(miniature(config, 2)), Sharding(tp_size=2))
        assert loaded.passed and loaded.ranks == (0, 1)

    def test_what_one_device_cannot_load_is_not_the_plan_s_fault(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def unreadable(*_: Any, **__: Any) -> None:
            raise OSError("no such file")

        small = miniature(configs.llama(), 2)
        monkeypatch.setattr(load, "load_sharded", unreadable)
        loaded = run_load(save(small), Sharding(tp_size=2))
        assert not loaded.failed
        assert loaded.not_run == "from_pretrained of the saved miniature raises unsharded too: OSError: no such file"

    def test_what_one_device_does_not_get_back_is_not_the_plan_s_fault(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A checkpoint whose names are not found again leaves new random values, on one device and on each rank."""
        real = load.load_sharded

        def with_new_values(*args, **kwargs):
            loaded = real(*args, **kwargs)
            weight = loaded.model.layers[0].mlp.up_proj.weight.data
            getattr(weight, "to_local", lambda: weight)().uniform_()
            return loaded

        monkeypatch.setattr(load, "load_sharded", with_new_values)
        loaded = run_load(save(miniature(configs.llama(), 2)), Sharding(tp_size=2))
        assert not loaded.failed and loaded.not_run.endswith(
            "does not give back model.layers.0.mlp.up_proj.weight unsharded either"
        )

    def test_another_value_than_the_slice_is_found(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """TPP506, by a loader that is made to be wrong on the last rank only."""
        real = load.load_sharded

        def wrong_on_rank_1(*args, **kwargs):
            loaded = real(*args, **kwargs)
            if dist.is_initialized() and dist.get_rank() == 1:
                loaded.model.layers[0].mlp.up_proj.weight.to_local().data[0, 0] += 1
            return loaded

        monkeypatch.setattr(load, "load_sharded", wrong_on_rank_1)
        judged = subject(configs.llama(), 2)
        result = numerics_stage.run(judged, {}, Bench(judged))
        (diagnostic,) = result.diagnostics
        assert diagnostic.code == "TPP506"
        assert "rank 1 of 2" in diagnostic.message
        assert diagnostic.where.parameter == "model.layers.*.mlp.up_proj.weight"


class TestMiniature:
    """A miniature differs from the model in size alone."""

    @pytest.mark.parametrize(
        ("config", "tp_size"),
        [
            (configs.glm4_9b(), 4),
            (configs.phi_4(), 4),
            (configs.qwen3_06b(), 2),
            (configs.llama(vocab_size=32003, intermediate_size=11009, hidden_size=4096, head_dim=512), 4),
        ],
        ids=["glm4", "phi-4", "qwen3 tied", "uneven"],
    )
    def test_keeps_heads_ties_and_remainders(self, config: configs.Config, tp_size: int) -> None:
        spec, skeleton = model(config)
        small = miniature(config, tp_size)
        for field in ("num_attention_heads", "num_key_value_heads", "hidden_act", "tie_word_embeddings"):
            assert getattr(small.spec.config, field) == getattr(spec.config, field)
        for field in ("vocab_size", "intermediate_size"):
            assert getattr(small.spec.config, field) % tp_size == getattr(spec.config, field) % tp_size
            assert getattr(small.spec.config, field) < getattr(spec.config, field)
        assert small.skeleton.ties == skeleton.ties
        assert small.skeleton.default_plan == skeleton.default_plan
        assert small.skeleton.rules == skeleton.rules
        assert small.spec.config.num_hidden_layers == 1, "one layer of the one kind"
        assert small.skeleton.bytes < 50e6

    def test_keeps_one_layer_of_each_kind_in_order(self) -> None:
        kinds = ["sliding_attention"] * 3 + ["full_attention"]
        config = configs.gemma3_text(num_hidden_layers=8, layer_types=kinds * 2)
        small = miniature(config, 2)
        assert small.spec.config.layer_types == ["sliding_attention", "full_attention"]
        assert small.changes["num_hidden_layers"] == (8, 2)
        assert "num_hidden_layers 8 -> 2" in small.describe()

    def test_keeps_experts_and_routing(self) -> None:
        small = miniature(configs.mixtral(intermediate_size=14336, hidden_size=4096, num_hidden_layers=32), 2)
        assert small.spec.config.num_local_experts == 4
        assert small.spec.config.num_experts_per_tok == 2

    @pytest.mark.parametrize(
        "config",
        [configs.qwen3(), configs.apertus(), configs.mixtral(), configs.glm4_9b()],
        ids=lambda config: config["model_type"],
    )
    def test_has_no_parameter_that_could_hide_an_error(self, config: configs.Config) -> None:
        """Zeros and constants make wrong sums and swapped slices look right."""
        for name, parameter in miniature(config, 2).model.named_parameters():
            assert parameter.abs().min() > 0 or parameter.ndim > 1, name
            assert parameter.numel() == 1 or parameter.std() > 0.01, name

    def test_is_the_same_every_time(self) -> None:
        spec, skeleton = model(configs.qwen3())
        first, second = (make_miniature(spec, skeleton, 2).model.state_dict() for _ in range(2))
        assert all(first[name].equal(second[name]) for name in first)


# Model type -> what its miniature must keep true, and the most parameters it may have.
SMALL = {
    "ernie4_5_vl_moe": 20e6,  # expert widths as a list, a tower of 1280
    "inkling2": 50e6,  # a vocabulary within a padded one; a tower that must name the language model's width
    "lfm3_vl": 5e6,  # a tower with layer types of its own
    "muse_spark": 20e6,  # more heads than the narrowest hidden size has columns, latent experts
    "hrm_text": 5e6,  # stacks of layers that are run several times
    "qwen2_vl": 10e6,  # rotary sections that only the code has, heads as wide as hidden size / heads
    "qwen2_5_omni": 40e6,  # a talker and a vocoder beside the thinker
    "gptj": 5e6,  # rotary_dim of a head
    "glm4_moe": 30e6,  # heads that do not divide the hidden size
    "phi4_multimodal": 10e6,  # a tower with blocks and channels
    "beam": 15e6,  # each layer has a number that rises
    "dots3_note_text": 30e6,  # each layer has a config of its own
    "dory": 50e6,  # three groups of layers that must add up
    "apertus1p5": 30e6,  # codes of images and sounds within the vocabulary
    "longcat_flash": 20e6,  # experts whose width has another name
}


class TestMiniatureOfEveryGradientError:
    @pytest.mark.parametrize("model_type", SMALL)
    def test_it_is_small_and_runs(self, model_type: str) -> None:
        if model_type not in CONFIG_MAPPING:
            pytest.skip(f"the installed Transformers has no {model_type}")
        spec, skeleton = model(configs.default(model_type))
        small = make_miniature(spec, skeleton, 2)
        assert sum(parameter.numel() for parameter in small.model.parameters()) <= SMALL[model_type]
        assert small.skeleton.rules >= {rule for rule in skeleton.default_plan if rule in skeleton.rules}
        full, text = text_config(spec.config), text_config(small.spec.config)
        for heads in ("num_attention_heads", "num_key_value_heads", "num_experts_per_tok"):
            assert config_value(text, heads) == config_value(full, heads)

    def test_rotary_sections_keep_their_sum_and_order(self) -> None:
        small = miniature(configs.default("qwen2_vl"), 2)
        text = small.spec.config.text_config
        assert text.hidden_size // text.num_attention_heads == 16
        assert text.rope_parameters["mrope_section"] == [2, 3, 3], "of 16, 24, 24 in a head of 128"

    def test_a_padded_vocabulary_stays_padded(self) -> None:
        if "inkling2_text" not in CONFIG_MAPPING:
            pytest.skip("the installed Transformers has no inkling2_text")
        text = miniature(configs.default("inkling2"), 2).spec.config
        assert 0 < text.text_config.unpadded_vocab_size < text.text_config.vocab_size
        assert text.vision_config.text_hidden_size == text.text_config.hidden_size

    @pytest.mark.parametrize(("heads", "tp_size", "width"), [(4, 4, 16), (3, 32, 128)])
    def test_heads_of_linear_attention_are_narrow_where_they_divide_as_before(
        self, heads: int, tp_size: int, width: int
    ) -> None:
        """384 columns of 3 heads divide over 32 ranks, and 48 would not: then the width is kept."""
        heads_of_both = {"linear_num_key_heads": heads, "linear_num_value_heads": heads}
        config = AutoConfig.for_model("qwen3_next", **heads_of_both)
        size = Size(tp_size=tp_size, hidden=Hidden.NARROW, towers=Towers.NARROW, layers=(0, 3))
        small, _ = shrink(config, config, size)
        assert (small["linear_key_head_dim"], small["linear_value_head_dim"]) == (width, width)


def test_mamba_heads_follow_the_hidden_size() -> None:
    """Their class asks for heads that are the expanded hidden size together; full widths would be too large to run."""
    mamba = {"mamba_n_heads": 16, "mamba_d_head": 256, "mamba_expand": 2, "mamba_d_state": 16, "mamba_chunk_size": 16}
    kinds = {"layer_types": ["mamba", "attention"], "shared_intermediate_size": 96, "num_local_experts": 2}
    config = configs.llama(model_type="granitemoehybrid", hidden_size=2048, num_experts_per_tok=1, **mamba, **kinds)
    config = {key: value for key, value in config.items() if key != "head_dim"} | {"num_hidden_layers": 2}
    made = miniature(config, 2)
    small = made.spec.config
    assert small.hidden_size < 2048
    assert small.mamba_n_heads == 16 and 16 * small.mamba_d_head == 2 * small.hidden_size
