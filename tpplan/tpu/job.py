"""The work of a child process: one rank's programs of the full-size model, compiled for chips that are not there."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Hashable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

from tpplan.choices import Phase
from tpplan.diagnostics import CompiledProgram
from tpplan.model.config import ModelSpec
from tpplan.model.skeleton import Sharding
from tpplan.tpu import compiler, linking
from tpplan.tpu.collectives import NoLowering
from tpplan.tpu.device import start, tpu_rank
from tpplan.tpu.forward import Workload, programs, sharded
from tpplan.tpu.internals import Lacking, tpu_internals
from tpplan.tpu.layers import Selection, selections
from tpplan.tpu.lowering import lower
from tpplan.tpu.program import Program, counted
from tpplan.tpu.tracing import Role
from tpplan.units import one_line

# Within these shares of a chip's memory an extrapolation may be on the wrong side: the whole model is compiled.
NEAR = (0.95, 1.3)
AT_ONCE = 2  # compilations: each takes about a gigabyte
NUMBERS = ("parameters", "cache", "arguments", "temporaries", "outputs", "aliased", "code", "flops", "accessed")


@dataclass(frozen=True, kw_only=True)
class Work:
    """What to compile. topology: as libtpu names it, with at least tp_size chips. hbm: bytes of a chip, None where that
    is not known. full: compile every layer, whatever that takes."""

    spec: ModelSpec
    sharding: Sharding
    workload: Workload
    topology: str
    hbm: int | None = None
    full: bool = False


@dataclass(frozen=True, kw_only=True)
class Exported:
    """artifact: a program of rank 0 with every layer, as portable StableHLO. reason: why there is none."""

    artifact: bytes = b""
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """programs: of the prefill and of a decode step. reason: why there are none, or empty. raised: whether that is the
    forward's own error, with every tensor on the device `tpu`. lacking: whether it is what is installed."""

    programs: tuple[CompiledProgram, ...] = ()
    reason: str = ""
    raised: bool = False
    lacking: bool = False


def compiled(work: Work) -> Outcome:
    """The programs of rank 0, which holds the largest share."""
    try:
        start()
        with tpu_rank(0, work.sharding.tp_size):
            return Outcome(programs=_Compilation(work).programs())
    except Lacking as error:
        return Outcome(reason=str(error), lacking=True)
    except NoLowering as error:
        return Outcome(reason=str(error))
    except Exception as error:  # the model's own code may raise anything
        return Outcome(reason=f"on the device tpu: {one_line(error)}", raised=True)


def exported(work: Work, phase: Phase) -> Exported:
    """The program of this phase, linked and not compiled."""
    tp_size = work.sharding.tp_size
    try:
        start()
        with tpu_rank(0, tp_size):
            model = sharded(work.spec, work.sharding)
            found = dict(programs(model, work.spec, tp_size, work.workload))
        artifacts = [lower(segment) for segment in found[phase].segments]
        with tpu_internals().context():
            return Exported(artifact=linking.portable(linking.link(found[phase], artifacts, tp_size)))
    except (Lacking, NoLowering) as error:
        return Exported(reason=str(error))
    except Exception as error:  # the model's own code may raise anything
        return Exported(reason=f"on the device tpu: {one_line(error)}")


class _NeedsEveryLayer(Exception):
    """The forward does not run with few of its layers."""


@dataclass
class _Compilation:
    work: Work
    lowered: dict[Hashable, bytes] = field(default_factory=dict)

    def programs(self) -> tuple[CompiledProgram, ...]:
        model = sharded(self.work.spec, self.work.sharding)
        if self.work.full:
            return self._selected(model, (None,))
        picks = selections(model)
        if len(picks) == 1:
            return self._selected(model, (None,))
        try:
            found = self._selected(model, picks)
        except _NeedsEveryLayer:
            return self._selected(model, (None,))
        return self._selected(model, (None,)) if any(map(self._is_near, found)) else found

    def _is_near(self, program: CompiledProgram) -> bool:
        low, high = NEAR
        return bool(self.work.hbm) and not program.refused and low <= program.hbm / (self.work.hbm or 1) <= high

    def _selected(self, model: Any, picks: tuple[Selection | None, ...]) -> tuple[CompiledProgram, ...]:
        """Compiled with each selection of layers, and put together."""
        started = time.perf_counter()
        jobs: dict[Phase, list[tuple[Selection | None, Any]]] = {phase: [] for phase in Phase}
        parameters = {name for name, _ in model.named_parameters(remove_duplicate=False)}
        with ThreadPoolExecutor(AT_ONCE) as pool:
            for selection in picks:
                for phase, program in self._traced(model, selection):
                    artifacts = [self._lower(segment) for segment in program.segments]
                    future = pool.submit(self._compile, phase, program, artifacts, parameters)
                    jobs[phase].append((selection, future))
            found = {phase: [(pick, future.result()) for pick, future in made] for phase, made in jobs.items()}
        seconds = time.perf_counter() - started
        return tuple(replace(_extrapolated(made), seconds=seconds) for made in found.values())

    def _traced(self, model: Any, selection: Selection | None) -> Iterator[tuple[Phase, Program]]:
        work = self.work
        try:
            yield from programs(model, work.spec, work.sharding.tp_size, work.workload, selection=selection)
        except NoLowering:
            raise
        except Exception as error:  # as where a layer reads what another one left in the cache
            if selection is None:
                raise
            raise _NeedsEveryLayer from error

    def _lower(self, segment: Any) -> bytes:
        if segment.key not in self.lowered:
            self.lowered[segment.key] = lower(segment)
        return self.lowered[segment.key]

    def _compile(self, phase: Phase, program: Program, artifacts: list[bytes], parameters: set[str]) -> CompiledProgram:
        workload, tp_size = self.work.workload, self.work.sharding.tp_size
        with tpu_internals().context():
            kernels = linking.kernels(program, artifacts)
            module = linking.link(program, artifacts, tp_size)
            made = compiler.compile_for(module, self.work.topology, tp_size)
        return CompiledProgram(
            phase=str(phase),
            batch=workload.batch,
            tokens=workload.prefill if phase is Phase.PREFILL else 1,
            max_length=workload.max_length,
            topology=self.work.topology,
            refused=made.refused,
            parameters=sum(
                one.bytes for one in program.arguments if one.role is Role.WEIGHT and one.name in parameters
            ),
            cache=sum(one.bytes for one in program.arguments if one.role is Role.CACHE),
            arguments=made.arguments,
            temporaries=made.temporaries,
            outputs=made.outputs,
            aliased=made.aliased,
            code=made.code,
            flops=made.flops,
            accessed=made.accessed,
            traced=dict(Counter(str(kind) for kind, _ in counted(program))),
            kept=made.collectives,
            collective_bytes=sum(size for _, size in counted(program)),
            kernels=kernels,
        )


def _extrapolated(made: list[tuple[Selection | None, CompiledProgram]]) -> CompiledProgram:
    """The whole model's numbers: those of the fewest layers, and for each further one what one more of it adds."""
    base = made[0][1]
    refused = next((program for _, program in made if program.refused), None)
    if refused or len(made) == 1:
        return refused or base
    values: dict[str, Any] = {name: getattr(base, name) for name in (*NUMBERS, "collective_bytes")}
    counts = {name: getattr(base, name) for name in ("traced", "kept", "kernels")}
    for selection, grown in made[1:]:
        assert selection and selection.growing
        further = len(selection.growing.indices) - 1
        for name in values:
            values[name] += further * (getattr(grown, name) - getattr(base, name))
        for name, so_far in counts.items():
            counts[name] = _grown(so_far, getattr(base, name), getattr(grown, name), further)
    return replace(base, **values, **counts, extrapolated=True)


def _grown(
    so_far: Mapping[str, int] | None, base: Mapping[str, int] | None, grown: Mapping[str, int] | None, further: int
) -> dict[str, int] | None:
    if so_far is None or base is None or grown is None:
        return None
    names = sorted({*so_far, *grown})
    return {name: so_far.get(name, 0) + further * (grown.get(name, 0) - base.get(name, 0)) for name in names}
