"""The config values that a plan depends on, and in which of them two configs differ."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from typing import Any

from tpplan.model.config import read_config, without_quantization

# Values that change neither names, shapes, placement nor the code that runs: no plan depends on them.
INCIDENTAL_FIELDS = frozenset(
    """_name_or_path architectures auto_map transformers_version dtype torch_dtype use_cache initializer_range
    initializer_factor bos_token_id eos_token_id pad_token_id decoder_start_token_id sep_token_id output_attentions
    output_hidden_states return_dict chunk_size_feed_forward id2label label2id problem_type quantization_config
    distributed_config attention_dropout hidden_dropout resid_pdrop embd_pdrop attn_pdrop router_aux_loss_coef
    output_router_logits pretraining_tp use_return_dict bos_token eos_token pad_token unk_token _attn_implementation
    quantization finetuning_task task_specific_params""".split()
)


def facts_of(config: Any) -> dict:
    """The config values that a plan depends on: those that differ from the class default and are not incidental.

    A config built from them has the same structure as `config`. Plain JSON values, nested as in config.json.
    """
    # JSON turns tuples into lists and keys into strings, as they are when read back.
    kept = _keep_structural(json.loads(json.dumps(config.to_diff_dict(), default=str)))
    return {"model_type": config.model_type} | kept


def changed_facts(facts: dict, config: Any) -> list[str]:
    """Dotted names of the values in which the model described by `facts` differs from `config`, with both values."""
    made_for = facts_of(read_config(without_quantization(facts)))
    return list(_differences(made_for, facts_of(config)))


def _keep_structural(values: dict) -> dict:
    return {
        key: _keep_structural(value) if isinstance(value, dict) else value
        for key, value in values.items()
        if key not in INCIDENTAL_FIELDS and not key.endswith(("_token_id", "_token_index")) and _is_finite(value)
    }


def _is_finite(value: Any) -> bool:
    """False for a bound that binds nothing, as in time_step_limit = [0, Infinity]: JSON has no such number."""
    if isinstance(value, list):
        return all(map(_is_finite, value))
    return not isinstance(value, float) or math.isfinite(value)


def _differences(old: Any, new: Any, name: str = "") -> Iterable[str]:
    if isinstance(old, dict) and isinstance(new, dict):
        for key in sorted(old.keys() | new.keys()):
            yield from _differences(old.get(key), new.get(key), f"{name}.{key}" if name else key)
    elif old != new:
        yield f"{name}: the plan has {json.dumps(old)}, the config {json.dumps(new)}"
