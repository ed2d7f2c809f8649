"""A plan with a seal that holds is not proven again; whatever it was not proven for, is."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import tpplan
from tests.support import configs
from tests.support.subjects import rules
from tpplan import InputError, Plan, PlanError, api, engine
from tpplan.cli import main
from tpplan.plan_files import seal
from tpplan.plan_files.file import read_plan

MODEL = configs.llama(num_attention_heads=8, num_key_value_heads=2)
SUMMED = rules("qkvo", "replicated_with_grad_allreduce")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Plan:
    """A plan as `plan` makes it, with overrides and a seal."""
    model = configs.write(tmp_path_factory.mktemp("sealed"), MODEL)
    found = tpplan.plan(model, 4, name="somebody/llama")
    assert found.overrides and found.proven and found.proven.seal
    return found


@pytest.fixture
def file(made: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "plan.yaml"
    path.write_text(made.to_yaml(), encoding="utf-8")
    return path


@pytest.fixture
def proofs(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The plans that the engine was asked to prove; it says that each fails."""
    asked: list[str] = []

    def passing(request, *_: object):
        asked.append(request.called)
        raise PlanError(tpplan.Report(model="proven anew"))

    monkeypatch.setattr(engine, "_passing", passing)
    return asked


class TestBelieved:
    def test_a_plan_file_and_a_plan(self, file: Path, made: Plan, proofs: list[str]) -> None:
        for given in (file, made):
            config = tpplan.distributed_config(given)
            assert (config.tp_size, config.tp_plan) == (4, made.overrides)
        assert proofs == []

    def test_for_a_model_with_the_same_config(self, file: Path, made: Plan, proofs: list[str], tmp_path: Path) -> None:
        same = configs.write(tmp_path / "same", MODEL | {"use_cache": False, "transformers_version": "5.20.0"})
        assert tpplan.distributed_config(file, model=same).tp_plan == made.overrides
        assert proofs == []

    def test_by_compile(self, file: Path, proofs: list[str], capsys: pytest.CaptureFixture) -> None:
        assert main(["compile", str(file)]) == 0
        printed = capsys.readouterr().out
        assert "tp_size=4" in printed and "AutoModelForCausalLM.from_pretrained" in printed
        assert proofs == []

    def test_under_another_name_and_another_build(self, made: Plan, proofs: list[str]) -> None:
        """The name is no fact, and 2.13.0+cpu and 2.13.0 are one release."""
        assert made.proven
        versions = {name: f"{version.partition('+')[0]}+xpu" for name, version in made.proven.versions.items()}
        moved = seal.sealed(replace(made, proven=replace(made.proven, versions=versions)))
        renamed = replace(moved, model=replace(moved.model, id="somebody/else"))
        assert tpplan.distributed_config(renamed).tp_plan == made.overrides
        assert proofs == []


class TestProvenAnew:
    @pytest.mark.parametrize(
        ("old", "new", "said"),
        [
            ("self_attn.q_proj: replicated_with_grad_allreduce", "self_attn.q_proj: colwise", "edited"),
            ("num_key_value_heads: 2", "num_key_value_heads: 4", "edited"),
            ("tp_size: 4", "tp_size: 2", "edited"),
            ("purpose: inference", "purpose: training", "edited"),
            ("numerics: passed", "numerics: not-run", "edited"),
            ("AutoModelForCausalLM", "AutoModel", "edited"),
            ("seal: sha256:", "seal: sha256:0", "edited"),
        ],
    )
    def test_after_an_edit(self, file: Path, proofs: list[str], caplog, old: str, new: str, said: str) -> None:
        text = file.read_text()
        assert text.count(old) == 1
        file.write_text(text.replace(old, new))
        with pytest.raises(PlanError, match=""):
            tpplan.distributed_config(file)
        assert proofs == [str(file)]
        (line,) = [record.getMessage() for record in caplog.records if record.name == "tpplan"]
        assert line == f"{file}: all stages run again: it was edited since it was proven"

    def test_without_a_seal_and_without_a_word(self, made: Plan, proofs: list[str], caplog) -> None:
        for plan in (replace(made, proven=None), replace(made, proven=replace(made.proven, seal=None))):
            with pytest.raises(PlanError):
                tpplan.distributed_config(plan)
        assert len(proofs) == 2 and not caplog.records

    @pytest.mark.parametrize("package", ["torch", "transformers", "tpplan"])
    def test_with_another_release(self, made: Plan, proofs: list[str], caplog, package: str) -> None:
        assert made.proven
        older = replace(made.proven, versions=made.proven.versions | {package: "1.0"})
        with pytest.raises(PlanError):
            tpplan.distributed_config(seal.sealed(replace(made, proven=older)))
        assert proofs and f"it was proven with {package} 1.0, installed is " in caplog.text

    def test_where_a_stage_did_not_pass(self, made: Plan, proofs: list[str], caplog) -> None:
        assert made.proven
        for stages in (made.proven.stages | {"numerics": "failed"}, {"static": "passed", "shapes": "passed"}):
            with pytest.raises(PlanError):
                tpplan.distributed_config(seal.sealed(replace(made, proven=replace(made.proven, stages=stages))))
        assert len(proofs) == 2 and caplog.text.count("numerics was not proven") == 2

    @pytest.mark.parametrize(
        "options",
        [{"purpose": "training"}, {"device": "tpu-v5e"}, {"dtype": "float16"}, {"batch": 2}, {"max_length": 9}],
    )
    def test_for_more_than_it_was_proven_for(self, made: Plan, proofs: list[str], caplog, options: dict) -> None:
        with pytest.raises(PlanError):
            tpplan.distributed_config(made, **options)
        assert len(proofs) == 1 and next(iter(options)) in caplog.text

    def test_for_what_it_was_proven_for_it_is_not(self, made: Plan, proofs: list[str]) -> None:
        tpplan.distributed_config(made, purpose="inference", device="cpu", dtype=made.target.dtype)
        assert proofs == []

    @pytest.mark.parametrize("change", [{"num_key_value_heads": 4}, {"tie_word_embeddings": True}])
    def test_for_another_config(self, file: Path, proofs: list[str], caplog, tmp_path: Path, change: dict) -> None:
        other = configs.write(tmp_path / "other", MODEL | change)
        with pytest.raises(PlanError):
            tpplan.distributed_config(file, model=other)
        assert proofs and "the config differs" in caplog.text and next(iter(change)) in caplog.text

    def test_for_a_quantized_checkpoint(self, file: Path, proofs: list[str], caplog, tmp_path: Path) -> None:
        quantized = {"quant_method": "fp8", "weight_block_size": [32, 32], "activation_scheme": "dynamic"}
        other = configs.write(tmp_path / "other", MODEL | {"quantization_config": quantized})
        with pytest.raises(PlanError):
            tpplan.distributed_config(file, model=other)
        assert proofs and "quantization_config" in caplog.text

    def test_for_code_of_the_model(self, file: Path, made: Plan, proofs: list[str], caplog, tmp_path: Path) -> None:
        """It may change without a word in config or versions. Where none is run, the seal holds."""
        code = configs.write(tmp_path / "code", MODEL | {"auto_map": {"AutoModelForCausalLM": "modeling.Own"}})
        tpplan.distributed_config(file, model=code)
        tpplan.distributed_config(file, trust_remote_code=True)
        assert proofs == []
        with pytest.raises(PlanError):
            tpplan.distributed_config(file, model=code, trust_remote_code=True)
        assert proofs and "the code of the model" in caplog.text

    def test_for_a_tpu_that_this_machine_names(self, made: Plan, proofs: list[str], caplog) -> None:
        """Another machine has another one, or none."""
        with pytest.raises(PlanError):
            tpplan.distributed_config(seal.sealed(replace(made, target=replace(made.target, device="tpu"))))
        assert proofs and "no named generation" in caplog.text

    def test_where_that_is_asked_for(self, file: Path, proofs: list[str], capsys: pytest.CaptureFixture) -> None:
        with pytest.raises(PlanError):
            tpplan.distributed_config(file, trust="never")
        assert main(["compile", str(file), "--require-proof"]) == 1
        assert len(proofs) == 2
        with pytest.raises(InputError, match="trust is 'maybe'"):
            tpplan.distributed_config(file, trust="maybe")

    def test_where_loading_depends_on_the_checkpoint(self, made: Plan, proofs: list[str], monkeypatch, caplog) -> None:
        on_tpu = seal.sealed(replace(made, target=replace(made.target, device="tpu-v5e")))
        tpplan.distributed_config(on_tpu)
        assert proofs == []
        monkeypatch.setattr("tpplan.opening.transformers_version", lambda: (5, 22, 1))
        with pytest.raises(PlanError):
            tpplan.distributed_config(on_tpu)
        assert "depends on the checkpoint" in caplog.text


@pytest.mark.parametrize("options", [{"batch": 2}, {"max_length": 8}])
def test_what_a_plan_does_not_say_is_not_sealed(tmp_path: Path, options: dict) -> None:
    """Memory that is enough for 8 tokens may not be for as many as the model takes."""
    made = tpplan.plan(configs.write(tmp_path, MODEL), 2, **options)
    assert made.proven and made.proven.seal is None and made.proven.stages["numerics"] == "passed"


class TestUpdate:
    def test_a_plan_that_passes_is_sealed(self, file: Path, made: Plan, capsys: pytest.CaptureFixture) -> None:
        """An edit that is right: the proof is written, and the comments that a person put in stay."""
        text = file.read_text().replace("overrides:", "# why: two key/value heads\noverrides:")
        text = text.replace("  purpose: inference", "  purpose: inference  # for now")
        start = text.index("proven:")
        text = text[:start] + "proven:\n  stages: {}\n  versions: {torch: '1.0'}\n# the end\n"
        file.write_text(text)
        assert main(["check", str(file), "--update"]) == 0
        after = file.read_text()
        assert after.startswith(text[:start]) and after.endswith("# the end\n")
        again = read_plan(file).plan
        assert again.overrides == made.overrides and again.proven and again.proven.seal
        assert seal.broken(again, again.proven.versions, ("static", "shapes", "numerics")) == ""
        assert main(["check", str(file), "--update"]) == 0 and file.read_text() == after

    def test_one_that_fails_stays_as_it_is(self, file: Path) -> None:
        text = file.read_text().replace("self_attn.q_proj: replicated_with_grad_allreduce", "self_attn.q_proj: colwise")
        file.write_text(text)
        assert main(["check", str(file), "--update"]) == 1
        assert file.read_text() == text

    @pytest.mark.parametrize("options", ["--depth shapes", "--purpose training", "--batch 2", "--trust-remote-code"])
    def test_what_proves_too_little_is_refused(self, file: Path, options: str, capsys) -> None:
        before = file.read_text()
        assert main(["check", str(file), "--update", *options.split()]) == 2
        assert "TPP130" in capsys.readouterr().out and file.read_text() == before

    @pytest.mark.parametrize(
        ("before", "after"),
        [
            ("", "NEW"),
            ("proven:\n  stages: {}\n  versions: {}\n", "NEW"),
            ("proven:\n  stages: {}\n  versions: {}\n\n# of the target\n", "NEW\n# of the target\n"),
        ],
    )
    def test_the_part_is_found_wherever_it_stands(self, made: Plan, tmp_path: Path, before: str, after: str) -> None:
        """First, last, or not there; on lines of its own."""
        rest = replace(made, proven=None).to_yaml()
        proof = made.proven_yaml()
        report = replace(tpplan.Report(model="m"), versions=made.proven.versions, stages=passed())
        for text, wanted in ((before + rest, after + rest), (rest + before, rest + after)):
            path = tmp_path / "p.yaml"
            path.write_text(text)
            seal.update(str(path), report, seal.unproven(str(path)))
            strategy = f"  strategy: {made.proven.strategy}\n"
            expected = (
                wanted.replace("NEW", proof.replace(strategy, "")) if before else rest + proof.replace(strategy, "")
            )
            without = [line for line in path.read_text().splitlines() if "seal:" not in line]
            assert without == [line for line in expected.splitlines() if "seal:" not in line]

    def test_lines_end_as_they_did(self, made: Plan, tmp_path: Path) -> None:
        path = tmp_path / "p.yaml"
        path.write_bytes(replace(made, proven=None).to_yaml().replace("\n", "\r\n").encode())
        report = replace(tpplan.Report(model="m"), versions=made.proven.versions, stages=passed())
        seal.update(str(path), report, seal.unproven(str(path)))
        assert read_plan(path).plan.proven and b"\n" not in path.read_bytes().replace(b"\r\n", b"")

    def test_a_layout_that_has_no_lines_for_it_is_left_alone(self, made: Plan, tmp_path: Path) -> None:
        import json

        path = tmp_path / "p.yaml"
        path.write_text(json.dumps(made.to_dict()))
        before = path.read_text()
        report = replace(tpplan.Report(model="m"), versions=made.proven.versions, stages=passed())
        with pytest.raises(InputError, match="nothing was changed"):
            seal.update(str(path), report, replace(made, proven=None))
        assert path.read_text() == before

    @pytest.mark.parametrize(
        ("meanwhile", "said"),
        [
            (lambda path: path.write_text(path.read_text().replace("q_proj: repl", "x_proj: repl")), "was edited"),
            (Path.unlink, "no such file"),
            (lambda path: path.write_bytes(b"\xff"), "not UTF-8"),
            (lambda path: path.write_text("# why\n" + path.read_text()), ""),
        ],
        ids=["edited", "gone", "no text", "a comment"],
    )
    def test_what_the_file_says_by_now_is_not_sealed_unproven(
        self, file: Path, made: Plan, monkeypatch: pytest.MonkeyPatch, meanwhile, said: str
    ) -> None:
        """The same file twice, under two names, is sealed twice."""
        assert made.proven
        report = replace(tpplan.Report(model="m"), versions=made.proven.versions, stages=passed())
        Path("same.yaml").symlink_to(file)
        names = [str(file), "same.yaml"]

        def check_each(*_: object) -> list[tpplan.Report]:
            meanwhile(file)
            return [replace(report, plan=name) for name in names]

        monkeypatch.setattr("tpplan.several.check_each", check_each)
        if said:
            with pytest.raises(InputError, match=said):
                api.check_all(names, update=True)
        else:
            api.check_all(names, update=True)
            assert file.read_text().startswith("# why\n") and read_plan(file).plan.proven


def passed() -> dict:
    from tpplan.diagnostics import Stage, Status

    return {name: Stage(status=Status.PASSED) for name in ("static", "shapes", "numerics")}


def test_shipped_plans_are_sealed() -> None:
    """With the tested set of packages none of them is proven again."""
    plans = sorted((Path(__file__).parents[1] / "plans").glob("*.yaml"))
    assert len(plans) >= 5
    for path in plans:
        plan = read_plan(path).plan
        assert plan.proven and plan.proven.seal == seal._digest(plan), path.name
