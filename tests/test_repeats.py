"""Running layers that are alike once gives the verdict of running every layer."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support import configs
from tests.support.subjects import model
from tpplan.model.repeats import first_of_each_kind, run_repeats_once
from tpplan.model.skeleton import Sharding
from tpplan.stages.full_size import ShapesOutcome, run_shapes

KINDS = ["sliding_attention", "full_attention"]
SMALL = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "vocab_size": 160,
    "num_attention_heads": 8,
    "num_hidden_layers": 6,
}
DEEPSEEK = {
    "model_type": "deepseek_v3",
    "first_k_dense_replace": 2,
    "moe_intermediate_size": 32,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "n_group": 2,
    "topk_group": 1,
    "q_lora_rank": 24,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 8,
    "v_head_dim": 8,
    "num_key_value_heads": 8,
}
DSA = {
    "model_type": "glm_moe_dsa",
    "mlp_layer_types": ["dense"] * 2 + ["sparse"] * 4,
    "indexer_types": ["full"] * 3 + ["shared"] * 3,
    "index_head_dim": 16,
    "index_n_heads": 4,
    "index_topk": 8,
    "pad_token_id": 0,
}

# (config, tp_size, whether it runs, how many kinds of layers it has)
MODELS = {
    "llama": (configs.llama(num_hidden_layers=6), 2, True, 1),
    "llama with a cut head": (configs.llama(num_hidden_layers=6), 4, False, 1),
    "qwen3": (configs.qwen3(num_hidden_layers=6), 2, True, 1),
    "phi3": (configs.phi3(num_hidden_layers=6), 4, True, 1),
    "mixtral": (configs.mixtral(num_hidden_layers=4), 2, True, 1),
    "gemma3, two kinds": (configs.gemma3_text(num_hidden_layers=6, layer_types=KINDS * 3), 2, True, 2),
    "gpt-oss, two kinds": (
        configs.gpt_oss_20b(**SMALL, num_key_value_heads=4, head_dim=8, num_local_experts=4, layer_types=KINDS * 3),
        4,
        True,
        2,
    ),
    "deepseek-v3, dense and sparse": (SMALL | DEEPSEEK, 2, True, 2),
    # an equal layer that is called with other arguments runs by itself: run twice, the first would fill its cache twice
    "glm-5, layers that share indices": (SMALL | DEEPSEEK | DSA, 2, True, 3),
    # two kinds of attention; the last layer of each also stores its keys and values for layers that share them
    "gemma-4, kinds with other heads": (configs.gemma4_text(layer_types=KINDS * 3, num_hidden_layers=6), 4, False, 4),
}


def layers(config: configs.Config) -> list[int]:
    """The first layer of each kind, of the longest list of layers."""
    kinds = first_of_each_kind(model(config)[1].model)
    return max(kinds.values(), key=len)


def what_was_learned(outcome: ShapesOutcome) -> tuple[object, ...]:
    return (outcome.stop, outcome.not_run, outcome.local_sizes, outcome.logits_width)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
def test_both_ways_agree(name: str, training: bool) -> None:
    config, tp_size, runs, _ = MODELS[name]
    spec, _ = model(config)
    once, every = (
        run_shapes(spec, Sharding(tp_size=tp_size), training=training, every_layer=every) for every in (False, True)
    )
    assert what_was_learned(once) == what_was_learned(every)
    assert once.passed is runs and bool(once.stop) is not runs


@pytest.mark.parametrize("name", MODELS)
def test_kinds_are_told_apart(name: str) -> None:
    config, _, _, kinds = MODELS[name]
    assert len(layers(config)) == kinds


def test_a_fault_in_a_later_kind_is_found() -> None:
    """Only the last layer, full attention with 2 key/value heads, is cut inside a head at tp_size 4."""
    config = configs.gemma4_text(num_hidden_layers=6, layer_types=KINDS[:1] * 5 + KINDS[1:], num_key_value_heads=4)
    spec, _ = model(config)
    stop = run_shapes(spec, Sharding(tp_size=4)).stop
    assert stop and stop.module == "model.layers.5.self_attn"


class TestRunRepeatsOnce:
    def ran(self, modules: list[Any], *shapes: tuple[int, int]) -> list[int]:
        """Which of `modules`, in one list, really ran over calls with inputs of these shapes, by index."""
        import torch

        ran: list[int] = []

        def noting(index: int, forward: Any) -> Any:
            return lambda x: (ran.append(index), forward(x))[1]

        stack = torch.nn.Module()
        stack.layers = torch.nn.ModuleList(modules)
        for index, layer in enumerate(stack.layers):
            layer.forward = noting(index, layer.forward)
        with run_repeats_once(stack, lambda module, skipped: None):
            for shape in shapes:
                for layer in stack.layers:
                    layer(torch.zeros(shape))
        return ran

    def test_equal_layers_run_once_for_each_shape(self) -> None:
        from torch.nn import Linear

        assert self.ran([Linear(4, 4) for _ in range(5)], (1, 4)) == [0]
        assert self.ran([Linear(4, 4) for _ in range(5)], (1, 4), (2, 4), (1, 4)) == [0, 0]

    def test_layers_that_differ_in_anything_run(self) -> None:
        from torch.nn import Dropout, Linear

        assert self.ran([Linear(4, 4), Linear(4, 4, bias=False), Linear(4, 4)], (1, 4)) == [0, 1]
        assert self.ran([Dropout(0.1), Dropout(0.2), Dropout(0.1)], (1, 4)) == [0, 1]

    def test_only_what_runs_is_prepared(self) -> None:
        import torch

        stack = torch.nn.Module()
        stack.layers = torch.nn.ModuleList([torch.nn.Linear(4, 4) for _ in range(3)])
        prepared = []
        with run_repeats_once(stack, lambda module, skipped: prepared.append((module, set(skipped)))):
            stack.layers[0](torch.zeros(1, 4))
            stack.layers[1](torch.zeros(2, 4))
        _, second, third = stack.layers
        assert prepared == [(stack, {id(second), id(third)}), (second, set())], "the second ran by itself after all"

    def test_the_model_is_left_as_it_was(self) -> None:
        import torch

        stack = torch.nn.Module()
        stack.layers = torch.nn.ModuleList([torch.nn.Linear(4, 4) for _ in range(3)])
        with run_repeats_once(stack, lambda module, skipped: None):
            assert "forward" in vars(stack.layers[0])
        assert all("forward" not in vars(layer) for layer in stack.layers)
