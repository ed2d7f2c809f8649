"""The numbers of the numerics stage: the miniature on all ranks in one process, compared with the unsharded miniature.

Logits are compared on every rank, in one prefill and then in a decode step with a dynamic and with a static cache;
for training also every parameter's gradient. Values are float32, weights and token ids from a fixed seed.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from tpplan.difference import GRADIENT_FLOOR, TOLERANCES, Difference, difference
from tpplan.miniature.build import Miniature
from tpplan.model.cache import static_cache
from tpplan.model.config import config_value
from tpplan.model.errors import out_of_memory
from tpplan.model.forward import example_inputs, main_output, runnable
from tpplan.model.quiet import quiet
from tpplan.model.simulation import gathered, on_one_device, per_rank, raised_by_simulator, simulated, watch_modules
from tpplan.model.skeleton import Sharding
from tpplan.model.trail import Trail
from tpplan.stages.result import GradientError
from tpplan.units import one_line

TOLERANCE = TOLERANCES["float32"]
PREFILL = 8


class Part(StrEnum):
    FORWARD = "forward"
    DYNAMIC_CACHE = "decode with a dynamic cache"
    STATIC_CACHE = "decode with a static cache"
    BACKWARD = "backward"


@dataclass(frozen=True, kw_only=True)
class WrongLogits:
    """Logits that differ from the unsharded model's. ranks: where. error: the largest, relative. module: the first
    whose output differs, of a forward."""

    part: Part
    error: float
    ranks: tuple[int, ...]
    module: str | None = None
    width: tuple[int, int] | None = None  # columns on a rank and of the unsharded model, where they differ


@dataclass(frozen=True, kw_only=True)
class GradientFault:
    """A parameter whose gradient is wrong on these ranks."""

    parameter: str
    kind: GradientError
    error: float
    ranks: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Numerics:
    """What the stage found. ran: the parts that were compared. raised: (part, error) of a run that raised, and
    raised_in: the innermost module whose forward did not return."""

    ran: tuple[Part, ...] = ()
    differences: tuple[WrongLogits, ...] = ()
    gradients: tuple[GradientFault, ...] = ()
    raised: tuple[Part, str] | None = None
    raised_in: str | None = None
    not_run: str = ""
    skipped: dict[Part, str] = field(default_factory=dict)
    largest_error: float = 0.0
    seconds: float = 0.0

    @property
    def passed(self) -> bool:
        return not (self.differences or self.gradients or self.raised or self.not_run)


def run_numerics(miniature: Miniature, sharding: Sharding, *, training: bool = False) -> Numerics:
    """Compare the sharded miniature with the unsharded one; stops at the first part that raises."""
    started = time.perf_counter()
    comparison = _Comparison(miniature, sharding)
    parts: list[tuple[Part, Callable[[Any], None]]] = [
        (Part.FORWARD, comparison.forward),
        (Part.DYNAMIC_CACHE, lambda model: comparison.decode(model, Part.DYNAMIC_CACHE)),
        (Part.STATIC_CACHE, lambda model: comparison.decode(model, Part.STATIC_CACHE)),
    ]
    if training:
        parts.append((Part.BACKWARD, comparison.backward))
    part, trail = Part.FORWARD, None
    try:
        with quiet(), simulated(miniature.spec, sharding, miniature.model) as model:
            trail = Trail(model)
            with trail.follow(training=False):
                for part, run in parts:  # noqa: B007  the handlers below name the part that ran last
                    run(model)
                    if comparison.differences:
                        break
    except _NotFinite as found:
        return comparison.result(
            started, not_run=f"the {part} of the unsharded miniature gives {found}, no finite numbers"
        )
    except Exception as error:  # the model's own code may raise anything
        text = one_line(error)
        if out_of_memory(error):
            return comparison.result(started, not_run=f"there is not enough memory for the {part}: {text}")
        if raised_by_simulator(error):
            return comparison.result(started, not_run=f"the simulation of ranks cannot run the {part}: {text}")
        module = trail.innermost if trail else None
        return comparison.result(started, raised=(part, text), raised_in=module)
    return comparison.result(started)


class _NotFinite(Exception):
    """What the unsharded model gives cannot be compared with; the text is a part of it."""


class _Comparison:
    """One miniature against its sharded self; collects what differs."""

    def __init__(self, miniature: Miniature, sharding: Sharding) -> None:
        self._whole = miniature.model
        self._tp_size = sharding.tp_size
        self._inputs = example_inputs(miniature.spec)
        self._ran: list[Part] = []
        self._gradients: list[GradientFault] = []
        self._skipped: dict[Part, str] = {}
        self._largest = 0.0
        self._prefilled: tuple[Any, Any] = (None, None)
        self.differences: list[WrongLogits] = []

    def result(self, started: float, **outcome: Any) -> Numerics:
        return Numerics(
            ran=tuple(self._ran),
            differences=tuple(self.differences),
            gradients=tuple(self._gradients),
            skipped=dict(self._skipped),
            largest_error=self._largest,
            seconds=time.perf_counter() - started,
            **outcome,
        )

    def forward(self, model: Any) -> None:
        import torch

        with torch.no_grad():
            with on_one_device():
                expected = runnable(self._whole)(**self._inputs)
            found = runnable(model)(**self._inputs)
        self._prefilled = expected, found
        wrong = self._compare(Part.FORWARD, main_output(expected), main_output(found))
        self._ran.append(Part.FORWARD)
        if wrong:
            with torch.no_grad():
                module = self._first_module_that_differs(model)
            self.differences.append(replace(wrong, module=module))

    def decode(self, model: Any, part: Part) -> None:
        """Prefill, then one token with the cache; skipped where the unsharded model cannot do it either.

        The forward before is the prefill of a dynamic cache, where both models keep one without being asked.
        """
        import torch

        whole_prefill, prefill = self._prefilled if part is Part.DYNAMIC_CACHE else (None, None)
        if not (_cache(whole_prefill) and _cache(prefill)):
            whole_prefill = prefill = None
        with torch.no_grad():
            try:
                with on_one_device():
                    expected = _decode(self._whole, self._inputs, part, whole_prefill)
            except Exception as error:  # models without such a cache refuse it in many ways
                if out_of_memory(error):
                    raise
                self._skipped[part] = f"the unsharded model raises {type(error).__name__}"
                return
            found = _decode(model, self._inputs, part, prefill)
        wrong = self._compare(part, expected, found)
        self._ran.append(part)
        if wrong:
            self.differences.append(wrong)

    def backward(self, model: Any) -> None:
        import torch

        with torch.enable_grad():
            with on_one_device():
                _loss(main_output(runnable(self._whole)(**self._inputs))).backward()
            _loss(main_output(runnable(model)(**self._inputs))).backward()
        self._ran.append(Part.BACKWARD)
        parameters = dict(model.named_parameters())
        scale = max((float(p.grad.abs().max()) for p in self._whole.parameters() if p.grad is not None), default=0.0)
        for name, whole in self._whole.named_parameters():
            if whole.grad is not None and not whole.grad.isfinite().all():
                self._whole.zero_grad(set_to_none=True)
                raise _NotFinite(f"gradients of {name}")
        for name, whole in self._whole.named_parameters():
            if name in parameters and whole.grad is not None:
                self._compare_gradient(name, whole.grad, parameters[name].grad, GRADIENT_FLOOR * scale)
        self._whole.zero_grad(set_to_none=True)

    def _compare(self, part: Part, expected: Any, found: Any) -> WrongLogits | None:
        if not expected.isfinite().all():
            raise _NotFinite("logits")
        ranks = gathered(found, self._tp_size)
        widths = {tuple(tensor.shape) for tensor in ranks}
        if widths != {tuple(expected.shape)}:
            columns = (int(ranks[0].shape[-1]), int(expected.shape[-1]))
            return WrongLogits(part=part, error=float("inf"), ranks=tuple(range(self._tp_size)), width=columns)
        errors = [difference(tensor, expected, TOLERANCE.logits).error for tensor in ranks]
        self._largest = max(self._largest, *errors)
        wrong = tuple(rank for rank, error in enumerate(errors) if error > TOLERANCE.logits)
        return WrongLogits(part=part, error=max(errors), ranks=wrong) if wrong else None

    def _compare_gradient(self, name: str, expected: Any, found: Any, floor: float) -> None:
        """floor: below it a gradient is compared by this and not by its own largest value."""
        if found is None:
            every = tuple(range(self._tp_size))
            self._gradients.append(GradientFault(parameter=name, kind=GradientError.MISSING, error=1.0, ranks=every))
            return
        ranks = gathered(found, self._tp_size)
        compared = [difference(tensor, expected, TOLERANCE.gradients, floor) for tensor in ranks]
        worst = max(one.error for one in compared)
        self._largest = max(self._largest, worst)
        wrong = tuple(rank for rank, one in enumerate(compared) if one.error > TOLERANCE.gradients)
        if wrong:
            kind = _kind_of_fault(ranks, compared, expected, floor)
            self._gradients.append(GradientFault(parameter=name, kind=kind, error=worst, ranks=wrong))

    def _first_module_that_differs(self, model: Any) -> str | None:
        """The first module, in the order in which they finish, whose output is another than unsharded."""
        expected: dict[str, list[Any]] = defaultdict(list)
        calls: Counter[str] = Counter()
        wrong: list[str] = []

        def note(name: str, output: Any) -> None:
            expected[name].append(output)

        def compare(name: str, output: Any) -> None:
            call, calls[name] = calls[name], calls[name] + 1  # a layer may run many times
            if wrong or call >= len(expected[name]):
                return
            whole = expected[name][call]
            joined = _joined(per_rank(output, self._tp_size), whole)
            if joined is not None and any(
                difference(tensor, whole, TOLERANCE.logits).error > TOLERANCE.logits for tensor in joined
            ):
                wrong.append(name)

        for watched, seen, where in ((self._whole, note, on_one_device), (model, compare, nullcontext)):
            handles = watch_modules(watched, seen)
            try:
                with where():
                    runnable(watched)(**self._inputs)
            finally:
                for handle in handles:
                    handle.remove()
        return wrong[0] if wrong else None


def _joined(ranks: list[Any], whole: Any) -> list[Any] | None:
    """What to compare with the unsharded output: the ranks' own, or their columns joined where they are cut."""
    import torch

    if all(tensor.shape == whole.shape for tensor in ranks):
        return ranks
    if all(tensor.shape[:-1] == whole.shape[:-1] for tensor in ranks):
        joined = torch.cat(ranks, dim=-1)
        return [joined] if joined.shape == whole.shape else None
    return None


def _cache(output: Any) -> Any:
    return getattr(output, "past_key_values", None)


def _decode(model: Any, inputs: dict[str, Any], part: Part, prefill: Any = None) -> Any:
    """Logits of one token through the cache, after `prefill`, or else after one of PREFILL tokens."""
    model = runnable(model)
    ids = inputs["input_ids"]
    extra = {}
    if config_value(model.config, "is_encoder_decoder"):
        raise ValueError("encoder-decoder models keep their cache elsewhere")
    if part is Part.STATIC_CACHE:
        extra["past_key_values"] = static_cache(model.config, PREFILL + 4)
    first = prefill or model(input_ids=ids[:, :PREFILL], use_cache=True, **extra)
    return main_output(model(input_ids=ids[:, PREFILL : PREFILL + 1], past_key_values=first.past_key_values))


def _loss(logits: Any) -> Any:
    return logits.float().pow(2).mean()


def _kind_of_fault(ranks: list[Any], compared: list[Difference], expected: Any, floor: float) -> GradientError:
    times = len(ranks)
    if all(one.ratio is not None and abs(one.ratio - times) <= TOLERANCE.gradients * times for one in compared):
        return GradientError.TIMES_TP_SIZE
    allowed = TOLERANCE.gradients * times
    if difference(sum(ranks), expected, allowed, floor).error <= allowed:
        return GradientError.PARTIAL
    return GradientError.OTHER
