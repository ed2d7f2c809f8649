"""What there is to know of a quantization method, and how most of them choose the modules that they convert."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tpplan.model.internals import internals
from tpplan.model.quantization.scheme import Layout, Quantized, Scheme
from tpplan.model.quantization.values import Values

if TYPE_CHECKING:
    from torch.nn import Module

PLAIN = re.compile(r"[\w.-]*")  # a pattern without any character that a regular expression would read as more than one


@dataclass(frozen=True, kw_only=True)
class Failure:
    """What goes wrong with sharded weights. outcome: what a user sees. cause: why, and with which release seen."""

    outcome: str
    cause: str


def converted_modules(
    model: Module, scheme: Scheme, *, default_skips: bool = False
) -> Iterator[tuple[str, Module, Layout]]:
    """(name, module, layout) of what a quantizer of Transformers converts: all but the modules that the config ignores.

    default_skips: whether the method leaves the output embeddings alone whatever the config says.
    """
    ignored = None if scheme.ignored is None else list(scheme.ignored)
    never = getattr(model, "_keep_in_fp32_modules", None)
    patterns = internals().quantizer.get_modules_to_not_convert(model, ignored, never, add_default_skips=default_skips)
    skipped = [(pattern, _literal_parts(pattern)) for pattern in patterns]
    for name, module in candidates(model):
        layout = scheme.expert_layout if is_experts(module) else scheme.layout
        if layout is None:
            continue
        near = [pattern for pattern, parts in skipped if all(part in name for part in parts)]
        if internals().should_convert_module(name, near):
            yield name, module, layout


def candidates(model: Module) -> Iterator[tuple[str, Module]]:
    """Linear layers and fused experts: what quantizers replace."""
    from torch.nn import Linear

    return (
        (name, module) for name, module in model.named_modules() if isinstance(module, Linear) or is_experts(module)
    )


def is_experts(module: Module) -> bool:
    """Whether a module holds fused experts: weights of three dims, the first of which counts experts."""
    return any(tensor.ndim == 3 and name.endswith("proj") for name, tensor in module.named_parameters(recurse=False))


def _literal_parts(pattern: str) -> tuple[str, ...]:
    """What a name must contain for `should_convert_module` to find `pattern` in it, the rarest first; empty if unclear.

    Published lists hold thousands of names, and each of them is compiled as a regular expression there.
    """
    return tuple(reversed(pattern.split("."))) if PLAIN.fullmatch(pattern) else ()


@dataclass(frozen=True, kw_only=True)
class Method:
    """One quant_method: how its config is read, its weights are stored and chosen, and what happens when they are cut.

    read: the scheme of a config, from the method's name and the values; raises Malformed for what no loader can read.
    facts: the values of the config that decide, dotted, `*` for the names of groups; a plan file carries them.
    lists: those of them that name modules, and may name layers by `*`. nulls: those for which null is a value.
    failure: what goes wrong at a tp_size above 1 with a weight that the plan cuts, whatever the sizes, from the scheme,
    the weight and the dim that is cut (0 or 1 of (out, in), None for the dim of experts).
    failure_with_any_plan: what goes wrong there whatever the plan cuts.
    modules: the modules that are converted, each with its layout.
    spreads_scales: whether dequantizing gives each scale of a rank an equal part of the rank's slice.
    fused_experts: whether the checkpoint has the experts fused as (experts, out, in), and the model transposes them.
    dropped_rules: the rules of the model's own plan, from its config, that the quantizer takes away; sorted.
    dtype: of the weights that are not quantized, where neither config nor checkpoint says.
    """

    read: Callable[[str, Values], Scheme] = lambda name, values: Scheme(method=name)
    facts: tuple[str, ...] = ()
    lists: tuple[str, ...] = ()
    nulls: tuple[str, ...] = ()
    failure: Callable[[Scheme, Quantized, int | None], Failure | None] = lambda scheme, quantized, cut_dim: None
    failure_with_any_plan: Callable[[Scheme], Failure | None] = lambda scheme: None
    modules: Callable[[Module, Scheme], Iterator[tuple[str, Module, Layout]]] = converted_modules
    spreads_scales: bool = False
    fused_experts: bool = False
    dropped_rules: Callable[[Any], tuple[str, ...]] = lambda config: ()
    dtype: str = "float32"
