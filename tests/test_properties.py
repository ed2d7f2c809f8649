"""Properties that hold for all names, shapes and configs, tried on generated ones."""

from __future__ import annotations

import copy
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, assume, given, settings
from hypothesis import strategies as st

import tpplan
from tests.support import configs
from tests.support.subjects import model, rules, sharded
from tpplan.checks.rules import check_rule_names, check_styles
from tpplan.diagnostics import Status, Verdict
from tpplan.model.ranks import fake_rank
from tpplan.model.releases import has_uneven_gather, transformers_version
from tpplan.model.skeleton import Sharding, build_on_meta, known_styles, shard, style_of, wildcard
from tpplan.plan_files.document import Plan
from tpplan.plan_files.file import parse_plan
from tpplan.styles import STYLES
from tpplan.subject import Subject

quick = settings(max_examples=100, deadline=None)
# Seconds an example: the same few in every run, and a failure is shown as it was found.
slow = settings(
    max_examples=5,
    deadline=None,
    derandomize=True,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)

words = st.from_regex(r"[a-z_][a-z_0-9]{0,8}", fullmatch=True)
numbers = st.integers(0, 200).map(str)


@st.composite
def module_names(draw: st.DrawFn) -> list[str]:
    """The parts of a module's name: words, and numbers that never stand first nor next to each other."""
    parts = [draw(words)]
    for _ in range(draw(st.integers(0, 5))):
        parts.append(draw(words if parts[-1].isdigit() else words | numbers))
    return parts


class TestKeyMatching:
    """Plan keys are matched as Transformers matches them: by its own functions, and with what they do in a model."""

    @given(module_names())
    @quick
    def test_numbers_between_dots_become_stars(self, parts: list[str]) -> None:
        assert wildcard(".".join(parts)) == ".".join("*" if part.isdigit() else part for part in parts)

    @given(st.text("ab01.*_", max_size=12))
    @quick
    def test_any_name_is_read_as_transformers_reads_it(self, name: str) -> None:
        from transformers.distributed import tensor_parallel

        assert wildcard(name) == tensor_parallel.replace_layer_number_by_wildcard(name)
        assert wildcard(wildcard(name)) == wildcard(name) or ".." in name or name.count(".") > 1

    @given(module_names(), st.sampled_from(["weight", "bias"]), st.booleans())
    @quick
    def test_a_parameter_has_its_module_s_style_and_a_module_never_its_parent_s(
        self, parts: list[str], parameter: str, own: bool
    ) -> None:
        name = ".".join(parts)
        plan = {wildcard(name): "rowwise"} | ({f"{wildcard(name)}.{parameter}": "replicate"} if own else {})
        assert style_of(name, plan, is_parameter=False) == "rowwise"
        assert style_of(f"{name}.{parameter}", plan, is_parameter=True) == ("replicate" if own else "rowwise")
        assert style_of(f"{name}.child", plan, is_parameter=False) is None

    @pytest.mark.skipif(transformers_version() < (5, 22), reason="models resolve their own plans from 5.22")
    @given(overrides=st.data())
    @settings(max_examples=60, deadline=None)
    def test_a_rule_is_refused_or_followed_as_in_a_model(self, overrides: st.DataObject) -> None:
        """Keys near the real ones: whole, with a layer number, without the first part, with a part changed."""
        from transformers import DistributedConfig

        spec, skeleton = model(configs.qwen3())
        keys = near(sorted(skeleton.rules))
        drawn = overrides.draw(st.dictionaries(keys, st.sampled_from(known_styles()), min_size=1))
        subject = Subject(spec=spec, skeleton=skeleton, sharding=Sharding(tp_size=2, overrides=drawn))
        assert list(check_styles(subject)) == []
        refused = list(check_rule_names(subject))

        whole = copy.copy(on_meta())
        whole._tp_plan = dict(skeleton.default_plan)
        try:
            followed, _, _ = whole._resolve_parallel_plans(DistributedConfig(tp_size=2, tp_plan=drawn))
        except ValueError as error:
            assert refused, error
            return
        assert not refused
        for name, _ in whole.named_modules():
            assert subject.style_name(name) == followed.get(name), name
        for name, _ in whole.named_parameters():
            assert style_of(name, subject.plan, is_parameter=True) == followed.get(name), name


@cache
def on_meta() -> Any:
    return build_on_meta(model(configs.qwen3())[0])


@st.composite
def near(draw: st.DrawFn, known: list[str]) -> str:
    rule = draw(st.sampled_from(known))
    change = draw(st.sampled_from(["none", "none", "layer", "shorter", "other"]))
    if change == "layer":
        return rule.replace("*", draw(st.sampled_from("012")))
    if change == "shorter":
        return rule.partition(".")[2] or rule
    return rule + draw(st.sampled_from(["s", ".weight", ".*"])) if change == "other" else rule


class TestShards:
    """The shards that ranks hold join to the parameter: nothing is lost, nothing is held twice."""

    @pytest.mark.parametrize("name", ["colwise", "rowwise", "colwise_gather_output", "rowwise_split_input"])
    @given(rows=st.integers(1, 17), columns=st.integers(1, 17), tp_size=st.integers(2, 5))
    @settings(max_examples=10, deadline=None)
    def test_of_a_projection(self, name: str, rows: int, columns: int, tp_size: int) -> None:
        import torch

        whole = torch.arange(float(rows * columns)).view(rows, columns)
        parts = []
        for rank in range(tp_size):
            with fake_rank(rank, tp_size):
                linear = torch.nn.Linear(columns, rows, bias=False)
                linear.weight.data = whole.clone()
                parts.append(sharded(linear, name, tp_size).weight.to_local().detach())
        assert torch.cat(parts, dim=STYLES[name].cut_dim).equal(whole)

    @given(
        vocab_size=st.integers(64, 80),
        intermediate_size=st.integers(16, 40),
        tp_size=st.integers(2, 4),
        tied=st.booleans(),
    )
    @slow
    def test_of_a_model(self, vocab_size: int, intermediate_size: int, tp_size: int, tied: bool) -> None:
        assume(has_uneven_gather() or vocab_size % tp_size == intermediate_size % tp_size == 0)
        config = configs.llama(
            num_hidden_layers=1,
            num_key_value_heads=8,
            vocab_size=vocab_size,
            intermediate_size=intermediate_size,
            tie_word_embeddings=tied,
        )
        spec, skeleton = model(config)
        held: dict[str, int] = {}
        for rank in range(tp_size):
            with fake_rank(rank, tp_size):
                for name, parameter in shard(build_on_meta(spec), Sharding(tp_size=tp_size)).named_parameters():
                    local = parameter.to_local() if hasattr(parameter, "to_local") else parameter
                    held[name] = held.get(name, 0) + local.numel()
        assert held.keys() == skeleton.parameters.keys()
        itemsize = 4
        for name, parameter in skeleton.parameters.items():
            style = style_of(name, skeleton.default_plan, is_parameter=True)
            times = tp_size if style is None or STYLES[style].cut_dim is None else 1
            assert held[name] * itemsize == parameter.bytes * times, name


@st.composite
def small_models(draw: st.DrawFn) -> configs.Config:
    """Llama-like models whose heads often do not divide; two key/value heads or more."""
    make = draw(st.sampled_from([configs.llama, configs.qwen3]))
    key_value_heads = draw(st.integers(2, 5))
    heads = key_value_heads * draw(st.integers(1, 3))
    return make(
        num_hidden_layers=1,
        num_key_value_heads=key_value_heads,
        num_attention_heads=heads,
        hidden_size=8 * heads,
        intermediate_size=draw(st.sampled_from([24, 36, 48, 50, 55])),
        vocab_size=draw(st.integers(64, 96)),
        tie_word_embeddings=draw(st.booleans()),
    )


def is_plannable(config: configs.Config, tp_size: int, purpose: str) -> bool:
    """Whether the installed release and the simulation of ranks can hold any plan for it.

    Uneven widths in a backward cannot be simulated; before 5.21 none can be gathered, and before `replicate` nothing
    keeps a norm inside whole attention from summing its gradient.
    """
    heads = (8 * config["num_attention_heads"], 8 * config["num_key_value_heads"])
    if purpose == "training":
        if config["intermediate_size"] % tp_size:
            return False
        if "replicate" not in known_styles() and config["model_type"] == "qwen3":
            return False
    widths = (config["vocab_size"], config["intermediate_size"], *heads)
    return has_uneven_gather() or not any(width % tp_size for width in widths)


@given(
    config=small_models(),
    tp_size=st.integers(2, 4),
    purpose=st.sampled_from(["inference", "training"]),
    strategy=st.sampled_from(["replicate", "gather"]),
)
@slow
def test_a_plan_that_plan_writes_passes_check(
    config: configs.Config, tp_size: int, purpose: str, strategy: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    assume(is_plannable(config, tp_size, purpose))
    directory = Path(configs.write(tmp_path_factory.mktemp("model"), config))
    made = tpplan.plan(directory, tp_size, purpose=purpose, strategy=strategy)
    read = parse_plan(made.to_yaml()).plan
    assert read == made

    judged = tpplan.check(read, depth="numerics")
    assert judged.verdict is Verdict.PASS, judged.diagnostics
    assert [stage.status for stage in judged.stages.values()] == [Status.PASSED] * 3
    assert ("backward" in judged.stages["numerics"].reason) is (purpose == "training")
    assert judged.overrides == read.overrides
    heads = (config["num_key_value_heads"], config["num_attention_heads"])
    if any(count % tp_size for count in heads):
        assert set(read.overrides) >= set(rules("qkvo", ""))
    else:
        assert read.overrides == {}, "nothing to repair"


def test_a_plan_is_not_passed_by_chance(tmp_path: Path) -> None:
    """The property above can fail: without its overrides the same plan does."""
    made = tpplan.plan(configs.write(tmp_path, configs.llama()), 4, purpose="training", strategy="gather")
    without = Plan(model=made.model, target=made.target, overrides={}, proven=made.proven)
    assert tpplan.check(without, depth="numerics").verdict is Verdict.FAIL


def test_nor_are_its_numbers(tmp_path: Path) -> None:
    """A repair for inference runs in training too, and only its gradients tell it from one for training."""
    made = tpplan.plan(configs.write(tmp_path, configs.llama()), 4)
    trained = Plan(model=made.model, target=replace(made.target, purpose="training"), overrides=made.overrides)
    judged = tpplan.check(trained, depth="numerics")
    assert judged.stages["shapes"].status is Status.PASSED
    assert judged.stages["numerics"].status is Status.FAILED and judged.verdict is Verdict.FAIL
