"""Small faults of a call: refused first, in words of their own, before anything heavy is loaded or run."""

from __future__ import annotations

import importlib.metadata
import json
import os
import subprocess
import sys
import tomllib
from itertools import chain
from pathlib import Path

import pytest

import tpplan
from tests.support import configs
from tpplan import InputError
from tpplan.cli import main
from tpplan.codes import CODES
from tpplan.files import require_writable

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def model(tmp_path: Path) -> str:
    return configs.write(tmp_path / "model", configs.llama())


@pytest.fixture
def nothing_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """No model is opened, so nothing is proven."""
    from tpplan import opening

    def opened(*_: object) -> None:
        raise AssertionError("the model was opened")

    monkeypatch.setattr(opening, "read_source", opened)


class TestInputError:
    def test_its_words_have_the_place(self, tmp_path: Path) -> None:
        plan = tmp_path / "plan.yaml"
        plan.write_text("version: 1\nmodel: [\n", encoding="utf-8")
        with pytest.raises(InputError) as caught:
            tpplan.check(plan)
        assert str(caught.value).startswith(f"{plan}:3:1: TPP102 yaml-syntax: ")

    def test_each_mistake_has_its_own(self, tmp_path: Path) -> None:
        plan = tmp_path / "plan.yaml"
        plan.write_text("version: 1\ntarget: {}\n", encoding="utf-8")
        with pytest.raises(InputError) as caught:
            tpplan.check(plan)
        lines = str(caught.value).splitlines()
        assert len(lines) > 1 and all(line.startswith(f"{plan}:") for line in lines)

    def test_without_a_place_the_code_comes_first(self) -> None:
        with pytest.raises(InputError) as caught:
            tpplan.check("anything", 0)
        assert str(caught.value).startswith("TPP130 bad-usage: ")


@pytest.mark.parametrize(
    "call",
    [
        'tpplan.check("plan.yaml")',
        'tpplan.distributed_config("plan.yaml")',
        'tpplan.check("nowhere.json", 2)',
        'tpplan.check("model", 0)',
        'tpplan.plan("model", 2, name="")',
        'main(["check", "plan.yaml"])',
        'main(["compile", "plan.yaml"])',
        'main(["verify", "plan.yaml"])',
        'main(["plan", "model", "--tp-size", "2", "-o", "no/such/directory.yaml"])',
        'main(["plan", "model", "--tp-size", "2", "--id", ""])',
        'main(["--version"])',
        'main(["explain"])',
    ],
)
def test_loads_neither_torch_nor_transformers(tmp_path: Path, model: str, call: str) -> None:
    """In a process of its own, for this one has them."""
    (tmp_path / "plan.yaml").write_text("version: 1\nmodel: [\n", encoding="utf-8")
    script = (
        "import sys, tpplan\nfrom tpplan.cli import main\n"
        f"try:\n    {call}\nexcept tpplan.InputError as error:\n    print(error)\n"
        "sys.exit('loaded' if {'torch', 'transformers'} & sys.modules.keys() else 0)"
    )
    environment = {"PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1", "PATH": ""}
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout + done.stderr != ""


@pytest.mark.usefixtures("nothing_runs")
class TestRefusedBeforeTheProof:
    @pytest.mark.parametrize(
        ("output", "said"),
        [("no/such/plan.yaml", "No such file or directory"), (".", "not a regular file"), ("", "the name is empty")],
    )
    def test_a_place_for_the_plan(
        self, tmp_path: Path, model: str, capsys: pytest.CaptureFixture, monkeypatch, output: str, said: str
    ) -> None:
        monkeypatch.chdir(tmp_path)
        assert main(["plan", model, "--tp-size", "2", "-o", output]) == 2
        printed = capsys.readouterr()
        assert printed.out == "" and "error TPP101 " in printed.err and said in printed.err

    def test_a_write_protected_file(self, tmp_path: Path, model: str, monkeypatch: pytest.MonkeyPatch) -> None:
        import os

        (tmp_path / "plan.yaml").write_text("kept", encoding="utf-8")
        monkeypatch.setattr(os, "access", lambda *_: False)  # root may write anything
        assert main(["plan", model, "--tp-size", "2", "-o", str(tmp_path / "plan.yaml")]) == 2

    @pytest.mark.parametrize("name", ["", "  "])
    def test_an_empty_name(self, model: str, capsys: pytest.CaptureFixture, name: str) -> None:
        assert main(["plan", model, "--tp-size", "2", "--id", name]) == 2
        assert "error TPP130 bad-usage: the name of the model in the plan is empty" in capsys.readouterr().err


def test_a_place_that_can_be_written_is_left_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "plan.yaml").write_text("kept", encoding="utf-8")
    require_writable(tmp_path / "plan.yaml")
    require_writable(tmp_path / "new.yaml")
    assert [file.name for file in tmp_path.iterdir()] == ["plan.yaml"]
    assert (tmp_path / "plan.yaml").read_text(encoding="utf-8") == "kept"


class TestBadUsage:
    @pytest.mark.parametrize(
        "arguments",
        [["--tp-size", "0"], ["--tp-size", "many"], [], ["--tp-size", "2", "--depth", "deep"], ["--tp-sise", "2"]],
        ids=" ".join,
    )
    def test_has_no_verdict(self, model: str, capsys: pytest.CaptureFixture, arguments: list[str]) -> None:
        assert main(["check", model, *arguments]) == 2
        printed = capsys.readouterr()
        assert "TPP130" in printed.out + printed.err and "verdict" not in printed.out + printed.err

    def test_what_cannot_be_read_is_no_bad_usage(self, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
        assert main(["check", str(tmp_path), "--tp-size", "2"]) == 2
        assert "verdict  incomplete" in capsys.readouterr().out

    @pytest.mark.parametrize("size", ["0", "-1", "many", "2.5"])
    @pytest.mark.parametrize("order", [1, -1])
    def test_json_names_the_model(self, model: str, capsys: pytest.CaptureFixture, size: str, order: int) -> None:
        values = [[model], ["--tp-size", size], ["--format", "json"]][::order]
        assert main(["check", *chain(*values)]) == 2
        assert json.loads(capsys.readouterr().out)["model"] == model


class TestVersion:
    def test_is_one_line(self, capsys: pytest.CaptureFixture) -> None:
        assert main(["--version"]) == 0
        version = importlib.metadata.version
        expected = f"tpplan {tpplan.__version__} (torch {version('torch')}, Transformers {version('transformers')})\n"
        assert capsys.readouterr().out == expected

    def test_stands_in_one_place(self) -> None:
        project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
        assert "version" in project["project"]["dynamic"]
        assert project["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "tpplan.__version__"}


class TestExplain:
    def test_lists_every_code_in_order(self, capsys: pytest.CaptureFixture) -> None:
        assert main(["explain"]) == 0
        assert capsys.readouterr().out.splitlines() == [
            f"{code} {CODES[code].slug}: {CODES[code].title}" for code in sorted(CODES)
        ]

    def test_an_unknown_code_lists_them_in_order(self, capsys: pytest.CaptureFixture) -> None:
        assert main(["explain", "TPP999"]) == 2
        assert f"the codes are {', '.join(sorted(CODES))}\n" in capsys.readouterr().err


def test_launch_says_how_it_is_called(capsys: pytest.CaptureFixture) -> None:
    assert main(["launch", "--help"]) == 0
    words = " ".join(capsys.readouterr().out.split())
    assert "Usage: tpplan launch [OPTIONS] [TORCHRUN OPTIONS] SCRIPT [ARGUMENTS]" in words


@pytest.mark.parametrize("arguments", [["schema"], ["explain", "TPP301"], ["check", "plan.yaml", "--format", "json"]])
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
def test_no_room_for_the_output(tmp_path: Path, arguments: list[str]) -> None:
    with open("/dev/full", "w", encoding="utf-8") as full:
        done = subprocess.run(
            [sys.executable, "-m", "tpplan", *arguments],
            cwd=tmp_path,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
        )
    assert done.returncode == 1 and done.stderr == "there is no room for the output: No space left on device\n"


@pytest.mark.parametrize("output_format", ["text", "json"])
def test_a_reader_that_is_gone_is_no_plan_that_fails(output_format: str) -> None:
    """Nor is it a bug: 141 is what a shell gives for SIGPIPE."""
    command = [sys.executable, "-m", "tpplan", "check", "no.yaml", "--format", output_format]
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "wb") as gone:
        done = subprocess.run(command, cwd=ROOT, stdout=gone, stderr=subprocess.PIPE, text=True)
    assert (done.returncode, done.stderr) == (141, "")


def test_an_encoding_without_the_character_is_no_bug(tmp_path: Path) -> None:
    environment = os.environ | {"PYTHONIOENCODING": "ascii", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-m", "tpplan", "check", "modèle.yaml"], cwd=tmp_path, env=environment, capture_output=True
    )
    assert done.returncode == 2 and b"mod\\xe8le.yaml" in done.stdout + done.stderr
