"""A subject that passes, as the DistributedConfig it stands for: JSON for from_dict, or a runnable Python call."""

from __future__ import annotations

import json
from pathlib import Path

from tpplan.source import CONFIG_NAME
from tpplan.subject import Subject


def as_json(subject: Subject) -> str:
    """What `DistributedConfig.from_dict` takes. It drops keys that it does not know, so there are none."""
    return json.dumps(subject.sharding.arguments(), indent=2) + "\n"


def as_python(subject: Subject) -> str:
    """A script, to be started by torchrun, that loads the model sharded."""
    spec = subject.spec
    arguments = ",\n".join(f"    {name}={_literal(value)}" for name, value in subject.sharding.arguments().items())
    name, hint = _weights(spec.source.name)
    return f"""import torch
from transformers import {spec.auto_class}, DistributedConfig

distributed_config = DistributedConfig(
{arguments},
)
model = {spec.auto_class}.from_pretrained(
    {name!r},{hint}
    dtype=torch.{spec.dtype},
    distributed_config=distributed_config,
)
"""


def _weights(name: str) -> tuple[str, str]:
    """What from_pretrained takes for a model of this name: the directory of a config.json, for a lone file a hint."""
    if not name.endswith(".json"):
        return name, ""
    path = Path(name)
    if path.name == CONFIG_NAME:
        return str(path.parent), ""
    return name, "  # a config alone has no weights: put the checkpoint's directory or hub id here"


def _literal(value: object) -> str:
    if not isinstance(value, dict):
        return repr(value)
    rules = "".join(f"        {rule!r}: {style!r},\n" for rule, style in value.items())
    return f"{{\n{rules}    }}"
