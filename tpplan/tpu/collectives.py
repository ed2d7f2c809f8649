"""Collectives in a traced program: which they are, among which ranks, and how torch is made to trace them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import Any
from unittest import mock

from tpplan.tpu.internals import tpu_internals


class Kind(StrEnum):
    """The collectives that a program can have, as StableHLO names them."""

    ALL_REDUCE = "all_reduce"
    ALL_GATHER = "all_gather"
    REDUCE_SCATTER = "reduce_scatter"


class NoLowering(RuntimeError):
    """The program has something that cannot be lowered here: nothing was learned."""


@dataclass(frozen=True, kw_only=True)
class Call:
    """One collective. groups: ranks that exchange with each other, every rank in one. reduction: "sum", "max", "min",
    "avg" or "product", empty for a gather. Gathers and scatters go along dim 0."""

    kind: Kind
    groups: tuple[tuple[int, ...], ...]
    reduction: str = ""

    @property
    def size(self) -> int:
        return len(self.groups[0])


# torch's operator -> the kind, and the places of its reduction and of its group's name
OPERATORS: dict[str, tuple[Kind, int | None, int]] = {
    "_c10d_functional.all_reduce.default": (Kind.ALL_REDUCE, 1, 2),
    "_c10d_functional.all_reduce_.default": (Kind.ALL_REDUCE, 1, 2),
    "_c10d_functional.all_gather_into_tensor.default": (Kind.ALL_GATHER, None, 2),
    "_c10d_functional.reduce_scatter_tensor.default": (Kind.REDUCE_SCATTER, 1, 3),
}
WAIT = "_c10d_functional.wait_tensor.default"
NAMESPACES = ("c10d.", "_c10d_functional.", "_dtensor.")


@contextmanager
def functional_collectives() -> Iterator[None]:
    """Have torch.distributed's collectives traced as the functional ones, as torch.compile has them."""
    import torch.distributed as dist
    import torch.distributed._functional_collectives as functional
    from torch.distributed import distributed_c10d

    with ExitStack() as stack:
        for plain, traced in tpu_internals().collectives.items():
            name = plain.__name__
            for holder in (dist, distributed_c10d):
                if getattr(holder, name, None) is plain:
                    stack.enter_context(mock.patch.object(holder, name, traced))
        # the wrappers say that they are for tracing alone, which this is
        stack.enter_context(mock.patch.object(functional, "_are_we_tracing", lambda: True))
        yield


def call_of(node: Any, tp_size: int) -> Call | None:
    """The collective that a node of a graph is, or None. Raises NoLowering for one that is not known."""
    name = str(node.target)
    if node.op != "call_function" or not name.startswith(NAMESPACES) or name == WAIT:
        return None
    if name not in OPERATORS:
        raise NoLowering(f"the collective {name}")
    kind, reduction, group = OPERATORS[name]
    return Call(
        kind=kind,
        groups=_groups(node.args[group], tp_size),
        reduction="" if reduction is None else str(node.args[reduction]).lower(),
    )


def _groups(name: Any, tp_size: int) -> tuple[tuple[int, ...], ...]:
    """The group of this name, with the groups that the other ranks have in its place on the same mesh axis."""
    import torch.distributed as dist

    own = tuple(dist.get_process_group_ranks(tpu_internals().group_of(name)))
    stride = own[1] - own[0] if len(own) > 1 else 1
    if list(own) != list(range(own[0], own[0] + stride * len(own), stride)):
        raise NoLowering(f"a collective among the ranks {own}")
    groups = []
    taken: set[int] = set()
    for first in range(tp_size):
        if first not in taken:
            group = tuple(range(first, first + stride * len(own), stride))
            groups.append(group)
            taken.update(group)
    if taken != set(range(tp_size)) or own not in groups:
        raise NoLowering(f"a collective among the ranks {own} of {tp_size}")
    return tuple(groups)
