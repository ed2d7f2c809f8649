"""What a launch loads: the checkpoint that MODEL names, or a saved miniature; and whether it fits unsharded."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass, replace
from pathlib import Path

from tpplan.diagnostics import Diagnostic, Place
from tpplan.launch.options import SaveMiniature
from tpplan.launch.processes import available_bytes
from tpplan.model.config import load_spec
from tpplan.model.skeleton import build_skeleton
from tpplan.source import HUB_ID, Source, read_source
from tpplan.subject import Subject
from tpplan.units import gib, one_line

INDEXES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
SINGLE_FILES = ("model.safetensors", "pytorch_model.bin")
PROCESS_BYTES = 512 * 2**20  # a process with torch and Transformers, and the activations of one short forward
TRAINING_FACTOR = 3  # weights, gradients, and gradients in float32 to compare


class NotLaunched(Exception):
    """The launch stage cannot run; the text is the reason."""


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """What is launched. subject: of the model in `directory`, the miniature where it is one. notes: what that means."""

    subject: Subject
    directory: Path
    notes: tuple[Diagnostic, ...] = ()


def find_checkpoint(
    subject: Subject, workspace: Path, *, miniature: bool = False, save: SaveMiniature | None = None
) -> Checkpoint:
    """The checkpoint to launch: MODEL's directory or the hub's cache where they hold weights, else a miniature.

    workspace: an existing directory for the miniature. miniature: take one in any case. save: writes it and returns
    where, `tpplan.miniature.build.save_miniature` if left out.

    Raises NotLaunched for quantized weights, and where no miniature can be built.
    """
    source = subject.spec.source
    weights = None if miniature else weights_of(source)
    if weights is None:
        return _miniature(subject, workspace / "miniature", save, asked=miniature)
    if subject.spec.quantization:
        method = subject.spec.quantization
        raise NotLaunched(f"the checkpoint is quantized ({method}); --miniature launches an unquantized miniature")
    return Checkpoint(subject=subject, directory=weights)


def weights_of(source: Source) -> Path | None:
    """The directory with the weights of a model that is on this disk, the hub's cache included; else None."""
    if source.directory is not None:
        return source.directory if _has_weights(source.directory) else None
    if Path(source.name).exists() or not HUB_ID.fullmatch(source.name):
        return None
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    try:
        cached = Path(snapshot_download(source.name, local_files_only=True))
    except (HFValidationError, LocalEntryNotFoundError):
        return None
    return cached if _has_weights(cached) and _is_complete(cached) else None


def unsharded_does_not_fit(checkpoint: Checkpoint) -> str:
    """Why the unsharded model cannot be loaded beside what runs on this machine, or an empty string."""
    subject = checkpoint.subject
    needed = subject.skeleton.bytes * (TRAINING_FACTOR if subject.training else 1) + PROCESS_BYTES
    available = available_bytes()
    if available is not None and needed > available:
        return f"the unsharded model needs about {gib(needed)}, {gib(available)} of memory are free"
    free = shutil.disk_usage(checkpoint.directory).free
    if subject.training and subject.skeleton.bytes * 2 > free:
        return f"its gradients need up to {gib(subject.skeleton.bytes * 2)} of disk, {gib(free)} are free"
    return ""


def _miniature(subject: Subject, directory: Path, save: SaveMiniature | None, asked: bool) -> Checkpoint:
    from safetensors import SafetensorError

    from tpplan.miniature.build import save_miniature

    try:
        saved = Path((save or save_miniature)(subject, directory))
    except ValueError as error:
        raise NotLaunched(f"no miniature of the model can be built: {error}") from error
    except (OSError, SafetensorError) as error:  # a full disk
        raise NotLaunched(f"the miniature cannot be saved in {directory}: {one_line(error)}") from error
    source = subject.spec.source
    spec = load_spec(
        read_source(str(saved)),
        auto_class=subject.spec.auto_class,
        dtype=subject.spec.dtype,
        trust_remote_code=subject.spec.trust_remote_code,
    )
    spec = replace(spec, source=replace(spec.source, name=source.name))  # diagnostics name what the user named
    skeleton = build_skeleton(spec)
    note = Diagnostic(
        code="TPP520",
        message="a miniature was launched" + ("" if asked else ", because the model's weights are not on this disk"),
        where=Place(file=source.name),
        evidence=f"{skeleton.bytes} bytes of parameters, {subject.skeleton.bytes} in the full model",
    )
    launched = replace(subject, spec=spec, skeleton=skeleton, facts=None)
    return Checkpoint(subject=launched, directory=saved, notes=(note,))


def _has_weights(directory: Path) -> bool:
    return any((directory / name).is_file() for name in (*INDEXES, *SINGLE_FILES))


def _is_complete(directory: Path) -> bool:
    """Whether every file of an index is there: the hub's cache may hold some of them."""
    if any((directory / name).is_file() for name in SINGLE_FILES):
        return True
    index = next(directory / name for name in INDEXES if (directory / name).is_file())
    weight_map = json.loads(index.read_text(encoding="utf-8")).get("weight_map", {})
    return all((directory / name).is_file() for name in set(weight_map.values()))
