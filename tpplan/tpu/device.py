"""The device `tpu` of torch without a TPU: fake tensors on it dispatch as they do on a chip, and hold no memory."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any
from unittest import mock

from tpplan.model.internals import internals
from tpplan.model.ranks import fake_rank
from tpplan.tpu.collectives import functional_collectives
from tpplan.tpu.internals import tpu_internals

DEVICE = "tpu:0"
# libtpu would ask a metadata server for half a minute, jax would look for chips, and libtpu would let one process in.
ENVIRONMENT = {
    "TPU_SKIP_MDS_QUERY": "1",
    "JAX_PLATFORMS": "cpu",
    "TPU_ACCELERATOR_TYPE": "v6e-4",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
}


@cache
def start() -> None:
    """Once for a process: bring up torch's device `tpu` in this process. Raises Lacking."""
    os.environ.update(ENVIRONMENT)
    tpu_internals().start_device("tpu")


@contextmanager
def tpu_rank(rank: int, tp_size: int) -> Iterator[None]:
    """Be `rank` of a fake process group of `tp_size` TPUs; its collectives can be traced, and move nothing."""
    import torch.distributed as dist
    import torch.distributed.device_mesh as meshes

    handle, make_mesh = tpu_internals().device_handle, dist.init_device_mesh

    def handle_of(device_type: str = "cpu") -> Any:
        return handle("cpu" if device_type == "tpu" else device_type)  # torch_tpu's wants a chip

    def make_tpu_mesh(device_type: str, *args: Any, **kwargs: Any) -> Any:
        return make_mesh("tpu", *args, **kwargs)  # DTensor moves what it is given to the type of its mesh

    with (
        fake_rank(rank, tp_size),
        mock.patch.object(meshes, "_get_device_handle", handle_of),
        mock.patch.object(dist, "init_device_mesh", make_tpu_mesh),
        functional_collectives(),
    ):
        yield


class TpuTensors:
    """Fake tensors on the device `tpu` in place of a model's parameters and buffers; tied parameters stay tied.

    names: id of each fake tensor -> the name of the parameter or buffer that it stands for.
    """

    def __init__(self) -> None:
        self.mode = internals().FakeTensorMode(allow_non_fake_inputs=True)
        self.names: dict[int, str] = {}
        self._kept: list[Any] = []  # ids are of living tensors

    def like(self, tensor: Any) -> Any:
        """A fake of this shape and dtype."""
        return self.empty(tuple(tensor.shape), tensor.dtype)

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Any:
        import torch

        with self.mode:
            made = torch.empty(shape, dtype=dtype, device=DEVICE)
        self._kept.append(made)
        return made

    def replace(self, model: Any, skipped: set[int]) -> None:
        """Give the model its fakes. skipped: ids of modules that do not run; theirs are left alone."""
        made: dict[int, Any] = {}
        for prefix, module in model.named_modules():
            if id(module) in skipped:
                continue
            for name, parameter in module._parameters.items():
                if parameter is not None:
                    if id(parameter) not in made:
                        made[id(parameter)] = self._parameter(parameter, f"{prefix}.{name}".lstrip("."))
                    module._parameters[name] = made[id(parameter)]
            for name, buffer in module._buffers.items():
                if buffer is not None:
                    fake = self.like(buffer)
                    self.names[id(fake)] = f"{prefix}.{name}".lstrip(".")
                    module._buffers[name] = fake
        self._kept.append(made)

    def _parameter(self, parameter: Any, name: str) -> Any:
        import torch
        from torch.distributed.tensor import DTensor

        sharded = isinstance(parameter, DTensor)
        local = self.like(parameter.to_local() if sharded else parameter)
        data = local
        if sharded:
            data = DTensor.from_local(
                local,
                parameter.device_mesh,
                parameter.placements,
                run_check=False,
                shape=parameter.shape,
                stride=parameter.stride(),
            )
        new = torch.nn.Parameter(data, requires_grad=False)
        for tensor in (local, new, getattr(new, "_local_tensor", None)):
            self.names[id(tensor)] = name
        return new
