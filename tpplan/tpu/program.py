"""A traced forward cut at its collectives: segments that one chip computes alone, and exchanges between them."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from typing import Any

from tpplan.tpu.collectives import WAIT, Call, Kind, call_of
from tpplan.tpu.tracing import Argument, Traced

Value = int  # numbers the tensors of a program: the arguments first


@dataclass(frozen=True, kw_only=True)
class TensorType:
    shape: tuple[int, ...]
    dtype: Any  # torch's


@dataclass(frozen=True, kw_only=True)
class Segment:
    """A graph without collectives. takes, gives: the types of its arguments and results. key: equal where two segments
    compute the same."""

    graph: Any
    key: Hashable
    takes: tuple[TensorType, ...]
    gives: tuple[TensorType, ...]


@dataclass(frozen=True, kw_only=True)
class Compute:
    """Run a segment. segment: its place among the program's."""

    segment: int
    arguments: tuple[Value, ...]
    results: tuple[Value, ...]


@dataclass(frozen=True, kw_only=True)
class Exchange:
    """A collective of one tensor."""

    call: Call
    argument: Value
    result: Value


@dataclass(frozen=True, kw_only=True)
class Program:
    """One rank's forward. types: of every value. results: the forward's own, then what arguments become; updates: the
    places of those arguments."""

    arguments: tuple[Argument, ...]
    segments: tuple[Segment, ...]
    steps: tuple[Compute | Exchange, ...]
    types: tuple[TensorType, ...]
    results: tuple[Value, ...]
    updates: tuple[int, ...]

    @property
    def exchanges(self) -> tuple[Exchange, ...]:
        return tuple(step for step in self.steps if isinstance(step, Exchange))

    def bytes_of(self, value: Value) -> int:
        count = 1
        for size in self.types[value].shape:
            count *= size
        return count * self.types[value].dtype.itemsize


def cut(traced: Traced, tp_size: int) -> Program:
    """The program of a traced forward. Raises NoLowering for a collective that is not known."""
    return _Cutter(traced, tp_size).program()


@dataclass
class _Cutter:
    traced: Traced
    tp_size: int
    values: dict[Any, Value] = field(default_factory=dict)
    types: list[TensorType] = field(default_factory=list)
    segments: list[Segment] = field(default_factory=list)
    known: dict[Hashable, int] = field(default_factory=dict)
    steps: list[Compute | Exchange] = field(default_factory=list)

    def program(self) -> Program:
        run: list[Any] = []
        output = None
        for node in self.traced.graph.graph.nodes:
            if node.op == "placeholder":
                self._number(node)
            elif node.op == "output":
                output = node
            elif str(node.target) == WAIT:
                self._flush(run)
                self.values[node] = self.values[node.args[0]]
            elif call := call_of(node, self.tp_size):
                self._flush(run)
                argument = self.values[node.args[0]]
                self.steps.append(Exchange(call=call, argument=argument, result=self._number(node)))
            else:
                run.append(node)
        self._flush(run)
        assert output is not None
        return Program(
            arguments=self.traced.arguments,
            segments=tuple(self.segments),
            steps=tuple(self.steps),
            types=tuple(self.types),
            results=tuple(self.values[node] for node in output.args[0]),
            updates=self.traced.updates,
        )

    def _number(self, node: Any) -> Value:
        value = node.meta["val"]
        self.values[node] = len(self.types)
        self.types.append(TensorType(shape=tuple(value.shape), dtype=value.dtype))
        return self.values[node]

    def _flush(self, run: list[Any]) -> None:
        """Make a segment of the nodes so far."""
        if not run:
            return
        inside = set(run)
        takes = list(dict.fromkeys(node for one in run for node in one.all_input_nodes if node not in inside))
        gives = [node for node in run if any(user not in inside for user in node.users) and _is_tensor(node)]
        key = _key(run, takes, gives)
        if key not in self.known:
            self.known[key] = len(self.segments)
            self.segments.append(self._segment(key, run, takes, gives))
        arguments = tuple(self.values[node] for node in takes)
        results = tuple(self._number(node) for node in gives)
        if results:
            self.steps.append(Compute(segment=self.known[key], arguments=arguments, results=results))
        run.clear()

    def _segment(self, key: Hashable, run: list[Any], takes: list[Any], gives: list[Any]) -> Segment:
        import torch

        graph = torch.fx.Graph()
        copies = {node: graph.placeholder(f"argument_{place}") for place, node in enumerate(takes)}
        for node in run:
            copies[node] = graph.node_copy(node, copies.__getitem__)
        graph.output(tuple(copies[node] for node in gives))
        module = torch.fx.GraphModule(torch.nn.Module(), graph)
        return Segment(
            graph=module,
            key=key,
            takes=tuple(self.types[self.values[node]] for node in takes),
            gives=tuple(
                TensorType(shape=tuple(node.meta["val"].shape), dtype=node.meta["val"].dtype) for node in gives
            ),
        )


def _is_tensor(node: Any) -> bool:
    import torch

    return isinstance(node.meta.get("val"), torch.Tensor)


def _key(run: list[Any], takes: list[Any], gives: list[Any]) -> Hashable:
    """Equal for segments that compute the same: operators, constants and types, names apart."""
    from torch.fx.node import map_arg

    place = {node: f"%{index}" for index, node in enumerate((*takes, *run))}
    lines = [str(_type(node)) for node in takes]
    for node in run:
        arguments = map_arg((node.args, node.kwargs), lambda one: place[one])
        lines.append(f"{node.target}{arguments}")
    return tuple(lines), tuple(place[node] for node in gives)


def _type(node: Any) -> tuple[Any, ...]:
    return tuple(node.meta["val"].shape), node.meta["val"].dtype


def counted(program: Program) -> Iterator[tuple[Kind, int]]:
    """Every collective of a program: its kind, and the bytes of the whole tensor that it completes."""
    for step in program.exchanges:
        whole = step.result if step.call.kind is Kind.ALL_GATHER else step.argument
        yield step.call.kind, program.bytes_of(whole)
