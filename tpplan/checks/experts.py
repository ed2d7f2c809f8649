"""TPP310 and TPP311: does ep_size fit tp_size, and do the experts divide by it.

Transformers refuses both with a ValueError: `DistributedConfig._validate_mesh_config` and `MoEParamShard.shard_param`.
"""

from __future__ import annotations

from collections.abc import Iterator

from tpplan.diagnostics import Diagnostic
from tpplan.model.config import config_value, text_config, text_config_place
from tpplan.model.skeleton import style_of, wildcard
from tpplan.subject import Subject

EXPERT_FIELDS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
BY_EXPERT = "grouped_gemm"  # the style that gives each rank whole experts


def check_ep_size(subject: Subject) -> Iterator[Diagnostic]:
    """TPP311: a plan has no fsdp_size, so expert-parallel ranks are the tp_size ranks, or there are none."""
    ep_size, tp_size = subject.sharding.ep_size or 1, subject.sharding.tp_size
    if ep_size in (1, tp_size):
        return
    rest = f"{ep_size} % {tp_size} = {ep_size % tp_size}" if ep_size % tp_size else f"{tp_size} % {ep_size} = {tp_size}"
    yield Diagnostic(
        code="TPP311",
        message=f"ep_size {ep_size} does not fit tp_size {tp_size}, and Transformers refuses the pair",
        where=subject.place_of_target("ep_size"),
        evidence=f"ep_size must be a multiple of tp_size and divide fsdp_size * tp_size, with fsdp_size 1; {rest}",
    )


def check_experts_divide(subject: Subject) -> Iterator[Diagnostic]:
    """TPP310: one diagnostic for each number of experts that ep_size does not divide, with the rule that cuts them.

    Not for an ep_size that TPP311 refuses already: with the right one its remainder is another.
    """
    ep_size = subject.sharding.ep_size or 1
    if ep_size != subject.sharding.tp_size:
        return
    for experts, rule in sorted(cut_by_expert(subject).items()):
        if experts % ep_size == 0:
            continue
        yield Diagnostic(
            code="TPP310",
            message=f"ep_size {ep_size} does not divide {experts} experts, and Transformers refuses to shard them",
            where=subject.place_of_target("ep_size"),
            evidence=f"{_source(subject, experts)}; {experts} % {ep_size} = {experts % ep_size}; {rule} is {BY_EXPERT}",
        )


def experts_divide(subject: Subject, ep_size: int) -> bool:
    """Whether ep_size divides the experts that the model's expert plan cuts."""
    return all(experts % ep_size == 0 for experts in cut_by_expert(subject))


def expert_sizes(subject: Subject) -> list[int]:
    """Sizes from 2 to ep_size by which all experts divide, in order; none where the model's expert plan cuts none."""
    counts = cut_by_expert(subject)
    largest = min((subject.sharding.ep_size or 1, *counts)) if counts else 1
    return [size for size in range(2, largest + 1) if all(experts % size == 0 for experts in counts)]


def cut_by_expert(subject: Subject) -> dict[int, str]:
    """Number of experts -> the first rule of the expert plan that gives each rank its share of them."""
    plan = subject.skeleton.expert_plan
    found: dict[int, str] = {}
    for name, parameter in subject.skeleton.parameters.items():
        if parameter.shape and style_of(name, plan, is_parameter=True) == BY_EXPERT:
            module = subject.skeleton.model.get_submodule(name.rpartition(".")[0])
            if hasattr(module, "num_experts"):  # upstream's own condition
                found.setdefault(parameter.shape[0], wildcard(name))
    return found


def _source(subject: Subject, experts: int) -> str:
    """The number of experts with the config value that says so."""
    config = text_config(subject.spec.config)
    for field in EXPERT_FIELDS:
        if field in vars(config) and config_value(config, field) == experts:  # not an alias of another name
            return f"{field} = {experts} ({text_config_place(subject.spec)})"
    return f"{experts} experts in these layers"
