"""What tpplan uses of Transformers and torch beyond their public interfaces, probed once and named in one place.

`tests/test_internals.py` fails when an installed release moves one of these.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest import mock

from tpplan.diagnostics import Diagnostic, PlanError, Report
from tpplan.model.releases import FSDP_ONLY_WHERE_ASKED, OLDEST, install, transformers_version

FULLY_SHARD = "apply_fully_sharded_data_parallelism"
PACKAGES = ("torch", "transformers", "accelerate", "torch_tpu")

# name here -> the attribute and the modules that have held it, newest first; the comment says who uses it.
PROBES: dict[str, tuple[str, tuple[str, ...]]] = {
    # plan keys and styles: the checks and the planner
    "styles": ("ALL_PARALLEL_STYLES", ("transformers.distributed.tensor_parallel",)),
    "wildcard": ("replace_layer_number_by_wildcard", ("transformers.distributed.tensor_parallel",)),
    "style_of": (
        "_get_parameter_plan",
        ("transformers.distributed.parallel_utils", "transformers.distributed.tensor_parallel"),
    ),
    # building a skeleton, sharding and tying it
    "mixin": ("DistributedMixin", ("transformers.distributed.mixin",)),
    "model": ("PreTrainedModel", ("transformers.modeling_utils",)),
    "auto_class": ("_BaseAutoModelClass", ("transformers.models.auto.auto_factory",)),
    "no_tie_weights": ("no_tie_weights", ("transformers.initialization",)),
    "no_init_weights": ("no_init_weights", ("transformers.initialization",)),
    # the layouts in which checkpoints are published
    "conversion_mapping": ("get_model_conversion_mapping", ("transformers.conversion_mapping",)),
    # which modules a quantizer leaves alone, and the methods it knows: quantized checkpoints
    "should_convert_module": ("should_convert_module", ("transformers.quantizers.quantizers_utils",)),
    "quantizer": ("HfQuantizer", ("transformers.quantizers.base",)),
    "fp8_quantizer": ("FineGrainedFP8HfQuantizer", ("transformers.quantizers.quantizer_finegrained_fp8",)),
    "quantization_configs": ("AUTO_QUANTIZATION_CONFIG_MAPPING", ("transformers.quantizers.auto",)),
    # ranks that do not exist (on cpu whatever torch sees), and weights that hold no memory
    "clear_dtensor_caches": ("_clear_sharding_prop_cache", ("torch.distributed.tensor.debug",)),
    "accelerator": ("_get_accelerator", ("torch._C",)),
    "FakeStore": ("FakeStore", ("torch.testing._internal.distributed.fake_pg",)),
    "LocalTensor": ("LocalTensor", ("torch.distributed._local_tensor",)),
    "LocalIntNode": ("LocalIntNode", ("torch.distributed._local_tensor",)),
    "LocalTensorMode": ("LocalTensorMode", ("torch.distributed._local_tensor",)),
    "local_tensor_mode": ("local_tensor_mode", ("torch.distributed._local_tensor",)),
    "FakeTensorMode": ("FakeTensorMode", ("torch._subclasses.fake_tensor",)),
    "DataDependentOutput": ("DataDependentOutputException", ("torch._subclasses.fake_tensor",)),
    "DynamicOutputShape": ("DynamicOutputShapeException", ("torch._subclasses.fake_tensor",)),
    "UnsupportedFakeTensor": ("UnsupportedFakeTensorException", ("torch._subclasses.fake_tensor",)),
    "UnsupportedOperator": ("UnsupportedOperatorException", ("torch._subclasses.fake_tensor",)),
    # what a rank moves and computes
    "CommDebugMode": ("CommDebugMode", ("torch.distributed.tensor.debug",)),
    "flop_registry": ("flop_registry", ("torch.utils.flop_counter",)),
}
# What a class found by PROBES must have.
MEMBERS: dict[str, tuple[str, ...]] = {
    "mixin": ("prepare_distribute_model", "maybe_distribute_model"),
    "model": ("tp_plan", "ep_plan", "tie_weights", "get_output_embeddings"),
    "auto_class": ("_model_mapping", "from_config"),
}
# Arguments that are given by name: to what PROBES found, or to one of its members.
ARGUMENTS: dict[str, tuple[str, ...]] = {
    "style_of": ("is_weight",),
    "model.tie_weights": ("recompute_mapping",),
    "FakeTensorMode": ("allow_non_fake_inputs",),
}


def versions() -> dict[str, str]:
    """Installed versions by package, without importing them; packages that are not installed are left out."""
    found = {}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


@contextmanager
def no_sharding_over_one_rank() -> Iterator[None]:
    """Leave out FSDP, which 5.19 puts around a model with dispatched experts though no rank shares its parameters.

    Over one rank it moves nothing and divides gradients by 1. It refuses weights that are not there (it wants every
    parameter materialized, layers included that are not run) and resizes storages that a simulated rank does not have.
    """
    if transformers_version() >= FSDP_ONLY_WHERE_ASKED:
        yield
        return
    module = importlib.import_module(internals().mixin.__module__)
    with mock.patch.object(module, FULLY_SHARD, lambda model, mesh: model):
        yield


@cache
def internals() -> SimpleNamespace:
    """Every internal that tpplan relies on, by the names of PROBES.

    Raises PlanError TPP901, naming all that the installed release lacks.
    """
    found, missing = {}, []
    for name, (attribute, modules) in PROBES.items():
        holders = [module for module in map(_import, modules) if hasattr(module, attribute)]
        if holders:
            found[name] = getattr(holders[0], attribute)
        else:
            missing.append(f"{modules[0]}.{attribute}")
    missing += [*_missing_members(found), *_missing_arguments(found)]
    if missing:
        raise environment_error(
            "the installed torch and Transformers lack what tpplan needs, so nothing was checked",
            evidence="missing: " + "; ".join(missing) + "; installed: " + _installed(),
            fix=install(OLDEST) if "transformers" in versions() and transformers_version() < OLDEST else "",
        )
    return SimpleNamespace(**found)


def _missing_members(found: Mapping[str, Any]) -> Iterator[str]:
    for name, members in MEMBERS.items():
        for member in members:
            if name in found and not hasattr(found[name], member):
                yield f"{PROBES[name][0]}.{member}"


def _missing_arguments(found: Mapping[str, Any]) -> Iterator[str]:
    for called, arguments in ARGUMENTS.items():
        name, _, member = called.partition(".")
        holder = found.get(name)
        function = getattr(holder, member, None) if member else holder
        if function is None:
            continue
        taken = inspect.signature(function).parameters
        for argument in arguments:
            if argument not in taken:
                shown = PROBES[name][0] + (f".{member}" if member else "")
                yield f"the argument {argument} of {shown}"


def _import(name: str) -> ModuleType | None:
    try:
        return importlib.import_module(name)
    except ImportError:
        return None  # the caller reports the attribute as missing, with the installed versions


def environment_error(message: str, evidence: str = "", fix: str = "") -> PlanError:
    """A PlanError with TPP901."""
    fix = fix or "install the tested set of versions with tpplan's constraints.txt"
    diagnostic = Diagnostic(code="TPP901", message=message, evidence=evidence, fix=fix)
    return PlanError(Report(model="", versions=versions(), diagnostics=(diagnostic,)))


def _installed() -> str:
    return ", ".join(f"{package} {version}" for package, version in versions().items()) or "none"
