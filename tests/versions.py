"""python -m tests.versions [VERSION ...]: the suite's core on other Transformers releases, each in a venv of its own.

Without arguments: the oldest supported release and the newest that pip finds. The exit code is 0 when all passed.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OLDEST = "5.19.0"
# What decides by version: the internals, the table of styles, verdicts and repairs, numbers, key matching.
CORE = ["test_internals", "test_styles", "test_main_job", "test_numerics", "test_repeats", "test_properties"]
# These follow the release of Transformers; the others stay at the tested set.
FOLLOWING = ("transformers", "huggingface_hub", "tokenizers")


def main(versions: list[str]) -> int:
    failed = [version for version in versions or [OLDEST, ""] if not _passes(version)]
    print(f"failed on: {', '.join(version or 'the newest' for version in failed)}" if failed else "passed on all")
    return 1 if failed else 0


def _passes(version: str) -> bool:
    with tempfile.TemporaryDirectory(prefix="tpplan-versions-") as directory:
        venv.create(directory, with_pip=True)
        python = str(Path(directory) / "bin" / "python")
        constraints = Path(directory) / "constraints.txt"
        pins = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
        constraints.write_text("\n".join(pin for pin in pins if not pin.startswith(FOLLOWING)), encoding="utf-8")
        wanted = f"transformers=={version}" if version else "transformers"
        install = [python, "-m", "pip", "install", "-q", "-c", str(constraints), "-e", f"{ROOT}[test]", wanted]
        subprocess.run(install, check=True)
        tests = [f"tests/{name}.py" for name in CORE]
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        done = subprocess.run([python, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests], cwd=ROOT, env=environment)
        return done.returncode == 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
