"""libtpu's compiler for chips that are not there: what a module needs on each, in the compiler's own numbers."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from tpplan.tpu.collectives import NoLowering
from tpplan.tpu.internals import Lacking, tpu_internals
from tpplan.units import message, one_line

OUT_OF_MEMORY = "RESOURCE_EXHAUSTED"  # the status that the compiler's refusal carries
# `all-reduce(`, and its asynchronous form, which starts in one instruction and ends in another
COLLECTIVE = re.compile(r"= .*? (all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute)(?:-start)?\(")


@dataclass(frozen=True, kw_only=True)
class Executable:
    """What the compiler says of one module, per chip; sizes in bytes.

    refused: its words, where the module does not fit the chip's memory; then there are no numbers. collectives: kind ->
    calls in the compiled program, None where jax cannot read that back.
    """

    refused: str = ""
    arguments: int = 0
    outputs: int = 0
    aliased: int = 0
    temporaries: int = 0
    code: int = 0
    flops: float = 0.0
    accessed: float = 0.0
    collectives: dict[str, int] | None = field(default=None)


def compile_for(module: Any, topology: str, tp_size: int) -> Executable:
    """Compile a module for the first `tp_size` chips of a topology, such as `v6e:2x2`, in the current MLIR context.

    Raises NoLowering where the compiler refuses it for another reason than memory, Lacking where it does not start.
    """
    import numpy as np

    known = tpu_internals()
    try:
        described = known.topologies.get_topology_desc(platform="tpu", topology_name=topology)
    except RuntimeError as error:
        raise Lacking(f"libtpu gives no topology {topology}: {one_line(error)}") from error
    chips = described.devices[:tp_size]
    options = known.jax_compiler.get_compile_options(
        num_replicas=tp_size, num_partitions=1, device_assignment=np.arange(tp_size).reshape(tp_size, 1)
    )
    options.executable_build_options.use_spmd_partitioning = False
    try:
        made = chips[0].client.compile(module, known.xla.DeviceList(tuple(chips)), options)
    except RuntimeError as error:  # jaxlib's is one of these
        if str(error).startswith(OUT_OF_MEMORY):
            return Executable(refused=message(error))
        raise NoLowering(f"the TPU compiler: {one_line(error)}") from error
    memory, costs = made.get_compiled_memory_stats(), made.cost_analysis()
    costs = costs[0] if isinstance(costs, list) else costs
    return Executable(
        arguments=memory.argument_size_in_bytes,
        outputs=memory.output_size_in_bytes,
        aliased=memory.alias_size_in_bytes,
        temporaries=memory.temp_size_in_bytes,
        code=memory.generated_code_size_in_bytes,
        flops=float(costs.get("flops", 0.0)),
        accessed=float(costs.get("bytes accessed", 0.0)),
        collectives=_collectives(made),
    )


def _collectives(made: Any) -> dict[str, int] | None:
    try:
        text = "\n".join(module.to_string() for module in made.hlo_modules())
    except RuntimeError:  # jax is older than the compiler and cannot read its program
        return None
    return dict(sorted(Counter(COLLECTIVE.findall(text)).items()))
