"""All ranks of tp_size in one process: LocalTensorMode over a fake group, loaded as the loader loads each rank."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

from tpplan.model.config import ModelSpec
from tpplan.model.internals import internals
from tpplan.model.ranks import fake_rank
from tpplan.model.skeleton import Sharding, build_on_meta, shard, tie

STORAGE_OF_VIEWS = "_correct_storage_aliasing"  # of torch.utils._python_dispatch


@contextmanager
def simulated(spec: ModelSpec, sharding: Sharding, whole: Any) -> Iterator[Any]:
    """The model of `spec`, in float32 and eval mode, sharded over all ranks at once, with the weights of `whole`.

    Yields the model; whatever runs inside the context runs on every rank. Raises what Transformers raises.
    """
    import torch

    with one_thread(), fake_rank(0, sharding.tp_size), _sizes_without_hints(), _views_for_eager_code():
        model = build_on_meta(spec, torch.float32)
        with internals().LocalTensorMode(sharding.tp_size):
            model = shard(model, sharding)
            fill(model, whole)
            tie(model)
            _hidden_states_of_each_rank(model)
            yield model.eval()


@contextmanager
def on_one_device() -> Iterator[None]:
    """Within `simulated`: what runs here runs once, as it does without ranks."""
    with internals().local_tensor_mode().disable():
        yield


def _hidden_states_of_each_rank(model: Any) -> None:
    """Give every rank hidden states of its own from the embeddings on.

    The simulator keeps one tensor for all ranks where none was cut yet. What the model's code then adds in place, rank
    by rank, it would add to that one tensor tp_size times.
    """
    import torch

    def own(_: Any, __: Any, output: Any) -> Any:
        return output + torch.zeros((), dtype=output.dtype) if type(output) is torch.Tensor else output

    for module in model.modules():
        if isinstance(module, torch.nn.Embedding):
            module.register_forward_hook(own)


@contextmanager
def _sizes_without_hints() -> Iterator[None]:
    """Let torch ask whether a size has one value for all ranks, as it does before it assigns to an indexed tensor.

    torch 2.13 asks that of every symbolic size, and the simulator's sizes lack the answer, which is no.
    """
    size = internals().LocalIntNode
    if hasattr(size, "has_hint"):
        yield
        return
    with mock.patch.object(size, "has_hint", lambda _: False, create=True):
        yield


@contextmanager
def _views_for_eager_code() -> Iterator[None]:
    """Leave out that torch gives the simulator's tensor the storage of the one that it is a view of.

    torch does it for its compiler, by an operation on every rank for each view. What runs eagerly never looks at that
    storage: autograd knows views by itself, and the ranks' own tensors share theirs in any case.
    """
    import torch.utils._python_dispatch as dispatch

    if not hasattr(dispatch, STORAGE_OF_VIEWS):
        yield
        return
    with mock.patch.object(dispatch, STORAGE_OF_VIEWS, lambda *_: None):
        yield


@contextmanager
def one_thread() -> Iterator[None]:
    """Run torch's operations on one thread: on tensors as small as a miniature's, several only wait for each other."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def per_rank(value: Any, tp_size: int) -> list[Any]:
    """The tensors that `value` stands for, one for each rank; a plain tensor is the same on all."""
    from torch.distributed.tensor import DTensor

    if isinstance(value, DTensor):
        value = value.to_local()
    if isinstance(value, internals().LocalTensor):
        return [value._local_tensors[rank] for rank in range(tp_size)]
    return [value] * tp_size


def gathered(value: Any, tp_size: int) -> list[Any]:
    """As `per_rank`, a DTensor gathered to its full shape first."""
    from torch.distributed.tensor import DTensor

    return per_rank(value.full_tensor() if isinstance(value, DTensor) else value, tp_size)


def raised_by_simulator(error: BaseException) -> bool:
    """Whether the simulator cannot represent what was asked of it, which then says nothing about the model.

    Uneven shards are symbolic sizes in it. Code that must hash such a size, or ask its node for what it lacks, raises
    in torch itself. An error of the rank's own operation is raised inside the simulator too, but from a kernel. What
    the simulator asserts is about itself: a number of all ranks that differs between them, which it cannot hold.
    """
    import torch

    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    frame = trace.tb_frame if trace else None
    subject = frame.f_locals.get("self") if frame else None
    is_symbolic = (
        isinstance(subject, (torch.SymInt, torch.SymBool, torch.SymFloat)) or "Local" in type(subject).__name__
    )
    its_own = isinstance(error, AssertionError) and frame is not None and _is_simulator(frame.f_globals["__name__"])
    lacks_answer = is_symbolic and isinstance(error, (AttributeError, TypeError, NotImplementedError))
    return lacks_answer or _lacks_node(error) or its_own


def _is_simulator(module: str) -> bool:
    return module.startswith(internals().LocalTensorMode.__module__)


def _lacks_node(error: BaseException) -> bool:
    """An attribute that the simulator's node of a symbolic size does not have."""
    return isinstance(error, AttributeError) and type(getattr(error, "obj", None)).__name__ == "LocalIntNode"


def watch_modules(model: Any, seen: Callable[[str, Any], None]) -> list[Any]:
    """Call `seen(name, output)` after each module's forward, with a copy: models change outputs in place later.

    Returns handles to remove.
    """
    import torch

    def hook(name: str) -> Callable:
        def forward_hook(_: Any, __: Any, output: Any) -> None:
            first = output[0] if isinstance(output, tuple) and output else output
            if isinstance(first, torch.Tensor):
                seen(name, first.detach().clone())

        return forward_hook

    return [module.register_forward_hook(hook(name)) for name, module in model.named_modules() if name]


def fill(model: Any, whole: Any) -> None:
    """Give every parameter its slice of `whole`'s, and every buffer a copy: what each rank reads from a checkpoint."""
    import torch
    from torch.distributed.tensor import DTensor, distribute_tensor

    parameters = dict(whole.named_parameters(remove_duplicate=False))
    buffers = dict(whole.named_buffers(remove_duplicate=False))
    for prefix, module in model.named_modules():
        for name, parameter in module._parameters.items():
            if parameter is None:
                continue
            full = parameters[f"{prefix}.{name}" if prefix else name].detach().clone()
            if isinstance(parameter, DTensor):
                full = distribute_tensor(full, parameter.device_mesh, parameter.placements, src_data_rank=None)
            module._parameters[name] = torch.nn.Parameter(full, requires_grad=parameter.requires_grad)
        for name, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[name] = buffers[f"{prefix}.{name}" if prefix else name].clone()
