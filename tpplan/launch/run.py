"""The processes of one launch on this host: the unsharded run, then torchrun and its ranks, until they end or must."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from tpplan.diagnostics import Diagnostic, Place
from tpplan.launch.checkpoint import Checkpoint
from tpplan.launch.findings import Ended
from tpplan.launch.options import LaunchOptions
from tpplan.launch.processes import Workspace, out_of_memory_kills, resident_bytes, state_of
from tpplan.launch.records import UNSHARDED, Job, LaunchPhase, RankResult, read_result
from tpplan.launch.torchrun import FAILURES, agent_command
from tpplan.launcher_variables import without_torchrun
from tpplan.model.forward import example_inputs
from tpplan.subject import Subject
from tpplan.targets import AUTOLOAD
from tpplan.units import signal_name

PHASES = list(LaunchPhase)
NEW_TOKENS = 8
POLL_SECONDS = 0.05
STACK_SECONDS = 0.5  # for ranks that hang to write down where they are
TAIL_LINES, TAIL_CHARACTERS = 4, 600
SHUTDOWN_SECONDS = "5"  # torchrun's patience with ranks that it ends


@dataclass(frozen=True, kw_only=True)
class Launch:
    """options: complete; with the place to meet of several hosts. variables: environment for the ranks. space: where
    children and files are."""

    checkpoint: Checkpoint
    options: LaunchOptions
    variables: dict[str, str]
    space: Workspace
    started: float = field(default_factory=time.monotonic)

    @property
    def subject(self) -> Subject:
        return self.checkpoint.subject

    @property
    def ranks(self) -> range:
        """The ranks of this host."""
        count = self.subject.sharding.tp_size // self.options.nnodes
        return range(self.options.node_rank * count, (self.options.node_rank + 1) * count)

    def run_unsharded(self) -> tuple[RankResult | None, list[Diagnostic]]:
        """The unsharded model's result, or None where there is none to compare with, and why: an error or a warning."""
        command = [*self._worker(), str(self._write_job(compare=False)), "--unsharded"]
        child = self.space.start(command, self._environment(cpu=True, ranks=1), "unsharded.log")
        path = self.space.directory / UNSHARDED
        held = self.subject.skeleton.bytes
        in_time = self._wait(child, lambda: self._report_progress("unsharded model", [read_result(path)], held))
        result = read_result(path)
        phase = result.phase if result else LaunchPhase.START
        words = _tail(self.space.directory / "unsharded.log")
        if not in_time:
            return None, [self._fails(f"did not finish {phase} within {self.options.timeout:g} s", words)]
        if child.returncode < 0:
            name = signal_name(-child.returncode)
            return None, [self.not_compared(f"the process of the unsharded model was ended by {name} in {phase}")]
        if child.returncode or result is None:
            error = f"{result.error.type}: {result.error.message}; " if result and result.error else ""
            return None, [self._fails(f"raises in {phase}", f"{error}stderr: {words or 'empty'}")]
        if not result.finite:
            return result, [self.not_compared("the logits of the unsharded model are not finite")]
        return result, []

    def run_ranks(self, unsharded: RankResult | None, held: int) -> Ended:
        """How the ranks of this host ended. unsharded: to compare with. held: bytes that a rank will hold."""
        job = self._write_job(compare=unsharded is not None)
        environment = self._environment(cpu=self.subject.device == "cpu", ranks=len(self.ranks))
        failures = self.space.directory / "failures.json"
        kills = out_of_memory_kills()
        agent = self.space.start(
            agent_command(*self._torchrun_options(), "-m", "tpplan.launch.worker", str(job)),
            environment | {FAILURES: str(failures)},
            "torchrun.log",
        )
        in_time = self._wait(agent, lambda: self._report_progress(f"{len(self.ranks)} ranks", self._found(), held))
        states = {} if in_time else self._ask_where_they_are()
        codes = json.loads(failures.read_text(encoding="utf-8")) if failures.exists() else {}
        return Ended(
            ranks=tuple(self.ranks),
            results=self._results(),
            unsharded=unsharded,
            exit_codes={int(rank): code for rank, code in codes.items()},
            stderr={rank: _tail(log) if in_time else _stack(log) for rank, log in self._stderr_files().items()},
            states=states,
            after=None if in_time else self.options.timeout,
            out_of_memory=out_of_memory_kills() > kills,
            launcher=(agent.returncode or 0, _tail(self.space.directory / "torchrun.log")),
        )

    def _wait(self, child: subprocess.Popen, each_time: Callable[[], None]) -> bool:
        """Whether the child ended before the time was up."""
        while child.poll() is None:
            if time.monotonic() - self.started > self.options.timeout:
                return False
            each_time()
            time.sleep(POLL_SECONDS)
        return True

    def _report_progress(self, what: str, results: list[RankResult | None], held: int) -> None:
        """The part done: phases, and while loading the memory that a process has of what it will hold."""
        if self.options.progress is None:
            return
        phases = [PHASES.index(result.phase) if result else 0 for result in results]
        done = float(sum(phases))
        for result in results:
            if result and result.phase == LaunchPhase.LOAD and held:
                done += min(resident_bytes(result.pid) / held, 1.0)
        self.options.progress(f"{what}: {PHASES[min(phases)]}", min(done / len(phases) / (len(PHASES) - 1), 1.0))

    def _found(self) -> list[RankResult | None]:
        """The result of each rank of this host, None where there is none yet."""
        return [read_result(self.space.directory / f"rank-{rank}.json") for rank in self.ranks]

    def _results(self) -> dict[int, RankResult]:
        return {result.rank: result for result in self._found() if result}

    def _ask_where_they_are(self) -> dict[int, str]:
        """Rank -> the letter of its state. Each one that can writes its stack to its stderr."""
        results = self._results()
        states = {rank: state_of(result.pid) for rank, result in results.items()}
        for rank, result in results.items():
            if states[rank]:
                _ask(result.pid)
        time.sleep(STACK_SECONDS)
        return states

    def _stderr_files(self) -> dict[int, Path]:
        """As torchrun lays them out: RUN/attempt_0/LOCAL_RANK/stderr.log."""
        logs = {}
        for local, rank in enumerate(self.ranks):
            for log in (self.space.directory / "logs").glob(f"*/attempt_0/{local}/stderr.log"):
                logs[rank] = log
        return logs

    def _write_job(self, *, compare: bool) -> Path:
        subject = self.subject
        path = self.space.directory / f"job-{'compare' if compare else 'alone'}.json"
        Job(
            checkpoint=str(self.checkpoint.directory),
            auto_class=subject.spec.auto_class,
            dtype=subject.spec.dtype,
            distributed=subject.sharding.arguments(),
            inputs={name: tensor.tolist() for name, tensor in example_inputs(subject.spec).items()},
            training=subject.training,
            tpu=subject.device != "cpu",
            new_tokens=NEW_TOKENS,
            results=str(self.space.directory),
            compare=compare,
            trust_remote_code=subject.spec.trust_remote_code,
        ).write(path)
        return path

    def _torchrun_options(self) -> list[str]:
        options = {
            "nnodes": self.options.nnodes,
            "nproc-per-node": len(self.ranks),
            "max-restarts": 0,
            "monitor-interval": 0.1,
            "redirects": 3,
            "log-dir": self.space.directory / "logs",
        }
        if self.options.nnodes == 1:
            options |= {"rdzv-backend": "c10d", "rdzv-endpoint": "127.0.0.1:0", "local-addr": "127.0.0.1"}
            options |= {"rdzv-id": self.space.marker}
        else:
            options |= {"rdzv-backend": "static", "rdzv-endpoint": self.options.rdzv_endpoint, "rdzv-id": "tpplan"}
            options |= {"node-rank": self.options.node_rank}
        return [f"--{name}={value}" for name, value in options.items()]

    def _environment(self, *, cpu: bool, ranks: int) -> dict[str, str]:
        """This process's environment without the place in another launch, with temporary files in the workspace."""
        environment = without_torchrun(os.environ)
        temporary = self.space.directory / "tmp"
        temporary.mkdir(exist_ok=True)
        home = str(Path(__file__).resolve().parents[2])
        environment |= {
            "TMPDIR": str(temporary),
            "PYTHONPATH": os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH"), home))),
            "PYTHONSAFEPATH": "1",  # nothing is imported from the directory that the user happens to be in
            "TOKENIZERS_PARALLELISM": "false",
            "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": SHUTDOWN_SECONDS,
        }
        environment.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // ranks)))
        if not self.subject.spec.trust_remote_code:
            environment["HF_HUB_OFFLINE"] = "1"
        if cpu:
            environment |= {AUTOLOAD: "0", "CUDA_VISIBLE_DEVICES": ""}
        else:
            environment.pop(AUTOLOAD, None)
            environment |= self.variables
        if self.options.nnodes == 1 and (loopback := _loopback()):
            environment["GLOO_SOCKET_IFNAME"] = loopback
        return environment

    def _worker(self) -> list[str]:
        return [sys.executable, "-u", "-m", "tpplan.launch.worker"]

    def not_compared(self, reason: str) -> Diagnostic:
        """TPP518: the ranks are run, and their numbers are compared with nothing."""
        return Diagnostic(
            code="TPP518",
            message="the ranks were not compared with the unsharded model, so their numbers are not proven",
            where=Place(file=self.subject.spec.source.name),
            evidence=reason,
            fix="add --miniature: a small model of the same structure is compared",
        )

    def _fails(self, what: str, evidence: str) -> Diagnostic:
        return Diagnostic(
            code="TPP521",
            message=f"the unsharded model {what}, so nothing was learned about the plan",
            where=Place(file=self.subject.spec.source.name),
            evidence=evidence,
        )


def _ask(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGUSR1)
    except ProcessLookupError:
        return  # it ended meanwhile, and so has nothing to tell


def _loopback() -> str | None:
    return next((name for _, name in socket.if_nameindex() if name.startswith("lo")), None)


def _lines(log: Path) -> list[str]:
    text = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
    return [line.strip() for line in text.splitlines() if line.strip(" ^~")]


def _tail(log: Path) -> str:
    """The last lines of a log, in one line."""
    return " | ".join(_lines(log)[-TAIL_LINES:])[-TAIL_CHARACTERS:]


def _stack(log: Path) -> str:
    """The innermost frames that faulthandler wrote last, or the last lines where it wrote none."""
    lines = _lines(log)
    starts = [index for index, line in enumerate(lines) if line.endswith("(most recent call first):")]
    return " | ".join(lines[starts[-1] + 1 :][:TAIL_LINES])[:TAIL_CHARACTERS] if starts else _tail(log)
