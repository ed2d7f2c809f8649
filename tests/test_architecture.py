"""The shape of the package: imports go one way, and Transformers has one door. Tests share helpers only."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import tpplan

ROOT = Path(tpplan.__file__).parent
TESTS = Path(__file__).parent


def imports(file: Path) -> Iterator[str]:
    """Every module that a file imports, at its top or inside a function."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module == "tpplan":
            yield from (f"tpplan.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module


def test_no_part_imports_one_above_it() -> None:
    """The parts are the packages and modules directly under tpplan; a cycle among them is a CycleError."""
    above: dict[str, set[str]] = {}
    for file in ROOT.rglob("*.py"):
        part = file.relative_to(ROOT).parts[0].removesuffix(".py")
        if not part.startswith("__"):
            ours = {name.split(".")[1] for name in imports(file) if name.startswith("tpplan.")}
            above.setdefault(part, set()).update(ours - {part, "__version__"})
    order = list(TopologicalSorter(above).static_order())
    assert len(order) > 20 and order.index("cli") > order.index("api") > order.index("planner") > order.index("model")
    assert not any("cli" in below for below in above.values()), "nothing imports the command line"


def test_only_the_door_imports_transformers() -> None:
    """Besides it: the call that returns a DistributedConfig, and the programs of children (a rank, an import tried)."""
    importers = {
        str(file.relative_to(ROOT))
        for file in ROOT.rglob("*.py")
        if any(name.split(".")[0] == "transformers" for name in imports(file))
    }
    assert {name for name in importers if not name.startswith("model/")} == {
        "api.py",
        "doctor/imports.py",
        "launch/worker.py",
    }


def test_no_test_module_imports_another() -> None:
    """What two of them need is in tests/support, which imports none of them either."""
    seen = {file: set(imports(file)) | relative_imports(file) for file in TESTS.rglob("*.py")}
    assert len(seen) > 40 and any("tests.support" in name for names in seen.values() for name in names)
    found = {
        str(file.relative_to(TESTS)): name
        for file, names in seen.items()
        for name in names
        if name.rpartition(".")[2].startswith("test_")
    }
    assert found == {}


def relative_imports(file: Path) -> set[str]:
    """The names that `from . import name` and `from tests import name` bring in, which may be modules."""
    nodes = [node for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))) if isinstance(node, ast.ImportFrom)]
    return {alias.name for node in nodes if node.level or node.module == "tests" for alias in node.names}
