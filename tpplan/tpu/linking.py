"""One module of StableHLO from a program's segments: `main` calls them, with the collectives between."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from tpplan.tpu.collectives import Call, Kind, NoLowering
from tpplan.tpu.internals import tpu_internals
from tpplan.tpu.program import Compute, Exchange, Program, TensorType

ELEMENTS = {
    "torch.bfloat16": "bf16",
    "torch.float16": "f16",
    "torch.float32": "f32",
    "torch.float64": "f64",
    "torch.complex64": "complex<f32>",
    "torch.bool": "i1",
    "torch.int8": "i8",
    "torch.uint8": "ui8",
    "torch.int16": "i16",
    "torch.int32": "i32",
    "torch.int64": "i64",
    "torch.float8_e4m3fn": "f8E4M3FN",
}
REDUCTIONS = {"sum": "add", "avg": "add", "max": "maximum", "min": "minimum", "product": "multiply"}


def element(dtype: Any) -> str:
    """MLIR's name of a dtype of torch. Raises NoLowering for one that is not known."""
    if str(dtype) not in ELEMENTS:
        raise NoLowering(f"tensors of {dtype}")
    return ELEMENTS[str(dtype)]


def type_text(tensor: TensorType) -> str:
    return f"tensor<{''.join(f'{size}x' for size in tensor.shape)}{element(tensor.dtype)}>"


def link(program: Program, artifacts: Sequence[bytes], tp_size: int) -> Any:
    """The module, in the current MLIR context. artifacts: of each segment of the program."""
    known = tpu_internals()
    linker = known.ir.Module.parse(_main(program, tp_size))
    table = known.ir.SymbolTable(linker.operation)
    names = []
    for place, artifact in enumerate(artifacts):
        source = known.hlo.deserialize_portable_artifact(linker.context, artifact)
        _inline_composites(source)
        names.append((f"segment{place}", known.merge_modules(linker, f"body{place}", source, table)))
    text = str(linker)
    # the declarations of the segments give way to what came in their place
    renamed = known.ir.Module.parse(text)
    for declared, merged in names:
        _call_in_place(renamed, declared, merged)
    return renamed


def _call_in_place(module: Any, declared: str, merged: str) -> None:
    """Have `main` call the function `merged` where it calls the declaration, and drop that."""
    known = tpu_internals()
    table = known.ir.SymbolTable(module.operation)
    attribute = known.ir.FlatSymbolRefAttr.get(merged, module.context)
    for block in table["main"].regions[0].blocks:
        for operation in block.operations:
            if operation.operation.name == "func.call" and operation.attributes["callee"].value == declared:
                operation.attributes["callee"] = attribute
    table.erase(table[declared])


def _main(program: Program, tp_size: int) -> str:
    """The text of a module with `main`, and with declarations of the segments."""
    lines = []
    for place, segment in enumerate(program.segments):
        takes, gives = (", ".join(map(type_text, types)) for types in (segment.takes, segment.gives))
        lines.append(f"  func.func private @segment{place}({takes}) -> ({gives})")
    names = {value: f"%a{value}" for value in range(len(program.arguments))}
    donated = {argument: 1 + place for place, argument in enumerate(program.updates)}
    given = ", ".join(
        f"%a{place}: {type_text(program.types[place])}"
        + (f" {{tf.aliasing_output = {donated[place]} : i32}}" if place in donated else "")
        for place in range(len(program.arguments))
    )
    body = []
    for number, step in enumerate(program.steps):
        if isinstance(step, Compute):
            body.append(_compute(program, step, number, names))
        else:
            body += _exchange(program, step, number, names)
    types = ", ".join(type_text(program.types[value]) for value in program.results)
    results = ", ".join(names[value] for value in program.results)
    lines += [f"  func.func public @main({given}) -> ({types}) {{", *body, f"    return {results} : {types}", "  }"]
    head = f"module @tpplan attributes {{mhlo.num_partitions = 1 : i32, mhlo.num_replicas = {tp_size} : i32}} {{"
    return "\n".join((head, *lines, "}"))


def _compute(program: Program, step: Compute, number: int, names: dict[int, str]) -> str:
    segment = program.segments[step.segment]
    takes, gives = (", ".join(map(type_text, types)) for types in (segment.takes, segment.gives))
    arguments = ", ".join(names[value] for value in step.arguments)
    for place, value in enumerate(step.results):
        names[value] = f"%r{number}#{place}" if len(step.results) > 1 else f"%r{number}"
    count = f":{len(step.results)}" if len(step.results) > 1 else ""
    return f"    %r{number}{count} = call @segment{step.segment}({arguments}) : ({takes}) -> ({gives})"


def _exchange(program: Program, step: Exchange, number: int, names: dict[int, str]) -> list[str]:
    call, given, made = step.call, program.types[step.argument], program.types[step.result]
    result = names[step.result] = f"%x{number}"
    groups = [list(group) for group in call.groups]
    attribute = f"replica_groups = dense<{groups}> : tensor<{len(groups)}x{call.size}xi64>"
    types = f"({type_text(given)}) -> {type_text(made)}"
    if call.kind is Kind.ALL_GATHER:
        return [
            f'    {result} = "stablehlo.all_gather"({names[step.argument]}) '
            f"{{all_gather_dim = 0 : i64, {attribute}}} : {types}"
        ]
    scattered = "scatter_dimension = 0 : i64, " if call.kind is Kind.REDUCE_SCATTER else ""
    summed = f"%s{number}" if call.reduction == "avg" else result
    scalar = f"tensor<{element(given.dtype)}>"
    lines = [
        f'    {summed} = "stablehlo.{call.kind}"({names[step.argument]}) ({{',
        f"    ^bb0(%l: {scalar}, %m: {scalar}):",
        f"      %n = stablehlo.{_reduction(call)} %l, %m : {scalar}",
        f"      stablehlo.return %n : {scalar}",
        f"    }}) {{{scattered}{attribute}}} : {types}",
    ]
    if call.reduction == "avg":
        whole = type_text(made)
        lines += [
            f"    %c{number} = stablehlo.constant dense<{call.size}.0> : {whole}",
            f"    {result} = stablehlo.divide {summed}, %c{number} : {whole}",
        ]
    return lines


def _reduction(call: Call) -> str:
    if call.reduction not in REDUCTIONS:
        raise NoLowering(f"a collective with the reduction {call.reduction}")
    return REDUCTIONS[call.reduction]


def _inline_composites(module: Any) -> None:
    """Call the decomposition of every composite that has regions, which the plugin's version of the format lacks."""
    known = tpu_internals()
    found: list[Any] = []

    def visit(operation: Any) -> Any:
        if operation.name == "stablehlo.composite" and len(operation.regions) and len(operation.regions[0].blocks):
            found.append(operation)
        return known.ir.WalkResult.ADVANCE

    module.operation.walk(visit)
    for operation in found:
        with known.ir.InsertionPoint(operation), operation.location:
            types = [result.type for result in operation.results]
            call = known.func.CallOp(types, operation.attributes["decomposition"].value, list(operation.operands))
        for old, new in zip(operation.results, call.results, strict=True):
            old.replace_all_uses_with(new)
        operation.erase()


def portable(module: Any) -> bytes:
    """The module as a portable artifact, which this version of StableHLO and later ones read."""
    known = tpu_internals()
    artifact: bytes = known.hlo.serialize_portable_artifact(module, known.hlo.get_current_version(), True)
    return artifact


def kernels(program: Program, artifacts: Sequence[bytes]) -> dict[str, int]:
    """What of a program a TPU runs by a kernel of its own: `tpu_custom_call` (Mosaic) and the like, with counts."""
    known = tpu_internals()
    runs = Counter(step.segment for step in program.steps if isinstance(step, Compute))
    counts: Counter[str] = Counter()
    for place, artifact in enumerate(artifacts):
        module = known.hlo.deserialize_portable_artifact(known.ir.Context.current, artifact)
        for name in _kernels_in(module):
            counts[name] += runs[place]
    return dict(sorted(counts.items()))


def _kernels_in(module: Any) -> list[str]:
    known = tpu_internals()
    found = []

    def visit(operation: Any) -> Any:
        if operation.name == "stablehlo.custom_call":
            found.append(operation.attributes["call_target_name"].value)
        elif operation.name == "stablehlo.composite":
            found.append(operation.attributes["name"].value)
        return known.ir.WalkResult.ADVANCE

    module.operation.walk(visit)
    return found
