"""Weights without memory: what a model on the meta device is given so that its forward runs at full size.

Torch's fake tensors answer every operation with the shape and dtype of its result, on cpu, and refuse to give a value.
"""

from __future__ import annotations

from typing import Any

from tpplan.model.internals import internals


class FakeWeights:
    """Weights that have a shape, a dtype and a placement, and hold no memory; tied parameters stay tied."""

    def __init__(self) -> None:
        self._mode = internals().FakeTensorMode(allow_non_fake_inputs=True)
        self._made: dict[int, Any] = {}

    def give(self, model: Any, skipped: set[int]) -> None:
        """Replace meta parameters by fake tensors on cpu (placements kept) and meta buffers by zeros.

        skipped: ids of modules that will not run; theirs are left alone.
        """
        import torch

        for module in model.modules():
            if id(module) in skipped:
                continue
            for name, parameter in module._parameters.items():
                if parameter is not None and parameter.device.type == "meta":
                    module._parameters[name] = self._fake(parameter)
            for name, buffer in module._buffers.items():
                if buffer is not None and buffer.device.type == "meta":
                    module._buffers[name] = torch.zeros(buffer.shape, dtype=buffer.dtype)

    def _fake(self, parameter: Any) -> Any:
        import torch
        from torch.distributed.tensor import DTensor

        if id(parameter) in self._made:
            return self._made[id(parameter)]
        sharded = isinstance(parameter, DTensor)
        local = parameter.to_local() if sharded else parameter
        with self._mode:
            data = torch.empty(local.shape, dtype=local.dtype, device="cpu")
        if sharded:
            data = DTensor.from_local(
                data,
                parameter.device_mesh,
                parameter.placements,
                run_check=False,
                shape=parameter.shape,
                stride=parameter.stride(),
            )
        new = torch.nn.Parameter(data, requires_grad=parameter.requires_grad)
        self._made[id(parameter)] = new
        return new
