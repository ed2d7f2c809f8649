"""The load stage: from_pretrained of the saved miniature as one rank at a time, with no processes.

It runs what only the loader does (weight conversion, fused experts, ties) and compares what the rank got with its slice
of what one device gets from the same checkpoint.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tpplan import scratch
from tpplan.miniature.build import Miniature
from tpplan.model.checkpoint import load_sharded, save_as_published
from tpplan.model.errors import conversion_errors, out_of_memory
from tpplan.model.quiet import quiet
from tpplan.model.ranks import fake_rank
from tpplan.model.simulation import one_thread
from tpplan.model.skeleton import Sharding
from tpplan.units import ERROR_LENGTH, one_line


@dataclass(frozen=True, kw_only=True)
class Load:
    """What the stage found. raised: (rank, error). wrong: (rank, parameter) of the first value that is not its slice.
    blamed: the parameters that the loader could not make, or that one. not_run: why nothing was loaded, or empty.
    """

    ranks: tuple[int, ...]
    raised: tuple[int, str] | None = None
    wrong: tuple[int, str] | None = None
    blamed: tuple[str, ...] = ()
    not_run: str = ""
    seconds: float = 0.0

    @property
    def passed(self) -> bool:
        return not self.failed and not self.not_run

    @property
    def failed(self) -> bool:
        return self.raised is not None or self.wrong is not None


@dataclass(frozen=True, kw_only=True)
class Saved:
    """A miniature as a checkpoint on disk, which is removed when nothing holds this any more.

    whole: what one device gets from it, None where `not_run` says why that is nothing. as_made: whether it is what was
    saved.
    """

    miniature: Miniature
    directory: Path
    whole: Any = None
    as_made: bool = False
    not_run: str = ""


def save(miniature: Miniature) -> Saved:
    """The miniature saved, and loaded on one device."""
    directory = scratch.make()
    try:
        with one_thread(), quiet():
            whole, not_run = _save_and_load(miniature, directory)
            as_made = whole is not None and _first_wrong(whole, miniature.model) is None
    except BaseException:
        scratch.remove(directory)
        raise
    kept = miniature.model if as_made else whole  # not a second time in memory
    saved = Saved(miniature=miniature, directory=directory, whole=kept, as_made=as_made, not_run=not_run)
    weakref.finalize(saved, scratch.remove, directory)
    return saved


def _save_and_load(miniature: Miniature, directory: Path) -> tuple[Any, str]:
    """What one device gets from the saved miniature, or None and why it gets nothing."""
    try:
        save_as_published(miniature.model, directory)
    except Exception as error:  # conversions back to the published layout are rarely run upstream
        return None, f"save_pretrained of the miniature raises {one_line(error)}"
    try:
        return _load(miniature, directory, Sharding(tp_size=1)), ""
    except Exception as error:  # then it is not for its shards that a rank cannot load it
        why = _why(error, conversion_errors(error))
        return None, f"from_pretrained of the saved miniature raises unsharded too: {why}"


def _load(miniature: Miniature, directory: Path, sharding: Sharding) -> Any:
    spec = miniature.spec
    return load_sharded(spec.auto_class, directory, sharding, trust_remote_code=spec.trust_remote_code)


def run_load(saved: Saved, sharding: Sharding) -> Load:
    """Load the miniature as the first and as the last rank; stops at the first fault."""
    started = time.perf_counter()
    if saved.not_run:
        return Load(ranks=(), not_run=saved.not_run, seconds=time.perf_counter() - started)
    ranks = (0,) if sharding.tp_size == 1 else (0, sharding.tp_size - 1)
    raised = wrong = None
    blamed: tuple[str, ...] = ()
    with one_thread(), quiet():
        for rank in ranks:
            with fake_rank(rank, sharding.tp_size):
                try:
                    model = _load(saved.miniature, saved.directory, sharding)
                except Exception as error:  # whatever the loader raises here, it would raise in a worker
                    if out_of_memory(error):
                        reason = f"there is not enough memory to load the miniature: {one_line(error)}"
                        return Load(ranks=ranks, not_run=reason, seconds=time.perf_counter() - started)
                    converting = conversion_errors(error)
                    raised, blamed = (rank, _why(error, converting)), tuple(converting)
                    break
                name = _first_wrong(model, saved.whole)
                if name and not saved.as_made:
                    reason = f"from_pretrained of the saved miniature does not give back {name} unsharded either"
                    return Load(ranks=ranks, not_run=reason, seconds=time.perf_counter() - started)
                if name:
                    wrong, blamed = (rank, name), (name,)
                    break
    return Load(ranks=ranks, raised=raised, wrong=wrong, blamed=blamed, seconds=time.perf_counter() - started)


def _why(error: Exception, converting: Mapping[str, str]) -> str:
    """The loader's error in a line; where it only says that weights were not converted, the first of those instead."""
    first = next(iter(converting.values()), "")
    return first[:ERROR_LENGTH] or one_line(error)


def _first_wrong(model: Any, whole: Any) -> str | None:
    """The first parameter that is not this rank's slice of the unsharded model's."""
    import torch
    from torch.distributed.tensor import DTensor, distribute_tensor

    expected = dict(whole.named_parameters(remove_duplicate=False))
    for name, parameter in model.named_parameters():
        full = expected[name].detach()
        local = parameter.detach()
        if isinstance(parameter, DTensor):
            full = distribute_tensor(full, parameter.device_mesh, parameter.placements, src_data_rank=None).to_local()
            local = parameter.to_local()
        if local.shape != full.shape or not torch.equal(local, full):
            return name
    return None
