"""ep_size against tp_size and the number of experts: what is said before it runs, and what Transformers does."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import tpplan
from tests.support import configs
from tests.support.subjects import miniature, subject
from tpplan import checks
from tpplan.diagnostics import Diagnostic
from tpplan.model.ranks import fake_rank
from tpplan.model.releases import transformers_version
from tpplan.model.skeleton import Sharding, build_on_meta, shard
from tpplan.planner.proposals import share_experts
from tpplan.planner.remedy import with_fixes
from tpplan.stages.bench import Bench
from tpplan.stages.judge import judge
from tpplan.subject import Subject

runs_sharded = pytest.mark.skipif(transformers_version() < (5, 20), reason="experts by rank do not run without weights")


def shared(experts: int, tp_size: int, ep_size: int) -> Subject:
    """A model that every size in these tests divides, but for its experts."""
    heads = {"num_attention_heads": 12, "num_key_value_heads": 12, "hidden_size": 96, "vocab_size": 192}
    made = subject(configs.mixtral(num_local_experts=experts, **heads), tp_size)
    return replace(made, sharding=Sharding(tp_size=tp_size, ep_size=ep_size))


def refused(what: Subject) -> str:
    """The ValueError with which Transformers refuses to shard it, or nothing."""
    with fake_rank(0, what.sharding.tp_size):
        model = build_on_meta(what.spec)
        try:
            shard(model, what.sharding)
        except ValueError as error:
            return str(error)
    return ""


@pytest.mark.parametrize("experts", [4, 6])
@pytest.mark.parametrize(
    ("tp_size", "ep_size"), [(1, 2), (2, 1), (2, 2), (2, 3), (2, 4), (3, 3), (4, 2), (4, 4), (6, 6)]
)
def test_is_refused_exactly_where_transformers_refuses(experts: int, tp_size: int, ep_size: int) -> None:
    judged = shared(experts, tp_size, ep_size)
    found = [diagnostic.code for diagnostic in checks.rejections(judged)]
    assert bool(found) == bool(refused(judged)), refused(judged)
    assert len(found) <= 1
    if found:
        assert found == (["TPP310"] if "evenly shard" in refused(judged) else ["TPP311"])


def completed(given: Subject) -> tuple[Diagnostic, ...]:
    bench = Bench(given)
    return with_fixes(judge(given, bench=bench), bench).diagnostics


@runs_sharded
def test_the_sizes_that_are_offered_pass() -> None:
    (diagnostic,) = completed(shared(6, 4, 4))
    assert diagnostic.fix == "give tp_size and ep_size 2 or 3, or leave ep_size out"
    assert all(judge(shared(6, size, size)).passed for size in (2, 3))
    assert "num_local_experts = 6 (config.json); 6 % 4 = 2" in diagnostic.evidence


@runs_sharded
def test_an_ep_size_for_the_tp_size_at_hand_is_offered_first() -> None:
    (diagnostic,) = completed(shared(6, 2, 3))
    assert diagnostic.code == "TPP311" and "3 % 2 = 1" in diagnostic.evidence
    assert diagnostic.fix == "give ep_size 2, or give tp_size and ep_size 3, or leave ep_size out"


@pytest.mark.parametrize("tp_size", [2, 4, 8])
def test_experts_of_a_miniature_are_square_only_where_the_models_are(tp_size: int) -> None:
    """The loader tells by its shape whether a published weight of an expert is to be transposed."""
    small = miniature(configs.qwen3_vl_30b_a3b(), tp_size).model
    shapes = {name: tensor.shape for name, tensor in small.named_parameters() if ".experts." in name}
    assert len(shapes) == 2 and all(rows != columns for _, rows, columns in shapes.values()), shapes


def test_experts_are_not_proposed_for_a_size_that_does_not_divide_them() -> None:
    def proposed(experts: int) -> list[int | None]:
        return [
            attempt.ep_size for attempt in share_experts(subject(configs.mixtral(num_local_experts=experts), 4), "")
        ]

    assert proposed(4) == [4]
    assert proposed(6) == []


@pytest.mark.skipif(transformers_version() < (5, 24), reason="the kernel as measured on 5.24")
def test_an_alignment_of_another_dtype_decides_nothing(tmp_path: Path) -> None:
    """Experts of 12 columns a rank: grouped_mm takes no float32 without weights, and no 24 bytes in bfloat16.

    With weights float32 runs and is right, as it does under torchrun.
    """
    sizes = {
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 8,
        "num_experts": 4,
        "num_experts_per_tok": 2,
    }
    widths = {"hidden_size": 64, "moe_intermediate_size": 48, "intermediate_size": 96, "num_hidden_layers": 1}
    config = {"model_type": "qwen3_moe", "vocab_size": 160, "decoder_sparse_step": 1, **sizes, **widths}
    model = configs.write(tmp_path, config | {"dtype": "float32"})
    assert tpplan.check(model, 4, depth="numerics").exit_code == 0
    shapes = tpplan.check(model, 4, dtype="bfloat16")
    assert [error.code for error in shapes.errors] == ["TPP402"]
