"""python -m tests.versions [VERSION ...] [--python INTERPRETER ...]: the suite's core on other Transformers releases.

Each VERSION is installed in a venv of its own, in a temporary directory, with the rest of the tested set; without
arguments that is done for the oldest supported release and for the newest that pip finds. An INTERPRETER is one that
has everything installed already. The exit code is 0 when all passed.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OLDEST = "5.19.0"
NEWEST = ""
# What decides by release: internals, styles, reading configs, verdicts and repairs, numbers, key matching.
CORE = (
    "test_internals",
    "test_styles",
    "test_configs",
    "test_releases",
    "test_main_job",
    "test_numerics",
    "test_repeats",
    "test_properties",
    "test_public_reports",
    "test_experts",
    "test_remedy",
    "test_extend",
)
# These follow the release of Transformers; the others stay at the tested set.
FOLLOWING = ("transformers", "huggingface_hub", "tokenizers")
WHAT_IS_INSTALLED = (
    "from importlib.metadata import version as v; print('torch', v('torch'), 'Transformers', v('transformers'))"
)


def main(versions: list[str], interpreters: list[str]) -> int:
    """Run the core on each release and with each interpreter. Returns the exit code."""
    if not (versions or interpreters):
        versions = [OLDEST, NEWEST]
    failed = [version or "the newest" for version in versions if not passes_on(version)]
    failed += [python for python in interpreters if not passes_with(python)]
    print(f"failed on: {', '.join(failed)}" if failed else "passed on all")
    return 1 if failed else 0


def passes_on(version: str) -> bool:
    """Whether the core passes on this release of Transformers, NEWEST for the newest, in a venv made for it."""
    with tempfile.TemporaryDirectory(prefix="tpplan-versions-") as directory:
        venv.create(directory, with_pip=True)
        python = str(Path(directory) / "bin" / "python")
        constraints = Path(directory) / "constraints.txt"
        constraints.write_text("\n".join(constraints_without(FOLLOWING)) + "\n", encoding="utf-8")
        wanted = f"transformers=={version}" if version else "transformers"
        install = [python, "-m", "pip", "install", "-q", "-c", str(constraints), "-e", f"{ROOT}[test]", wanted]
        if subprocess.run(install, check=False).returncode:
            print(f"{wanted}: pip cannot install it beside the rest of constraints.txt")
            return False
        return passes_with(python)


def constraints_without(packages: tuple[str, ...]) -> list[str]:
    """The pins of constraints.txt, but for these packages."""
    pins = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    return [pin for pin in pins if pin.partition("==")[0] not in packages]


def passes_with(python: str) -> bool:
    """Whether the core passes with an interpreter that has the packages; tpplan itself is the one of this checkout."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    subprocess.run([python, "-c", WHAT_IS_INSTALLED], check=True, env=environment)
    tests = [f"tests/{name}.py" for name in CORE]
    done = subprocess.run([python, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests], cwd=ROOT, env=environment)
    return done.returncode == 0


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.versions", description=__doc__.partition(": ")[2])
    parser.add_argument("versions", nargs="*", metavar="VERSION", help="a release of Transformers, such as 5.20.2")
    parser.add_argument(
        "--python", action="append", default=[], metavar="INTERPRETER", help="may be given several times"
    )
    return parser.parse_args()


if __name__ == "__main__":
    arguments = parsed()
    sys.exit(main(arguments.versions, arguments.python))
