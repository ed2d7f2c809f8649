"""What is judged: a model, and the way it is to be sharded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from tpplan.choices import Device
from tpplan.diagnostics import Place
from tpplan.model.config import ModelSpec
from tpplan.model.skeleton import Sharding, Skeleton, style_of, wildcard
from tpplan.plan_files.file import PlanFile
from tpplan.styles import Style, style


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A model and the way it is to be sharded.

    training: whether gradients must be right too. file: the plan file that
    the overrides were read from, for places. facts: the config values that the plan was made for. batch, max_length:
    sequences, and tokens of each, that memory is to suffice for, None where the caller named none. prefill: tokens of
    the prefill that is compiled, None where the caller named none. full: whether every layer of it is compiled.
    """

    spec: ModelSpec
    skeleton: Skeleton
    sharding: Sharding
    device: Device = Device.CPU
    training: bool = False
    file: PlanFile | None = None
    facts: Mapping | None = None
    batch: int | None = None
    max_length: int | None = None
    prefill: int | None = None
    full: bool = False

    @property
    def plan(self) -> dict[str, str]:
        return self.skeleton.plan(self.sharding.overrides)

    def place_of_rule(self, rule: str) -> Place:
        """The rule's line in the plan file, or the rule alone when the overrides came from a call."""
        return self.file.place_of_rule(rule) if self.file else Place(rule=rule)

    def place_of_target(self, key: str) -> Place:
        """The line of a key of the plan's target, or the model when there is no plan file."""
        return self.file.place_of("target", key) if self.file else Place(file=self.spec.source.name)

    def plan_command(self, *options: str) -> str:
        """The command that makes a plan for this model, at this size and for this purpose, anew."""
        asked = ["--auto-class", self.spec.auto_class] if self.spec.auto_class_is_chosen else []
        asked += [] if self.device is Device.CPU else ["--device", self.device]
        asked += ["--purpose", "training"] if self.training else []
        return " ".join(
            ("tpplan plan", self.spec.source.name, "--tp-size", str(self.sharding.tp_size), *asked, *options)
        )

    def at(self, tp_size: int) -> Subject:
        """The same plan on another number of ranks."""
        return replace(self, sharding=replace(self.sharding, tp_size=tp_size))

    def style_name(self, module: str) -> str | None:
        """The style that the resolved plan gives a module."""
        return style_of(module, self.plan, is_parameter=False)

    def style(self, module: str) -> Style:
        return style(self.style_name(module))

    def overridden(self, module: str) -> bool:
        """Whether the style of this module is an override and not the model's own rule."""
        return wildcard(module) in self.sharding.overrides
