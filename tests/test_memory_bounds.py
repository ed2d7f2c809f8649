"""Bytes, counted by hand for a small model, and the byte on which it fits its device or does not."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

import tpplan
from tests.support import configs
from tests.support.subjects import rules
from tpplan import targets
from tpplan.cli import main
from tpplan.diagnostics import BytesPerRank, Report
from tpplan.model.releases import transformers_version
from tpplan.targets import Device

pytestmark = pytest.mark.skipif(transformers_version() < (5, 21), reason="before, a plan leaves the embedding whole")

MEMORY = ("TPP340", "TPP341", "TPP342")
SUMMED = "replicated_with_grad_allreduce"
LLAMA = configs.llama()  # 2 layers, hidden 64, 8 heads and 2 key/value heads of 8, MLP 96, 160 tokens, 4 bytes
# In elements: the two matrices of the vocabulary, of a layer the attention, the MLP and two norms, and the last norm.
VOCABULARY = 2 * 160 * 64
ATTENTION = 2 * (64 * 64 + 2 * 64 * 16 + 64 * 64)
MLP = 2 * (3 * 64 * 96)
NORMS = 2 * (2 * 64) + 64
ALL = VOCABULARY + ATTENTION + MLP + NORMS


@pytest.fixture
def model(tmp_path: Path) -> str:
    return configs.write(tmp_path / "llama", LLAMA)


def check(model: str, tp_size: int = 2, **options: Any) -> Report:
    return tpplan.check(model, tp_size, depth="shapes", **options)


class TestParameters:
    def test_the_literal_sum(self) -> None:
        assert (VOCABULARY, ATTENTION, MLP, NORMS, ALL) == (20480, 20480, 36864, 320, 78144)

    @pytest.mark.parametrize(
        ("tp_size", "overrides", "parameters", "whole", "ideal"),
        [
            (1, {}, 4 * 78144, 4 * 78144, 4 * 78144),
            (2, {}, 4 * (77824 // 2 + 320), 4 * 320, 4 * 39072),
            (4, rules("qkvo", SUMMED), 4 * (57344 // 4 + 20480 + 320), 4 * 20800, 4 * 19536),
            (2, {"lm_head": SUMMED}, 4 * (67584 // 2 + 10240 + 320), 4 * 10560, 4 * 39072),
        ],
        ids=["whole", "cut", "attention replicated", "head replicated"],
    )
    def test_by_hand(
        self, model: str, tp_size: int, overrides: dict[str, str], parameters: int, whole: int, ideal: int
    ) -> None:
        found = check(model, tp_size, overrides=overrides).bytes_per_rank
        assert found == BytesPerRank(parameters=parameters, whole=whole, ideal=ideal)

    def test_two_bytes_an_element(self, model: str) -> None:
        assert check(model, dtype="bfloat16").bytes_per_rank == BytesPerRank(
            parameters=2 * (77824 // 2 + 320), whole=2 * 320, ideal=2 * 39072
        )

    def test_the_largest_rank_s_part_and_a_share_rounded_up(self, tmp_path: Path) -> None:
        """161 tokens over 3 ranks: 54 rows on the first. 78272 elements of 4 bytes over 3: two bytes are left."""
        uneven = configs.write(tmp_path / "uneven", configs.llama(vocab_size=161))
        assert check(uneven, 3, overrides=rules("qkvo", SUMMED)).bytes_per_rank == BytesPerRank(
            parameters=4 * (2 * 54 * 64 + 20480 + 36864 // 3 + 320), whole=4 * 20800, ideal=104_363
        )

    def test_a_tied_pair_is_held_once(self, tmp_path: Path) -> None:
        tied = configs.write(tmp_path / "tied", configs.llama(tie_word_embeddings=True))
        assert check(tied).bytes_per_rank == BytesPerRank(
            parameters=4 * (67584 // 2 + 320), whole=4 * 320, ideal=4 * (78144 - 10240) // 2
        )


PARAMETERS = 4 * (77824 // 2 + 320)
CACHE = 2 * 2 * (1 * 8) * 4 * 128  # layers, keys and values, one head of 8 on a rank, 4 bytes, tokens


class TestMemory:
    def memory(self, model: str, **options: Any) -> Any:
        found = check(model, batch=3, **options).memory
        assert found is not None
        return found

    def test_of_inference(self, model: str) -> None:
        found = self.memory(model)
        assert (found.batch, found.max_length) == (3, 128)
        assert (found.parameters, found.cache, found.gradients) == (156_928, 3 * 16_384, 0)
        assert (PARAMETERS, CACHE) == (156_928, 16_384)
        assert found.held == 156_928 + 49_152 and found.cache_even == found.cache
        assert self.memory(model, max_length=64).cache == 3 * 8_192

    def test_of_training(self, model: str) -> None:
        found = self.memory(model, purpose="training")
        assert (found.parameters, found.cache, found.gradients) == (156_928, None, 156_928)
        assert found.held == 2 * 156_928

    def test_a_cache_that_is_not_cut(self, tmp_path: Path) -> None:
        model = configs.write(tmp_path / "llama", LLAMA)
        found = check(model, 4, batch=1, overrides=rules("qkvo", SUMMED)).memory
        assert found is not None and (found.cache, found.cache_even) == (2 * 16_384, 8_192)

    def test_activations_grow_with_what_is_computed(self, model: str) -> None:
        of = {batch: check(model, batch=batch).memory.activations for batch in (1, 2)}
        assert of[1] > 0 and of[2] == 2 * of[1]
        assert check(model, batch=1, max_length=64).memory.activations == of[1] // 2


class TestBoundary:
    """On a device made for it, with the memory of a v5e changed to what the model needs, or a byte less."""

    def on(self, monkeypatch: pytest.MonkeyPatch, hbm: int) -> None:
        device = replace(targets.TARGETS[Device.TPU_V5E], hbm_bytes=hbm, host_counts=(1, 2, 4, 8))
        made = MappingProxyType({**targets.TARGETS, Device.TPU_V5E: device})
        monkeypatch.setattr(targets, "TARGETS", made)

    @pytest.mark.parametrize(
        ("purpose", "part", "less", "codes", "exit_code"),
        [
            ("inference", "all", 0, [], 0),
            ("inference", "all", 1, ["TPP341"], 0),
            ("inference", "held", 0, ["TPP341"], 0),
            ("inference", "held", 1, ["TPP340"], 1),
            ("training", "held", 1, ["TPP340"], 1),
        ],
    )
    def test_to_the_byte(
        self,
        model: str,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture,
        purpose: str,
        part: str,
        less: int,
        codes: list[str],
        exit_code: int,
    ) -> None:
        held = 2 * PARAMETERS if purpose == "training" else PARAMETERS + CACHE
        memory = check(model, batch=1, purpose=purpose).memory
        assert memory is not None and memory.held == held
        self.on(monkeypatch, held - less + (memory.activations if part == "all" else 0))
        report = check(model, device="tpu-v5e", purpose=purpose)
        assert [found.code for found in report.diagnostics if found.code in MEMORY] == codes
        assert report.memory is not None and report.memory.fits is (not codes)
        assert (report.exit_code, str(report.verdict)) == (exit_code, "fail" if exit_code else "pass")
        asked = ["--tp-size", "2", "--device", "tpu-v5e", "--purpose", purpose, "--format", "json"]
        assert main(["sizes", model, *asked]) == exit_code
        (size,) = json.loads(capsys.readouterr().out)["sizes"]
        assert size["verdict"] == str(report.verdict)
        assert [found["code"] for found in size["diagnostics"] if found["code"] in MEMORY] == codes

    def test_what_is_too_much_by_any_part(self, model: str, monkeypatch: pytest.MonkeyPatch) -> None:
        """Parameters alone fit, and the cache of one sequence; that of two does not."""
        self.on(monkeypatch, PARAMETERS + CACHE)
        assert check(model, device="tpu-v5e", batch=1).exit_code == 0
        assert check(model, device="tpu-v5e", batch=2).exit_code == 1
        assert check(model, device="tpu-v5e", batch=1, max_length=129).exit_code == 1
        assert check(model, 1, device="tpu-v5e", batch=1).exit_code == 1, "twice as much on one rank"
        assert check(model, device="cpu", batch=2).exit_code == 0
