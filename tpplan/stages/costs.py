"""What a plan costs a rank: bytes of parameters and cache against the memory of a device, collectives, FLOPs."""

from __future__ import annotations

from collections.abc import Iterator

from tpplan.answers import Costs, Usage
from tpplan.diagnostics import BytesPerRank, Diagnostic, Memory, Place
from tpplan.model.config import ModelSpec, config_value, text_config
from tpplan.stages.bench import Bench
from tpplan.stages.usage import measure
from tpplan.subject import Subject
from tpplan.targets import resolve
from tpplan.units import gib

LONGEST = 4096  # tokens, where the caller names no length and the model takes as many


def costs_of(subject: Subject, share: BytesPerRank, bench: Bench) -> Costs:
    """The costs of a plan whose shapes stage passed. share: the parameter bytes that it found."""
    usage = measure(subject.spec, subject.sharding)
    unsharded = None if usage.not_run else bench.unsharded_usage()
    return Costs(share=share, memory=_memory(subject, share, usage, unsharded), usage=usage)


def is_asked_for(subject: Subject) -> bool:
    """Whether a verdict weighs memory: the device's is known, or the caller named a batch or a length."""
    return bool(subject.batch or subject.max_length or resolve(subject.device).hbm_bytes)


def _memory(subject: Subject, share: BytesPerRank, usage: Usage, unsharded: Usage | None) -> Memory:
    batch, length = subject.batch or 1, subject.max_length or _length(subject.spec)
    measured = not usage.not_run
    serves = measured and not subject.training
    known = unsharded is not None and not unsharded.not_run
    even = unsharded.cache_bytes(batch, length) if serves and unsharded and known else None
    return Memory(
        batch=batch,
        max_length=length,
        parameters=share.parameters,
        cache=usage.cache_bytes(batch, length) if serves else None,
        cache_even=None if even is None else -(-even // subject.sharding.tp_size),
        gradients=share.parameters if subject.training else 0,
        activations=usage.activations * batch * length if measured else None,
        hbm=resolve(subject.device).hbm_bytes,
    )


def _length(spec: ModelSpec) -> int:
    known = config_value(text_config(spec.config), "max_position_embeddings")
    return min(known, LONGEST) if isinstance(known, int) and known > 0 else LONGEST


def memory_diagnostics(subject: Subject, costs: Costs) -> Iterator[Diagnostic]:
    """What these costs mean for the device: TPP340 to TPP342."""
    memory, place = costs.memory, Place(file=subject.spec.source.name)
    if costs.usage.not_run and not subject.training:
        yield Diagnostic(
            code="TPP342",
            message="the KV cache and the activations per rank could not be measured and are not part of the sum",
            where=place,
            evidence=costs.usage.not_run,
        )
    if memory.hbm is None or memory.fits:
        return
    sums = f"parameters {gib(memory.parameters)}"
    sums += f" + KV cache {gib(memory.cache)} ({memory.batch} x {memory.max_length} tokens)" if memory.cache else ""
    sums += f" + gradients {gib(memory.gradients)}" if memory.gradients else ""
    over = memory.held - memory.hbm
    if over > 0:
        yield Diagnostic(
            code="TPP340",
            message=f"each rank would hold up to {gib(memory.held)}, and {subject.device} has {gib(memory.hbm)} per "
            "device",
            where=place,
            evidence=f"{sums}; {gib(over)} too much",
        )
    else:
        yield Diagnostic(
            code="TPP341",
            message=f"{gib(-over)} are left on {subject.device} for activations, which may need "
            f"{gib(memory.activations or 0)} (an estimate)",
            where=place,
            evidence=f"{sums} of {gib(memory.hbm)}; estimate: all tensors of the largest layer for "
            f"{memory.batch} x {memory.max_length} tokens at once",
        )
