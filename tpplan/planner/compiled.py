"""A plan that passes as a script that loads it with its DistributedConfig."""

from __future__ import annotations

from pathlib import Path

from tpplan.model.config import ModelSpec
from tpplan.model.skeleton import Sharding
from tpplan.source import CONFIG_NAME


def as_python(spec: ModelSpec, sharding: Sharding) -> str:
    """A script, to be started by torchrun, that loads the model sharded."""
    arguments = ",\n".join(f"    {name}={_literal(value)}" for name, value in sharding.arguments().items())
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
