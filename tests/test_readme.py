"""What README shows is what its commands print. Its setup commands are run by .ci/run, its section on TPU elsewhere.

The models that README names by their hub ids are in a cache that holds their configs, as the hub's own client keeps it.

To write the shown output anew after a change of wording, and then to read the diff, for what it says must be true:

    TPPLAN_WRITE_EXPECTED=1 python -m pytest -n 0 tests/test_readme.py
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from tests.support import readme
from tests.support.golden import WRITE, normalised
from tpplan.cli import main
from tpplan.model.releases import transformers_version

# What the doctor says is about the machine: tests/test_readme_tpu.py compares it as far as it can be the same.
COMMANDS = [shown for shown in readme.shown() if not shown.command.startswith("tpplan doctor ")]

pytestmark = pytest.mark.skipif(transformers_version() < (5, 24), reason="README shows what 5.24 does")


@pytest.fixture(autouse=True)
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(readme.hub_cache(tmp_path / "hub")))
    monkeypatch.chdir(tmp_path)


def test_every_kind_of_output_is_compared() -> None:
    assert {command.command.split()[1] for command in COMMANDS} >= {"check", "sizes"}
    assert len(readme.blocks("yaml")) == 1


@pytest.mark.parametrize("shown", COMMANDS, ids=lambda shown: shown.command)
def test_what_a_command_prints(shown: readme.Shown, capfd: pytest.CaptureFixture) -> None:
    program, *arguments = shlex.split(shown.command)
    assert program == "tpplan"
    main(arguments)
    printed = stripped(capfd.readouterr().out)
    if WRITE:
        if normalised(printed) != normalised(stripped(shown.output)):
            readme.rewrite(shown, printed)
        pytest.skip("written, not compared")
    assert normalised(printed) == normalised(stripped(shown.output))


def stripped(text: str) -> str:
    """Without empty lines around a table, and the spaces that fill its last column."""
    return "\n".join(line.rstrip() for line in text.splitlines()).strip("\n") + "\n"


def test_a_call_in_a_loader() -> None:
    """The first snippet, with a loader that keeps what it is given."""
    calls: list[dict[str, Any]] = []
    loader = SimpleNamespace(from_pretrained=lambda *_, **options: calls.append(options))
    names = {"torch": SimpleNamespace(bfloat16="bfloat16"), "AutoModelForCausalLM": loader}
    exec(readme.blocks("python")[0], names | {"model_id": "zai-org/GLM-4-9B-0414"})
    ((config),) = [call["distributed_config"] for call in calls]
    assert config.tp_size == 4 and len(config.tp_plan) == 4


def test_the_excerpt_of_a_plan(capfd: pytest.CaptureFixture) -> None:
    """`...` stands for more of a mapping, and after the last key of the file there may be more."""
    [text] = readme.blocks("yaml")
    keys = re.sub(r"(?m)^( +)\.\.\.$", r"\1'...':", text.replace(", ...}", ", '...': }"))
    excerpt = yaml.safe_load(keys) | {"...": None}
    target = [f"--{name}={excerpt['target'][name]}" for name in ("device", "purpose", "dtype")]
    assert main(["plan", excerpt["model"]["id"], f"--tp-size={excerpt['target']['tp_size']}", *target]) == 0
    written = yaml.safe_load(capfd.readouterr().out)
    assert agreed(excerpt, written) == excerpt


def agreed(excerpt: Any, written: Any) -> Any:
    """What the excerpt would be, had it been made of what is written."""
    if not isinstance(excerpt, dict) or not isinstance(written, dict):
        return written
    names = excerpt if "..." in excerpt else written
    return {name: agreed(excerpt.get(name), written.get(name)) for name in names}
