"""What a caller asks for, its values checked and nothing read yet."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypedDict, Unpack

from tpplan.choices import MAX_TP_SIZE, Device, Dtype, Purpose, chosen, usage_error
from tpplan.plan_files.document import Plan
from tpplan.source import CONFIG_NAME

PLAN_SUFFIXES = (".yaml", ".yml")


@dataclass(frozen=True, kw_only=True)
class Request:
    """One call, its values checked and nothing read yet. None means: what the plan says, or else the default.

    what: a model (directory, config file, hub id), a plan file, or a Plan. model: the model that a plan will be used
    with, when it is not the one that the plan names. name: what a plan made for the model calls it. cache: whether the
    answer may come from the cache, and is kept there.
    """

    what: str | Plan
    tp_size: int | None = None
    model: str | None = None
    name: str | None = None
    auto_class: str | None = None
    device: Device | None = None
    purpose: Purpose | None = None
    dtype: Dtype | None = None
    overrides: Mapping[str, str] = field(default_factory=dict)
    trust_remote_code: bool = False
    batch: int | None = None
    max_length: int | None = None
    prefill: int | None = None
    full: bool = False
    cache: bool = True

    @property
    def called(self) -> str:
        """What the model or plan is called in messages."""
        return self.what.model.id if isinstance(self.what, Plan) else self.what

    @property
    def is_plan(self) -> bool:
        return isinstance(self.what, Plan) or self.what.endswith(PLAN_SUFFIXES)


def make_request(
    what: str | os.PathLike[str] | Plan,
    tp_size: int | None = None,
    *,
    name: str | None = None,
    overrides: Mapping[str, str] | None = None,
    device: str | None = None,
    purpose: str | None = None,
    dtype: str | None = None,
    batch: int | None = None,
    max_length: int | None = None,
    prefill: int | None = None,
    **rest: Unpack[_AsTheyAre],
) -> Request:
    """The request with these values. Raises InputError TPP130 for one that makes no sense."""
    what = what if isinstance(what, Plan) else os.fspath(what)
    called = what.model.id if isinstance(what, Plan) else what
    check_tp_size(tp_size, called)
    for option, count in (("batch", batch), ("max_length", max_length), ("prefill", prefill)):
        if count is not None and not _is_count(count):
            said = f"{option} is {count!r}, must be a whole number from 1"
            raise usage_error(said, fix=f"give --{option.replace('_', '-')} N", model=called)
    if name is not None and not name.strip():
        said = "the name of the model in the plan is empty"
        raise usage_error(said, fix="leave --id out, or give a name", model=called)
    return Request(
        what=what,
        tp_size=tp_size,
        name=name,
        overrides=dict(overrides or {}),
        device=None if device is None else chosen("device", device, Device, called),
        purpose=None if purpose is None else chosen("purpose", purpose, Purpose, called),
        dtype=None if dtype is None else chosen("dtype", dtype, Dtype, called),
        batch=batch,
        max_length=max_length,
        prefill=prefill,
        **rest,
    )


class _AsTheyAre(TypedDict, total=False):
    """Values that are checked where they are used."""

    model: str | None
    auto_class: str | None
    trust_remote_code: bool
    full: bool
    cache: bool


def check_tp_size(tp_size: int | None, model: str) -> None:
    """Raises InputError TPP130 for a tp_size that is none."""
    if tp_size is not None and not (_is_count(tp_size) and tp_size <= MAX_TP_SIZE):
        said = f"tp_size is {tp_size!r}, must be a whole number from 1 to {MAX_TP_SIZE}"
        raise usage_error(said, fix="give the number of ranks", model=model)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def inputs(given: Iterable[str | os.PathLike[str] | Plan]) -> list[str | os.PathLike[str] | Plan]:
    """What is given, with the plan files in it in place of a directory that is no model."""
    found: list[str | os.PathLike[str] | Plan] = []
    for what in given:
        found += _plans_in(what) or [what]
    return found


def _plans_in(what: str | os.PathLike[str] | Plan) -> list[str]:
    """The plan files in a directory that is no model and below it, but for hidden ones; none where it is none."""
    try:
        directory = None if isinstance(what, Plan) else Path(what)
        if directory is None or what == "" or not directory.is_dir() or (directory / CONFIG_NAME).exists():
            return []
    except (OSError, ValueError):  # too long for a path, a NUL inside
        return []
    found = (path for path in directory.rglob("*") if path.suffix in PLAN_SUFFIXES and path.is_file())
    return sorted(str(path) for path in found if not any(part[0] == "." for part in path.relative_to(directory).parts))
