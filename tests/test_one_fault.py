"""One mistake in a plan has one diagnostic: the static checks never speak of the same rule or the same cause twice."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support import configs
from tests.support.subjects import ATTENTION, rules, subject
from tpplan import checks
from tpplan.codes import Severity
from tpplan.diagnostics import Diagnostic
from tpplan.stages.judge import judge
from tpplan.subject import Subject

MLP = "model.layers.*.mlp."
RULES = [*(f"{ATTENTION}{name}_proj" for name in "qkvo"), *(f"{MLP}{name}_proj" for name in ("gate", "up", "down"))]
RULES += ["lm_head", "model.embed_tokens"]
STYLES = [
    "colwise",
    "rowwise",
    "colwise_gather_output",
    "rowwise_split_input",
    "replicated_with_grad_allreduce",
    "embedding_rowwise",
]
CONFIGS = {
    "llama": configs.llama(num_key_value_heads=2),
    "tied llama": configs.llama(num_key_value_heads=2, tie_word_embeddings=True),
    "tied qwen3": configs.qwen3_06b(),
}


def errors(judged: Subject) -> list[Diagnostic]:
    found = checks.rejections(judged) + checks.findings(judged)
    return [diagnostic for diagnostic in found if diagnostic.severity is Severity.ERROR]


def codes(judged: Subject) -> list[str]:
    return sorted(diagnostic.code for diagnostic in errors(judged))


@settings(max_examples=80, deadline=None)
@given(
    name=st.sampled_from(list(CONFIGS)),
    tp_size=st.sampled_from([2, 4, 16]),
    overrides=st.dictionaries(st.sampled_from(RULES), st.sampled_from(STYLES), min_size=1, max_size=4),
)
def test_no_two_errors_speak_of_one_rule_or_one_cause(name: str, tp_size: int, overrides: dict[str, str]) -> None:
    found = errors(subject(CONFIGS[name], tp_size, overrides))
    named = [diagnostic.where.rule for diagnostic in found]
    assert None not in named and len(named) == len(set(named))
    told = {diagnostic.code for diagnostic in found}
    assert not ("TPP303" in told and "TPP208" in told), "the head is tied, and TPP303 is about it"
    attention = {diagnostic.code for diagnostic in found if diagnostic.where.rule.startswith(ATTENTION)}
    assert not ("TPP206" in attention and len(attention) > 1), "its numbers are wrong, or it raises; not both"


KV_WHOLE = rules("kv", "replicated_with_grad_allreduce")


@pytest.mark.parametrize(
    ("name", "tp_size", "overrides", "told"),
    [
        ("tied llama", 2, {"lm_head": "rowwise_split_input"}, ["TPP303"]),
        ("tied llama", 2, {"lm_head": "colwise"}, ["TPP208"]),
        ("tied llama", 2, {"lm_head": "colwise", "model.embed_tokens": "replicated_with_grad_allreduce"}, ["TPP303"]),
        ("llama", 2, {"lm_head": "colwise", "model.embed_tokens": "replicated_with_grad_allreduce"}, ["TPP208"]),
        ("llama", 4, KV_WHOLE, ["TPP206"]),
        ("llama", 4, KV_WHOLE | rules("o", "rowwise_split_input"), ["TPP206"]),
        ("llama", 4, rules("k", "replicated_with_grad_allreduce"), ["TPP301"]),
        ("llama", 16, KV_WHOLE, ["TPP302"]),
        ("llama", 2, rules("q", "colwise_gather_output"), ["TPP207"]),
        ("llama", 2, rules("o", "replicated_with_grad_allreduce"), ["TPP207"]),
    ],
)
def test_one_fault(name: str, tp_size: int, overrides: dict[str, str], told: list[str]) -> None:
    assert codes(subject(CONFIGS[name], tp_size, overrides)) == told


@pytest.mark.parametrize(
    ("overrides", "fix"),
    [
        (rules("qkv", "replicated_with_grad_allreduce"), rules("o", "rowwise_split_input")),
        (rules("qkv", "colwise_gather_output"), rules("o", "rowwise_split_input")),
        ({f"{MLP}down_proj": "rowwise_split_input"}, {f"{MLP}down_proj": "rowwise"}),
        ({"lm_head": "colwise"}, {"lm_head": "colwise_gather_output"}),
    ],
)
def test_what_a_fix_says_passes(overrides: dict[str, str], fix: dict[str, str]) -> None:
    """`give RULE the style STYLE`: with it the plan passes, numbers included."""
    [(rule, style)] = fix.items()
    [found] = errors(subject(CONFIGS["llama"], 2, overrides))
    assert found.fix == f"give {rule} the style {style}"
    assert judge(subject(CONFIGS["llama"], 2, overrides | fix)).passed


def test_where_keys_and_values_stay_sharded_the_fix_is_to_remove_the_override() -> None:
    [found] = errors(subject(CONFIGS["llama"], 2, rules("q", "colwise_gather_output")))
    assert found.fix == f"remove the override of {ATTENTION}q_proj"
    [found] = errors(subject(CONFIGS["llama"], 2, KV_WHOLE))
    assert found.fix == f"remove the overrides of {ATTENTION}k_proj and {ATTENTION}v_proj"
    [found] = errors(subject(CONFIGS["llama"], 4, KV_WHOLE))
    assert found.fix.startswith("tpplan plan ") and "writes a plan" in found.fix, "without the override heads are cut"


@pytest.mark.parametrize(
    ("heads", "tp_size", "share"),
    [
        (2, 4, "half a key/value head"),
        (2, 16, "1/8 of a key/value head"),
        (2, 3, "2/3 of a key/value head"),
        (8, 3, "2 2/3 key/value heads"),
        (4, 3, "1 1/3 key/value heads"),
        (1, 2, "half a key/value head"),
    ],
)
def test_the_share_of_heads_in_words(heads: int, tp_size: int, share: str) -> None:
    found = errors(subject(configs.llama(num_key_value_heads=heads), tp_size))
    [message] = [diagnostic.message for diagnostic in found if diagnostic.code == "TPP301"]
    assert message.endswith(f": each rank would get {share}")
