"""Faults to plant in the code of a Llama or in its loader, on one rank or in one part of a run alone.

They are put into Transformers and never into tpplan: what is to notice them stays as it is.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from transformers import StaticCache
from transformers.models.llama import modeling_llama

from tpplan.model.internals import internals

# What a call of the model is, by its arguments: a prefill without a cache, or one token after it.
Applies = Callable[[dict[str, Any]], bool]
CALLS: dict[str, Applies] = {
    "forward": lambda given: given.get("past_key_values") is None and not given.get("use_cache"),
    "decode with a dynamic cache": lambda given: _decodes(given) and not _is_static(given),
    "decode with a static cache": lambda given: _decodes(given) and _is_static(given),
}


def is_simulated(tensor: Any) -> bool:
    """Whether `tensor` is that of all ranks of the simulation, and not that of one device."""
    return isinstance(tensor, internals().LocalTensor)


def on_rank(rank: int, tp_size: int, value: float, elsewhere: float = 0.0) -> Any:
    """A number that is `value` on one rank and `elsewhere` on the others."""
    numbers = {other: torch.tensor(value if other == rank else elsewhere) for other in range(tp_size)}
    return internals().LocalTensor(numbers)


def add_to_logits(
    monkeypatch: pytest.MonkeyPatch, rank: int, tp_size: int, amount: float, call: str = "forward"
) -> None:
    """Add `amount` to each logit on this rank of the simulation, in calls of this kind."""

    def wrong(given: dict[str, Any], output: Any) -> Any:
        if is_simulated(output.logits) and CALLS[call](given):
            output.logits = output.logits + on_rank(rank, tp_size, amount)
        return output

    change_output(monkeypatch, modeling_llama.LlamaForCausalLM, wrong)


def change_output(monkeypatch: pytest.MonkeyPatch, module: type, change: Callable[[dict[str, Any], Any], Any]) -> None:
    """Let the forward of a class of modules return what `change(keyword arguments, output)` does."""
    forward = module.forward

    @functools.wraps(forward)
    def changed(self: Any, *args: Any, **given: Any) -> Any:
        return change(given, forward(self, *args, **given))

    monkeypatch.setattr(module, "forward", changed)


def change_gradients(monkeypatch: pytest.MonkeyPatch, change: Callable[[Any], Any]) -> None:
    """Let the gradients of the norms' weights become what `change` makes of them, in the simulation alone."""
    forward = modeling_llama.LlamaRMSNorm.forward

    def hooked(self: Any, states: Any) -> Any:
        if is_simulated(states) and torch.is_grad_enabled():
            self.weight.register_hook(change)
        return forward(self, states)

    monkeypatch.setattr(modeling_llama.LlamaRMSNorm, "forward", hooked)


def drop_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the norms' weights get no gradient, in the simulation alone."""
    forward = modeling_llama.LlamaRMSNorm.forward

    def detached(self: Any, states: Any) -> Any:
        if not is_simulated(states):
            return forward(self, states)
        whole = self.weight
        try:
            del self.weight
            self.weight = whole.detach()
            return forward(self, states)
        finally:
            del self.weight
            self.weight = whole

    monkeypatch.setattr(modeling_llama.LlamaRMSNorm, "forward", detached)


def change_loaded(monkeypatch: pytest.MonkeyPatch, change: Callable[[Any, int], None]) -> None:
    """Do `change(model, rank)` to what from_pretrained gives a rank; one device gets what the checkpoint has."""
    load = modeling_llama.LlamaForCausalLM.from_pretrained.__func__

    def changed(cls: type, *args: Any, **given: Any) -> Any:
        model = load(cls, *args, **given)
        if dist.is_initialized():
            change(model, dist.get_rank())
        return model

    monkeypatch.setattr(modeling_llama.LlamaForCausalLM, "from_pretrained", classmethod(changed))


def look_at_values(monkeypatch: pytest.MonkeyPatch, then: Callable[[], None] = lambda: None) -> None:
    """Let the MLP read a number of its input, which no run without weights can; and do `then` where it could."""
    forward = modeling_llama.LlamaMLP.forward

    def looks(self: Any, states: Any) -> Any:
        states.sum().item()
        then()
        return forward(self, states)

    monkeypatch.setattr(modeling_llama.LlamaMLP, "forward", looks)


def _decodes(given: dict[str, Any]) -> bool:
    return given.get("past_key_values") is not None and given["input_ids"].shape[1] == 1


def _is_static(given: dict[str, Any]) -> bool:
    return isinstance(given["past_key_values"], StaticCache)
