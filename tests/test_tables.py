"""Stages, strategies and closed sets are rows of tables: a row added once is run, offered and in the schemas."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import tpplan
from tests.support import configs
from tpplan.api import schema
from tpplan.planner import strategies
from tpplan.planner.strategies import STRATEGIES, StrategyEntry
from tpplan.schemas import SchemaName
from tpplan.stages import table

# A stage as its own file would be: it fails where it is told to.
STAGE = textwrap.dedent(
    """
    from tpplan.diagnostics import Diagnostic, Stage, Status
    from tpplan.stages.result import StageResult

    def run(subject, earlier, bench):
        assert list(earlier) == ["static", "shapes", "numerics"] and all(one.passed for one in earlier.values())
        wrong = subject.sharding.tp_size == 4
        said = (Diagnostic(code="TPP501", message="it said so"),) if wrong else ()
        return StageResult(stage=Stage(status=Status.FAILED if wrong else Status.PASSED), diagnostics=said)
    """
)
ADDED = textwrap.dedent(
    """
    import sys
    from tpplan.stages import table
    table.STAGES += (table.StageEntry(name="more", adds="something more", module="more_stage"),)
    from tpplan.cli import main
    sys.exit(main(sys.argv[1:]))
    """
)


class TestStages:
    @pytest.fixture
    def run(self, tmp_path: Path):
        """The command line of a tpplan with one stage more, in a process of its own."""
        (tmp_path / "more_stage.py").write_text(STAGE, encoding="utf-8")
        configs.write(tmp_path / "model", configs.llama(num_attention_heads=8, num_key_value_heads=4))
        home = str(Path(tpplan.__file__).parents[1])

        def call(*arguments: str) -> subprocess.CompletedProcess:
            path = f"import sys; sys.path[:0] = [{home!r}, {str(tmp_path)!r}]\n"
            command = [sys.executable, "-c", path + ADDED, *arguments]
            wide = os.environ | {"COLUMNS": "200"}
            return subprocess.run(command, cwd=tmp_path, env=wide, capture_output=True, text=True, timeout=300)

        return call

    def test_a_stage_more_is_run_by_default_and_decides(self, run) -> None:
        right, wrong = run("check", "model", "--tp-size", "2"), run("check", "model", "--tp-size", "4")
        assert right.returncode == 0 and "more     passed" in right.stdout, right.stderr
        assert wrong.returncode == 1 and "more     failed" in wrong.stdout and "it said so" in wrong.stdout

    def test_it_is_a_depth_in_help_and_schema(self, run) -> None:
        assert "more: something more" in " ".join(run("check", "--help").stdout.split())
        assert '"more"' in run("schema", "report").stdout
        less = run("check", "model", "--tp-size", "4", "--depth", "shapes")
        assert less.returncode == 0 and "pass without numerics and more" in less.stdout


class TestStrategies:
    @pytest.fixture(autouse=True)
    def one_more(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A strategy that gathers, by a name of its own."""
        entry = StrategyEntry(name="again", summary="gather by another name", style=strategies.gathered)
        monkeypatch.setitem(STRATEGIES, "again", entry)

    def test_it_is_followed_and_written(self, tmp_path: Path) -> None:
        plan = tpplan.plan(configs.write(tmp_path, configs.llama()), 4, strategy="again")
        assert plan.overrides["model.layers.*.self_attn.q_proj"] == "colwise_gather_output"
        assert plan.proven is not None and plan.proven.strategy == "again"

    def test_it_is_in_the_schema_and_others_are_refused(self, tmp_path: Path) -> None:
        assert "again" in schema("sizes")["$defs"]["strategy"]["enum"]
        with pytest.raises(tpplan.InputError, match="TPP130"):
            tpplan.plan(configs.write(tmp_path, configs.llama()), 4, strategy="unheard-of")


@pytest.mark.parametrize("name", SchemaName)
def test_schemas_are_whole(name: SchemaName) -> None:
    """Every reference of a schema leads to a set with values."""
    filled = schema(name)
    text = str(filled)
    for key in ("device", "purpose", "dtype", "stage", "strategy"):
        assert (f"#/$defs/{key}" in text) == (key in filled.get("$defs", {}))
    assert all(values["enum"] for name, values in filled.get("$defs", {}).items() if name != "report")


def test_stages_have_distinct_names() -> None:
    assert len(set(table.names())) == len(table.names()) == len(table.STAGES) + 1
    assert table.depths() == ("static", "shapes", "numerics", "aot"), "contract of the command line"
    assert table.needed() == ("static", "shapes", "numerics")
