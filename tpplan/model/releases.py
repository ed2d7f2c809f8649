"""Releases of Transformers with which something came that tpplan judges by: what it was, and in which of its files."""

from __future__ import annotations

import importlib.metadata

Release = tuple[int, ...]  # (major, minor), or with the patch

# The oldest that has what `internals` names.
OLDEST: Release = (5, 19)
# distributed/mixin.py: before, `ep_size` alone wrapped the model in FSDP.
FSDP_ONLY_WHERE_ASKED: Release = (5, 20)
# distributed/tensor_parallel.py: before, validate_param of colwise refused a gathered output that does not divide.
UNEVEN_GATHER: Release = (5, 21)
# distributed/tensor_parallel.py, ALL_PARALLEL_STYLES: styles that older releases do not have.
STYLES_SINCE: dict[str, Release] = {"replicate": (5, 21), "embedding_colwise": (5, 21)}
# quantizers/quantizer_finegrained_fp8.py: before, update_tp_plan gave every Qwen3 model the plan of a dense one.
FP8_KEEPS_THE_PLAN: Release = (5, 22)
# modeling_utils.py, tie_weights: before, torch.equal on two DTensors, whose MIN all-reduce TPU cannot lower; now
# _tied_params_are_equal (distributed/sharding_utils.py), with a SUM all-reduce.
TIES_LOAD_ON_TPU: Release = (5, 23)
# The newest for which the failures of `quantization.METHODS` were run.
MEASURED_UP_TO: Release = (5, 24)


def transformers_version() -> Release:
    """The installed Transformers as (major, minor, patch), development suffixes dropped."""
    from packaging.version import Version

    return Version(importlib.metadata.version("transformers")).release


def has_uneven_gather() -> bool:
    """Whether a gathered output may be uneven in the installed Transformers."""
    return transformers_version() >= UNEVEN_GATHER


def dotted(release: Release) -> str:
    """As people write it: 5.23."""
    return ".".join(map(str, release))


def install(release: Release) -> str:
    """The fix for what came with `release`."""
    return f"install Transformers {dotted(release)} or newer"
