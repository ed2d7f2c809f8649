"""The probes: these fail when an installed release moves something that tpplan relies on, and name it."""

from __future__ import annotations

import inspect
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from tests.support import configs
from tpplan.diagnostics import PlanError
from tpplan.model import internals as door
from tpplan.model.internals import ARGUMENTS, MEMBERS, PROBES, internals
from tpplan.model.releases import OLDEST, STYLES_SINCE, dotted, transformers_version
from tpplan.model.skeleton import known_styles

members = [(name, member) for name, names in MEMBERS.items() for member in names]
arguments = [(called, argument) for called, names in ARGUMENTS.items() for argument in names]
modules = sorted({module for _, holders in PROBES.values() for module in holders[:1]})


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


def test_the_oldest_release_is_the_one_that_is_asked_for() -> None:
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert f"transformers>={dotted(OLDEST)}" in project["dependencies"]


@pytest.mark.parametrize("style", STYLES_SINCE)
def test_a_style_is_there_since_the_release_that_is_named(style: str) -> None:
    assert (style in known_styles()) is (transformers_version() >= STYLES_SINCE[style])


class TestTakenAway:
    """TPP901 names what is missing and what is installed; nothing was checked."""

    @pytest.mark.parametrize("name", PROBES)
    def test_an_attribute(self, name: str, unprobed: None, monkeypatch: pytest.MonkeyPatch) -> None:
        attribute, modules = PROBES[name]
        for module in filter(None, map(door._import, modules)):
            monkeypatch.delattr(module, attribute, raising=False)
        assert said(monkeypatch) == [f"{modules[0]}.{attribute}"]

    @pytest.mark.parametrize(("name", "member"), members, ids=[".".join(pair) for pair in members])
    def test_a_member_of_a_class(self, name: str, member: str, unprobed: None, monkeypatch: pytest.MonkeyPatch) -> None:
        for holder in getattr(internals(), name).__mro__:
            if member in vars(holder):
                monkeypatch.delattr(holder, member)
        assert f"{PROBES[name][0]}.{member}" in said(monkeypatch)

    @pytest.mark.parametrize(("called", "argument"), arguments, ids=[" ".join(pair) for pair in arguments])
    def test_an_argument(self, called: str, argument: str, unprobed: None, monkeypatch: pytest.MonkeyPatch) -> None:
        name, _, member = called.partition(".")
        attribute, modules = PROBES[name]
        holder = next(m for m in map(door._import, modules) if hasattr(m, attribute))
        if member:
            monkeypatch.setattr(getattr(holder, attribute), member, lambda self: None)
        else:
            monkeypatch.setattr(holder, attribute, lambda: None)
        shown = attribute + (f".{member}" if member else "")
        assert said(monkeypatch) == [f"the argument {argument} of {shown}"]

    @pytest.mark.parametrize("name", modules)
    def test_a_module(self, name: str, unprobed: None, monkeypatch: pytest.MonkeyPatch) -> None:
        """All that it held is named at once; what an older module held instead is found there."""
        real = door.importlib.import_module

        def without(asked: str) -> ModuleType:
            if asked == name:
                raise ModuleNotFoundError(asked)
            return real(asked)

        monkeypatch.setattr(door.importlib, "import_module", without)
        only_there = {
            f"{holders[0]}.{attribute}"
            for attribute, holders in PROBES.values()
            if name in holders and not any(hasattr(door._import(other), attribute) for other in holders)
        }
        if only_there:
            assert set(said(monkeypatch)) == only_there
        else:
            assert internals()

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

    def test_an_old_release_is_to_be_replaced(self, unprobed: None, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(PROBES, "wildcard", ("not_there_yet", ("transformers.distributed.tensor_parallel",)))
        monkeypatch.setattr(door, "transformers_version", lambda: (5, 18, 2))
        with pytest.raises(PlanError) as caught:
            internals()
        assert caught.value.report.diagnostics[0].fix == "install Transformers 5.19 or newer"

    def test_is_said_before_the_model_is_blamed(
        self, unprobed: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture, tmp_path
    ) -> None:
        """A class that does not build is TPP116, unless it is the installation that lacks what builds it."""
        from tpplan.cli import main

        monkeypatch.delattr(door._import("transformers.initialization"), "no_tie_weights")
        assert main(["check", configs.write(tmp_path, configs.llama()), "--tp-size", "2"]) == 1
        assert "TPP901" in capsys.readouterr().out


def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the door, opened anew, says is missing. The release is itself again afterwards."""
    internals.cache_clear()
    with pytest.raises(PlanError) as caught:
        internals()
    monkeypatch.undo()
    (diagnostic,) = caught.value.report.diagnostics
    assert diagnostic.code == "TPP901"
    missing, _, installed = diagnostic.evidence.removeprefix("missing: ").partition("; installed: ")
    assert f"transformers {door.versions()['transformers']}" in installed
    return missing.split("; ")
