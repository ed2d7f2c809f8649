"""What judgements of one model share is made once, stands for every size that it serves, and leaves nothing behind."""

from __future__ import annotations

import gc
from dataclasses import replace
from pathlib import Path

from tests.support import configs
from tests.support.subjects import subject
from tpplan.model.skeleton import Sharding
from tpplan.planner.proposals import share_experts
from tpplan.stages import full_size
from tpplan.stages.bench import Bench
from tpplan.stages.full_size import UnshardedRuns, run_shapes

BAMBA = {
    "model_type": "bamba",
    "architectures": ["BambaForCausalLM"],
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 4,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "attn_layer_indices": [1],
    "mamba_expand": 2,
    "mamba_n_heads": 128,
    "mamba_d_head": 64,
    "mamba_chunk_size": 256,
}


def test_a_miniature_serves_the_sizes_that_divide_its_own() -> None:
    bench = Bench(subject(configs.llama(), 4))
    assert bench.miniature(2) is bench.miniature(4) is bench.miniature(1)
    assert bench.miniature(3) is not bench.miniature(4)
    changes = bench.miniature(2).changes
    assert changes and all(
        (old - new) % 32 == 0
        for name, (old, new) in changes.items()
        if name in ("vocab_size", "hidden_size", "intermediate_size")
    )


def test_a_checkpoint_is_saved_once_and_removed_with_what_holds_it() -> None:
    bench = Bench(subject(configs.llama(), 4))
    saved = bench.saved(4)
    directory = Path(saved.directory)
    assert bench.saved(2) is saved and saved.as_made and saved.whole is bench.miniature(4).model
    assert (directory / "model.safetensors").is_file()
    del saved, bench
    gc.collect()
    assert not directory.exists()


def test_the_unsharded_model_is_run_once(monkeypatch) -> None:
    given = subject(configs.llama(num_key_value_heads=2), 4)
    known: UnshardedRuns = {}
    first = run_shapes(given.spec, given.sharding, known=known)
    assert first.stop is not None and list(known) == [given.spec.dtype]
    monkeypatch.setattr(full_size, "tie", None)  # a second run of the unsharded model would call it
    second = run_shapes(given.spec, given.sharding, known=known)
    assert second.stop == first.stop


def test_a_state_space_model_is_narrowed_with_its_heads() -> None:
    made = Bench(subject(BAMBA, 2)).miniature(2)
    assert made.changes["hidden_size"] == (4096, 512)
    assert made.changes["mamba_d_head"] == (64, 8)
    assert made.changes["mamba_chunk_size"] == (256, 16)


def test_an_expert_plan_without_rules_for_experts_shares_none() -> None:
    given = subject(configs.llama(), 2)
    rule = next(iter(given.skeleton.default_plan))
    dense = replace(given, skeleton=replace(given.skeleton, expert_plan={rule: "colwise"}))
    experts = replace(given, skeleton=replace(given.skeleton, expert_plan={rule: "ep_dispatch_experts"}))
    assert list(share_experts(dense, "no reason")) == []
    assert [attempt.ep_size for attempt in share_experts(experts, "no reason")] == [2]
    assert given.sharding == Sharding(tp_size=2)
