"""The values of torch_tpu's programs with the composition broken on purpose, in the child that computes them."""

from __future__ import annotations

from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from tpplan.model.skeleton import Sharding, build_skeleton
from tpplan.tpu import values_job
from tpplan.tpu.collectives import Kind
from tpplan.tpu.program import Exchange, Program
from tpplan.tpu.values_job import Comparison, Values


class Fault(StrEnum):
    NONE = "none"
    DROPPED = "a collective dropped"
    GROUPS = "wrong replica groups"
    SEGMENT = "a segment of another rank"


def values_with(fault: Fault, model: str, tp_size: int, overrides: dict[str, str], directory: Path) -> Values:
    """What the values are with this fault. To be called in a process of its own."""
    from tpplan.miniature.build import make_miniature
    from tpplan.model.checkpoint import save_as_published
    from tpplan.model.config import load_spec
    from tpplan.source import read_source

    spec = load_spec(read_source(model))
    miniature = make_miniature(spec, build_skeleton(spec), tp_size)
    save_as_published(miniature.model, directory)
    values_job.run_ranks = _breaking(values_job.run_ranks, fault)
    sharding = Sharding(tp_size=tp_size, overrides=overrides)
    return values_job.compared(Comparison(spec=miniature.spec, directory=directory, sharding=sharding))


def _breaking(run: Any, fault: Fault) -> Any:
    def broken(cpu: Any, programs: list[Program], artifacts: list[list[bytes]], arguments: list[Any]) -> Any:
        if fault is Fault.SEGMENT:
            artifacts = [artifacts[0]] * len(programs)
        return run(cpu, [_broken(program, fault) for program in programs], artifacts, arguments)

    return broken


def _broken(program: Program, fault: Fault) -> Program:
    """With the first all-reduce after the embedding's broken."""
    if fault not in (Fault.DROPPED, Fault.GROUPS):
        return program
    reductions = [
        place
        for place, step in enumerate(program.steps)
        if isinstance(step, Exchange) and step.call.kind is Kind.ALL_REDUCE
    ]
    place = reductions[1]
    step = program.steps[place]
    assert isinstance(step, Exchange)
    ranks = range(step.call.size)
    alone = tuple((rank,) for rank in ranks)
    pairs = tuple((rank, rank + 1) for rank in ranks if rank % 2 == 0)
    call = replace(step.call, groups=alone if fault is Fault.DROPPED else pairs)
    steps = (*program.steps[:place], replace(step, call=call), *program.steps[place + 1 :])
    return replace(program, steps=steps)


def refusal(element: str, operation: str) -> str:
    """The compiler's words on an all-reduce of one element over four chips, empty where it compiles it."""
    from tpplan.tpu import compiler
    from tpplan.tpu.collectives import NoLowering
    from tpplan.tpu.device import start
    from tpplan.tpu.internals import tpu_internals

    start()
    scalar = f"tensor<{element}>"
    module = f"""
    module attributes {{mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 4 : i32}} {{
      func.func public @main(%a: {scalar}) -> {scalar} {{
        %r = "stablehlo.all_reduce"(%a) ({{
        ^bb0(%l: {scalar}, %m: {scalar}):
          %s = stablehlo.{operation} %l, %m : {scalar}
          stablehlo.return %s : {scalar}
        }}) {{replica_groups = dense<[[0, 1, 2, 3]]> : tensor<1x4xi64>}} : ({scalar}) -> {scalar}
        return %r : {scalar}
      }}
    }}"""
    with tpu_internals().context():
        try:
            compiler.compile_for(tpu_internals().ir.Module.parse(module), "v6e:2x2", 4)
        except NoLowering as error:
            return str(error)
    return ""
