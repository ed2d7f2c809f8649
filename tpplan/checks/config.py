"""What the config itself says about how far the verdict reaches."""

from __future__ import annotations

import json
from collections.abc import Iterator

from tpplan.diagnostics import Diagnostic, Place
from tpplan.model.config import config_value, defaulted, text_config, text_config_place
from tpplan.model.facts import changed_facts
from tpplan.model.quantization.facts import quantization_facts
from tpplan.subject import Subject

HEAD_FIELDS = ("num_attention_heads", "num_key_value_heads")


def check_facts(subject: Subject) -> Iterator[Diagnostic]:
    """TPP120: the config at hand differs from the one that the plan was made for."""
    if subject.facts is None:
        return
    changed = changed_facts(dict(subject.facts), subject.spec.config) + _changed_quantization(subject)
    if changed:
        yield Diagnostic(
            code="TPP120",
            message=f"the plan was made for a different config: {len(changed)} value{'s' * (len(changed) > 1)} differ",
            where=subject.file.place_of("model", "config") if subject.file else Place(file=subject.spec.source.name),
            evidence="; ".join(changed[:8]),
            fix=f"make it anew: {subject.plan_command()}",
        )


def check_defaults(subject: Subject) -> Iterator[Diagnostic]:
    """TPP312: a dtype that the file leaves open. TPP307: head counts where the class default is a number of its own."""
    if subject.facts is not None:
        return
    if subject.spec.dtype_is_assumed:
        yield Diagnostic(
            code="TPP312",
            message=f"the config names no dtype, so {subject.spec.dtype} is used; from_pretrained takes that of the "
            "weights",
            where=Place(file=subject.spec.source.config_file or subject.spec.source.name),
            evidence="dtype='auto' of from_pretrained reads the config, then the first weights "
            "(modeling_utils._get_dtype)",
            fix="give --dtype with the dtype of the weights, on which bytes depend",
        )
    config = text_config(subject.spec.config)
    for field in HEAD_FIELDS:
        value = config_value(config, field)
        heads = config_value(config, "num_attention_heads")
        follows = field == "num_key_value_heads" and value == heads  # None in the class means as many as query heads
        if value is None or follows or not defaulted(subject.spec.source, subject.spec.config, field):
            continue
        yield Diagnostic(
            code="TPP307",
            message=f"{field} is not in {text_config_place(subject.spec)}, so the class default {value} is used",
            where=Place(file=subject.spec.source.config_file or subject.spec.source.name),
            evidence=f"{type(config).__name__}.{field} = {value}",
            fix=f"put {field} into {subject.spec.source.called} if the model has a different number",
        )


def _changed_quantization(subject: Subject) -> list[str]:
    """As `changed_facts`, for the quantization that a plan was made for; older plans do not say."""
    made_for = subject.facts.get("quantization_config") if subject.facts else None
    found = quantization_facts(subject.spec, subject.skeleton.model) if made_for else None
    if made_for == found:
        return []
    return [f"quantization_config: the plan has {json.dumps(made_for)}, the config {json.dumps(found)}"]
