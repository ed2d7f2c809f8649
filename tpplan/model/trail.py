"""Where a run of a model is: the modules that are running, that were entered, and that have had their gradient."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tpplan.model.skeleton import wildcard


class Trail:
    """Which modules are running, and which have had their gradient, by name."""

    def __init__(self, model: Any) -> None:
        self._names = {id(module): name for name, module in model.named_modules()}
        self._running: list[str] = []
        self.last_gradient: str | None = None
        self._entered: set[str] = set()

    @property
    def entered(self) -> frozenset[str]:
        """The modules whose forward was called, with `*` for layer numbers."""
        return frozenset(wildcard(name) for name in self._entered)

    @property
    def innermost(self) -> str | None:
        """The innermost module whose forward did not return; None for the model itself."""
        return self._running[-1] or None if self._running else None

    @contextmanager
    def follow(self, training: bool) -> Iterator[None]:
        """Watch the model while the context lasts. training: note gradients too."""
        import torch
        from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

        def enter(module: Any, _: Any) -> None:
            if id(module) in self._names:
                self._running.append(self._names[id(module)])
                self._entered.add(self._names[id(module)])

        def leave(module: Any, _: Any, output: Any) -> None:
            if id(module) not in self._names:
                return
            name = self._running.pop()
            first = output[0] if isinstance(output, tuple) and output else output
            if training and isinstance(first, torch.Tensor) and first.requires_grad:
                first.register_hook(lambda _, name=name: self._note_gradient(name))

        handles = [register_module_forward_pre_hook(enter), register_module_forward_hook(leave)]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _note_gradient(self, name: str) -> None:
        self.last_gradient = name
