"""Plans that pass, each broken by one edit that a hand might make: `check` says what real ranks of Transformers say.

Some of the edits are harmless, and must pass. A few cases are run always, the rest by hand (some minutes):

    python -m pytest -n 0 -m 'sweep or not sweep' tests/test_broken_plans.py
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

import tpplan
from tests.support import checkpoints, real_ranks
from tests.support.subjects import rules
from tpplan.plan_files.document import ModelFacts, Plan, Target

SUMMED = "replicated_with_grad_allreduce"
ATTENTION, MLP = "model.layers.*.self_attn.", "model.layers.*.mlp."
TP_SIZE = 2
HEADS = {"num_attention_heads": 8, "num_key_value_heads": 4}
SMALL = {"vocab_size": 96, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "head_dim": 8}
MODELS = {
    "llama": {"model_type": "llama", **SMALL, **HEADS},
    "qwen2, with biases": {"model_type": "qwen2", **SMALL, **HEADS},
    "qwen3, with norms of heads": {"model_type": "qwen3", **SMALL, **HEADS},
    "glm4, repaired": {"model_type": "glm4", **SMALL, "num_attention_heads": 6, "num_key_value_heads": 3},
    "gemma2, with norms after": {"model_type": "gemma2", **SMALL, **HEADS},
    "mixtral, with experts": {"model_type": "mixtral", **SMALL, **HEADS, "num_local_experts": 4},
}
REPAIR = rules("qkvo", SUMMED)
WHOLE = rules("qkvo", "replicate")
GATHERED_MLP = rules("gate up".split(), "colwise_gather_output", MLP) | rules(["down"], "rowwise_split_input", MLP)


@dataclass(frozen=True, kw_only=True)
class Edit:
    """rules: put over the plan that passes. training: whether gradients count."""

    name: str
    rules: dict[str, str]
    training: bool = False
    of: tuple[str, ...]


DENSE = ("llama", "qwen2, with biases", "qwen3, with norms of heads", "gemma2, with norms after")
EDITS = (
    Edit(name="two styles swapped", rules={f"{MLP}up_proj": "rowwise", f"{MLP}down_proj": "colwise"}, of=DENSE),
    Edit(name="the output of attention replicated", rules={f"{ATTENTION}o_proj": SUMMED}, of=DENSE),
    Edit(name="the output of the MLP replicated", rules={f"{MLP}down_proj": SUMMED}, of=DENSE),
    Edit(name="keys alone replicated", rules={f"{ATTENTION}k_proj": SUMMED}, of=DENSE),
    Edit(
        name="keys and values alone gathered",
        rules=rules("kv", "colwise_gather_output"),
        of=DENSE,
    ),
    Edit(name="the gate alone gathered", rules={f"{MLP}gate_proj": "colwise_gather_output"}, of=DENSE),
    Edit(name="a norm sharded", rules={"model.layers.*.input_layernorm": "colwise"}, of=DENSE),
    Edit(name="the head not gathered", rules={"lm_head": "colwise"}, of=DENSE),
    Edit(name="the embedding replicated", rules={"model.embed_tokens": SUMMED}, of=DENSE),
    Edit(
        name="gathered where it was cut",
        rules={
            f"{MLP}up_proj": "colwise_gather_output",
            f"{MLP}gate_proj": "colwise_gather_output",
            f"{MLP}down_proj": "rowwise_split_input",
        },
        of=DENSE,
    ),
    Edit(name="attention replicated for training", rules=REPAIR, training=True, of=("llama", "qwen2, with biases")),
    Edit(
        name="attention whole for training",
        rules=dict.fromkeys(REPAIR, "replicate"),
        training=True,
        of=("llama", "qwen3, with norms of heads"),
    ),
    Edit(name="values not in the repair", rules={f"{ATTENTION}v_proj": "colwise"}, of=("glm4, repaired",)),
    Edit(name="the output not in the repair", rules={f"{ATTENTION}o_proj": "rowwise"}, of=("glm4, repaired",)),
    Edit(name="the repair for training", rules={}, training=True, of=("glm4, repaired",)),
    Edit(name="the MLP's fused projection cut as one", rules={f"{MLP}gate_up_proj": "colwise"}, of=("glm4, repaired",)),
    Edit(name="nothing", rules={}, of=tuple(MODELS)),
    Edit(name="experts' outputs replicated", rules={f"{MLP}experts.down_proj": SUMMED}, of=("mixtral, with experts",)),
    Edit(name="experts not summed", rules={f"{MLP}experts": "replicate"}, of=("mixtral, with experts",)),
    Edit(name="the router sharded", rules={f"{MLP}gate": "colwise"}, of=("mixtral, with experts",)),
)
CASES = [(model, edit) for edit in EDITS for model in edit.of]
ALWAYS = {
    ("llama", "two styles swapped"),
    ("qwen2, with biases", "keys alone replicated"),
    ("qwen3, with norms of heads", "a norm sharded"),
    ("glm4, repaired", "the repair for training"),
    ("llama", "gathered where it was cut"),
}


def test_there_are_fifty() -> None:
    assert len(CASES) >= 50 and {(model, edit.name) for model, edit in CASES} >= ALWAYS


@pytest.mark.parametrize(
    ("model", "edit"),
    [
        pytest.param(model, edit, marks=() if (model, edit.name) in ALWAYS else pytest.mark.sweep)
        for model, edit in CASES
    ],
    ids=lambda value: value if isinstance(value, str) else value.name,
)
def test_check_says_what_real_ranks_say(model: str, edit: Edit, tmp_path_factory: pytest.TempPathFactory) -> None:
    directory = saved(model, tmp_path_factory.getbasetemp() / f"saved-{len(model)}-{model.split(',')[0]}")
    overrides = (REPAIR if model == "glm4, repaired" else {}) | edit.rules
    right, why = real_ranks.is_right(directory, TP_SIZE, overrides, training=edit.training)
    facts = ModelFacts(id=str(directory), auto_class="AutoModelForCausalLM", config=MODELS[model])
    target = Target(tp_size=TP_SIZE, purpose="training" if edit.training else "inference")
    report = tpplan.check(Plan(model=facts, target=target, overrides=overrides))
    assert (str(report.verdict) == "pass") == right, (why, [one.to_dict() for one in report.errors])
    if edit.name == "nothing":
        assert right


@cache
def saved(model: str, directory: Path) -> Path:
    """A checkpoint of the model, made once."""
    from transformers import AutoConfig

    values = {key: value for key, value in MODELS[model].items() if key != "model_type"}
    tokens = {"bos_token_id": 1, "eos_token_id": None, "pad_token_id": 0}
    return checkpoints.save(AutoConfig.for_model(MODELS[model]["model_type"], **values | tokens), directory)
