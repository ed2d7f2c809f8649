"""What a failing check offers: only what ran, to the depth that was asked for, and at a bounded cost."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support import configs
from tests.support.subjects import rules, subject
from tpplan.answers import Attempt
from tpplan.checks.heads import dividing_sizes
from tpplan.choices import Device
from tpplan.diagnostics import Report, Stage, Status
from tpplan.model.releases import transformers_version
from tpplan.planner import remedy, repair, solve
from tpplan.planner.remedy import MAX_RANKS_FOR_REPAIR, with_fixes
from tpplan.stages.bench import Bench
from tpplan.stages.judge import judge
from tpplan.stages.result import StageResult
from tpplan.subject import Subject
from tpplan.units import count, in_one_unit, signal_name

SUMMED = "replicated_with_grad_allreduce"


def codes(report: Report) -> list[str]:
    return [diagnostic.code for diagnostic in report.diagnostics]


def fixes(report: Report) -> set[str]:
    return {diagnostic.fix for diagnostic in report.errors}


def repaired_plan(given: Subject, depth: str | None = None) -> repair.Repair:
    return repair.repair(given, depth=depth, bench=Bench(given))


def completed(given: Subject, depth: str | None = None) -> Report:
    """The report with its fixes, as the engine makes it."""
    bench = Bench(given)
    return with_fixes(judge(given, depth, bench=bench), bench).report()


@pytest.fixture
def sizes_run(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The tp_sizes that were judged in search of a fix."""
    run: list[int] = []

    def recorded(judged: Subject, *args: object, **kwargs: object) -> object:
        run.append(judged.sharding.tp_size)
        return judge(judged, *args, **kwargs)

    for module in (remedy, repair):
        monkeypatch.setattr(module, "judge", recorded)
    return run


@pytest.mark.parametrize("tp_size", [4, 512, 1024])
def test_what_is_run_for_a_fix_does_not_grow_with_tp_size(tp_size: int, sizes_run: list[int]) -> None:
    report = completed(subject(configs.llama(), tp_size), "shapes")
    (fix,) = {diagnostic.fix for diagnostic in report.errors if diagnostic.code == "TPP301"}
    assert "without overrides, tp_size 1 or 2 works" in fix
    if tp_size <= MAX_RANKS_FOR_REPAIR:
        assert set(sizes_run) == {2, 4} and "4 rules overridden" in fix
    else:
        assert sizes_run == [2] and f"--tp-size {tp_size}" in fix and "overridden" not in fix


def test_sizes_without_known_heads_are_bounded_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """phi3 gathers its fused projection, so any size may do; powers of two are tried."""
    run: list[int] = []

    def fails(judged: Subject, **_: object) -> SimpleNamespace:
        run.append(judged.sharding.tp_size)
        return SimpleNamespace(passed=False)

    monkeypatch.setattr(remedy, "judge", fails)
    plain = subject(configs.phi3(), 2048)
    assert dividing_sizes(plain)[-1] == 1024
    remedy.working_sizes(plain, Bench(plain))
    assert max(run) == MAX_RANKS_FOR_REPAIR and len(run) <= remedy.MAX_SIZES


def test_sizes_that_are_offered_have_right_numbers() -> None:
    """apertus at 2 runs and has wrong gradients: for training, 2 is no size that works."""
    for training, sizes in ((False, [1, 2]), (True, [1])):
        given = subject(configs.apertus(), 4, training=training)
        assert remedy.working_sizes(given, Bench(given)) == sizes


def test_a_fix_is_proven_whatever_was_asked_for() -> None:
    (offered,) = fixes(completed(subject(configs.llama(), 4), "shapes"))
    assert offered == next(iter(fixes(completed(subject(configs.llama(), 4)))))
    assert "writes a plan that passes: model.layers.*.self_attn (4 rules overridden)" in offered


def test_nothing_is_offered_where_nothing_ran() -> None:
    given = subject(configs.llama(), 4)
    bench = Bench(given)
    judged = judge(given, "shapes", bench=bench)
    stage = Stage(status=Status.NOT_RUN, reason="the model does not run unsharded either")
    not_run = replace(judged, results={**judged.results, "shapes": StageResult(stage=stage)})
    (heads,) = [d for d in with_fixes(not_run, bench).diagnostics if d.code == "TPP301"]
    assert heads.fix == ""


def test_a_wrong_name_has_one_diagnostic() -> None:
    """The rules would mend the heads, but for their names; the heads have no diagnostic of their own."""
    misnamed = rules("qkvo", SUMMED, inside="layers.*.self_attn.")
    report = completed(subject(configs.llama(), 4, misnamed))
    assert codes(report) == ["TPP201"] * 4
    one_layer = rules("qkvo", SUMMED, inside="model.layers.0.self_attn.")
    assert codes(completed(subject(configs.llama(), 4, one_layer))) == ["TPP202"] * 4


def test_a_rule_that_means_nothing_hides_no_other_mistake() -> None:
    report = completed(subject(configs.llama(), 4, {"no.such.thing.at.all.xyz": SUMMED}))
    assert codes(report) == ["TPP301", "TPP201"] or codes(report) == ["TPP201", "TPP301"]


@pytest.mark.skipif(transformers_version() < (5, 24), reason="the plan as measured on 5.24")
def test_whole_experts_are_not_summed() -> None:
    """Experts taken whole where their width does not divide: the rule that sums their parts goes with them."""
    config = configs.mixtral(num_attention_heads=9, num_key_value_heads=3, head_dim=8, intermediate_size=104)
    repaired = repaired_plan(subject(config, 3), "shapes")
    assert judge(repaired.judgement.subject).passed, "what runs is right at the first proposal"
    experts = {rule for rule in repaired.overrides if ".experts" in rule}
    inside = "model.layers.*.mlp.experts"
    assert experts == {inside, f"{inside}.gate_up_proj", f"{inside}.down_proj"}


@pytest.mark.skipif(transformers_version() < (5, 24), reason="hrm_text came with 5.24")
def test_weights_that_the_loader_cuts_wrongly_are_kept_whole() -> None:
    """hrm_text's q, k, v and gate are one tensor of the checkpoint, which the loader cuts before it splits it."""
    heads = {"num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 16, "hidden_size": 64}
    heads |= {"H_cycles": 1, "L_cycles": 1, "L_bp_cycles": [1]}
    config = {**configs.default("hrm_text"), **heads, "intermediate_size": 96, "vocab_size": 96}
    judged = subject({**config, "num_hidden_layers": 8, "num_layers_per_stack": 1, "dtype": "float32"}, 2)
    assert codes(judge(judged).report()) == ["TPP506"]
    repaired = repaired_plan(judged)
    assert repaired.judgement.passed and set(repaired.overrides.values()) == {SUMMED}
    blocks = {rule.rpartition(".")[0] for rule in repaired.overrides}
    assert blocks == {f"model.{s}_module.layers.*.{block}" for s in "HL" for block in ("self_attn", "mlp")}


@pytest.mark.skipif(transformers_version() < (5, 24), reason="the width as measured on 5.24")
@pytest.mark.parametrize("training", [False, True])
def test_logits_of_another_width_take_the_head_whole(training: bool) -> None:
    """ovis2's head has the embedding's rows, more than it was made for; gathered in eval mode it gives those alone."""
    repaired = repaired_plan(subject(configs.default("ovis2"), 2, training=training))
    assert repaired.judgement.passed
    style = "replicate" if training else SUMMED
    assert repaired.overrides == {"lm_head": style, "model.language_model.embed_tokens": style}


def test_no_repair_is_said_only_of_what_a_repair_may_mend() -> None:
    """The heads are mended; that Transformers does not have the quantization method is no fault of the plan."""
    unknown = configs.llama(quantization_config={"quant_method": "unheard-of"})
    made = repaired_plan(subject(unknown, 4))
    assert made.overrides and [error.code for error in made.judgement.report().errors] == ["TPP331"]


def test_sizes_of_one_line_have_one_unit() -> None:
    assert in_one_unit(3 * 2**30, 2**20, 0) == ["3.00 GiB", "under 0.01 GiB", "0.00 GiB"]
    assert in_one_unit(300 * 2**10, 2**10) == ["300.00 KiB", "1.00 KiB"]
    assert in_one_unit(12, 3) == ["12 B", "3 B"]


def test_signals_without_a_name_have_their_number() -> None:
    assert (signal_name(9), signal_name(37)) == ("SIGKILL", "signal 37")


def test_counts_show_what_they_count() -> None:
    assert [count(number) for number in (7, 78_144, 1_500_000, 30_530_000_000)] == ["7", "78.14K", "1.50M", "30.53B"]


class TestLargerSizes:
    """Llama-2-70B has 128.5 GiB of parameters: split evenly over 8 v5e they are 16.06 GiB, of 16."""

    @pytest.mark.parametrize(
        ("tp_size", "training", "sizes"), [(4, False, [16, 32]), (16, False, [32, 64]), (4, True, [32, 64])]
    )
    def test_of_the_device_where_an_even_split_fits(self, tp_size: int, training: bool, sizes: list[int]) -> None:
        large = subject(configs.llama_2_70b(), tp_size, training=training)
        assert remedy._larger_sizes(replace(large, device=Device.TPU_V5E)) == sizes

    @pytest.mark.parametrize(
        ("training", "short", "fits"),
        [(False, 0, True), (False, 1, False), (True, 0, True), (True, 1, False)],
    )
    def test_an_even_split_to_the_byte(
        self, monkeypatch: pytest.MonkeyPatch, training: bool, short: int, fits: bool
    ) -> None:
        """On two ranks, half of the parameters on each; for training as much again for gradients."""
        given = subject(configs.llama(), 2, training=training)
        needed = given.skeleton.bytes if training else given.skeleton.bytes // 2
        monkeypatch.setattr(solve, "resolve", lambda _: SimpleNamespace(hbm_bytes=needed - short))
        assert solve.could_fit(given) is fits

    def test_a_device_without_a_size_fits_all(self) -> None:
        assert solve.could_fit(subject(configs.llama_2_70b(), 1))


PASSES, SOUND, FAILS = (True, True), (True, False), (False, False)


@pytest.mark.parametrize(
    ("ways", "with_rules", "asked", "fits", "taken"),
    [
        ([PASSES, PASSES], PASSES, {}, True, 0),
        ([FAILS, PASSES], PASSES, {}, True, 0),
        ([SOUND, PASSES, PASSES], PASSES, {}, True, 1),
        ([SOUND, SOUND, PASSES], PASSES, {}, True, 2),
        ([SOUND, FAILS, PASSES], PASSES, {}, True, 2),
        ([SOUND, SOUND], PASSES, {}, True, "with rules"),
        ([SOUND], PASSES, {}, True, "with rules"),
        ([SOUND, SOUND], SOUND, {}, True, 0),
        ([SOUND, FAILS], FAILS, {}, True, 0),
        ([SOUND, PASSES], PASSES, {}, False, 0),
        ([SOUND], PASSES, {"strategy": "gather"}, True, 0),
        ([SOUND], PASSES, {"extend": True}, True, 0),
        ([SOUND, SOUND], PASSES, {"extend": True}, True, 0),
    ],
)
def test_the_first_way_that_passes_is_taken(
    monkeypatch: pytest.MonkeyPatch,
    ways: list[tuple[bool, bool]],
    with_rules: tuple[bool, bool],
    asked: dict,
    fits: bool,
    taken: object,
) -> None:
    """Each way is (sound, passed). Others than the first are tried only where it is sound and could fit."""

    def made(name: object, outcome: tuple[bool, bool]) -> SimpleNamespace:
        return SimpleNamespace(name=name, judgement=SimpleNamespace(sound=outcome[0], passed=outcome[1]))

    tried = (made(number, way) for number, way in enumerate(ways))
    monkeypatch.setattr(solve, "by_strategy", lambda *_, **__: tried)
    monkeypatch.setattr(solve, "extended", lambda *_: made("with rules", with_rules))
    monkeypatch.setattr(solve, "could_fit", lambda _: fits)
    given = subject(configs.llama(), 4)
    assert solve.solve(given, **{"strategy": None, "bench": Bench(given), **asked}).name == taken


def outcome(given: Subject, *, sound: bool, passed: bool | None = None, key: object = None, held: int = 100) -> Any:
    """A judgement as far as repairs read one. key: what failed. held: bytes per rank, of an even split of 50."""
    fault = None if sound else SimpleNamespace(key=key)
    share = SimpleNamespace(parameters=held, ideal=50)
    passed = sound if passed is None else passed
    return SimpleNamespace(subject=given, sound=sound, passed=passed, fault=fault, share=share)


@pytest.mark.parametrize(
    ("outcomes", "fix"),
    [
        ([(True, False), (True, True)], "--tp-size 8 --device tpu-v5e writes a plan that fits"),
        ([(True, False), (True, False), (True, True)], "--tp-size 16 --device tpu-v5e writes a plan that fits"),
        ([(True, False), (False, False), (True, True)], "--tp-size 16 --device tpu-v5e writes a plan that fits"),
        ([(True, False), (True, False), (True, False), (True, False)], ""),
    ],
)
def test_the_smallest_size_whose_plan_passes_is_offered(
    monkeypatch: pytest.MonkeyPatch, outcomes: list[tuple[bool, bool]], fix: str
) -> None:
    """What is tried are the plans at tp_size, then at 8, 16 and so on; each is (sound, passed)."""
    given = replace(subject(configs.llama(), 4), device=Device.TPU_V5E)
    monkeypatch.setattr(remedy, "_larger_sizes", lambda _: [8, 16, 32])
    asked = []

    def solved(at: Subject, *_: object) -> SimpleNamespace:
        sound, passed = outcomes[len(asked)]
        asked.append(at.sharding.tp_size)
        return SimpleNamespace(judgement=outcome(at, sound=sound, passed=passed))

    monkeypatch.setattr(remedy, "solve", solved)
    assert fix in remedy._for_memory(outcome(given, sound=True), Bench(given)).fix
    assert asked == [4, 8, 16, 32][: len(outcomes)]


class TestStepsOfARepair:
    """Which of its proposals a repair takes, by what the stages say of each."""

    def proposals(self, *blocks: str) -> list[Attempt]:
        return [Attempt(block=block, reason="it fails", overrides={block: "replicate"}) for block in blocks]

    @pytest.mark.parametrize(
        ("says", "taken", "refused"),
        [
            ({"a": "again", "b": None}, ["b"], ["a"]),
            ({"a": None, "b": None}, ["a"], []),
            ({"a": "again", "b": "again"}, [], ["a", "b"]),
            ({"a": "other", "b": None}, ["a", "b"], ["a"]),
        ],
    )
    def test_one_that_fails_as_before_is_refused(
        self, monkeypatch: pytest.MonkeyPatch, says: dict[str, str | None], taken: list[str], refused: list[str]
    ) -> None:
        """says: block -> what the plan fails with once the proposal for it is in; None: it is sound."""
        given = subject(configs.llama(), 2)

        def judged(tried: Subject, *_: object, **__: object) -> SimpleNamespace:
            last = [says[rule] for rule in says if rule in tried.sharding.overrides]
            key = last[-1] if last else "again"
            return outcome(tried, sound=key is None, key=key, held=50)

        monkeypatch.setattr(repair, "judge", judged)
        monkeypatch.setattr(repair, "propose", lambda *_: self.proposals("a", "b"))
        made = repair.repair(given, bench=Bench(given))
        assert [attempt.block for attempt in made.attempts] == taken
        assert [attempt.block for attempt in made.refused] == refused

    @pytest.mark.parametrize(
        ("before", "after", "shared"),
        [
            ({"sound": True}, {"sound": True, "held": 60}, True),
            ({"sound": True}, {"sound": False, "held": 60}, False),
            ({"sound": True}, {"sound": True, "held": 100}, False),
            ({"sound": True, "held": 50}, {"sound": True, "held": 40}, False),
            ({"sound": False}, {"sound": True, "held": 60}, False),
        ],
    )
    def test_experts_are_shared_where_that_is_sound_and_saves(
        self, monkeypatch: pytest.MonkeyPatch, before: dict, after: dict, shared: bool
    ) -> None:
        given = subject(configs.llama(), 2)
        monkeypatch.setattr(
            repair, "judge", lambda tried, *_, **__: outcome(tried, **(after if tried.sharding.ep_size else before))
        )
        monkeypatch.setattr(repair, "propose", lambda *_: [])
        monkeypatch.setattr(repair, "share_experts", lambda *_: [Attempt(block="experts", reason="it", ep_size=2)])
        made = repair.repair(given, bench=Bench(given))
        assert [attempt.ep_size for attempt in made.attempts] == [2] * shared
