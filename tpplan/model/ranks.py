"""A process group of ranks that do not exist, so that one process can be any rank of tp_size."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

from tpplan.model.internals import internals


def group_is_taken() -> bool:
    """Whether this process already belongs to a process group, as the workers of a launcher do."""
    import torch.distributed as dist

    return dist.is_available() and dist.is_initialized()


@contextmanager
def fake_rank(rank: int, tp_size: int) -> Iterator[None]:
    """Be `rank` of a fake process group of `tp_size` ranks, on cpu even where torch sees an accelerator.

    Collectives return at once and move nothing. torch's exception hook, which the group wraps, is restored.
    """
    import torch
    import torch.distributed as dist

    hook = sys.excepthook
    cpu = mock.patch.object(torch._C, "_get_accelerator", lambda *_, **__: torch.device("cpu"))
    environment = mock.patch.dict("os.environ", {"LOCAL_RANK": "0"})
    with cpu, environment:
        _forget_meshes()
        dist.init_process_group("fake", rank=rank, world_size=tp_size, store=internals().FakeStore())
        try:
            yield
        finally:
            dist.destroy_process_group()
            _forget_meshes()
            sys.excepthook = hook


def _forget_meshes() -> None:
    """Clear DTensor's caches: a mesh of the same shape is equal there, and brings back another rank's place."""
    internals().clear_dtensor_caches()
