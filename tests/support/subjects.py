"""Subjects and miniatures for tests that look below the command line, each made once a session."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from tests.support import configs
from tpplan.miniature.build import Miniature
from tpplan.model.config import ModelSpec, load_spec
from tpplan.model.internals import internals
from tpplan.model.skeleton import Sharding, Skeleton, build_skeleton
from tpplan.source import read_source
from tpplan.stages.bench import Bench
from tpplan.subject import Subject

ATTENTION = "model.layers.*.self_attn."


def rules(names: str, style: str, inside: str = ATTENTION) -> dict[str, str]:
    """The overrides that give the projections of these letters one style: `rules("kv", "replicate")`."""
    return {f"{inside}{name}_proj": style for name in names}


def subject(
    config: configs.Config, tp_size: int, overrides: Mapping[str, str] | None = None, *, training: bool = False
) -> Subject:
    """What the command line would judge for this config and these overrides."""
    spec, skeleton = model(config)
    sharding = Sharding(tp_size=tp_size, overrides=dict(overrides or {}))
    return Subject(spec=spec, skeleton=skeleton, sharding=sharding, training=training)


def model(config: configs.Config) -> tuple[ModelSpec, Skeleton]:
    return _model(json.dumps(config))


def miniature(config: configs.Config, tp_size: int) -> Miniature:
    return _miniature(json.dumps(config), tp_size)


def sharded(module: Any, name: str, tp_size: int) -> Any:
    """`module` cut by the style itself, as a model of one module that is cut by a plan of one rule."""
    from torch.distributed.device_mesh import init_device_mesh

    applied = internals().styles[name]
    mesh = init_device_mesh("cpu", (tp_size,), mesh_dim_names=("tp",))
    applied.shard_param(module, "weight", mesh)
    return applied.install_forward(module, mesh) or module


@cache
def _model(config: str) -> tuple[ModelSpec, Skeleton]:
    with tempfile.TemporaryDirectory() as directory:
        spec = load_spec(read_source(configs.write(Path(directory), json.loads(config))))
    return spec, build_skeleton(spec)


@cache
def _miniature(config: str, tp_size: int) -> Miniature:
    return Bench(subject(json.loads(config), tp_size)).miniature(tp_size)
