"""Segments to StableHLO by torch_tpu itself, which needs no chip for it."""

from __future__ import annotations

from typing import Any

from tpplan.tpu.collectives import NoLowering
from tpplan.tpu.internals import tpu_internals
from tpplan.tpu.program import Segment
from tpplan.units import one_line


def lower(segment: Segment) -> bytes:
    """The segment as a portable artifact of StableHLO. Raises NoLowering, with the operator that torch_tpu refuses."""
    known = tpu_internals()
    mode = known.execution_mode
    with mode.set_eager_mode(mode.EagerMode._INTERNAL_COMPILE_FX_GRAPH):
        given = [known.compile.placeholder(list(one.shape), one.dtype, False) for one in segment.takes]
        interpreter = _named(known.Interpreter)(segment.graph)
        try:
            # a result that is an argument would be none of the program's
            results = interpreter.run(*(tensor.clone() for tensor in given))
            module = known.compile.build_mlir([result.contiguous() for result in results], given)
            artifact: bytes = known.compile.serialize_mlir_portable_artifact(module)
        except (RuntimeError, NotImplementedError, TypeError, ValueError) as error:
            raise NoLowering(f"{interpreter.current or 'a segment'}: {one_line(error)}") from error
    return artifact


def _named(interpreter: Any) -> Any:
    """torch_tpu's interpreter, which knows the operator that it runs."""

    class Named(interpreter):  # type: ignore[misc]
        current = ""

        def run_node(self, node: Any) -> Any:
            self.current = str(node.target)
            return super().run_node(node)

    return Named
