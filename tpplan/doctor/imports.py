"""Whether torch, Transformers and torch_tpu import, and what torch then sees, each in a child process.

A broken install raises anything, ends its process, or hangs. The child says before each step that it starts it, and
after it what it found; how it ends, and which step was the last, is the finding.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tpplan.doctor.line import Line, failed, not_applicable, passed
from tpplan.doctor.machine import NO_TPU, Machine
from tpplan.doctor.packages import installed
from tpplan.launch.processes import Workspace, own_command, workspace
from tpplan.targets import AUTOLOAD
from tpplan.units import signal_name

FATAL = re.compile(r"F\d{4} ")  # a line of absl's log that ended the process; a trace follows it


@dataclass(frozen=True, kw_only=True)
class Answers:
    """What a child said. found: step -> its answer, of the steps that ended well. step: where it stopped, empty when it
    did not. error: how."""

    found: dict[str, Any] = field(default_factory=dict)
    step: str = ""
    error: str = ""


def import_lines(machine: Machine) -> Iterator[Line]:
    """Lines on importing each library, and on the chips that torch sees."""
    answers = ask(machine, *(["libraries", "tpu"] if installed("torch_tpu") else ["libraries"]))
    for step, name in (("torch", "import-torch"), ("transformers", "import-transformers"), ("internals", "internals")):
        yield _import_line(name, step, answers["libraries"])
    yield _import_line("import-torch_tpu", "torch_tpu", answers.get("tpu"))
    yield chips_line(machine, answers.get("tpu"))


def ask(machine: Machine, *roles: str) -> dict[str, Answers]:
    """What a child of each role answers: `libraries` without torch_tpu, `tpu` with it. They run at once."""
    with workspace() as children:
        started = {role: _start(role, machine, children) for role in roles}
        return {role: _finish(role, machine, children, process) for role, process in started.items()}


def _import_line(name: str, step: str, answers: Answers | None) -> Line:
    if answers is None:
        return not_applicable(name, "torch_tpu is not installed")
    if answers.step == step:
        code = "TPP901" if step == "internals" else "TPP922"
        package = {"torch_tpu": "torch_tpu libtpu", "internals": "torch transformers"}.get(step, step)
        fix = f"pip install --force-reinstall -c constraints.txt {package} (tpplan's tested versions)"
        return failed(name, _with_answer(answers), code=code, fix=fix)
    if step in answers.found:
        return passed(name, answers.found[step])
    return not_applicable(name, f"not reached: {answers.step} stopped first")


def _with_answer(answers: Answers) -> str:
    """How the child ended, after what it answered, if it did."""
    answer = answers.found.get(answers.step)
    return f"{answer}; then {answers.error}" if answer else answers.error


def chips_line(machine: Machine, answers: Answers | None) -> Line:
    """The TPUs on the bus, the ones that torch sees, and whether a host has a topology for that number."""
    name = "chips"
    if not machine.wants_tpu:
        return not_applicable(name, NO_TPU)
    attached = machine.attached
    if attached is None:
        fix = "run it on the TPU host; a container needs the host's /sys and --privileged"
        return failed(name, "no TPU is on the PCI bus", code="TPP911", fix=fix)
    found = f"{attached.usable} of {attached.device} on the PCI bus"
    if attached.device is not machine.device:
        fix = f"--device {attached.device}"
        return failed(name, f"{found}, {machine.device} is asked for", code="TPP923", fix=fix)
    if not attached.usable:
        fix = "bind the chips to vfio-pci, and pass /dev/vfio into the container"
        return failed(name, f"{found}: /dev/vfio exposes none", code="TPP923", fix=fix)
    if answers is None or answers.step == "torch_tpu":
        return not_applicable(name, f"{found}; torch was not asked, because it has no torch_tpu that loads")
    if answers.step:
        fix = "tpplan doctor again when chips-free passes; then pip install --force-reinstall torch_tpu libtpu"
        return failed(name, f"{found}; torch.accelerator: {_with_answer(answers)}", code="TPP923", fix=fix)
    seen = answers.found["chips"]
    found = f"{found}, torch.accelerator sees {seen['count']} ({seen['type']})"
    if seen["type"] != "tpu" or seen["count"] != attached.usable:
        fix = "unset TPU_VISIBLE_CHIPS, TPU_VISIBLE_DEVICES and CUDA_VISIBLE_DEVICES, and see chips-free"
        return failed(name, found, code="TPP923", fix=fix)
    counts = machine.hardware.host_counts
    if attached.usable not in counts:
        found = f"{found}; torch_tpu has a topology for {', '.join(map(str, counts))} devices only"
        fix = f"launch with --nproc_per_node={max((n for n in counts if n < attached.usable), default=counts[0])}"
        return failed(name, found, code="TPP923", fix=fix)
    return passed(name, found)


def _start(role: str, machine: Machine, children: Workspace) -> subprocess.Popen:
    environment = {name: value for name, value in machine.environment.items() if name != AUTOLOAD}
    if role == "libraries":
        environment[AUTOLOAD] = "0"
    answers = str(children.directory / f"{role}.answers")
    return children.start(own_command("tpplan.doctor.imports", role, answers), environment, f"{role}.log")


def _finish(role: str, machine: Machine, children: Workspace, process: subprocess.Popen) -> Answers:
    try:
        code = process.wait(machine.timeout)
        error = "" if code == 0 else _ending(code, children.directory / f"{role}.log")
    except subprocess.TimeoutExpired:
        error = f"no answer within {machine.timeout:g} s; the process was ended"
    answers = children.directory / f"{role}.answers"
    found: dict[str, Any] = {}
    step = next(iter(STEPS[role]))
    for line in answers.read_text(encoding="utf-8").splitlines(keepends=True) if answers.exists() else []:
        said = json.loads(line) if line.endswith("\n") else {"step": step}
        step = said["step"]
        if "error" in said:
            return Answers(found=found, step=step, error=said["error"])
        if "found" in said:
            found[step] = said["found"]
    return Answers(found=found, step=step if error else "", error=error)


def _ending(code: int, log: Path) -> str:
    """How a child ended that did not end by itself, with its last word: native code's fatal line, else the last one."""
    how = f"the process was ended by {signal_name(-code)}" if code < 0 else f"the process ended with {code}"
    lines = [line.strip() for line in log.read_text(encoding="utf-8", errors="replace").splitlines()]
    said = [line for line in lines if FATAL.match(line)] or [line for line in lines if re.search(r"\w", line)]
    return f"{how}: {said[-1][:400]}" if said else how


def child(role: str, file: str) -> None:
    """Be the child: take the steps of `role`, and write each one's start and answer to `file`, a JSON line each."""
    with Path(file).open("w", encoding="utf-8", buffering=1) as answers:
        for name, step in STEPS[role].items():
            answers.write(json.dumps({"step": name}) + "\n")
            try:
                answer: dict[str, Any] = {"found": step()}
            except BaseException as error:  # a broken install raises anything, SystemExit too; it is the finding
                answer = {"error": "; caused by ".join(_causes(error))}
            answers.write(json.dumps({"step": name} | answer) + "\n")
            if "error" in answer:
                return


def _causes(error: BaseException) -> Iterator[str]:
    """An error and what it was raised for, outermost first: torch wraps what a backend raises."""
    seen: list[BaseException] = []
    following: BaseException | None = error
    while following is not None and following not in seen:
        seen.append(following)
        yield f"{type(following).__name__}: {' '.join(str(following).split())[:300]}"
        following = following.__cause__ or (None if following.__suppress_context__ else following.__context__)


def _torch() -> str:
    import torch

    return f"torch {torch.__version__}"


def _transformers() -> str:
    import transformers
    from transformers import AutoModelForCausalLM, DistributedConfig  # noqa: F401  what every load needs

    return f"Transformers {transformers.__version__}"


def _internals() -> str:
    from tpplan.model.internals import PROBES, internals

    internals()
    return f"the {len(PROBES)} names inside torch and Transformers that tpplan uses are there"


def _torch_tpu() -> str:
    """torch loads torch_tpu itself; only then is it the torch_tpu that a user's program gets."""
    import torch

    if "torch_tpu" not in sys.modules:
        raise ImportError("torch imports without it: no entry point in the group torch.backends loads torch_tpu")
    return f"torch {torch.__version__} loads it"


def _devices() -> dict[str, Any]:
    import torch

    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return {"type": accelerator.type if accelerator else "none", "count": torch.accelerator.device_count()}


STEPS: dict[str, dict[str, Callable[[], Any]]] = {
    "libraries": {"torch": _torch, "transformers": _transformers, "internals": _internals},
    "tpu": {"torch_tpu": _torch_tpu, "chips": _devices},
}
