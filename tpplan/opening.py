"""From what a caller asks for to the Subject that the stages judge."""

from __future__ import annotations

import logging
from pathlib import Path

from tpplan.choices import Device, Purpose, usage_error
from tpplan.model.config import ModelSpec, load_spec
from tpplan.model.facts import changed_facts, facts_of
from tpplan.model.internals import versions
from tpplan.model.quantization.facts import quantization_facts
from tpplan.model.releases import TIES_LOAD_ON_TPU, dotted, transformers_version
from tpplan.model.skeleton import Sharding, build_skeleton
from tpplan.plan_files.document import Plan, Target
from tpplan.plan_files.file import PlanFile, read_plan
from tpplan.plan_files.seal import broken
from tpplan.request import Request
from tpplan.source import Source, read_source
from tpplan.stages import table
from tpplan.subject import Subject


def open_request(request: Request) -> Subject:
    """The subject of `request`, with the config read and the model's skeleton built.

    Raises InputError for what cannot be read, PlanError (TPP901) when the installed packages do not serve.
    """
    plan, file = _plan_of(request)
    return _open_plan(request, plan, file) if plan else _open_model(request, request.called)


def open_sealed(request: Request) -> tuple[ModelSpec, Sharding] | None:
    """The model of a plan whose seal holds for the request, and how the plan shards it; None where it must be proven.

    Why a seal does not hold is logged. The config at hand is compared with the one that the plan was made for. Raises
    as `open_request`.
    """
    plan, file = _plan_of(request)
    if plan is None or plan.proven is None or plan.proven.seal is None:
        return None
    spec = None
    reason = broken(plan, versions(), table.needed()) or _asks_for_more(request, plan.target)
    if not reason:
        spec = _spec_of_plan(request, plan, file)
        reason = _differs(spec, plan)
    if spec is None or reason:
        logging.getLogger("tpplan").warning("%s: all stages run again: %s", request.called, reason)
        return None
    return spec, _sharding(plan)


def _plan_of(request: Request) -> tuple[Plan | None, PlanFile | None]:
    """The plan that the request names or holds, and the file that it stands in."""
    if isinstance(request.what, Plan):
        return request.what, None
    file = read_plan(request.what) if request.is_plan else None
    return (file.plan if file else None), file


def _asks_for_more(request: Request, target: Target) -> str:
    """What the request wants that the plan was not proven for; empty where there is nothing."""
    for name in ("device", "purpose", "dtype"):
        asked = getattr(request, name)
        if asked not in (None, getattr(target, name)):
            return f"it was proven for {name} {getattr(target, name)}, not {asked}"
    if target.device == Device.TPU:
        return "it was proven for a TPU of no named generation"
    given = next((name for name in ("auto_class", "batch", "max_length") if getattr(request, name) is not None), None)
    return f"it was proven without {given}" if given else ""


def _differs(spec: ModelSpec, plan: Plan) -> str:
    """In what the config at hand, or its checkpoint, may differ from what the plan was proven for."""
    if plan.target.device.startswith("tpu") and transformers_version() < TIES_LOAD_ON_TPU:
        return f"with Transformers before {dotted(TIES_LOAD_ON_TPU)} it depends on the checkpoint"
    if spec.runs_own_code:
        return "the code of the model may have changed since"
    made_for = dict(plan.model.config)
    quantized = made_for.get("quantization_config")
    changed = changed_facts(made_for, spec.config)
    if (spec.quantization or quantized) and quantized != quantization_facts(spec, build_skeleton(spec).model):
        changed.append("quantization_config")
    return f"the config differs from the one that it was made for: {'; '.join(changed)}" if changed else ""


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
        prefill=request.prefill,
        full=request.full,
    )


def _open_plan(request: Request, plan: Plan, file: PlanFile | None) -> Subject:
    target = plan.target
    spec = _spec_of_plan(request, plan, file)
    return Subject(
        spec=spec,
        skeleton=build_skeleton(spec),
        sharding=_sharding(plan),
        device=request.device or Device(target.device),
        training=(request.purpose or target.purpose) == Purpose.TRAINING,
        file=file,
        facts=plan.model.config,
        batch=request.batch,
        max_length=request.max_length,
        prefill=request.prefill,
        full=request.full,
    )


def _sharding(plan: Plan) -> Sharding:
    return Sharding(tp_size=plan.target.tp_size, overrides=dict(plan.overrides), ep_size=plan.target.ep_size)


def _spec_of_plan(request: Request, plan: Plan, file: PlanFile | None) -> ModelSpec:
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
    return load_spec(
        source,
        auto_class=request.auto_class or plan.model.auto_class,
        dtype=request.dtype or target.dtype,
        trust_remote_code=request.trust_remote_code,
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
