"""From what a caller asks for to the Subject that the stages judge."""

from __future__ import annotations

from pathlib import Path

from tpplan.choices import Device, Purpose, usage_error
from tpplan.model.config import load_spec
from tpplan.model.facts import facts_of
from tpplan.model.quantization.facts import quantization_facts
from tpplan.model.skeleton import Sharding, build_skeleton
from tpplan.plan_files.document import Plan
from tpplan.plan_files.file import PlanFile, read_plan
from tpplan.request import Request
from tpplan.source import Source, read_source
from tpplan.subject import Subject


def open_request(request: Request) -> Subject:
    """The subject of `request`, with the config read and the model's skeleton built.

    Raises InputError for what cannot be read, PlanError (TPP901) when the installed packages do not serve.
    """
    if isinstance(request.what, Plan):
        return _open_plan(request, request.what, None)
    if request.is_plan:
        file = read_plan(request.what)
        return _open_plan(request, file.plan, file)
    return _open_model(request, request.what)


def facts(subject: Subject) -> dict:
    """The config values that a plan for this subject depends on."""
    quantized = quantization_facts(subject.spec, subject.skeleton.model)
    return facts_of(subject.spec.config) | ({"quantization_config": quantized} if quantized else {})


def _open_model(request: Request, what: str) -> Subject:
    if request.tp_size is None:
        raise usage_error("a model needs a tp_size", fix="give --tp-size N", model=what)
    if request.model is not None:
        raise usage_error("only a plan can be put on a different model", fix="leave --model out", model=what)
    spec = load_spec(
        read_source(what),
        auto_class=request.auto_class,
        dtype=request.dtype,
        trust_remote_code=request.trust_remote_code,
    )
    return Subject(
        spec=spec,
        skeleton=build_skeleton(spec),
        sharding=Sharding(tp_size=request.tp_size, overrides=dict(request.overrides)),
        device=request.device or Device.CPU,
        training=request.purpose == Purpose.TRAINING,
        batch=request.batch,
        max_length=request.max_length,
    )


def _open_plan(request: Request, plan: Plan, file: PlanFile | None) -> Subject:
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
        device=request.device or Device(target.device),
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
