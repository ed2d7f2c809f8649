"""The model without weights: names, shapes, ties and default rules, and the same model cut by Transformers itself."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any

from tpplan.diagnostics import Diagnostic, InputError, Place
from tpplan.model.config import ModelSpec
from tpplan.model.internals import internals, no_sharding_over_one_rank
from tpplan.model.quantization import quantized_weights
from tpplan.model.quantization.scheme import Quantized, quantized_bytes
from tpplan.model.quiet import quiet
from tpplan.units import one_line

DISPATCHED = "ep_dispatch_experts"  # each token travels to the ranks that hold its experts


@dataclass(frozen=True, kw_only=True)
class Sharding:
    """What a DistributedConfig is made from. Overrides are rule -> style, rules as Transformers spells them."""

    tp_size: int
    overrides: Mapping[str, str] = field(default_factory=dict)
    ep_size: int | None = None

    def arguments(self) -> dict[str, Any]:
        """Keyword arguments of transformers.DistributedConfig, without empty overrides: `{}` means no rule at all."""
        arguments: dict[str, Any] = {"tp_size": self.tp_size}
        if self.overrides:
            arguments["tp_plan"] = dict(sorted(self.overrides.items()))
        if self.ep_size:
            arguments["ep_size"] = self.ep_size
        return arguments


@dataclass(frozen=True, kw_only=True)
class Parameter:
    """A parameter of the unsharded model.

    bytes: that it takes on a device, in the spec's dtype, or as its checkpoint packs it where the load leaves it so.
    """

    name: str
    shape: tuple[int, ...]
    bytes: int

    @property
    def elements(self) -> int:
        return prod(self.shape)


@dataclass(frozen=True, kw_only=True)
class Skeleton:
    """The structure of a model's class at full size.

    model: the torch module on the meta device, never run. default_plan: the rules the class ships, rule -> style.
    expert_plan: its expert-parallel rules. rules: every key a rule may have (names with `*` for layer numbers).
    ties: parameter -> the parameter it is tied to. parameters: by name, each tied pair once.
    """

    class_name: str
    model: Any
    default_plan: Mapping[str, str]
    expert_plan: Mapping[str, str]
    rules: frozenset[str]
    ties: Mapping[str, str]
    parameters: Mapping[str, Parameter]

    def plan(self, overrides: Mapping[str, str]) -> dict[str, str]:
        """The resolved plan: the default rules with the overrides over them."""
        return {**self.default_plan, **overrides}

    @property
    def bytes(self) -> int:
        return sum(parameter.bytes for parameter in self.parameters.values())


def build_skeleton(spec: ModelSpec) -> Skeleton:
    """The skeleton of the model that `spec` describes. Loads the model's class; allocates no weight.

    Raises InputError TPP116 when the class cannot be built.
    """
    import torch

    internals()  # what is missing there is not the model's fault
    try:
        model = build_on_meta(spec)
    except Exception as error:  # constructors raise anything, and ImportError for packages that they need
        raise InputError(
            Diagnostic(
                code="TPP116",
                message=f"{spec.auto_class} cannot build the model from this config, "
                "and from_pretrained would raise too",
                where=Place(file=spec.source.name),
                evidence=one_line(error),
                fix="install the package that the error names"
                if isinstance(error, ImportError)
                else f"correct the value in {spec.source.called}",
            ),
            model=spec.source.name,
        ) from error
    ties = {**(model.all_tied_weights_keys or {})}
    named = dict(model.named_parameters())
    modules = dict(model.named_modules())
    wildcard = internals().wildcard
    packed = _packed_weights(model, spec)
    is_kept = _kept_in_float32(model, getattr(torch, spec.dtype))
    return Skeleton(
        class_name=type(model).__name__,
        model=model,
        default_plan=dict(model.tp_plan or {}),
        expert_plan=dict(model.ep_plan or {}),
        rules=frozenset(wildcard(name) for name in (*modules, *named) if name),
        ties=ties,
        parameters={
            name: Parameter(
                name=name,
                shape=tuple(tensor.shape),
                bytes=quantized_bytes(
                    name, tuple(tensor.shape), packed, torch.float32.itemsize if is_kept(name) else tensor.itemsize
                ),
            )
            for name, tensor in named.items()
            if name not in ties
        },
    )


def _packed_weights(model: Any, spec: ModelSpec) -> dict[str, Quantized]:
    """The weights that stay as their checkpoint packs them; none where the load dequantizes them."""
    return {} if spec.scheme is None or spec.scheme.dequantized else quantized_weights(model, spec.scheme)


def _kept_in_float32(model: Any, dtype: Any) -> Callable[[str], object]:
    """Whether the load leaves a parameter of this name in float32, as PreTrainedModel._get_dtype_plan says of them."""
    import torch

    kept: set[str] = set()
    if dtype == torch.float16:
        kept |= set(getattr(model, "_keep_in_fp32_modules", None) or ())
    if dtype in (torch.float16, torch.bfloat16):
        kept |= set(getattr(model, "_keep_in_fp32_modules_strict", None) or ())
    if not kept:
        return lambda name: False
    return re.compile("|".join(pattern.replace("*", ".*") for pattern in sorted(kept))).search


def build_on_meta(spec: ModelSpec, dtype: Any = None) -> Any:
    """The model's class on the meta device, not initialised or tied yet: the state in which from_pretrained shards it.

    dtype: torch's own, in place of the spec's.
    """
    import torch
    import transformers

    known = internals()  # imported before the meta device is the default
    auto_class = getattr(transformers, spec.auto_class)
    extra = {"trust_remote_code": True} if spec.trust_remote_code else {}
    with torch.device("meta"), known.no_tie_weights(), known.no_init_weights(), quiet():
        # from_config writes into the config that it is given
        return auto_class.from_config(copy.deepcopy(spec.config), dtype=dtype or getattr(torch, spec.dtype), **extra)


def build_whole(spec: ModelSpec, *, dtype: Any) -> Any:
    """The model's class on cpu, not tied, its weights allocated and not initialised. Only for miniatures."""
    import transformers

    extra = {"trust_remote_code": True} if spec.trust_remote_code else {}
    with internals().no_init_weights():
        return getattr(transformers, spec.auto_class).from_config(copy.deepcopy(spec.config), dtype=dtype, **extra)


def shard(model: Any, sharding: Sharding) -> Any:
    """Cut `model` (on meta, not tied) as from_pretrained does for this rank, then tie it.

    Must run inside `ranks.fake_rank`. Raises what Transformers raises.
    """
    from transformers import DistributedConfig

    with quiet(), no_sharding_over_one_rank():
        config, _, mesh = type(model).prepare_distribute_model(DistributedConfig(**sharding.arguments()))
        model = type(model).maybe_distribute_model(model, config, mesh)
        tie(model)
    return model


def sends_tokens(model: Any, module: str) -> bool:
    """Whether `module`, or one around it, is experts of the expert plan that get their tokens from other ranks."""
    parts = module.split(".")
    around = (".".join(parts[:length]) for length in range(1, len(parts) + 1))
    return any(style_of(name, model.ep_plan or {}, is_parameter=False) == DISPATCHED for name in around)


def tie(model: Any) -> None:
    """Tie the weights by the mapping that the model computed when it was built."""
    model.tie_weights(recompute_mapping=False)


def wildcard(name: str) -> str:
    """`name` with layer numbers replaced by `*`, as Transformers replaces them before it looks a name up."""
    return internals().wildcard(name)


def style_of(name: str, plan: Mapping[str, str], *, is_parameter: bool) -> str | None:
    """The style that Transformers finds for a module or parameter of this name, or None."""
    return internals().style_of(name, plan, is_weight=is_parameter)


def known_styles() -> tuple[str, ...]:
    """Names of the parallel styles of the installed Transformers, sorted."""
    return tuple(sorted(internals().styles.keys()))
