"""What one forward of a rank does: its collectives, its FLOPs and the tensors that it makes, by layer."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from typing import Any

from tpplan.model.internals import internals

# torch's names of the collectives, native and functional, as the field calls them.
COLLECTIVES = {
    "allreduce_": "all-reduce",
    "all_reduce": "all-reduce",
    "all_gather_into_tensor": "all-gather",
    "_allgather_base_": "all-gather",
    "allgather_": "all-gather",
    "reduce_scatter_tensor": "reduce-scatter",
    "_reduce_scatter_base_": "reduce-scatter",
    "all_to_all_single": "all-to-all",
    "alltoall_base_": "all-to-all",
    "alltoall_": "all-to-all",
    "shard_dim_alltoall": "all-to-all",
    "broadcast_": "broadcast",
    "broadcast": "broadcast",
}
Stack = tuple[str, ...]


def make_meter(stack: Callable[[], Stack], itemsizes: Mapping[Any, int]) -> Any:
    """A dispatch mode that fills `calls`, `bytes`, `flops` and `made` while it is entered.

    stack: the layers that are running, the outermost first. itemsizes: bytes that an element of a dtype takes, where
    that is not the dtype's own. calls, bytes: (stack, collective) -> how often, and bytes of the tensors that it
    completes, on this rank. flops, made: stack -> floating-point operations, and bytes of all tensors that were made.
    torch's CommDebugMode sees the collectives and its table of FLOP formulas counts the rest.
    """
    import torch
    from torch.utils._pytree import tree_leaves

    known = internals()

    def size(values: Any) -> int:
        tensors = [leaf for leaf in tree_leaves(values) if isinstance(leaf, torch.Tensor)]
        return sum(tensor.numel() * itemsizes.get(tensor.dtype, tensor.element_size()) for tensor in tensors)

    class Meter(known.CommDebugMode):  # type: ignore[name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.calls: Counter[tuple[Stack, str]] = Counter()
            self.bytes: Counter[tuple[Stack, str]] = Counter()
            self.flops: dict[Stack, int] = defaultdict(int)
            self.made: dict[Stack, int] = defaultdict(int)

        def __enter__(self) -> Any:
            # without its module tracker, which loses count where a model enters one module in another's hook
            self.advanced_module_tracker.name = "Global"
            self.advanced_module_tracker.module_parents_dict = {"Global": set()}
            return super(known.CommDebugMode, self).__enter__()

        def __exit__(self, *raised: Any) -> None:
            super(known.CommDebugMode, self).__exit__(*raised)

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            before = self.get_total_counts()
            output = super().__torch_dispatch__(func, types, args, kwargs)
            if output is NotImplemented:  # a DTensor, which comes back as operations on this rank's tensors
                return output
            running = stack()
            packet = getattr(func, "_overloadpacket", None)
            if self.get_total_counts() > before:
                name = str(packet).rpartition(".")[2]
                key = (running, COLLECTIVES.get(name, name))
                self.calls[key] += 1
                self.bytes[key] += max(size(args), size(output))
            elif packet in known.flop_registry:
                self.flops[running] += known.flop_registry[packet](*args, **(kwargs or {}), out_val=output)
            if not any(returned.alias_info for returned in func._schema.returns):
                self.made[running] += size(output)
            return output

    return Meter()
