"""The few values of a quantization_config that decide, as a plan file carries them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from tpplan.model.config import ModelSpec, config_value
from tpplan.model.internals import internals
from tpplan.model.quantization import METHODS, method_of, quantized_weights, read_scheme

if TYPE_CHECKING:
    from torch.nn import Module


def quantization_facts(spec: ModelSpec, model: Module) -> dict[str, Any] | None:
    """The part of the quantization_config on which the verdict depends, None for a model that is not quantized.

    model: of this spec, on the meta device. What is returned reads as a quantization_config that holds for the same
    weights in the same way: lists of modules are shortened only where that changes nothing.
    """
    raw = spec.quantization_config
    if spec.scheme is None or raw is None:
        return None
    own, rows = method_of(spec.scheme.method), METHODS.values()
    # what another method would read is kept too, but for its groups: plans that were written have it
    plain = {fact for row in rows for fact in row.facts if "." not in fact}
    kept = _kept(raw, {"quant_method", *plain, *own.facts}, own.nulls)
    names = sorted({name for row in rows for name in row.lists})
    lists = {name: list(raw[name]) for name in names if raw.get(name) is not None}
    short = {name: _general(listed) for name, listed in lists.items()}
    expected = quantized_weights(model, spec.scheme)
    for candidate in (short, lists):
        scheme = read_scheme(kept | candidate, expert_dtype=config_value(spec.config, "expert_dtype"))
        if scheme is not None and quantized_weights(model, scheme) == expected:
            return kept | candidate
    raise AssertionError("the full lists hold for the same weights")


def _kept(raw: Mapping[str, Any], facts: Iterable[str], nulls: Iterable[str] = ()) -> dict[str, Any]:
    """The values that dotted `facts` name, `*` for any key. nulls: those that are kept where they are null."""
    kept: dict[str, Any] = {}
    for key, value in raw.items():
        parts = [rest for name, _, rest in (fact.partition(".") for fact in facts) if name in (key, "*")]
        if value is None:
            if key in nulls:
                kept[key] = None
        elif "" in parts:
            kept[key] = value
        elif parts and isinstance(value, Mapping):
            kept[key] = _kept(value, parts)
    return kept


def _general(names: Iterable[str]) -> list[str]:
    """The names with `*` for layer numbers, each once; expressions stay as they are."""
    return sorted({name if name.startswith("re:") else internals().wildcard(name) for name in names})
