"""From what a caller asks for to the Subject that the stages judge."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tpplan.choices import MAX_TP_SIZE, Device, Dtype, Purpose
from tpplan.diagnostics import Diagnostic, InputError
from tpplan.model.config import load_spec
from tpplan.model.facts import facts_of
from tpplan.model.quantization.facts import quantization_facts
from tpplan.model.skeleton import Sharding, build_skeleton
from tpplan.plan_files.document import Plan, Target
from tpplan.plan_files.file import PlanFile, read_plan
from tpplan.source import Source, read_source
from tpplan.subject import Subject

PLAN_SUFFIXES = (".yaml", ".yml")


@dataclass(frozen=True, kw_only=True)
class Request:
    """One call, before anything is read. None means: what the plan says, or else the default.

    what: a model (directory, config file, hub id), a plan file, or a Plan. model: the model that a plan will be used
    with, when it is not the one that the plan names. name: what a plan made for the model calls it.
    """

    what: str | os.PathLike[str] | Plan
    tp_size: int | None = None
    model: str | None = None
    name: str | None = None
    auto_class: str | None = None
    device: str | None = None
    purpose: str | None = None
    dtype: str | None = None
    overrides: Mapping[str, str] = field(default_factory=dict)
    trust_remote_code: bool = False
    batch: int | None = None
    max_length: int | None = None

    @property
    def is_plan(self) -> bool:
        return isinstance(self.what, Plan) or str(self.what).endswith(PLAN_SUFFIXES)

    @property
    def called(self) -> str:
        """What the caller called the model or the plan."""
        return self.what.model.id if isinstance(self.what, Plan) else str(self.what)


def open_request(request: Request) -> Subject:
    """The subject of `request`, with the config read and the model's skeleton built.

    Raises InputError for what cannot be read and for values that make no sense, PlanError (TPP901) when the
    installed packages do not serve.
    """
    check_values(request)
    return _open_plan(request) if request.is_plan else _open_model(request)


def facts(subject: Subject) -> dict:
    """The config values that a plan for this subject depends on."""
    quantized = quantization_facts(subject.spec, subject.skeleton.model)
    return facts_of(subject.spec.config) | ({"quantization_config": quantized} if quantized else {})


def _open_model(request: Request) -> Subject:
    if request.tp_size is None:
        raise usage_error("a model needs a tp_size", fix="give --tp-size N", model=str(request.what))
    if request.model is not None:
        raise usage_error("only a plan can be put on another model", fix="leave --model out", model=str(request.what))
    spec = load_spec(
        read_source(os.fspath(request.what)),
        auto_class=request.auto_class,
        dtype=request.dtype,
        trust_remote_code=request.trust_remote_code,
    )
    return Subject(
        spec=spec,
        skeleton=build_skeleton(spec),
        sharding=Sharding(tp_size=request.tp_size, overrides=dict(request.overrides)),
        device=request.device or Target(tp_size=1).device,
        training=request.purpose == Purpose.TRAINING,
        batch=request.batch,
        max_length=request.max_length,
    )


def _open_plan(request: Request) -> Subject:
    file = None if isinstance(request.what, Plan) else read_plan(request.what)
    plan = request.what if isinstance(request.what, Plan) else file.plan
    target = plan.target
    if request.overrides:
        raise usage_error("a plan has its own overrides", fix="leave the overrides out, or edit the plan")
    if request.tp_size not in (None, target.tp_size):
        raise usage_error(
            f"the plan is for tp_size {target.tp_size}, not {request.tp_size}",
            fix=f"leave --tp-size out, or make a plan for {request.tp_size}",
            model=plan.model.id,
        )
    source = _source_of_plan(plan, file, request.model)
    spec = load_spec(
        source,
        auto_class=request.auto_class or plan.model.auto_class,
        dtype=request.dtype or target.dtype,
        trust_remote_code=request.trust_remote_code,
    )
    return Subject(
        spec=spec,
        skeleton=build_skeleton(spec),
        sharding=Sharding(tp_size=target.tp_size, overrides=dict(plan.overrides), ep_size=target.ep_size),
        device=request.device or target.device,
        training=(request.purpose or target.purpose) == Purpose.TRAINING,
        file=file,
        facts=plan.model.config,
        batch=request.batch,
        max_length=request.max_length,
    )


def _source_of_plan(plan: Plan, file: PlanFile | None, model: str | None) -> Source:
    """The model at hand (named by the caller, or on this disk), else the plan's own facts: no network is needed."""
    if model is not None:
        return read_source(model)
    if _is_on_disk(plan.model.id):
        return read_source(plan.model.id)
    path = file.path if file else None
    called = f"model.config of {path or 'the plan'}"
    return Source(name=plan.model.id, config=plan.model.config, config_file=path, called=called)


def _is_on_disk(name: str) -> bool:
    try:
        return Path(name).exists()
    except (OSError, ValueError):  # too long for a path, a NUL inside, or a directory that may not be read
        return False


def check_values(request: Request) -> None:
    """Raises InputError TPP130 for an option whose value makes no sense."""
    size, model = request.tp_size, request.called
    if size is not None and (isinstance(size, bool) or not isinstance(size, int) or not 1 <= size <= MAX_TP_SIZE):
        said = f"tp_size is {size!r}, must be a whole number from 1 to {MAX_TP_SIZE}"
        raise usage_error(said, fix="give the number of ranks", model=model)
    if request.name is not None and not request.name.strip():
        raise usage_error(
            "the name of the model in the plan is empty", fix="leave --id out, or give a name", model=model
        )
    for name, value in (("batch", request.batch), ("max_length", request.max_length)):
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
            said = f"{name} is {value!r}, must be a whole number from 1"
            raise usage_error(said, fix=f"give --{name.replace('_', '-')} N", model=model)
    for name, value, allowed in (
        ("device", request.device, tuple(Device)),
        ("purpose", request.purpose, tuple(Purpose)),
        ("dtype", request.dtype, tuple(Dtype)),
    ):
        if value is not None and value not in allowed:
            raise usage_error(f"{name} is {value!r}", fix=f"give one of {', '.join(allowed)}", model=model)


def usage_error(message: str, fix: str, model: str = "") -> InputError:
    """An InputError with TPP130."""
    return InputError(Diagnostic(code="TPP130", message=message, fix=fix), model=model)
