"""Several models and plans in one call: each has the report of a check of its own, and a death takes only one along."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from tests.support import configs
from tests.support.subjects import rules
from tpplan import InputError, Report, api, scratch, several
from tpplan.cli import main
from tpplan.diagnostics import Stage, Status
from tpplan.plan_files.document import ModelFacts, Plan, Target

LLAMA = configs.llama(num_attention_heads=8, num_key_value_heads=2)
INPUTS = ["plans", "llama", "no.yaml", "plans/whole.yaml"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model, and a directory of plans for it: one that passes, one that fails, one that is broken."""
    home = tmp_path_factory.mktemp("several")
    configs.write(home / "llama", LLAMA)
    facts = ModelFacts(id="llama", auto_class="AutoModelForCausalLM", config=LLAMA)
    for name, letters in (("whole", "qkvo"), ("more/half", "kv")):
        file = home / "plans" / f"{name}.yaml"
        file.parent.mkdir(parents=True, exist_ok=True)
        made = Plan(model=facts, target=Target(tp_size=4), overrides=rules(letters, "replicated_with_grad_allreduce"))
        file.write_text(made.to_yaml(), encoding="utf-8")
    (home / "plans" / "broken.yml").write_text("version: 1\n", encoding="utf-8")
    (home / "plans" / "notes.txt").write_text("no plan\n", encoding="utf-8")
    (home / "plans" / ".hidden.yaml").write_text("no plan\n", encoding="utf-8")
    return home


@pytest.fixture(autouse=True)
def there(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)


@pytest.fixture(scope="module")
def reports(folder: Path) -> list[Report]:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        return api.check_all(INPUTS, 2, jobs=2)


class TestOfAll:
    def test_each_has_its_own_in_order(self, reports: list[Report]) -> None:
        assert [(one.plan, one.model, one.tp_size, str(one.verdict), one.exit_code) for one in reports] == [
            (None, "", None, "incomplete", 2),
            ("plans/more/half.yaml", "llama", 4, "fail", 1),
            ("plans/whole.yaml", "llama", 4, "pass", 0),
            (None, "llama", 2, "pass", 0),
            (None, "", None, "incomplete", 2),
            ("plans/whole.yaml", "llama", 4, "pass", 0),
        ]
        assert [{one.code for one in report.errors} for report in reports[:1]] == [{"TPP103"}]

    def test_each_says_what_one_check_says(self, reports: list[Report]) -> None:
        alone = api.check("plans/more/half.yaml")
        assert alone.diagnostics == reports[1].diagnostics and alone.overrides == reports[1].overrides
        assert alone.stages.keys() == reports[1].stages.keys()

    def test_they_are_one_document(self, reports: list[Report], monkeypatch: pytest.MonkeyPatch, capsys) -> None:
        monkeypatch.setattr(several, "check_each", lambda *_: reports)
        assert main(["check", *INPUTS, "--tp-size", "2", "--format", "json"]) == 2
        document = json.loads(capsys.readouterr().out)
        Draft202012Validator(api.schema("reports")).validate(document)
        assert [one["verdict"] for one in document["reports"]] == [str(one.verdict) for one in reports]

    def test_they_are_one_table_after_what_is_wrong(
        self, reports: list[Report], monkeypatch: pytest.MonkeyPatch, capsys
    ) -> None:
        monkeypatch.setattr(several, "check_each", lambda *_: reports[1:4])
        assert main(["check", *INPUTS, "--tp-size", "2"]) == 1
        printed = capsys.readouterr().out
        said, _, table = printed.partition("model or plan")
        assert said.count("verdict ") == 1 and reports[1].errors[0].message in said
        assert [line.split()[:3] for line in table.splitlines()[2:] if line.strip()] == [
            ["plans/more/half.yaml", "4", "fail"],
            ["plans/whole.yaml", "4", "pass"],
            ["llama", "2", "pass"],
        ]


def test_a_directory_without_plans_is_said_to_be_no_model(tmp_path: Path) -> None:
    assert [one.errors[0].code for one in api.check_all([str(tmp_path)], 2)] == ["TPP110"]


def test_no_name_is_not_the_directory_at_hand() -> None:
    """As of a variable of the shell that is not set."""
    assert [one.plan for one in api.check_all(["", "no.yaml"], 2, depth="static", jobs=1)] == [None, None]


def test_an_option_that_makes_no_sense_is_refused_once() -> None:
    with pytest.raises(InputError, match="depth is 'deep'"):
        api.check_all(INPUTS, 2, depth="deep")


def test_what_is_remembered_starts_no_process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TPPLAN_CACHE", str(tmp_path))
    first = api.check_all(INPUTS, 2, depth="static", jobs=1)
    monkeypatch.setattr(several, "_in_processes", None)
    again = api.check_all([name for name in INPUTS if name != "plans"], 2, depth="static", jobs=2)
    assert [bool(one.remembered) for one in again] == [True, False, True]
    assert [one.to_dict() for one in again if one.remembered] == [
        one.to_dict() | {"remembered": again[0].remembered} for one in first[3:] if one.exit_code == 0
    ]


class TestADeath:
    def test_takes_one_along(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A process dies with whatever it judges when it is the plan named half; the others have their reports."""
        monkeypatch.setattr(several, "checked", dies_at_half)
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))  # where a child finds this module
        reports = api.check_all(["llama", "plans/more/half.yaml", "plans/whole.yaml"], 2, jobs=2)
        assert [str(one.verdict) for one in reports] == ["pass", "incomplete", "pass"]
        assert [one.code for one in reports[1].errors] == ["TPP914"] and reports[1].exit_code == 1

    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
    def test_of_the_parent_ends_the_processes(self, number: int, interruptible: None, tmp_path: Path) -> None:
        (temporary := tmp_path / "tmp").mkdir()
        script = (
            "from tests import test_several; from tpplan import several\n"
            "several.checked = test_several.sleeps\n"
            "from tpplan.cli import main; import sys; sys.exit(main(sys.argv[1:]))"
        )
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "TMPDIR": str(temporary)}
        command = [sys.executable, "-c", script, "check", "llama", "plans/whole.yaml", "--tp-size", "2"]
        with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, start_new_session=True) as parent:
            assert eventually(lambda: len(sleepers()) == 2 and len(list(temporary.glob("tpplan-*"))) == 2)
            parent.send_signal(number)
            parent.wait(20)
            assert parent.returncode != 0
            assert eventually(lambda: not sleepers()), "a process outlived the one that asked"
            assert eventually(lambda: not list(temporary.glob("tpplan-*"))), "its directory did"


def dies_at_half(request, depth: str) -> Report:
    if "half" in request.what:
        os.kill(os.getpid(), signal.SIGKILL)
    return Report(model=request.what, stages={"static": Stage(status=Status.PASSED)})


def sleeps(request, depth: str) -> Report:
    Path("sleepers").mkdir(exist_ok=True)
    Path("sleepers", str(os.getpid())).touch()
    with scratch.directory():
        time.sleep(60)
    raise AssertionError("nobody ended it")


def sleepers() -> list[str]:
    """Processes that began to sleep and still live."""
    there = Path("sleepers")
    return [one.name for one in there.glob("*") if Path("/proc", one.name).exists()] if there.exists() else []


def eventually(condition, seconds: float = 20) -> bool:
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.05)
    return condition()


def test_a_script_without_a_guard_may_call_it(tmp_path: Path) -> None:
    """No process runs the caller's program again."""
    script = tmp_path / "script.py"
    script.write_text(
        "import tpplan; print('begins')\n"
        "reports = tpplan.check_all(['llama', 'plans/whole.yaml'], 2, depth='static', jobs=2)\n"
        "print([str(one.verdict) for one in reports])\n"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, script], env=environment, capture_output=True, text=True, timeout=120)
    assert done.stdout.splitlines() == ["begins", "['pass', 'pass']"] and done.returncode == 0
