"""torchrun as tpplan starts it: its process and the TPU launch environment; `tpplan launch` is that alone.

torchrun itself (with the exit code of the script), and torch_tpu when it is asked for its launch environment, run in
children, so that nothing they do to their process is left in the caller's.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tpplan.diagnostics import Diagnostic, PlanError, Report
from tpplan.garbage import collect_less_often
from tpplan.launch.processes import own_command
from tpplan.model.internals import versions
from tpplan.signals import ENDING, die_with_parent, handlers
from tpplan.targets import AUTOLOAD
from tpplan.units import one_line

FAILURES = "TPPLAN_FAILURES"  # where the agent writes which ranks failed
PROBE_SECONDS = 360.0  # torch_tpu itself waits 300 s for the coordinates of a chip


def launch(arguments: list[str], device: str | None = None, print_env: bool = False) -> int:
    """Exit code of torchrun's script, run with `arguments` unchanged and the TPU launch environment set.

    arguments: torchrun's options, the script and its own. device: None sets the TPU environment where there are chips,
    a TPU's name demands it, `cpu` leaves torch_tpu out. print_env: write what would be set to stdout, as KEY=value
    lines, and run nothing. A script that ends by a signal gives 128 and its number, as in a shell.

    Raises PlanError (TPP910, TPP911, TPP912) where the TPU launch environment cannot be set.
    """
    added = _added_environment(device)
    if print_env:
        sys.stdout.writelines(f"{name}={value}\n" for name, value in sorted(added.items()))
        if not added:
            sys.stderr.write("there is no TPU here, so launch sets nothing\n")
        return 0
    environment = dict(os.environ)
    if added and device != "cpu":
        environment.pop(AUTOLOAD, None)
    return _run_to_the_end(agent_command(*arguments), environment | added)


def _added_environment(device: str | None) -> dict[str, str]:
    if device == "cpu":
        return {AUTOLOAD: "0"}
    if device is not None:
        return tpu_environment()
    answer = _ask_torch_tpu({}) if "torch_tpu" in versions() else {}
    return _set_by(answer) if answer.get("chips") else {}


def tpu_environment(*, nnodes: int | None = None, nproc_per_node: int | None = None) -> dict[str, str]:
    """Variables that `torch.tpu.distributed.set_tpu_launch_env` sets on this host, name -> value.

    nnodes: number of hosts. nproc_per_node: ranks on this host. None: what torch_tpu finds. torch_tpu reads
    TPU_WORKER_HOSTNAMES, JOB_COMPLETION_INDEX and TORCH_TPU_TOPOLOGY where there are several hosts, and overwrites
    nothing that is set.

    Raises PlanError: TPP910 torch_tpu is not installed, TPP911 no chip, TPP912 it does not load or refuses.
    """
    installed = versions()
    if "torch_tpu" not in installed:
        raise _environment_error(
            "TPP910",
            "torch_tpu is not installed, so no rank can reach a TPU",
            evidence=f"{sys.executable} has torch {installed.get('torch', 'not either')} and no torch_tpu",
            fix="pip install torch_tpu",
        )
    given = {"nnodes": nnodes, "nproc_per_node": nproc_per_node}
    return _set_by(_ask_torch_tpu({name: value for name, value in given.items() if value is not None}))


def _set_by(answer: dict[str, Any]) -> dict[str, str]:
    """The variables in an answer of `_ask_torch_tpu`. Raises PlanError (TPP911, TPP912) where it has none."""
    if "error" not in answer:
        return answer["set"]
    if answer.get("chips") == 0:
        raise _environment_error(
            "TPP911",
            "this machine has no TPU chip that torch_tpu can see",
            evidence=f"torch.accelerator.device_count() is 0; set_tpu_launch_env(): {answer['error']}",
            fix="run it on the TPU host, or with --device cpu",
        )
    raise _environment_error(
        "TPP912",
        "torch_tpu is installed and cannot prepare a launch",
        evidence=", ".join(f"{name} {version}" for name, version in versions().items()) + f": {answer['error']}",
        fix="tpplan doctor --device tpu",
    )


def _run_to_the_end(command: list[str], environment: Mapping[str, str]) -> int:
    """Exit code of `command`, with the signals that end this process handed on to it once each."""
    started: list[subprocess.Popen] = []

    def hand_on(number: int, _: Any) -> None:
        for child in started:
            child.send_signal(number)

    with handlers(ENDING, hand_on):
        # in a session of its own: from the terminal, too, a signal reaches torchrun only once
        started.append(subprocess.Popen(command, env=dict(environment), start_new_session=True))
        return _shell_code(started[0].wait())


def _ask_torch_tpu(arguments: dict[str, int]) -> dict[str, Any]:
    """What `_probe` says in a child, or `error` when the child breaks."""
    environment = {name: value for name, value in os.environ.items() if name != AUTOLOAD}
    try:
        done = subprocess.run(
            own_command(__name__, "probe", json.dumps(arguments)),
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PROBE_SECONDS,
        )
    except subprocess.TimeoutExpired:
        return {"error": f"no answer from torch_tpu within {PROBE_SECONDS:.0f} s"}
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no output"])[-1]
        return {"error": f"the process that loads torch_tpu ended with {done.returncode}: {last}"}
    return json.loads(done.stdout)


def child(role: str, *arguments: str) -> None:
    """Be the child of this role: `agent ARGS` is torchrun, `probe JSON` asks torch_tpu."""
    collect_less_often()
    if role == "agent":
        sys.exit(_agent(list(arguments)))
    _probe(json.loads(arguments[0]))


def _probe(arguments: dict[str, int]) -> None:
    """Write to stdout, as JSON: `set`, the variables set_tpu_launch_env sets, or `error`; and the number of `chips`."""
    answer_stream = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what torch_tpu prints is not the answer
    answer: dict[str, Any] = {}
    try:
        import torch

        answer["chips"] = torch.accelerator.device_count()
        before = dict(os.environ)
        torch.tpu.distributed.set_tpu_launch_env(**arguments)  # type: ignore[attr-defined]  # torch_tpu adds it
        answer["set"] = {name: value for name, value in os.environ.items() if before.get(name) != value}
    except Exception as error:  # a broken install raises anything; the caller reports it
        answer["error"] = one_line(error)
    with answer_stream:
        json.dump(answer, answer_stream)


def _agent(arguments: list[str]) -> int:
    """Be torchrun. Returns the exit code of the rank that failed first, 0 when none did."""
    die_with_parent(signal.SIGTERM)
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.run import main

    sys.argv = ["torchrun", *arguments]
    try:
        main(arguments)
    except ChildFailedError as failed:
        sys.stderr.write(f"{failed}\n")
        if FAILURES in os.environ:
            codes = {rank: failure.exitcode for rank, failure in failed.failures.items()}
            Path(os.environ[FAILURES]).write_text(json.dumps(codes), encoding="utf-8")
        return _shell_code(failed.get_first_failure()[1].exitcode)
    except SignalException as stopped:
        return 128 + int(stopped.sigval)
    except (ValueError, AssertionError, IndexError) as error:  # what torchrun makes of options that make no sense
        sys.stderr.write(f"torchrun does not take these options: {one_line(error)}\n")
        return 2
    return 0


def agent_command(*arguments: str) -> list[str]:
    """The command that is torchrun with these arguments. Where FAILURES names a file, it gets rank -> exit code."""
    return own_command(__name__, "agent", *arguments)


def _shell_code(code: int) -> int:
    return 128 - code if code < 0 else code


def _environment_error(code: str, message: str, evidence: str, fix: str = "") -> PlanError:
    diagnostic = Diagnostic(code=code, message=message, evidence=evidence, fix=fix)
    return PlanError(Report(model="", versions=versions(), diagnostics=(diagnostic,)))
