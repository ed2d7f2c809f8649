"""What is used of torch_tpu and jax beyond their public interfaces, probed once and named in one place.

Needs the packages of the extra `tpplan[aot]`: torch_tpu for the lowering, jax for a client that only compiles.
`tests/test_tpu_internals.py` fails when an installed release moves one of these.
"""

from __future__ import annotations

import importlib
import importlib.util
from functools import cache
from types import SimpleNamespace

PACKAGES = ("torch_tpu", "libtpu", "jax")
INSTALL = "pip install 'tpplan[aot]'"

# name here -> the module, and the attribute of it; empty for the module itself
PROBES: dict[str, tuple[str, str]] = {
    "start_device": ("torch_tpu._loader", "_init_device_impl"),
    "execution_mode": ("torch_tpu._internal.execution_mode", ""),
    "Interpreter": ("torch_tpu._internal.export.export", "EagerLikeFxInterpreter"),
    "compile": ("torch_tpu._internal.compile.tpu_torch_compile", ""),
    "fold_gqa": ("torch_tpu._internal.compile.fx_passes.fold_gqa", "apply"),
    "collectives": ("torch.distributed._functional_collectives", "traceable_collective_remaps"),
    "group_of": ("torch.distributed.distributed_c10d", "_resolve_process_group"),
    "device_handle": ("torch.distributed.device_mesh", "_get_device_handle"),
    "topologies": ("jax.experimental.topologies", ""),
    "jax_compiler": ("jax._src.compiler", ""),
    "xla": ("jax._src.lib", "xla_client"),
    "context": ("jax._src.interpreters.mlir", "make_ir_context"),
    "merge_modules": ("jax._src.interpreters.mlir", "merge_mlir_modules"),
    "ir": ("jax._src.lib.mlir", "ir"),
    "hlo": ("jax._src.lib.mlir.dialects", "hlo"),
    "func": ("jax._src.lib.mlir.dialects", "func"),
}
# What of these must be there besides.
MEMBERS: dict[str, tuple[str, ...]] = {
    "execution_mode": ("set_eager_mode", "EagerMode"),
    "compile": ("placeholder", "build_mlir", "serialize_mlir_portable_artifact"),
    "topologies": ("get_topology_desc",),
    "jax_compiler": ("get_compile_options",),
    "xla": ("DeviceList",),
    "hlo": ("deserialize_portable_artifact", "serialize_portable_artifact", "get_current_version"),
    "ir": ("Module", "SymbolTable"),
}


class Lacking(RuntimeError):
    """The installed torch_tpu or jax lacks what is used of it."""


def missing_packages() -> tuple[str, ...]:
    """Those of the extra that are not installed; nothing is imported for it."""
    return tuple(package for package in PACKAGES if importlib.util.find_spec(package) is None)


@cache
def tpu_internals() -> SimpleNamespace:
    """Every internal that is used, by the names of PROBES. Raises Lacking, naming all that is not there."""
    found, missing = {}, []
    for name, (module, attribute) in PROBES.items():
        try:
            holder = importlib.import_module(module)
            found[name] = getattr(holder, attribute) if attribute else holder
        except (ImportError, AttributeError):
            missing.append(f"{module}.{attribute}".rstrip("."))
    for name, members in MEMBERS.items():
        missing += [
            f"{PROBES[name][0]}.{member}" for member in members if name in found and not hasattr(found[name], member)
        ]
    if missing:
        raise Lacking("missing: " + ", ".join(missing))
    return SimpleNamespace(**found)
