"""A small model of the same structure, with real weights: the same heads, layer kinds, experts, ties and remainders.

Head counts, KV groups, experts and routing stay as they are. Shrunk are the widths that every rank splits or reads
alike, the number of layers (one of each kind that occurs), and the towers that text does not reach; see `shrink`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

from tpplan.diagnostics import InputError
from tpplan.miniature.shrink import is_tower, shrink
from tpplan.miniature.widths import Hidden, Size, Towers
from tpplan.model.checkpoint import save_as_published
from tpplan.model.config import ModelSpec, text_config
from tpplan.model.errors import out_of_memory
from tpplan.model.forward import example_inputs, main_output, runnable
from tpplan.model.quiet import quiet
from tpplan.model.repeats import first_of_each_kind
from tpplan.model.simulation import one_thread
from tpplan.model.skeleton import Skeleton, build_skeleton, build_whole, tie
from tpplan.units import one_line

SEED = 20240229
ENOUGH = 20_000_000  # parameters: smaller ones are not worth looking for
ALIKE = 3  # sizes that raise the same words when they run: it is not for their size
MAX_PARAMETERS = 250_000_000  # 1 GB in float32, up to ten times over while ranks are simulated


@dataclass(frozen=True, kw_only=True)
class Miniature:
    """A spec that builds small, its skeleton, and what was changed: dotted config name -> (full size, miniature).

    model: the unsharded miniature on cpu in float32 and eval mode. Its weights are seeded, none is zero or constant.
    """

    spec: ModelSpec
    skeleton: Skeleton
    changes: dict[str, tuple[Any, Any]]
    model: Any

    def describe(self) -> str:
        """What was changed, in one line."""
        changes = ", ".join(f"{name} {old} -> {new}" for name, (old, new) in self.changes.items())
        return changes or "as large as the model"


def make_miniature(spec: ModelSpec, skeleton: Skeleton, tp_size: int) -> Miniature:
    """The first miniature that is small enough, has the same rules and kinds of layers, and runs unsharded; where all
    are larger, the smallest.

    Raises ValueError, with what most sizes raised or why none could be run, when there is none.
    """
    refused = "no size was tried"
    larger: list[_Candidate] = []
    raised: Counter[str] = Counter()

    def in_order() -> Iterator[_Candidate]:
        nonlocal refused
        for candidate in _candidates(spec, skeleton, tp_size):
            if isinstance(candidate, str):
                refused = candidate
            elif candidate.parameters > (ENOUGH if candidate.wide_towers else MAX_PARAMETERS):
                larger.append(candidate)
            else:
                yield candidate
        larger.sort(key=lambda candidate: candidate.parameters)
        yield from (candidate for candidate in larger if candidate.parameters <= MAX_PARAMETERS)

    for candidate in in_order():
        made = _run(candidate)
        if isinstance(made, Miniature):
            return made
        raised[made] += 1
        if raised[made] == ALIKE:
            break
    if raised:
        refused = raised.most_common(1)[0][0]
    elif larger:
        refused = f"the miniature has {larger[0].parameters:,} parameters"
    raise ValueError(refused)


@dataclass(frozen=True, kw_only=True)
class _Candidate:
    """A smaller config whose class builds, not run yet. wide_towers: whether another size has narrower towers."""

    spec: ModelSpec
    skeleton: Skeleton
    changes: dict[str, tuple[Any, Any]]
    wide_towers: bool

    @property
    def parameters(self) -> int:
        return sum(parameter.elements for parameter in self.skeleton.parameters.values())


def _candidates(spec: ModelSpec, skeleton: Skeleton, tp_size: int) -> Iterator[_Candidate | str]:
    """Smaller configs, the narrowest first, each once; or why a size does not stand for the model."""
    tried: list[dict] = []
    sections, tower_layers = _sections(skeleton.model), _tower_layers(skeleton.model)
    for vocabulary, hidden, towers, layers in product((True, False), Hidden, Towers, _layer_choices(skeleton)):
        size = Size(
            tp_size=tp_size,
            vocabulary=vocabulary,
            hidden=hidden,
            towers=towers,
            layers=tuple(layers),
            tower_layers=tower_layers,
            sections=sections,
        )
        values, changes = shrink(spec.config, text_config(spec.config), size)
        if values in tried:
            continue
        tried.append(values)
        try:
            with quiet():
                config = type(spec.config).from_dict(values)
            small = replace(spec, config=config, dtype="float32", scheme=None)
            built = build_skeleton(small)
        except Exception as error:  # config and model classes refuse sizes with exceptions of many kinds
            yield _reason(error)
            continue
        yield _differs(skeleton, built) or _Candidate(
            spec=small, skeleton=built, changes=changes, wide_towers=towers is not Towers.NARROW
        )


def _run(candidate: _Candidate) -> Miniature | str:
    """The miniature with its weights, or why it does not run.

    Raises ValueError when there is no memory for it.
    """
    import torch

    try:
        model = _reference(candidate.spec)
        with torch.no_grad(), quiet(), one_thread():
            output = main_output(runnable(model)(**example_inputs(candidate.spec)))
    except Exception as error:  # the model's own code may raise anything
        if out_of_memory(error):
            raise ValueError(f"there is not enough memory for {candidate.parameters:,} parameters") from error
        return _reason(error)
    if not torch.isfinite(output).all():
        return "the miniature computes values that are not finite"
    return Miniature(spec=candidate.spec, skeleton=candidate.skeleton, changes=candidate.changes, model=model)


def _reason(error: Exception) -> str:
    return error.diagnostics[0].evidence if isinstance(error, InputError) else one_line(error)


def _sections(model: Any) -> tuple[int, ...]:
    """The sections of the rotary embedding of the language model, which its code has where no config gives them."""
    found = (getattr(module, "mrope_section", None) for name, module in model.named_modules() if not is_tower(name))
    return next((tuple(sections) for sections in found if isinstance(sections, (list, tuple))), ())


def save_miniature(subject: Any, directory: str | Path) -> Path:
    """Save the seeded miniature of `subject`'s model as a checkpoint for from_pretrained. Returns `directory`."""
    made = make_miniature(subject.spec, subject.skeleton, subject.sharding.tp_size)
    save_as_published(made.model, directory)
    return Path(directory)


def _reference(spec: ModelSpec) -> Any:
    import torch

    with torch.random.fork_rng(devices=[]), quiet():
        torch.manual_seed(SEED)
        model = build_whole(spec, dtype=torch.float32)
        tie(model)
    generator = torch.Generator().manual_seed(SEED)
    saved = model.state_dict().keys()
    with torch.no_grad():
        for parameter in model.parameters():
            _fill(parameter, generator)
        for name, buffer in model.named_buffers():
            if name in saved and buffer.is_floating_point() and not buffer.any():
                buffer.copy_(torch.rand(buffer.shape, generator=generator) * 0.01)
    return model.eval()


def _fill(parameter: Any, generator: Any) -> None:
    """Matrices: normal, scaled by fan-in. Vectors (norms, biases, sinks, activations): uniform in 0.25 to 0.75."""
    import torch

    if not parameter.is_floating_point():
        return
    if parameter.ndim < 2:
        parameter.copy_(torch.rand(parameter.shape, generator=generator) * 0.5 + 0.25)
    else:
        parameter.copy_(torch.randn(parameter.shape, generator=generator) * parameter.shape[-1] ** -0.5)


def _differs(full: Skeleton, small: Skeleton) -> str:
    """Why the miniature does not stand for the model, or an empty string."""
    missing = {rule for rule in full.default_plan if rule in full.rules} - small.rules
    if missing:
        return f"the miniature has nothing for the rules {', '.join(sorted(missing)[:3])}"
    if bool(full.ties) != bool(small.ties):
        return "the miniature is tied differently"
    kinds, all_kinds = len(_kinds(small)), len(_kinds(full))
    if kinds < all_kinds:
        return f"the miniature has {kinds} kinds of layers, the model {all_kinds}"
    return ""


def _kinds(skeleton: Skeleton) -> list[int]:
    """Index of the first layer of each kind, in the list of layers that has most kinds and is no tower."""
    lists = [kinds for name, kinds in first_of_each_kind(skeleton.model).items() if not is_tower(name)]
    return max(lists, key=len, default=[0])


def _tower_layers(model: Any) -> dict[int, tuple[int, ...]]:
    """Number of layers of a tower -> its first layer with each set of modules, so that none of its rules is lost."""
    import torch

    found: dict[int, tuple[int, ...]] = {}
    for name, layers in model.named_modules():
        if isinstance(layers, torch.nn.ModuleList) and is_tower(name):
            first: dict[Any, int] = {}
            for index, layer in enumerate(layers):
                first.setdefault(tuple(name for name, _ in layer.named_modules()), index)
            found[len(layers)] = tuple(sorted({*first.values(), *found.get(len(layers), ())}))
    return found


def _layer_choices(skeleton: Skeleton) -> list[list[int]]:
    """Layers to keep, of which the first choice that works is used; an empty one keeps all."""
    chosen = _kinds(skeleton)
    up_to_last = list(range(max(chosen) + 1))
    return [chosen, up_to_last, []] if chosen != up_to_last else [chosen, []]
