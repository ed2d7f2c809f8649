"""What is made of the results of stages, without running any: sound, passed, the fault, the cause, the best plan.

Each is a table with what must come out written.
"""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support import configs
from tests.support.subjects import rules, subject
from tpplan import engine
from tpplan.choices import Optimize
from tpplan.codes import CODES, Severity
from tpplan.diagnostics import BytesPerRank, Diagnostic, Memory, Place, PlanError, Report, Stage, Status
from tpplan.launch import verify
from tpplan.launch.options import LaunchOptions
from tpplan.planner import candidates
from tpplan.planner.candidates import Candidate, best
from tpplan.request import Request
from tpplan.stages.bench import Bench
from tpplan.stages.causes import CAUSES, cause_of, with_evidence
from tpplan.stages.costs import Costs
from tpplan.stages.judge import Judgement, in_order, judge
from tpplan.stages.result import Fault, FaultKind, GradientError, StageResult
from tpplan.stages.usage import Collective, Usage

NAMES = ("static", "shapes", "numerics")
STATUSES = {"+": Status.PASSED, "-": Status.FAILED, "?": Status.NOT_RUN}


def judgement(marks: str, *codes: str) -> Judgement:
    """Of stages that passed (+), failed (-) or did not run (?), and of what is said."""
    results = {name: StageResult(stage=Stage(status=STATUSES[m])) for name, m in zip(NAMES, marks, strict=False)}
    said = tuple(Diagnostic(code=code, message="so it is") for code in codes)
    return Judgement(subject=subject(configs.llama(), 2), results=results, diagnostics=said)


@pytest.mark.parametrize(
    ("marks", "codes", "sound", "passed"),
    [
        ("+++", (), True, True),
        ("+", (), True, True),
        ("+++", ("TPP305",), True, True),
        ("+++", ("TPP340",), True, False),
        ("+++", ("TPP340", "TPP305"), True, False),
        ("+++", ("TPP402",), False, False),
        ("+++", ("TPP340", "TPP402"), False, False),
        ("-++", (), False, False),
        ("++-", (), False, False),
        ("++-", ("TPP340",), False, False),
        ("++?", (), False, False),
        ("?++", (), False, False),
        ("-??", ("TPP402",), False, False),
    ],
)
def test_sound_and_passed(marks: str, codes: tuple[str, ...], sound: bool, passed: bool) -> None:
    """Sound is all but memory; what did not run is neither."""
    made = judgement(marks, *codes)
    assert (made.sound, made.passed) == (sound, passed)


@pytest.mark.parametrize(
    ("marks", "codes", "status", "verdict"),
    [
        ("+++", (), "passed", "pass"),
        ("++?", (), "passed", "incomplete"),
        ("++-", (), "not-run", "fail"),
        ("+++", ("TPP340",), "not-run", "fail"),
    ],
)
def test_what_fails_is_not_launched(
    monkeypatch: pytest.MonkeyPatch, marks: str, codes: tuple[str, ...], status: str, verdict: str
) -> None:
    launched = verify.LaunchResult(stage=Stage(status=Status.PASSED), ranks=({"rank": 0},))
    monkeypatch.setattr(verify, "launch_stage", lambda *_: launched)
    report = verify.launched(judgement(marks, *codes), LaunchOptions(), dtype_is_asked_for=False).report()
    assert list(report.stages) == [*NAMES, "launch"]
    assert (str(report.stages["launch"].status), str(report.verdict)) == (status, verdict)
    assert len(report.ranks) == (status == "passed")


FAULTS = {kind: Fault(kind=kind) for kind in (FaultKind.HEADS, FaultKind.FORWARD, FaultKind.NUMBERS)}


@pytest.mark.parametrize(
    ("kinds", "stopping", "first"),
    [
        ((None, None, None), (), None),
        ((FaultKind.HEADS, None, None), (), FaultKind.HEADS),
        ((FaultKind.HEADS, FaultKind.FORWARD, None), ("shapes",), FaultKind.FORWARD),
        ((FaultKind.HEADS, None, FaultKind.NUMBERS), (), FaultKind.HEADS),
        ((None, FaultKind.FORWARD, None), ("shapes",), FaultKind.FORWARD),
        ((None, None, FaultKind.NUMBERS), (), FaultKind.NUMBERS),
        ((FaultKind.HEADS, None, None), ("shapes",), FaultKind.HEADS),
    ],
)
def test_the_fault_is_what_raises_or_the_first(
    kinds: tuple[FaultKind | None, ...], stopping: tuple[str, ...], first: FaultKind | None
) -> None:
    results = {
        name: StageResult(
            stage=Stage(status=Status.FAILED), fault=FAULTS[kind] if kind else None, stops="it" * (name in stopping)
        )
        for name, kind in zip(NAMES, kinds, strict=True)
    }
    fault = replace(judgement(""), results=results).fault
    assert (fault.kind if fault else None) == first


def test_faults_of_the_layers_of_one_kind_are_one() -> None:
    def key(layer: int, **changes: Any) -> object:
        name = f"model.layers.{layer}.mlp"
        made = Fault(
            kind=FaultKind.GRADIENTS,
            module=name,
            parameters=(f"{name}.weight",),
            gradients=((f"{name}.weight", GradientError.PARTIAL),),
        )
        return replace(made, **changes).key

    assert key(0) == key(1)
    others = [
        {"kind": FaultKind.NUMBERS},
        {"module": "model.norm"},
        {"parameters": ()},
        {"gradients": (("model.layers.0.mlp.weight", GradientError.MISSING),)},
        {"reason": "the forward raises"},
    ]
    assert len({key(0), *(key(0, **other) for other in others)}) == 1 + len(others)
    assert (Fault(kind=FaultKind.LOAD).words, Fault(kind=FaultKind.LOAD, reason="so").words) == (
        "loading it sharded fails",
        "so",
    )


def test_errors_come_first_then_what_is_higher_in_the_file() -> None:
    said = [
        Diagnostic(code="TPP524", message="a note"),
        Diagnostic(code="TPP305", message="a warning", where=Place(line=1)),
        Diagnostic(code="TPP402", message="later", where=Place(line=2)),
        Diagnostic(code="TPP402", message="further right", where=Place(line=1, column=2)),
        Diagnostic(code="TPP403", message="first", where=Place(line=1, column=1)),
        Diagnostic(code="TPP402", message="nowhere"),
    ]
    order = ["nowhere", "first", "further right", "later", "a warning", "a note"]
    for given in (said, said[::-1]):
        assert [diagnostic.message for diagnostic in in_order(given)] == order


class TestWhatABenchRemembers:
    """The judgement of this very plan at this depth, and of no other."""

    def test_is_not_made_again(self) -> None:
        given = subject(configs.llama(), 2)
        bench = Bench(given)
        assert judge(given, "static", bench=bench) is judge(replace(given), "static", bench=bench)

    @pytest.mark.parametrize("changes", [{"tp_size": 1}, {"ep_size": 2}, {"overrides": rules("q", "rowwise")}], ids=str)
    def test_is_of_nothing_else(self, changes: dict[str, Any]) -> None:
        given = subject(configs.llama(), 2)
        bench = Bench(given)
        first = judge(given, "static", bench=bench)
        other = replace(given, sharding=replace(given.sharding, **changes))
        found = judge(other, "static", bench=bench)
        assert found is not first and found.subject is other

    def test_is_as_deep_as_it_was_asked_for(self) -> None:
        given = subject(configs.llama(), 2)
        bench = Bench(given)
        assert list(judge(given, "static", bench=bench).stages) == ["static"]
        assert list(judge(given, "shapes", bench=bench).stages) == ["static", "shapes"]


ATTENTION = Place(module="model.layers.*.self_attn", rule="model.layers.*.self_attn.k_proj")
KEYS = Place(rule="model.layers.*.self_attn.k_proj")
HEAD = Place(rule="lm_head")
IN_IT = "model.layers.3.self_attn"


class TestCauses:
    def test_are_errors(self) -> None:
        assert {CODES[code].severity for code in CAUSES} == {Severity.ERROR}

    @pytest.mark.parametrize(
        ("code", "where", "kind", "module", "explains"),
        [
            ("TPP301", ATTENTION, FaultKind.FORWARD, IN_IT, True),
            ("TPP301", ATTENTION, FaultKind.FORWARD, f"{IN_IT}.k_proj", True),
            ("TPP301", ATTENTION, FaultKind.FORWARD, f"{IN_IT}_norm", False),
            ("TPP301", ATTENTION, FaultKind.FORWARD, "model.layers.3.mlp", False),
            ("TPP301", ATTENTION, FaultKind.FORWARD, "model.layers.3", False),
            ("TPP301", ATTENTION, FaultKind.FORWARD, "", False),
            ("TPP301", ATTENTION, FaultKind.MINIATURE_RAISES, IN_IT, True),
            ("TPP301", ATTENTION, FaultKind.NUMBERS, IN_IT, False),
            ("TPP301", ATTENTION, FaultKind.LOAD, IN_IT, False),
            ("TPP302", ATTENTION, FaultKind.BACKWARD, IN_IT, True),
            ("TPP302", ATTENTION, FaultKind.GRADIENTS, IN_IT, False),
            ("TPP206", KEYS, FaultKind.NUMBERS, f"{IN_IT}.o_proj", True),
            ("TPP206", KEYS, FaultKind.GRADIENTS, f"{IN_IT}.k_proj.weight", True),
            ("TPP206", KEYS, FaultKind.NUMBERS, "model.layers.3.mlp", False),
            ("TPP207", KEYS, FaultKind.FORWARD, IN_IT, True),
            ("TPP207", KEYS, FaultKind.SHARDING, IN_IT, False),
            ("TPP208", HEAD, FaultKind.WIDTH, "", True),
            ("TPP208", HEAD, FaultKind.NUMBERS, "model.norm", True),
            ("TPP208", HEAD, FaultKind.FORWARD, "lm_head", False),
            ("TPP303", HEAD, FaultKind.NUMBERS, "model.embed_tokens", True),
            ("TPP303", HEAD, FaultKind.SHARDING, "", True),
            ("TPP303", HEAD, FaultKind.LOAD, "", True),
            ("TPP303", HEAD, FaultKind.LOADED_SLICE, "lm_head.weight", False),
            ("TPP309", HEAD, FaultKind.SHARDING, "", True),
            ("TPP309", HEAD, FaultKind.FORWARD, "", False),
            ("TPP402", ATTENTION, FaultKind.FORWARD, IN_IT, False),
        ],
        ids=str,
    )
    def test_by_hand(self, code: str, where: Place, kind: FaultKind, module: str, explains: bool) -> None:
        said = Diagnostic(code=code, message="so it is", where=where)
        others = [Diagnostic(code="TPP305", message="much is replicated", where=where)]
        assert cause_of([*others, said], kind, module) == (said if explains else None)

    def test_the_first_that_explains_is_the_cause(self) -> None:
        said = [Diagnostic(code=code, message="so it is", where=ATTENTION) for code in ("TPP402", "TPP301", "TPP302")]
        assert cause_of(said, FaultKind.FORWARD, IN_IT) is said[1]

    def test_the_run_is_evidence(self) -> None:
        cause = Diagnostic(code="TPP301", message="so it is", evidence="2 heads")
        assert with_evidence(cause, "it raises").evidence == "2 heads; it raises"
        assert with_evidence(replace(cause, evidence=""), "it raises").evidence == "it raises"


def candidate(
    name: str,
    status: Status = Status.PASSED,
    *codes: str,
    held: tuple[int, int] = (1, 1),
    calls: int = 1,
    moved: int = 1,
    flops: int = 1,
) -> Candidate:
    """A plan with these costs. held: bytes of parameters and of the cache."""
    parameters, cache = held
    memory = Memory(
        batch=1,
        max_length=1,
        parameters=parameters,
        cache=cache,
        cache_even=None,
        gradients=0,
        activations=None,
        hbm=None,
    )
    share = BytesPerRank(parameters=parameters, whole=0, ideal=0)
    collectives = [Collective(kind="all-reduce", count=calls - 1, bytes=moved, in_layers=True)]
    collectives += [Collective(kind="all-gather", count=1, bytes=0, in_layers=False)]
    costs = Costs(share=share, memory=memory, usage=Usage(collectives=tuple(collectives), flops=flops))
    said = tuple(Diagnostic(code=code, message="so it is") for code in codes)
    report = Report(model="m", tp_size=2, stages={"numerics": Stage(status=status)}, diagnostics=said)
    return Candidate(report=report, costs=costs, strategy=name, attempts=(), ep_size=None)


class TestBest:
    """The middle one is worse than the best, and better than what must not be taken."""

    MIDDLE = candidate("middle", held=(5, 5), calls=5, moved=5, flops=5)

    @pytest.mark.parametrize("optimize", Optimize)
    @pytest.mark.parametrize(
        "other",
        [
            candidate("fails", Status.FAILED),
            candidate("did not run", Status.NOT_RUN),
            candidate("does not fit", Status.PASSED, "TPP340"),
            replace(candidate("is not measured"), costs=None),
        ],
        ids=lambda one: one.strategy,
    )
    def test_passes_and_is_measured(self, optimize: Optimize, other: Candidate) -> None:
        for found in ([other, self.MIDDLE], [self.MIDDLE, other]):
            assert best(found, optimize) is self.MIDDLE
        assert best([other], optimize) is None

    @pytest.mark.parametrize(
        ("optimize", "better"),
        [
            ("memory", {"held": (4, 5), "calls": 9, "moved": 9, "flops": 9}),
            ("memory", {"held": (5, 4), "calls": 9, "moved": 9, "flops": 9}),
            ("memory", {"held": (5, 5), "calls": 4, "moved": 9, "flops": 9}),
            ("latency", {"held": (9, 9), "calls": 4, "moved": 9, "flops": 9}),
            ("latency", {"held": (9, 9), "calls": 5, "moved": 4, "flops": 9}),
            ("latency", {"held": (9, 9), "calls": 5, "moved": 5, "flops": 4}),
        ],
    )
    def test_has_the_least(self, optimize: str, better: dict[str, Any]) -> None:
        wanted = candidate("better", **better)
        for found in ([wanted, self.MIDDLE], [self.MIDDLE, wanted]):
            assert best(found, Optimize(optimize)) is wanted

    def test_of_equals_the_first(self) -> None:
        assert best([self.MIDDLE, replace(self.MIDDLE)], Optimize.MEMORY) is self.MIDDLE


@pytest.mark.parametrize(
    ("marks", "strategy", "optimize", "chosen", "exit_code"),
    [
        ("++", None, None, "replicate", 0),
        ("++", "replicate", None, "replicate", 0),
        ("++", "gather", None, "gather", 0),
        ("++", "another that leads to the same plan", None, "replicate", 0),
        ("-+", None, None, "gather", 0),
        ("?+", None, None, "gather", 0),
        ("-+", "replicate", None, "replicate", 1),
        ("+-", "gather", None, "gather", 1),
        ("--", None, None, "replicate", 1),
        ("++", "replicate", Optimize.MEMORY, "gather", 0),
        ("+-", "gather", Optimize.MEMORY, "replicate", 0),
        ("--", None, Optimize.MEMORY, "replicate", 1),
    ],
)
def test_the_strategy_that_is_followed(
    monkeypatch: pytest.MonkeyPatch,
    marks: str,
    strategy: str | None,
    optimize: Optimize | None,
    chosen: str,
    exit_code: int,
) -> None:
    """The one asked for, or the first that passes, or the best; gathered attention has the fewest bytes here."""
    names = {"replicate": (9, 1), "gather": (1, 1)}
    tried = [
        (SimpleNamespace(strategy=name), candidate(name, STATUSES[mark], held=held))
        for mark, (name, held) in zip(marks, names.items(), strict=True)
    ]
    monkeypatch.setattr(candidates, "all_strategies", lambda *_, **__: tried)
    monkeypatch.setattr(engine, "_opened_model", lambda _: (None, None))
    monkeypatch.setattr(engine, "_found", lambda _, made: engine.Found(report=None, plan=None, strategy=made.strategy))
    request = Request(what="model", tp_size=2)
    if exit_code:
        with pytest.raises(PlanError) as caught:
            engine.compare_strategies(request, strategy, optimize, False)
        (wanted,) = [one for _, one in tried if one.strategy == chosen]
        assert caught.value.report is wanted.report
        return
    found = engine.compare_strategies(request, strategy, optimize, False)
    assert (found.strategy, found.chosen.strategy, len(found.candidates)) == (chosen, chosen, 2)
