"""What the ranks wrote, as diagnostics; and the comparison of tensors that they write about. No process is started."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tpplan.difference import Difference, difference
from tpplan.launch import worker
from tpplan.launch.checkpoint import find_checkpoint, unsharded_does_not_fit, weights_of
from tpplan.launch.compare import first_unequal
from tpplan.launch.findings import Ended, findings
from tpplan.launch.records import Gradients, LaunchPhase, Raised, RankResult, ResultFile, WrongGradient, read_result
from tpplan.model.config import load_spec
from tpplan.model.skeleton import Sharding, build_skeleton
from tpplan.source import Source
from tpplan.subject import Subject

CONFIG = {
    "model_type": "llama",
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 64,
    "dtype": "float32",
}
RIGHT = Difference(error=1e-7)
UNSHARDED = RankResult(
    rank=0, pid=1, phase=LaunchPhase.DONE, tokens=[5, 6, 7], margins=[0.5, 0.5, 1e-6], cache="static"
)


@pytest.fixture(scope="module")
def subject() -> Subject:
    spec = load_spec(Source(name="tiny", config=CONFIG))
    return Subject(spec=spec, skeleton=build_skeleton(spec), sharding=Sharding(tp_size=2))


def done(rank: int, **changes: Any) -> RankResult:
    base = RankResult(
        rank=rank, pid=rank, phase=LaunchPhase.DONE, logits=RIGHT, tokens=[5, 6, 7], parameter_bytes=100 - rank
    )
    return replace(base, **changes | {"phase": LaunchPhase(changes.get("phase", "done"))})


def ended(*results: RankResult, unsharded: RankResult | None = UNSHARDED, **how: Any) -> Ended:
    return Ended(ranks=(0, 1), results={result.rank: result for result in results}, unsharded=unsharded, **how)


def found(subject: Subject, end: Ended, predicted: int | None = 100) -> list[str]:
    return [diagnostic.code for diagnostic in findings(end, subject, predicted)]


def error(at: float, kind: str = "RuntimeError", message: str = "no", memory: bool = False) -> Raised:
    return Raised(type=kind, message=message, at=at, memory=memory)


def test_ranks_that_are_right_give_nothing(subject: Subject) -> None:
    assert found(subject, ended(done(0), done(1))) == []


def test_the_first_error_counts_and_the_later_one_is_evidence(subject: Subject) -> None:
    lost = done(0, phase="forward", error=error(2.0, "DistBackendError", "peer closed"))
    broke = done(1, phase="load", error=error(1.0, "KeyError", "rope"))
    end = ended(lost, broke, stderr={1: "line 7 | KeyError: rope"}, exit_codes={0: 1, 1: 1})
    [diagnostic] = findings(end, subject, 100)
    assert (diagnostic.code, diagnostic.message) == ("TPP510", "rank 1 of 2 raised KeyError in load")
    assert diagnostic.evidence.startswith("KeyError: rope; on stderr of rank 1: line 7; later rank 0 in forward: Dist")


def test_ranks_that_torchrun_ended_are_not_the_cause(subject: Subject) -> None:
    end = ended(done(0, phase="load"), done(1, phase="load", error=error(1.0)), exit_codes={0: -15, 1: 1})
    assert found(subject, end) == ["TPP510"]


def test_a_signal_from_outside_counts_before_what_its_peers_raise(subject: Subject) -> None:
    peer = done(0, phase="forward", error=error(1.0))
    end = ended(peer, done(1, phase="forward"), exit_codes={0: 1, 1: -9})
    [diagnostic] = findings(end, subject, 100)
    assert (diagnostic.code, diagnostic.message) == ("TPP511", "SIGKILL ended rank 1 of 2 in forward")
    assert found(subject, ended(done(0), done(1, phase="load"), exit_codes={1: -15})) == ["TPP511"]


def test_memory_is_named_when_the_kernel_or_the_allocator_says_so(subject: Subject) -> None:
    killed = ended(done(0), done(1, phase="load"), exit_codes={1: -9}, out_of_memory=True)
    assert found(subject, killed) == ["TPP513"]
    assert found(subject, ended(done(0), done(1, phase="load", error=error(1.0, memory=True)))) == ["TPP513"]
    crashed = ended(done(0), done(1, phase="load"), exit_codes={1: -11}, out_of_memory=True)
    assert found(subject, crashed) == ["TPP511"]


def test_a_rank_that_cannot_even_write_is_told_by_its_stderr(subject: Subject) -> None:
    [diagnostic] = findings(ended(exit_codes={0: 1, 1: 1}, stderr={0: "ModuleNotFoundError: x"}), subject, 100)
    assert (diagnostic.code, diagnostic.message) == ("TPP510", "rank 0 of 2 ended with exit code 1 in start")
    assert "ModuleNotFoundError" in diagnostic.evidence


def test_a_launcher_that_fails_alone_is_said(subject: Subject) -> None:
    [diagnostic] = findings(ended(launcher=(1, "RendezvousTimeoutError")), subject, 100)
    assert diagnostic.code == "TPP913" and "RendezvousTimeoutError" in diagnostic.evidence


def test_the_rank_furthest_behind_hangs(subject: Subject) -> None:
    end = ended(done(0, phase="generate"), done(1, phase="forward"), after=30.0, states={0: "S", 1: "S"})
    [diagnostic] = findings(end, subject, 100)
    assert diagnostic.message == "rank 1 of 2 did not finish forward within 30 s, and all were ended"
    stopped = ended(done(0, phase="forward"), done(1, phase="generate"), after=30.0, states={0: "S", 1: "T"})
    assert findings(stopped, subject, 100)[0].message.startswith("rank 1 of 2 did not finish generate")


def test_wrong_logits_stand_for_all_that_follows(subject: Subject) -> None:
    wrong = done(0, logits=Difference(error=0.7, first="at [0]"), first_token=0, phase="generate")
    end = ended(replace(wrong, error=error(1.0)), done(1, first_token=0), exit_codes={0: 1})
    assert found(subject, end) == ["TPP514"]
    narrow = Difference(error=math.inf, first="the shape is (1, 32), unsharded (1, 64)")
    [diagnostic] = findings(ended(done(0, logits=narrow), done(1, logits=narrow)), subject, 100)
    assert "(1, 32)" in diagnostic.evidence and "inf" not in diagnostic.evidence


def test_tokens_are_wrong_where_the_choice_was_clear(subject: Subject) -> None:
    clear = ended(done(0), done(1, tokens=[5, 9, 9], first_token=1))
    [diagnostic] = findings(clear, subject, 100)
    assert diagnostic.code == "TPP515"
    assert "on rank 1 of 2 are not the unsharded model's, from number 2 of 3 on" in diagnostic.message
    assert found(subject, ended(done(0), done(1, tokens=[5, 6, 9], first_token=2))) == ["TPP519"]


def test_no_tokens_is_said_with_the_reason(subject: Subject) -> None:
    silent = replace(UNSHARDED, tokens=None, generate_error="ValueError: no static cache")
    [diagnostic] = findings(ended(done(0, tokens=None), done(1, tokens=None), unsharded=silent), subject, 100)
    assert diagnostic.code == "TPP524" and "no static cache" in diagnostic.evidence


def test_gradients_are_grouped_by_their_factor(subject: Subject) -> None:
    wrong = (
        WrongGradient(parameter="model.layers.0.mlp.up_proj.weight", error=1.0, first="at [0]", ratio=2.0004),
        WrongGradient(parameter="model.norm.weight", error=0.3, first="at [1]"),
    )
    gradients = Gradients(compared=9, worst=1.0, wrong=wrong)
    first, second = findings(ended(done(0, gradients=gradients), done(1, gradients=gradients)), subject, 100)
    assert first.message == "the gradients of 1 parameter are 2 times the unsharded ones"
    assert second.message == "the gradients of 1 parameter are not the unsharded ones"
    assert first.fix == ""  # the style of up_proj sums nothing


def test_other_bytes_than_predicted_are_said(subject: Subject) -> None:
    assert found(subject, ended(done(0), done(1)), predicted=101) == ["TPP517"]
    assert found(subject, ended(done(0), done(1, parameter_bytes=None)), predicted=101) == []
    assert found(subject, ended(done(0), done(1)), predicted=None) == []


def test_weights_that_were_not_loaded_are_said(subject: Subject) -> None:
    wrong = Difference(error=0.7)
    assert found(subject, ended(done(0, missing=["lm_head.weight"], logits=wrong), done(1))) == ["TPP522"]


def test_difference_finds_the_first_element_and_the_factor() -> None:
    torch = pytest.importorskip("torch")
    want = torch.tensor([[1.0, -2.0], [3.0, 4.0]])
    assert difference(want + 1e-6, want, 1e-4).error < 1e-6
    off = difference(want * 4, want, 1e-4)
    assert (off.error, off.ratio, off.first) == (3.0, 4.0, "at [0, 0] 4, unsharded 1")
    other = difference(want + torch.tensor([[0.0, 0.0], [1.0, 0.0]]), want, 1e-4)
    assert (other.error, other.ratio, other.first) == (0.25, None, "at [1, 0] 4, unsharded 3")
    assert difference(want[:, :1], want, 1e-4).error == math.inf
    assert difference(want * math.nan, want, 1e-4).error == math.inf
    assert difference(want * 1e-9 * 2, want * 1e-9, 1e-3, floor=1.0).error < 1e-3


def test_a_rank_that_raised_waits_for_the_others_a_while(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock that only its own waiting moves."""
    waited: list[float] = []
    clock = SimpleNamespace(monotonic=lambda: 100.0 + sum(waited), sleep=waited.append, time=lambda: 0.0)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    monkeypatch.setattr(worker, "time", clock)
    ResultFile(tmp_path / "rank-0.json", 0).put(error=error(1.0))
    peer = ResultFile(tmp_path / "rank-1.json", 1)
    worker._wait_for_peers(tmp_path)
    assert 2.0 <= sum(waited) < 2.2
    waited.clear()
    peer.put(error=error(2.0))
    worker._wait_for_peers(tmp_path)
    assert waited == []


def test_a_result_is_read_as_it_was_written(tmp_path: Path) -> None:
    file = ResultFile(tmp_path / "rank-1.json", 1)
    wrong = WrongGradient(parameter="a", error=math.inf, first="missing")
    found = {
        "logits": Difference(error=0.5, first="at [0]", ratio=2.0),
        "gradients": Gradients(compared=3, worst=math.inf, wrong=(wrong,)),
        "error": error(1.0, memory=True),
        "tokens": [1, 2],
    }
    file.put(**found)
    result = read_result(tmp_path / "rank-1.json")
    assert result is not None and {name: getattr(result, name) for name in found} == found
    assert (result.rank, result.phase, result.cache_bytes) == (1, LaunchPhase.START, None)
    assert read_result(tmp_path / "rank-2.json") is None


@pytest.mark.parametrize(
    ("got", "want", "index"),
    [([1, 2], [1, 2], None), ([1, 3], [1, 2], 1), ([1], [1, 2], 1), ([1, 2], [], 0), ([], [], None)],
)
def test_first_unequal(got: list[int], want: list[int], index: int | None) -> None:
    assert first_unequal(got, want) == index


def test_weights_are_those_of_the_directory_or_of_the_hub_s_cache(tmp_path: Path, subject: Subject) -> None:
    assert weights_of(Source(name="d", config=CONFIG, directory=tmp_path)) is None
    (tmp_path / "model.safetensors").touch()
    assert weights_of(Source(name="d", config=CONFIG, directory=tmp_path)) == tmp_path
    assert weights_of(Source(name="nobody/has-this", config=CONFIG)) is None
    given = replace(subject, spec=replace(subject.spec, source=Source(name="d", config=CONFIG, directory=tmp_path)))
    assert find_checkpoint(given, tmp_path).directory == tmp_path


def test_the_hub_s_cache_counts_when_it_holds_every_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    repository = tmp_path / "models--nobody--cached"
    snapshot = repository / "snapshots" / ("0" * 40)
    snapshot.mkdir(parents=True)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("0" * 40)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    source = Source(name="nobody/cached", config=CONFIG)
    assert weights_of(source) is None
    (snapshot / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "one", "b": "two"}}))
    (snapshot / "one").touch()
    assert weights_of(source) is None
    (snapshot / "two").touch()
    assert weights_of(source) == snapshot


def test_a_model_larger_than_the_memory_does_not_fit(
    tmp_path: Path, subject: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "model.safetensors").touch()
    given = replace(subject, spec=replace(subject.spec, source=Source(name="d", config=CONFIG, directory=tmp_path)))
    checkpoint = find_checkpoint(given, tmp_path)
    monkeypatch.setattr("tpplan.launch.checkpoint.available_bytes", lambda: 2**30)
    assert unsharded_does_not_fit(checkpoint) == ""
    monkeypatch.setattr("tpplan.launch.checkpoint.available_bytes", lambda: 2**20)
    assert "1.00 MiB of memory are free" in unsharded_does_not_fit(checkpoint)
