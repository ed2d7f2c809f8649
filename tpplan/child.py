"""A library call carried out in a fresh process, for callers whose own process already belongs to a process group."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from typing import Any

from tpplan.garbage import collect_less_often
from tpplan.launcher_variables import without_torchrun
from tpplan.targets import AUTOLOAD


def call_in_child(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """What `function(*args, **kwargs)` returns, or raises, in a new process, which imports it by its name."""
    done = subprocess.run(
        [sys.executable, "-m", "tpplan.child"],
        input=pickle.dumps((function, args, kwargs)),
        stdout=subprocess.PIPE,
        env=without_torchrun(os.environ) | {AUTOLOAD: "0"},
        check=False,
    )
    if done.returncode:
        raise RuntimeError(
            f"the process that ran {function.__name__} ended with code {done.returncode}; see its stderr"
        )
    returned, value = pickle.loads(done.stdout)
    if not returned:
        raise value
    return value


def main() -> None:
    """The child's side: a pickled call on stdin, its pickled outcome on stdout, everything printed on stderr."""
    outcome_stream = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    collect_less_often()
    function, args, kwargs = pickle.load(sys.stdin.buffer)
    from tpplan.diagnostics import PlanError

    try:
        outcome = (True, function(*args, **kwargs))
    except PlanError as error:
        outcome = (False, error)
    with outcome_stream:
        pickle.dump(outcome, outcome_stream)


if __name__ == "__main__":
    main()
