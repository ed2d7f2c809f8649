"""The probes: these fail when an installed release moves something that tpplan relies on, and name it."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from types import ModuleType

import pytest

from tests import configs
from tpplan.diagnostics import PlanError
from tpplan.model import internals as door
from tpplan.model.internals import PROBES, internals


@pytest.fixture
def unprobed() -> Iterator[None]:
    """A door that has not been opened yet, before and after."""
    internals.cache_clear()
    yield
    internals.cache_clear()


@pytest.mark.parametrize("name", PROBES)
def test_the_installed_release_has_it_where_it_is_named(name: str) -> None:
    attribute, modules = PROBES[name]
    holders = [module for module in modules if hasattr(door._import(module), attribute)]
    assert holders, f"{attribute} is in none of {', '.join(modules)}"
    assert getattr(internals(), name) is getattr(door._import(holders[0]), attribute)


def test_the_signatures_are_the_ones_that_are_called() -> None:
    known = internals()
    assert list(inspect.signature(known.wildcard).parameters) == ["name"]
    assert list(inspect.signature(known.style_of).parameters) == ["parameter_name", "plan", "is_weight"]
    assert "distributed_config" in inspect.signature(known.mixin.prepare_distribute_model).parameters
    assert len(inspect.signature(known.mixin.maybe_distribute_model).parameters) == 3
    assert "allow_non_fake_inputs" in inspect.signature(known.FakeTensorMode).parameters


def test_the_model_s_own_attributes_are_there() -> None:
    """What build_skeleton and shard read from a model."""
    from transformers import PreTrainedModel

    for name in ("tp_plan", "ep_plan", "tie_weights", "get_output_embeddings"):
        assert hasattr(PreTrainedModel, name), name
    assert "recompute_mapping" in inspect.signature(PreTrainedModel.tie_weights).parameters


class TestMoved:
    """TPP901 names what is missing and what is installed; nothing was checked."""

    @pytest.mark.parametrize("name", ["styles", "style_of", "FakeStore", "no_tie_weights"])
    def test_a_missing_attribute(self, name: str, unprobed: None, monkeypatch: pytest.MonkeyPatch) -> None:
        attribute, modules = PROBES[name]
        for module in modules:
            monkeypatch.delattr(door._import(module), attribute, raising=False)
        (diagnostic,) = missing()
        assert f"{modules[0]}.{attribute}" in diagnostic.evidence
        assert f"transformers {door.versions()['transformers']}" in diagnostic.evidence

    def test_a_missing_module(self, unprobed: None, monkeypatch: pytest.MonkeyPatch) -> None:
        real = door.importlib.import_module

        def without_fake_tensors(name: str) -> ModuleType:
            if name == "torch._subclasses.fake_tensor":
                raise ModuleNotFoundError(name)
            return real(name)

        monkeypatch.setattr(door.importlib, "import_module", without_fake_tensors)
        (diagnostic,) = missing()
        for name in ("FakeTensorMode", "DynamicOutputShapeException"):
            assert f"torch._subclasses.fake_tensor.{name}" in diagnostic.evidence, "all at once"

    def test_a_missing_method(self, unprobed: None, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delattr(internals().mixin, "maybe_distribute_model")
        internals.cache_clear()
        (diagnostic,) = missing()
        assert "DistributedMixin.maybe_distribute_model" in diagnostic.evidence

    def test_is_an_error_of_the_command_line_and_no_bug(
        self, unprobed: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture, tmp_path
    ) -> None:
        from tpplan.cli import main

        monkeypatch.setitem(PROBES, "wildcard", ("moved_away", ("transformers.distributed.tensor_parallel",)))
        assert main(["check", configs.write(tmp_path, configs.llama()), "--tp-size", "2"]) == 1
        printed = capsys.readouterr()
        assert printed.out.startswith("error TPP901 environment: ")
        assert "transformers.distributed.tensor_parallel.moved_away" in printed.out
        assert printed.err == ""


def missing() -> tuple:
    with pytest.raises(PlanError) as caught:
        internals()
    assert all(diagnostic.code == "TPP901" for diagnostic in caught.value.report.diagnostics)
    return caught.value.report.diagnostics
