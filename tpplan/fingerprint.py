"""What an answer depends on, as digests: the content of what is judged, and what is installed. Nothing is imported."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import platform
import sys
from functools import cache
from pathlib import Path
from typing import Any

from tpplan.diagnostics import PlanError
from tpplan.files import read_regular
from tpplan.plain import to_plain
from tpplan.plan_files.document import Plan
from tpplan.request import Request
from tpplan.source import located, weights_of
from tpplan.targets import attached_tpus

DECIDING = ("torch", "transformers")  # and torch_tpu, where it is installed
ABSENT = "absent"
MAX_BYTES = 1 << 30  # of one file that is read


class NotKnown(Exception):
    """What an answer depends on cannot all be read, so no answer is kept for it."""


def question(function: str, request: Request, *args: Any) -> str:
    """The digest of a call: what is asked, of which content, with which packages. Raises NotKnown."""
    asked = to_plain(request)
    del asked["cache"]
    if not isinstance(request.what, Plan):
        asked["content"] = _content(request.what) if request.is_plan else model_content(request, request.what)
    if request.model is not None:
        asked["model_content"] = model_content(request, request.model)
    try:
        attached = attached_tpus()  # whose generation is that of the device `tpu`
        here = [attached.device if attached else None, _installed()]
    except OSError as error:
        raise NotKnown(str(error)) from error
    return _digest(json.dumps([function, asked, to_plain(args), here], sort_keys=True).encode())


def model_of_plan(request: Request) -> str | None:
    """The name of the model that the plan itself leads to, None where a model is given or the plan's own facts do."""
    if not request.is_plan or request.model is not None:
        return None
    if isinstance(request.what, Plan):
        return request.what.model.id
    from tpplan.plan_files.file import read_plan

    return read_plan(request.what).plan.model.id


def content_on_disk(request: Request, name: str) -> str:
    """The digest of the model at a path, ABSENT where there is none. Raises NotKnown."""
    try:
        there = Path(name).exists()
    except (OSError, ValueError):
        return ABSENT
    return model_content(request, name) if there else ABSENT


def model_content(request: Request, name: str) -> str:
    """The digest of what is read of a model: its config, the headers of its weights, and its code where that runs."""
    try:
        file, directory = located(name)
        parts = {"file": str(file), "config": _content(file)}  # a directory, a file and a hub id may have one name
        if request.trust_remote_code and directory is None:
            raise NotKnown("code of a hub repository or beside a file")
        if weights := weights_of(name, file, directory):
            parts |= {path.name: _content(path) for path in sorted(weights.glob("*.index.json"))}
            parts |= {path.name: _header(path) for path in sorted(weights.glob("*.safetensors"))}
        if directory is not None and request.trust_remote_code:
            parts |= {str(path): _content(path) for path in sorted(directory.rglob("*.py"))}
            if "--" in file.read_text(encoding="utf-8"):  # auto_map may lead to code of another repository
                raise NotKnown("code of a hub repository")
    except (OSError, ValueError, PlanError) as error:
        raise NotKnown(str(error)) from error
    return _digest(json.dumps(parts).encode())


def _content(path: str | Path) -> str:
    try:
        return _digest(read_regular(path, MAX_BYTES))
    except (OSError, ValueError) as error:
        raise NotKnown(str(error)) from error


def _header(path: Path) -> str:
    """The digest of a safetensors file's size and header, which names the tensors, their shapes and dtypes."""
    with path.open("rb") as file:
        start = file.read(8)
        length = min(int.from_bytes(start, "little"), 100 << 20)  # the format's own limit
        return _digest(str(path.stat().st_size).encode() + start + file.read(length))


@cache
def _installed() -> str:
    """The digest of Python, of every installed distribution by name and version, and of tpplan's own files.

    Raises NotKnown where one of the deciding packages runs from source: its files can change under one version.
    """
    distributions = set()
    for path in map(Path, sys.path):
        if path.is_dir():
            distributions |= {entry for entry in os.listdir(path) if entry.endswith((".dist-info", ".egg-info"))}
    for name in DECIDING:
        _require_released(name)
    if importlib.util.find_spec("torch_tpu"):
        _require_released("torch_tpu")
    own = Path(__file__).parent
    files = sorted(path for suffix in ("py", "json") for path in own.rglob(f"*.{suffix}"))
    ours = _digest(b"".join(str(path.relative_to(own)).encode() + b"\0" + path.read_bytes() for path in files))
    return _digest(json.dumps([sys.version, platform.platform(), sorted(distributions), ours]).encode())


def _require_released(package: str) -> None:
    spec = importlib.util.find_spec(package)
    home = Path(spec.origin).parents[1] if spec and spec.origin else None
    if home is None or not any(home.glob(f"{package}-*.dist-info")):
        raise NotKnown(f"{package} is not installed from a release")


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
