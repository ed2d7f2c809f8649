"""An answer that was given before is given again without running anything, and only where nothing moved."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import configs
from tpplan import PlanError, Report, api, engine, fingerprint, plan, remembered
from tpplan.choices import Device
from tpplan.diagnostics import Diagnostic, Stage, Status, Verdict
from tpplan.plan_files.document import ModelFacts, Plan, Target
from tpplan.targets import Attached

PASSED = {"static": Stage(status=Status.PASSED, seconds=1.5)}
MODEL = {"num_attention_heads": 8, "num_key_value_heads": 4}


@pytest.fixture(autouse=True)
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cache of one test."""
    monkeypatch.setenv(remembered.DIRECTORY, str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the questions that reached the engine, which answers with what `said` holds."""
    names: list[str] = []

    def answer(function, request, *args):
        names.append(function.__name__)
        return Report(model=str(request.what), tp_size=request.tp_size, stages=PASSED)

    monkeypatch.setattr(engine, "answer", answer)
    return names


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return Path(configs.write(tmp_path / "model", configs.llama(**MODEL)))


def set_version(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, version: str) -> None:
    """A distribution in a directory of the path, as installing it would leave it."""
    for old in tmp_path.glob("site/*"):
        old.rmdir()
    (tmp_path / "site" / f"other-{version}.dist-info").mkdir(parents=True)
    monkeypatch.syspath_prepend(tmp_path / "site")
    fingerprint._installed.cache_clear()


class TestTheSameQuestion:
    def test_is_asked_once(self, model: Path, asked: list[str]) -> None:
        first, second = api.check(str(model), 2), api.check(str(model), 2)
        assert asked == ["check"]
        assert first.remembered is None and second.remembered
        assert second.to_dict() == first.to_dict() | {"remembered": second.remembered}

    def test_is_asked_again_without_the_cache(self, model: Path, asked: list[str], kept: Path) -> None:
        api.check(str(model), 2, cache=False)
        assert not kept.exists()
        api.check(str(model), 2)
        assert api.check(str(model), 2, cache=False).remembered is None
        assert len(asked) == 3

    def test_is_kept_nowhere_where_the_directory_is_empty(
        self, model: Path, asked: list[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv(remembered.DIRECTORY, "")
        assert [api.check(str(model), 2).remembered for _ in range(2)] == [None, None]
        assert remembered.directory() is None

    def test_is_kept_nowhere_where_the_user_has_no_home(
        self, model: Path, asked: list[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """As in a container whose user has no name: `~` stays, and would be a directory in the current one."""
        monkeypatch.delenv(remembered.DIRECTORY)
        monkeypatch.setattr("platformdirs.user_cache_path", lambda name: Path("~/.cache", name))
        monkeypatch.chdir(model)
        assert [api.check(str(model), 2).remembered for _ in range(2)] == [None, None]
        assert not Path("~").exists()

    def test_in_a_new_process_loads_nothing(self, model: Path, kept: Path) -> None:
        """For check and sizes, on the command line: the real answers, with every stage."""
        script = (
            "import sys; from tpplan.cli import main; code = main(sys.argv[1:]); print(*sys.modules); sys.exit(code)"
        )

        def run(*arguments: str) -> tuple[dict, set[str]]:
            command = [sys.executable, "-c", script, *arguments, "--format", "json"]
            done = subprocess.run(command, capture_output=True, text=True, timeout=120, env={**os.environ})
            assert done.returncode == 0, done.stderr
            document, _, modules = done.stdout.rstrip().rpartition("\n")
            return json.loads(document), {"torch", "transformers"} & set(modules.split())

        for command in (["check", str(model), "--tp-size", "2"], ["sizes", str(model), "--tp-size", "2"]):
            first, loaded = run(*command)
            again, loaded_again = run(*command)
            assert loaded == {"torch", "transformers"} and loaded_again == set()
            report, same = (one["sizes"][0] if "sizes" in one else one for one in (first, again))
            assert report["stages"].keys() == {"static", "shapes", "numerics"}
            assert same.pop("remembered") and same == report


class TestAnotherQuestion:
    """Each of these changes what decides."""

    @pytest.mark.parametrize(
        "options",
        [
            {"tp_size": 4},
            {"purpose": "training"},
            {"device": "tpu-v5e"},
            {"dtype": "float16"},
            {"batch": 2},
            {"max_length": 64},
            {"depth": "static"},
            {"auto_class": "AutoModel"},
            {"overrides": {"lm_head": "replicate"}},
        ],
        ids=lambda options: next(iter(options)),
    )
    def test_option(self, model: Path, asked: list[str], options: dict) -> None:
        api.check(str(model), 2)
        api.check(str(model), **({"tp_size": 2} | options))
        assert len(asked) == 2

    def test_config(self, model: Path, asked: list[str]) -> None:
        api.check(str(model), 2)
        config = json.loads((model / "config.json").read_text())
        configs.write(model, config | {"vocab_size": config["vocab_size"] + 2})
        assert api.check(str(model), 2).remembered is None

    def test_checkpoint(self, model: Path, asked: list[str]) -> None:
        import torch
        from safetensors.torch import save_file

        save_file({"a": torch.zeros(2)}, model / "model.safetensors")
        api.check(str(model), 2)
        save_file({"a": torch.ones(2)}, model / "model.safetensors")
        assert api.check(str(model), 2).remembered, "values of weights decide nothing"
        save_file({"a": torch.zeros(2, dtype=torch.int32)}, model / "model.safetensors")
        assert api.check(str(model), 2).remembered is None

    def test_code_of_the_model(self, model: Path, asked: list[str]) -> None:
        (model / "modeling.py").write_text("A = 1\n")
        api.check(str(model), 2, trust_remote_code=True)
        assert api.check(str(model), 2, trust_remote_code=True).remembered
        (model / "modeling.py").write_text("A = 2\n")
        assert api.check(str(model), 2, trust_remote_code=True).remembered is None

    def test_code_of_another_repository_is_not_known(self, model: Path, asked: list[str]) -> None:
        configs.write(model, configs.llama(auto_map={"AutoConfig": "somebody/other--configuration.Config"}))
        for _ in range(2):
            assert api.check(str(model), 2, trust_remote_code=True).remembered is None

    def test_package(self, model: Path, asked: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        set_version(monkeypatch, tmp_path, "1.0")
        api.check(str(model), 2)
        assert api.check(str(model), 2).remembered
        set_version(monkeypatch, tmp_path, "1.1")
        assert api.check(str(model), 2).remembered is None
        monkeypatch.undo()
        fingerprint._installed.cache_clear()

    def test_a_package_that_runs_from_source_is_not_known(
        self, model: Path, asked: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        (tmp_path / "src" / "transformers").mkdir(parents=True)
        (tmp_path / "src" / "transformers" / "__init__.py").touch()
        monkeypatch.syspath_prepend(tmp_path / "src")
        monkeypatch.delitem(sys.modules, "transformers", raising=False)
        fingerprint._installed.cache_clear()
        for _ in range(2):
            assert api.check(str(model), 2).remembered is None
        fingerprint._installed.cache_clear()

    def test_machine(self, model: Path, asked: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
        """The generation of its TPU is that of `--device tpu`; the cache may be in a home that machines share."""
        assert [bool(api.check(str(model), 2, device="tpu").remembered) for _ in range(2)] == [False, True]
        here = Attached(device=Device.TPU_V5E, usable=4)
        monkeypatch.setattr(fingerprint, "attached_tpus", lambda: here)
        assert api.check(str(model), 2, device="tpu").remembered is None

    def test_what_another_kind_of_name_leads_to(
        self, model: Path, asked: list[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A config in the hub's cache, and then the same in a directory of that name, whose checkpoint counts."""
        monkeypatch.chdir(model.parent)
        hub = Path(configs.write(model.parent / "hub", configs.llama(**MODEL)))
        monkeypatch.setattr(fingerprint, "located", lambda _: (hub / "config.json", None))
        api.check("model", 2)
        monkeypatch.undo()
        monkeypatch.chdir(model.parent)
        monkeypatch.setenv(remembered.DIRECTORY, str(model.parent / "cache"))
        assert api.check("model", 2).remembered is None

    def test_a_path_that_cannot_be_read_is_not_known(
        self, model: Path, asked: list[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def refused() -> str:
            raise PermissionError(13, "Permission denied")

        monkeypatch.setattr(fingerprint, "_installed", refused)
        assert [api.check(str(model), 2).remembered for _ in range(2)] == [None, None]


class TestAChangeMeanwhile:
    """What was read for the answer may be before or after the change, so it is kept for neither."""

    @pytest.fixture
    def edits(self, monkeypatch: pytest.MonkeyPatch) -> list:
        """What happens while the engine answers, each once."""
        todo: list = []

        def answer(_, request, *__):
            if todo:
                todo.pop()()
            return Report(model=str(request.called), tp_size=request.tp_size, stages=PASSED)

        monkeypatch.setattr(engine, "answer", answer)
        return todo

    def test_of_the_config(self, model: Path, edits: list) -> None:
        before = (model / "config.json").read_text()
        edits.append(lambda: configs.write(model, configs.llama(vocab_size=100)))
        api.check(str(model), 2)
        assert api.check(str(model), 2).remembered is None
        (model / "config.json").write_text(before)
        assert api.check(str(model), 2).remembered is None

    def test_of_the_model_that_a_plan_leads_to(self, model: Path, edits: list, tmp_path: Path) -> None:
        facts = ModelFacts(id=str(model), auto_class="AutoModelForCausalLM", config=configs.llama(**MODEL))
        path = tmp_path / "plan.yaml"
        path.write_text(Plan(model=facts, target=Target(tp_size=2), overrides={}).to_yaml())
        edits.append(lambda: configs.write(model, configs.llama(vocab_size=100)))
        api.check(str(path))
        assert api.check(str(path)).remembered is None
        assert api.check(str(path)).remembered


class TestOfAPlan:
    @pytest.fixture
    def file(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        """A plan for a model that is not on this disk, in the directory where the test runs."""
        source = configs.write(tmp_path / "source", configs.llama(**MODEL))
        (tmp_path / "plan.yaml").write_text(plan(source, 2, name="model", cache=False).to_yaml())
        monkeypatch.chdir(tmp_path)
        return tmp_path / "plan.yaml"

    def test_the_file_decides(self, file: Path, request: pytest.FixtureRequest) -> None:
        asked = request.getfixturevalue("asked")
        api.check(str(file))
        assert api.check(str(file)).remembered
        file.write_text(file.read_text().replace("tp_size: 2", "tp_size: 4"))
        assert api.check(str(file)).remembered is None
        assert len(asked) == 2

    def test_a_model_that_came_to_this_disk_decides(self, file: Path, request: pytest.FixtureRequest) -> None:
        request.getfixturevalue("asked")
        api.check(str(file))
        configs.write(file.parent / "model", configs.llama(**MODEL))
        assert api.check(str(file)).remembered is None
        assert api.check(str(file)).remembered
        configs.write(file.parent / "model", configs.llama(vocab_size=100))
        assert api.check(str(file)).remembered is None

    def test_the_model_that_is_given_decides(self, file: Path, request: pytest.FixtureRequest, model: Path) -> None:
        request.getfixturevalue("asked")
        api.check(str(file), model=str(model))
        assert api.check(str(file), model=str(model)).remembered
        configs.write(model, configs.llama(vocab_size=100))
        assert api.check(str(file), model=str(model)).remembered is None


class TestWhatIsKept:
    @pytest.mark.parametrize(
        ("report", "again"),
        [
            (Report(model="m", stages=PASSED), True),
            (Report(model="m", stages=PASSED, diagnostics=(Diagnostic(code="TPP301", message="it"),)), True),
            (Report(model="m", stages={"static": Stage(status=Status.NOT_RUN)}), False),
            (Report(model="m", stages=PASSED, diagnostics=(Diagnostic(code="TPP901", message="it"),)), False),
        ],
        ids=["pass", "fail", "incomplete", "of the environment"],
    )
    def test_verdict(self, model: Path, monkeypatch: pytest.MonkeyPatch, report: Report, again: bool) -> None:
        monkeypatch.setattr(engine, "answer", lambda *_: report)
        api.check(str(model), 2)
        assert bool(api.check(str(model), 2).remembered) == again

    def test_not_what_changed_while_it_was_judged(self, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """The answer may be about what was there before, or after."""

        def answer(*_: object) -> Report:
            configs.write(model, configs.llama(vocab_size=100))
            return Report(model="m", stages=PASSED)

        before = (model / "config.json").read_text()
        monkeypatch.setattr(engine, "answer", answer)
        api.check(str(model), 2)
        (model / "config.json").write_text(before)
        assert api.check(str(model), 2).remembered is None

    def test_that_nothing_passes(self, tmp_path: Path) -> None:
        """The error of `plan` is raised again; here its report has a failure, with all that it said."""
        source = configs.write(tmp_path / "m", configs.llama(**MODEL))
        errors = []
        for _ in range(2):
            with pytest.raises(PlanError) as raised:
                api.plan(str(source), 4, device="tpu-v5e", max_length=10**9)
            errors.append(raised.value.report)
        assert errors[0].verdict is Verdict.FAIL and errors[1].remembered
        assert errors[1].to_dict() == errors[0].to_dict() | {"remembered": errors[1].remembered}

    def test_a_plan_with_all_that_led_to_it(self, tmp_path: Path) -> None:
        source = configs.write(tmp_path / "m", configs.llama(num_attention_heads=8, num_key_value_heads=2))
        first, second = (api.find_plan(str(source), 4, compare=True) for _ in range(2))
        assert second.report.remembered and second.plan == first.plan and second.plan.overrides
        assert second.attempts == first.attempts and second.refused == first.refused
        assert [one.costs for one in second.candidates] == [one.costs for one in first.candidates]
        assert second.chosen in second.candidates

    def test_the_oldest_go(self, kept: Path, model: Path, asked: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(remembered, "KEPT", 2)
        for age, size in enumerate((2, 4, 8)):
            api.check(str(model), size)
            for entry in kept.glob("*.json"):
                os.utime(entry, (entry.stat().st_atime, entry.stat().st_mtime - 10 * (3 - age)))
        assert len(list(kept.glob("*.json"))) == 2
        assert api.check(str(model), 8).remembered and api.check(str(model), 2).remembered is None

    def test_what_a_killed_process_left_goes(self, kept: Path, model: Path, asked: list[str]) -> None:
        kept.mkdir()
        old, new = f"{0:016x}.tmp", f"{1:016x}.tmp"
        for name, age in ((old, 2 * remembered.FORGOTTEN), (new, 1)):
            (kept / name).touch()
            os.utime(kept / name, (0, (kept / name).stat().st_mtime - age))
        api.check(str(model), 2)
        assert [path.name for path in kept.glob("*.tmp")] == [new]

    def test_files_of_others_stay(
        self, kept: Path, model: Path, asked: list[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The variable may name a directory that has more in it; what cannot be removed does not end the pruning."""
        monkeypatch.setattr(remembered, "KEPT", 1)
        kept.mkdir()
        theirs = [kept / name for name in ("config.json", "draft.tmp", f"{2:064x}.json.bak")]
        for path in theirs:
            path.touch()
        for path in (directory := kept / f"{0:064x}.json"), kept / f"{1:064x}.json":
            path.mkdir() if path is directory else path.symlink_to("nowhere")
        for path in kept.iterdir():
            os.utime(path, (0, 0), follow_symlinks=False)
        api.check(str(model), 2)
        assert {*theirs, directory} < {*kept.iterdir()} and len(list(kept.iterdir())) == 5
        assert api.check(str(model), 2).remembered


class TestDamage:
    """Whatever is wrong with the cache, the answer is that of no cache."""

    @pytest.mark.parametrize(
        "damage",
        [
            lambda text: "",
            lambda text: text[: len(text) // 2],
            lambda text: "[1, 2]",
            lambda text: "{}",
            lambda text: text.replace('"passed"', '"great"'),
            lambda text: text.replace('"tp_size": 2', '"tp_size": "2"'),
            lambda text: text.replace('"tp_size"', '"size"'),
            lambda text: "[" * 100_000,
            lambda text: text.replace("static", "\udcff"),
        ],
    )
    def test_entry(self, model: Path, asked: list[str], kept: Path, damage) -> None:
        api.check(str(model), 2)
        (entry,) = kept.glob("*.json")
        entry.write_bytes(damage(entry.read_text()).encode("utf-8", "surrogateescape"))
        assert api.check(str(model), 2).remembered is None
        assert api.check(str(model), 2).remembered, "and it is whole again"

    @pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("/dev/zero"), Path.mkdir])
    @pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="Windows has none of these")
    def test_no_file(self, model: Path, asked: list[str], kept: Path, make) -> None:
        """It is neither waited for nor read to its end, which it does not have."""
        api.check(str(model), 2)
        (entry,) = kept.glob("*.json")
        entry.unlink()
        make(entry)
        assert api.check(str(model), 2).remembered is None

    def test_directory(self, model: Path, asked: list[str], kept: Path) -> None:
        kept.write_text("a file where the directory would be")
        assert [api.check(str(model), 2).remembered for _ in range(2)] == [None, None]

    def test_full_disk(self, model: Path, asked: list[str], kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def full(self, *_: object, **__: object) -> None:
            self.touch()
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(Path, "write_text", full)
        assert [api.check(str(model), 2).remembered for _ in range(2)] == [None, None]
        assert list(kept.iterdir()) == []
