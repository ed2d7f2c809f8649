"""Every rank's own program run on CPU by jax, all ranks step by step, the collectives between them in numpy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tpplan.tpu.collectives import Call, Kind, NoLowering
from tpplan.tpu.internals import tpu_internals
from tpplan.tpu.program import Compute, Exchange, Program
from tpplan.units import one_line

Arrays = list[np.ndarray]  # of one rank's arguments or results
COMBINED = {"sum": np.add, "avg": np.add, "max": np.maximum, "min": np.minimum, "product": np.multiply}


class Cpu:
    """jax's CPU client; a segment is compiled once, whichever ranks run it."""

    def __init__(self) -> None:
        import jax

        jax.config.update("jax_enable_x64", True)
        self._device = jax.devices("cpu")[0]
        self._put = jax.device_put
        self._compiled: dict[bytes, Any] = {}

    def run(self, artifact: bytes, arguments: Sequence[np.ndarray]) -> Arrays:
        """The results of a segment. Raises NoLowering where XLA for CPU lacks what it needs."""
        if artifact not in self._compiled:
            self._compiled[artifact] = self._compile(artifact)
        given = [self._put(array, self._device) for array in arguments]
        results = self._compiled[artifact].execute_sharded(given).disassemble_into_single_device_arrays()
        return [np.asarray(one[0] if isinstance(one, (list, tuple)) else one) for one in results]

    def _compile(self, artifact: bytes) -> Any:
        known = tpu_internals()
        options = known.jax_compiler.get_compile_options(num_replicas=1, num_partitions=1)
        with known.context() as context:
            module = known.hlo.deserialize_portable_artifact(context, artifact)
            try:
                return self._device.client.compile_and_load(module, known.xla.DeviceList((self._device,)), options)
            except RuntimeError as error:
                raise NoLowering(f"XLA for CPU: {one_line(error)}") from error


def run_ranks(
    cpu: Cpu,
    programs: Sequence[Program],
    artifacts: Sequence[Sequence[bytes]],
    arguments: Sequence[Arrays],
) -> list[Arrays]:
    """The results of each rank's program. artifacts: of each rank's segments. arguments: of each rank.

    Raises NoLowering where the ranks' programs do not meet in the same collectives.
    """
    values: list[dict[int, np.ndarray]] = [dict(enumerate(own)) for own in arguments]
    if len({len(program.steps) for program in programs}) != 1:
        raise NoLowering("the ranks call different numbers of collectives, and would wait for each other for ever")
    for steps in zip(*(program.steps for program in programs), strict=True):
        first = steps[0]
        if isinstance(first, Compute):
            for rank, step in enumerate(steps):
                if not isinstance(step, Compute):
                    raise NoLowering("the ranks call different collectives")
                given = [values[rank][value] for value in step.arguments]
                results = cpu.run(artifacts[rank][step.segment], given)
                values[rank] |= dict(zip(step.results, results, strict=True))
        else:
            exchange(values, steps, first.call)
    return [[own[value] for value in program.results] for own, program in zip(values, programs, strict=True)]


def exchange(values: list[dict[int, np.ndarray]], steps: Sequence[Compute | Exchange], call: Call) -> None:
    """Carry out one collective of all ranks."""
    own = [step for step in steps if isinstance(step, Exchange) and step.call == call]
    if len(own) != len(steps):
        raise NoLowering("the ranks call different collectives")
    for group in call.groups:
        given = [values[rank][own[rank].argument] for rank in group]
        for place, rank in enumerate(group):
            values[rank][own[rank].result] = _exchanged(call, given, place)


def _exchanged(call: Call, given: Sequence[np.ndarray], place: int) -> np.ndarray:
    if call.kind is Kind.ALL_GATHER:
        return np.concatenate(given, axis=0)
    total = given[0]
    for one in given[1:]:
        total = COMBINED[call.reduction](total, one)
    if call.reduction == "avg":
        total = total / len(given)
    return np.split(total, len(given))[place] if call.kind is Kind.REDUCE_SCATTER else total


def initial(program: Program, inputs: Mapping[str, np.ndarray], weights: Mapping[str, Any], cache: Mapping) -> Arrays:
    """The arguments of a program. weights: tensors by name. cache: arrays by place; zeros where there is none."""
    from tpplan.tpu.tracing import Role

    arrays = []
    for argument in program.arguments:
        if argument.role is Role.INPUT:
            arrays.append(inputs[argument.name])
        elif argument.role is Role.CONSTANT:
            arrays.append(argument.value.detach().cpu().numpy())
        elif argument.role is Role.WEIGHT:
            arrays.append(weights[argument.name].detach().cpu().numpy())
        elif argument.name in cache:
            arrays.append(cache[argument.name])
        else:
            arrays.append(np.zeros(argument.shape, dtype=_numpy_dtype(argument.dtype)))
    return arrays


def _numpy_dtype(dtype: Any) -> Any:
    import torch

    return torch.zeros((), dtype=dtype).numpy().dtype


def updated(program: Program, results: Arrays) -> dict[str, np.ndarray]:
    """What arguments became, by their names: the cache after the program."""
    return {program.arguments[place].name: array for place, array in zip(program.updates, results[1:], strict=True)}
