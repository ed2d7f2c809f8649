"""The test command of a mutation run: the tests that must notice a change of the module that is changed.

    python -m tests.mutation --serve &                      torch and Transformers imported once, a fork for each mutant
    cosmic-ray init tests/mutation.toml mutants.sqlite
    cr-filter-operators mutants.sqlite tests/mutation.toml
    python -m tests.mutation --skip mutants.sqlite     decorators: nobody's dataclass is called otherwise
    cosmic-ray exec tests/mutation.toml mutants.sqlite
    cr-report mutants.sqlite --show-diff --surviving-only

It changes the files under tpplan/ one at a time, so the working tree must have no changes there: use a worktree. Which
module is changed is what `git diff` says. Without a server the tests run in this process. With files named, as in
`python -m tests.mutation tpplan/diagnostics.py`, their tests are run.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import tests.conftest  # noqa: F401  the environment that the libraries read when they are imported

ROOT = Path(__file__).resolve().parent.parent
SOCKET = Path(tempfile.gettempdir()) / f"tpplan-mutation-{hashlib.sha1(str(ROOT).encode()).hexdigest()[:12]}.sock"

PROOF = ("test_numerics_faults", "test_numerics", "test_outcomes")
PLANS = ("test_remedy", "test_outcomes", "test_experts", "test_extend", "test_costs", "test_one_verdict")
PLANS += ("test_main_job",)
STATIC = ("test_configs", "test_main_job", "test_outcomes", "test_cases", "test_properties")
# The longest beginning of a module's path counts. The first file to fail ends the run, so the quickest come first.
TESTS: dict[str, tuple[str, ...]] = {
    "tpplan/diagnostics": ("test_verdict", "test_usage", "test_outcomes"),
    "tpplan/rendering": ("test_usage", "test_cases", "test_schema"),
    "tpplan/targets": ("test_targets", "test_memory_bounds"),
    "tpplan/subject": STATIC,
    "tpplan/engine": ("test_judgement", "test_outcomes", "test_costs", "test_one_verdict", "test_usage"),
    "tpplan/api": ("test_outcomes", "test_usage", "test_main_job"),
    "tpplan/checks": STATIC,
    "tpplan/checks/experts": ("test_experts", "test_cases"),
    "tpplan/checks/memory": ("test_memory_bounds", "test_cases", "test_configs"),
    "tpplan/checks/quantization": ("test_quantization", "test_cases"),
    "tpplan/checks/scales": ("test_quantization", "test_cases"),
    "tpplan/checks/targets": ("test_targets", "test_cases"),
    "tpplan/launch/compare": ("test_difference", "test_launch_report"),
    "tpplan/launch/findings": ("test_launch_report", "test_outcomes"),
    "tpplan/launch/verify": ("test_judgement", "test_outcomes", "test_launch"),
    "tpplan/miniature": ("test_numerics_faults", "test_numerics"),
    "tpplan/model/simulation": PROOF,
    "tpplan/planner": PLANS,
    "tpplan/planner/candidates": ("test_judgement", "test_costs", "test_outcomes"),
    "tpplan/planner/extend": ("test_extend",),
    "tpplan/difference": ("test_difference",),
    "tpplan/stages/judge": ("test_judgement", *PROOF, "test_one_verdict", "test_cases"),
    "tpplan/stages/bench": ("test_judgement", "test_remedy", "test_costs"),
    "tpplan/stages/result": ("test_judgement", "test_remedy"),
    "tpplan/stages/load": PROOF,
    "tpplan/stages/causes": ("test_judgement", "test_one_fault", "test_one_verdict"),
    "tpplan/stages/comparison": PROOF,
    "tpplan/stages/costs": ("test_memory_bounds", "test_costs"),
    "tpplan/stages/full_size": ("test_shapes_faults", "test_repeats", "test_main_job"),
    "tpplan/stages/numerics": PROOF,
    "tpplan/stages/shapes": ("test_shapes_faults", "test_one_verdict", "test_main_job"),
    "tpplan/stages/static": ("test_one_verdict", *STATIC),
    "tpplan/stages/table": ("test_tables",),
    "tpplan/stages": PROOF,
    "tpplan/stages/stand_in": ("test_shapes_faults", "test_experts"),
    "tpplan/stages/usage": ("test_costs", "test_memory_bounds"),
}
WARM = ("torch", "torch.distributed.tensor", "transformers", "transformers.models.auto.modeling_auto", "pytest")
WARM += ("hypothesis", "jsonschema", "transformers.models.llama.modeling_llama", "transformers.modeling_utils")


def tests_of(modules: list[str]) -> list[str]:
    """The files of tests that must notice a change in one of these; all that any module has, where none is changed."""
    wanted = [TESTS[max((known for known in TESTS if module.startswith(known)), key=len)] for module in modules]
    names = dict.fromkeys(name for tests in wanted or TESTS.values() for name in tests)
    return [f"tests/{name}.py" for name in names]


def changed_modules() -> list[str]:
    command = ["git", "diff", "--name-only", "HEAD", "--", "tpplan/*.py"]
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split()


def run(tests: list[str]) -> int:
    """Run these files in this process, not in workers, up to the first failure. Returns pytest's exit code."""
    import pytest

    sys.dont_write_bytecode = True
    os.chdir(ROOT)
    return int(pytest.main(["-x", "-q", "-n", "0", "--no-header", "-p", "no:cacheprovider", *tests]))


def ask(tests: list[str]) -> int:
    """Have a server run these files. Raises ConnectionError, or FileNotFoundError, where there is none."""
    with socket.socket(socket.AF_UNIX) as asked:
        asked.connect(str(SOCKET))
        asked.sendall(("\n".join(tests) + "\n\n").encode())
        with asked.makefile("rb") as answer:
            *lines, last = answer.read().rpartition(b"\n")
    sys.stdout.write(b"".join(lines).decode(errors="replace"))
    return int(last)


def serve() -> None:
    """Import what all tests need and run what is asked for, each in a fork, until interrupted."""
    for name in WARM:
        importlib.import_module(name)
    SOCKET.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(SOCKET))
        listening.listen()
        while True:
            asking, _ = listening.accept()
            with asking:
                _answer(asking)


def _answer(asking: socket.socket) -> None:
    with asking.makefile("rb") as lines:
        tests = [line.decode() for line in iter(lambda: lines.readline().strip(), b"")]
    if not tests:
        return
    child = os.fork()
    if not child:
        os.setsid()
        for stream in (1, 2):
            os.dup2(asking.fileno(), stream)
        code = 1
        try:
            code = run(tests)
        finally:
            sys.stdout.flush()
            os._exit(code)
    asking.setblocking(False)
    while not (ended := os.waitpid(child, os.WNOHANG))[0]:
        try:
            gone = asking.recv(1) == b""
        except BlockingIOError:
            gone = False
        if gone:  # its time was up
            os.killpg(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return
        time.sleep(0.02)
    asking.setblocking(True)
    asking.sendall(f"\n{os.waitstatus_to_exitcode(ended[1])}".encode())


def skip(database: str) -> None:
    """Leave out of a run what changes a decorator: `kw_only` and `frozen` forbid what no caller does."""
    from cosmic_ray.work_db import WorkDB, use_db
    from cosmic_ray.work_item import WorkerOutcome, WorkResult

    with use_db(database, WorkDB.Mode.open) as mutants:
        for mutant in list(mutants.pending_work_items):
            where = mutant.mutations[0]
            line = Path(where.module_path).read_text(encoding="utf-8").splitlines()[where.start_pos[0] - 1]
            if line.lstrip().startswith("@"):
                mutants.set_result(mutant.job_id, WorkResult(worker_outcome=WorkerOutcome.SKIPPED, output="decorator"))


def main(arguments: list[str]) -> int:
    if arguments == ["--serve"]:
        serve()
    if arguments[:1] == ["--skip"]:
        skip(arguments[1])
        return 0
    tests = tests_of(arguments or changed_modules())
    try:
        return ask(tests)
    except (ConnectionError, FileNotFoundError):
        return run(tests)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
