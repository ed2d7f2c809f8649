"""Quantized checkpoints: what tpplan says of them is what Transformers does with them.

Every verdict about blocks is compared with the real loader, every choice of modules with the real quantizer, and every
number of bytes with the modules that Transformers or the package of the method allocates.

The public reports of quantized models that do not load sharded, and what stands for each:

| report | here |
|---|---|
| Qwen3-235B-A22B-FP8 at tp 8; Qwen3-235B and 30B-A3B FP8 at tp 4 and 8 | cases TPP332 |
| Qwen3.6-35B-A3B-FP8, a shared expert of 64 a rank at tp 8 | case TPP332-qwen3-6-35b-a3b-fp8-tp8 |
| Qwen2.5-VL-72B-AWQ, Qwen1.5-14B-AWQ at tp 2; Qwen3-235B-GPTQ-Int4 at tp 8; 11008 by 128 at tp 4 | cases TPP334 |
| Baichuan2 and Qwen-14B-Chat | their own code, not in Transformers: Llama-2 and Qwen1.5 have the same widths |
| Kimi-K2 FP8 with 64 heads padded for 6 ranks | no case: Transformers pads no heads; the model brings its own code |
| Qwen3.8-Flash-Next-FP8 without a plan | no case: not in Transformers 5.24; a class without a plan is TPP205 |
| bitsandbytes and AWQ classifiers at tp 2 | case TPP333: the method does not shard, whatever the head |
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tpplan
from tests.support import configs, quantized
from tests.support.shared import config_files
from tests.support.subjects import subject
from tpplan import checks
from tpplan.checks.quantization import check_quantization
from tpplan.checks.scales import RAISES, WRONG, slice_of, spread
from tpplan.cli import main
from tpplan.diagnostics import Diagnostic
from tpplan.model.checkpoint import load_sharded
from tpplan.model.config import ModelSpec
from tpplan.model.internals import internals
from tpplan.model.quantization import METHODS, is_known, quantized_weights, read_scheme
from tpplan.model.quantization.bitsandbytes import bytes_of_4_bits, bytes_of_8_bits
from tpplan.model.quantization.compressed_tensors import packed_bytes
from tpplan.model.quantization.facts import quantization_facts
from tpplan.model.quantization.fp4 import mxfp4_bytes, nvfp4_bytes
from tpplan.model.quantization.fp8 import dropped_rules, fp8_bytes
from tpplan.model.quantization.gptq import awq_bytes, gptq_bytes
from tpplan.model.quantization.method import Failure, Method
from tpplan.model.quantization.scheme import Layout, Quantized, Scheme, quantized_bytes
from tpplan.model.quantization.values import Malformed, Values
from tpplan.model.ranks import fake_rank
from tpplan.model.skeleton import Sharding
from tpplan.opening import open_request
from tpplan.planner.strategies import GRADIENTS_SUMMED
from tpplan.request import make_request

BLOCK = {"quant_method": "fp8", "weight_block_size": [16, 16]}
LLAMA = configs.llama(num_key_value_heads=8, head_dim=16)
MOE = {"model_type": "qwen3_moe", "num_experts": 4, "num_experts_per_tok": 2, "decoder_sparse_step": 1}


def llama(**changes: object) -> configs.Config:
    return {**LLAMA, **changes}


def moe(**changes: object) -> configs.Config:
    return {**LLAMA, **MOE, "mlp_only_layers": [], **changes}


def gpt_oss(**changes: object) -> configs.Config:
    experts = {"num_local_experts": 4, "num_experts_per_tok": 2, "intermediate_size": 64}
    layers = {"layer_types": ["full_attention"], "num_hidden_layers": 1}
    return {**LLAMA, "model_type": "gpt_oss", **experts, **layers, **changes}


def findings(config: configs.Config, tp_size: int, **more: object) -> dict[str, list[Diagnostic]]:
    """TPP33x by code."""
    found: dict[str, list[Diagnostic]] = {}
    for diagnostic in check_quantization(subject(config, tp_size, **more)):
        assert len(diagnostic.message) < 120 and "\n" not in diagnostic.message
        found.setdefault(diagnostic.code, []).append(diagnostic)
    return found


# The arithmetic of scales, against the operations of Transformers and torch.


@settings(deadline=None)
@given(size=st.integers(1, 400), ranks=st.integers(1, 12), data=st.data())
def test_slices_are_torchs(size: int, ranks: int, data: st.DataObject) -> None:
    from torch.distributed.tensor import Shard

    rank = data.draw(st.integers(0, ranks - 1))
    length, start = Shard.local_shard_size_and_offset(size, ranks, rank)
    begin, end = slice_of(size, ranks, rank)
    assert end - begin == length
    assert length == 0 or begin == start


@settings(deadline=None)
@given(size=st.integers(1, 60), block=st.integers(1, 16), ranks=st.integers(1, 6), rows=st.booleans())
def test_scales_fall_as_transformers_spreads_them(size: int, block: int, ranks: int, rows: bool) -> None:
    """Each element of a weight of ones is its scale, and each scale is the number of its block."""
    import torch
    from transformers.integrations.finegrained_fp8 import Fp8Dequantize

    blocks = -(-size // block)
    predicted = spread(size, block, ranks, "rows")
    for rank in range(ranks):
        start, end = slice_of(size, ranks, rank)
        first, last = slice_of(blocks, ranks, rank)
        weight = torch.ones(end - start, 3).to(torch.float8_e4m3fn)
        scales = torch.arange(first, last, dtype=torch.float32)[:, None]
        weight, scales = (weight, scales) if rows else (weight.T, scales.T)
        try:
            found = Fp8Dequantize(None)._dequantize_one(weight, scales, output_dtype=torch.float32)
        except Exception:  # ValueError, ZeroDivisionError and RuntimeError: from_pretrained turns each into one error
            assert rank in predicted.raising
            continue
        expected = torch.tensor([float(index // block) for index in range(start, end)])
        right = torch.equal((found if rows else found.T)[:, 0], expected)
        assert rank not in predicted.raising and right == (rank not in predicted.wrong)


def test_a_known_spread() -> None:
    """1536 in blocks of 128, as in Qwen3-235B-A22B-FP8."""
    assert spread(1536, 128, 4, "rows").outcome == ""
    found = spread(1536, 128, 8, "rows")
    assert found.outcome == RAISES
    assert (found.wrong, found.raising) == ((0, 1, 2, 3, 4, 5), (6, 7))
    assert spread(384, 128, 2, "rows").outcome == WRONG
    assert spread(576, 128, 1, "rows").outcome == RAISES
    assert spread(448, 128, 1, "rows").outcome == WRONG


# The real loader, one rank at a time, against the verdict.


@pytest.mark.parametrize(
    ("config", "tp_size"),
    [
        (llama(), 1),
        (llama(), 2),
        (llama(), 4),
        (llama(intermediate_size=48), 1),
        (llama(intermediate_size=48), 2),
        (llama(intermediate_size=40), 1),
        (llama(intermediate_size=24), 1),
        (moe(moe_intermediate_size=96), 2),
        (moe(moe_intermediate_size=48), 2),
        (moe(moe_intermediate_size=96), 4),
    ],
    ids=lambda value: str(value) if isinstance(value, int) else value["model_type"] + str(value["intermediate_size"]),
)
def test_fp8_loads_as_told(tmp_path: Path, config: configs.Config, tp_size: int) -> None:
    whole = quantized.fp8_checkpoint(tmp_path, config, 16)
    loaded = json.loads((tmp_path / "config.json").read_text())
    told = findings(loaded, tp_size)
    said = [found for code in ("TPP332", "TPP335") for found in told.get(code, [])]
    messages = [found.message for found in said]
    listed = " ".join(f"{found.where.parameter} {found.evidence}" for found in said)
    raising, wrong = load_ranks(tmp_path, whole, tp_size)

    assert any(message.endswith(RAISES) for message in messages) == bool(raising)
    assert bool(messages) == bool(raising or wrong)
    if not raising:
        named = {name for name in wrong if name.replace(".0.", ".*.").replace(".1.", ".*.") in listed}
        assert named == set(wrong)


@pytest.mark.parametrize(
    ("config", "tp_size", "ep_size", "whole_modules"),
    [
        (llama(intermediate_size=48), 2, None, {"mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"}),
        (moe(moe_intermediate_size=48), 2, 2, set()),
        (moe(moe_intermediate_size=96), 4, 4, set()),
    ],
    ids=lambda value: value["model_type"] if isinstance(value, dict) else None,
)
def test_a_plan_keeps_cut_blocks_whole(
    tmp_path: Path, config: configs.Config, tp_size: int, ep_size: int | None, whole_modules: set[str]
) -> None:
    """And the real loader then gives every rank its own slice of every weight."""
    whole = quantized.fp8_checkpoint(tmp_path, config, 16)
    assert load_ranks(tmp_path, whole, tp_size) != ([], set()), "the model's own plan is wrong"
    plan = tpplan.plan(str(tmp_path), tp_size)
    assert plan.overrides == {f"model.layers.*.{name}": GRADIENTS_SUMMED for name in whole_modules}
    assert plan.target.ep_size == ep_size
    assert load_ranks(tmp_path, whole, tp_size, plan.overrides, plan.target.ep_size) == ([], set())
    fixes = {found.fix for found in tpplan.check(str(tmp_path), tp_size).diagnostics if found.code == "TPP332"}
    assert fixes and all(f"tpplan plan {tmp_path} --tp-size {tp_size} writes a plan" in fix for fix in fixes)


def load_ranks(
    directory: Path, whole: dict, tp_size: int, overrides: dict[str, str] | None = None, ep_size: int | None = None
) -> tuple[list[int], set[str]]:
    """(ranks that raise, parameters that are another slice than that of the dequantized weights)."""
    import torch
    from torch.distributed.tensor import DTensor, distribute_tensor

    raising, wrong = [], set()
    sharding = Sharding(tp_size=tp_size, overrides=overrides or {}, ep_size=ep_size)
    for rank in range(tp_size):
        with fake_rank(rank, tp_size):
            try:
                model = load_sharded("AutoModelForCausalLM", str(directory), sharding)
            except Exception:
                raising.append(rank)
                continue
            for name, parameter in model.named_parameters():
                expected, local = _expected(whole, name), parameter.detach()
                if isinstance(parameter, DTensor):
                    mesh, placements = parameter.device_mesh, parameter.placements
                    expected = distribute_tensor(expected, mesh, placements, src_data_rank=None).to_local()
                    local = parameter.to_local()
                if not torch.equal(local.detach(), expected):
                    wrong.add(name)
    return raising, wrong


def _expected(whole: dict, name: str) -> object:
    """The parameter from the published tensors: fused experts are apart there."""
    import torch

    if name in whole:
        return whole[name]
    base, _, part = name.rpartition(".")
    parts = ("gate_proj", "up_proj") if part == "gate_up_proj" else (part,)
    count = sum(key.startswith(f"{base}.") and key.endswith("down_proj.weight") for key in whole)
    return torch.stack([torch.cat([whole[f"{base}.{i}.{p}.weight"] for p in parts]) for i in range(count)])


def test_one_scale_a_weight_does_not_load_sharded(tmp_path: Path) -> None:
    whole = quantized.fp8_checkpoint(tmp_path, llama(), None)
    loaded = json.loads((tmp_path / "config.json").read_text())
    assert load_ranks(tmp_path, whole, 1) == ([], set()) and "TPP333" not in findings(loaded, 1)
    assert load_ranks(tmp_path, whole, 2)[0] == [0, 1]
    (found,) = findings(loaded, 2)["TPP333"]
    assert found.message.endswith("at tp_size 2: from_pretrained raises")


@pytest.mark.parametrize(
    ("overrides", "ep_size", "fails"),
    [
        ({}, None, False),
        ({}, 2, False),
        ({"model.layers.*.mlp.experts.down_proj": "rowwise"}, None, True),
        ({"model.layers.*.mlp.experts.gate_up_proj": "colwise"}, None, True),
        ({"model.layers.*.mlp.experts.gate_up_proj": "grouped_gemm"}, None, False),
    ],
    ids=str,
)
def test_mxfp4_experts_are_cut_by_expert_only(
    tmp_path: Path, overrides: dict[str, str], ep_size: int | None, fails: bool
) -> None:
    import torch
    from torch.distributed.tensor import DTensor, distribute_tensor

    quantized.mxfp4_checkpoint(tmp_path, gpt_oss())
    config = json.loads((tmp_path / "config.json").read_text())
    sharding = Sharding(tp_size=2, overrides=overrides, ep_size=ep_size)
    told = check_quantization(replace(subject(config, 2, overrides), sharding=sharding))
    assert ("TPP333" in [found.code for found in told]) == fails

    whole = load_sharded("AutoModelForCausalLM", str(tmp_path), Sharding(tp_size=1))
    expected = dict(whole.named_parameters())
    with fake_rank(1, 2):
        try:
            model = load_sharded("AutoModelForCausalLM", str(tmp_path), sharding)
        except RuntimeError:
            assert fails
            return
        wrong = set()
        for name, parameter in model.named_parameters():
            full, local = expected[name].detach(), parameter.detach()
            if isinstance(parameter, DTensor):
                mesh, placements = parameter.device_mesh, parameter.placements
                full = distribute_tensor(full, mesh, placements, src_data_rank=None).to_local()
                local = local.to_local()
            if full.shape != local.shape or not torch.equal(full, local):
                wrong.add(name)
    assert bool(wrong) == fails, "older releases load another slice without a word"


@pytest.mark.parametrize(
    ("package", "method", "outcome"),
    [
        ("gptqmodel", "gptq", "forward raises RuntimeError"),
        ("gptqmodel", "awq", "forward raises RuntimeError"),
        ("bitsandbytes", "bitsandbytes-4", "load raises"),
        ("bitsandbytes", "bitsandbytes-8", "load raises"),
        ("compressed_tensors", "compressed-tensors", "forward raises AttributeError"),
    ],
)
def test_methods_that_do_not_shard(tmp_path: Path, package: str, method: str, outcome: str) -> None:
    """Two gloo ranks, where the package is installed."""
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    config = llama(hidden_size=128, intermediate_size=256)
    name, _, bits = method.partition("-")
    if name == "bitsandbytes":
        quantized.bitsandbytes_checkpoint(tmp_path, config, int(bits))
    elif name == "compressed":
        quantized.compressed_checkpoint(tmp_path, config)
    else:
        quantized.packed_checkpoint(tmp_path, config, method)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    launched = subprocess.run(
        [*command, "-m", "tests.support.quantized", str(tmp_path)],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[1],
    )
    assert outcome in launched.stdout and "runs" not in launched.stdout, launched.stderr[-2000:]
    (found,) = findings(json.loads((tmp_path / "config.json").read_text()), 2)["TPP333"]
    assert outcome.partition(" ")[0].replace("load", "from_pretrained") in found.message


# Which modules: against the quantizers themselves.


@pytest.mark.parametrize(
    "ignored",
    [
        None,
        [],
        ["lm_head"],
        ["model.layers.1"],
        ["model.layers.*.self_attn"],
        ["q_proj", "mlp.down_proj"],
        ["model.layers.0.mlp", "lm_head", "model.layers.1.self_attn.k_proj"],
        [r"model\.layers\.[01]\.mlp\.(gate|up)_proj"],
        ["mlp.gate", "model.layers.0.mlp.ga", "norm"],
        ["experts"],
    ],
    ids=str,
)
@pytest.mark.parametrize("config", [llama(), moe(moe_intermediate_size=96)], ids=["llama", "moe"])
def test_fp8_modules_are_those_that_the_quantizer_replaces(config: configs.Config, ignored: list[str] | None) -> None:
    import transformers
    from transformers.integrations.finegrained_fp8 import FP8Experts, FP8Linear

    raw = BLOCK | ({} if ignored is None else {"modules_to_not_convert": ignored})
    judged = subject(config | {"quantization_config": raw}, 2)
    found = quantized_weights(judged.skeleton.model, judged.spec.scheme)

    replaced = meta_model(config)
    quantizer = transformers.quantizers.AutoHfQuantizer.from_config(dict(raw), pre_quantized=True)
    quantizer._process_model_before_weight_loading(replaced)
    expected = {
        f"{name}.{parameter}"
        for name, module in replaced.named_modules()
        if isinstance(module, (FP8Linear, FP8Experts))
        for parameter, _ in module.named_parameters(recurse=False)
        if parameter in ("weight", "gate_up_proj", "down_proj")
    }
    assert set(found) == expected


def meta_model(config: configs.Config) -> object:
    from tpplan.model.skeleton import build_on_meta

    return build_on_meta(subject(config, 2).spec)


@pytest.mark.parametrize(
    ("ignored", "targets"),
    [
        (["lm_head"], ["Linear"]),
        ([r"re:.*\.mlp\..*", "lm_head"], ["Linear"]),
        (["model.layers.0.self_attn.q_proj"], [r"re:.*self_attn\.[qk]_proj$"]),
        ([], ["model.layers.1.mlp.down_proj"]),
        (["model.layers.0.mlp"], ["Linear"]),
        (["Linear"], ["Linear"]),
    ],
    ids=str,
)
def test_compressed_tensors_modules(ignored: list[str], targets: list[str]) -> None:
    weights = {"num_bits": 8, "type": "float", "strategy": "channel"}
    raw = {"quant_method": "compressed-tensors", "ignore": ignored, "format": "float-quantized"}
    raw["config_groups"] = {"group_0": {"targets": targets, "weights": weights}}
    judged = subject(llama(quantization_config=raw), 2)
    found = set(quantized_weights(judged.skeleton.model, judged.spec.scheme))
    everything = {name for name in judged.skeleton.parameters if name.endswith("_proj.weight")} | {"lm_head.weight"}
    expected = {
        "[]": {"model.layers.1.mlp.down_proj.weight"},
        "['Linear']": set(),
        "['lm_head']": everything - {"lm_head.weight"},
        "['model.layers.0.mlp']": everything,  # an exact name, and no linear layer has it
        "['model.layers.0.self_attn.q_proj']": {
            f"model.layers.{name}_proj.weight" for name in ("1.self_attn.q", "0.self_attn.k", "1.self_attn.k")
        },
    }.get(str(ignored), {name for name in everything if "self_attn" in name})
    assert found == expected
    if importlib.util.find_spec("compressed_tensors"):
        from compressed_tensors.utils import match_named_modules

        matched = match_named_modules(judged.skeleton.model, targets, ignored)
        assert found == {f"{name}.weight" for name, _ in matched}


def test_the_method_table_is_that_of_transformers() -> None:
    for method in ("fp8", "mxfp4", "gptq", "awq", "bitsandbytes", "compressed-tensors"):
        assert is_known(method)
    assert not is_known("modelopt")


# Bytes.


def one(
    stored: Callable[..., int], bits: int, block: tuple[int | None, int | None], **more: Any
) -> dict[str, Quantized]:
    return {"w": Quantized(layout=Layout(stored=stored, bits=bits, block=block, **more))}


@pytest.mark.parametrize(
    ("weights", "itemsize", "expected"),
    [
        # (128, 352) as written by compressed-tensors 0.20.1 for a bfloat16 model, tensor by tensor
        (one(fp8_bytes, 8, (1, None)), 2, 45056 + 256),
        (one(fp8_bytes, 8, (None, None)), 2, 45056 + 2),
        (one(fp8_bytes, 8, (16, 16)), 2, 45056 + 352),
        (one(fp8_bytes, 8, (1, None), symmetric=False), 2, 45056 + 256 + 128),
        (one(packed_bytes, 4, (1, 32)), 2, 22528 + 2816 + 16),
        (one(packed_bytes, 4, (1, 32), symmetric=False), 2, 22528 + 2816 + 704 + 16),
        (one(packed_bytes, 8, (1, 32)), 2, 45056 + 2816 + 16),
        (one(packed_bytes, 3, (1, 32)), 2, 16896 + 2816 + 16),
        (one(packed_bytes, 4, (1, None)), 2, 22528 + 256 + 16),
        (one(nvfp4_bytes, 4, (1, 16), scale_bytes=1), 2, 22528 + 2816 + 4),
        (one(mxfp4_bytes, 4, (1, 32), scale_bytes=1), 2, 22528 + 1408),
        # as written by bitsandbytes 0.50.2
        (one(bytes_of_4_bits, 4, (None, None)), 4, 22528 + 2816 + 64),
        (one(bytes_of_4_bits, 4, (None, None), double_quant=True), 4, 22528 + 704 + 12 + 1024 + 64),
        (one(bytes_of_8_bits, 8, (1, None)), 4, 45056 + 512),
        # gptq: qweight (44, 128), qzeros (11, 16), scales (11, 128) half, g_idx (352,)
        (one(gptq_bytes, 4, (1, 32), scale_bytes=2), 2, 44 * 128 * 4 + 11 * 16 * 4 + 11 * 128 * 2 + 352 * 4),
        (one(awq_bytes, 4, (1, 32), scale_bytes=2), 2, 352 * 16 * 4 + 11 * 16 * 4 + 11 * 128 * 2),
        ({}, 2, 128 * 352 * 2),
    ],
    ids=lambda value: str(value) if isinstance(value, int) else "",
)
def test_bytes_are_those_that_the_packages_write(weights: dict, itemsize: int, expected: int) -> None:
    assert quantized_bytes("w", (128, 352), weights, itemsize) == expected
    experts = quantized_bytes("w", (3, 128, 352), weights, itemsize)
    assert experts == 3 * expected
    transposed = {"w": Quantized(layout=weights["w"].layout, transposed=True)} if weights else {}
    assert quantized_bytes("w", (352, 128), transposed, itemsize) == expected


@pytest.mark.parametrize("scale_fmt", ["float", "ue8m0"])
@pytest.mark.parametrize("block", [[16, 16], [16, 32], [128, 128], None], ids=str)
@pytest.mark.parametrize("config", [llama(), llama(intermediate_size=40), moe(moe_intermediate_size=96)], ids=str)
def test_fp8_bytes_are_those_of_the_modules(config: configs.Config, block: list[int] | None, scale_fmt: str) -> None:
    import transformers

    raw = {"quant_method": "fp8", "weight_block_size": block, "scale_fmt": scale_fmt}
    judged = subject(config | {"quantization_config": raw}, 2)
    weights = quantized_weights(judged.skeleton.model, judged.spec.scheme)
    replaced = meta_model(config)
    quantizer = transformers.quantizers.AutoHfQuantizer.from_config(dict(raw), pre_quantized=True)
    quantizer._process_model_before_weight_loading(replaced)
    allocated = dict(replaced.named_parameters())
    assert weights
    for name in weights:
        stored = sum(allocated[key].numel() * allocated[key].itemsize for key in (name, f"{name}_scale_inv"))
        assert quantized_bytes(name, judged.skeleton.parameters[name].shape, weights, 2) == stored, name


def test_bytes_of_a_published_checkpoint() -> None:
    """Llama-2-7B in GPTQ, 4 bits, groups of 128: 4 bits and 20 bits a group an element, 4 bytes an input."""
    raw = {"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": False}
    layers = {"hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32, "vocab_size": 32000}
    heads = {"num_attention_heads": 32, "num_key_value_heads": 32, "head_dim": 128, "tie_word_embeddings": False}
    judged = subject(llama(**layers, **heads, quantization_config=raw), 2)
    weights = quantized_weights(judged.skeleton.model, judged.spec.scheme)
    total = sum(quantized_bytes(p.name, p.shape, weights, 2) for p in judged.skeleton.parameters.values())
    assert len(weights) == 32 * 7
    elements = 32 * (4 * 4096 * 4096 + 3 * 4096 * 11008)
    inputs = 32 * (6 * 4096 + 11008)
    plain = 2 * (2 * 32000 * 4096 + (2 * 32 + 1) * 4096)
    assert total == elements // 2 + elements * 20 // 8 // 128 + 4 * inputs + plain


# Verdicts.


@pytest.mark.parametrize("tp_size", [2, 4])
def test_gptq_groups_of_llama_2(tp_size: int) -> None:
    raw = {"quant_method": "gptq", "bits": 4, "group_size": 128}
    config = llama(
        hidden_size=4096, intermediate_size=11008, num_attention_heads=32, num_key_value_heads=32, head_dim=128
    )
    told = findings(config | {"quantization_config": raw}, tp_size)
    assert ("TPP334" in told) == (tp_size == 4)


@pytest.mark.parametrize("dequantize", [False, True])
def test_compressed_blocks_load_only_dequantized(dequantize: bool) -> None:
    weights = {"num_bits": 8, "type": "float", "strategy": "block", "block_structure": [16, 16]}
    raw = {"quant_method": "compressed-tensors", "format": "float-quantized", "ignore": ["lm_head"]}
    raw |= {"config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}}, "dequantize": dequantize}
    even = findings(llama(quantization_config=raw), 2)
    odd = findings(llama(quantization_config=raw, intermediate_size=48), 2)
    assert ("TPP333" in even, "TPP332" in even) == (not dequantize, False)
    assert ("TPP333" in odd, "TPP332" in odd) == (not dequantize, dequantize)


def test_methods_that_fail_only_where_they_are_cut() -> None:
    whole = {f"model.layers.*.self_attn.{name}_proj": "replicated_with_grad_allreduce" for name in "qkvo"}
    whole |= {f"model.layers.*.mlp.{name}_proj": "replicated_with_grad_allreduce" for name in ("gate", "up", "down")}
    config = llama(quantization_config={"quant_method": "gptq", "bits": 4, "group_size": 32})
    assert "TPP333" in findings(config, 2)
    assert "TPP333" not in findings(config, 2, overrides=whole)


def test_a_newer_transformers_is_not_judged_by_old_measurements(monkeypatch: pytest.MonkeyPatch) -> None:
    config = llama(quantization_config={"quant_method": "gptq", "bits": 4, "group_size": 32})
    monkeypatch.setattr("tpplan.model.quantization.transformers_version", lambda: (5, 99, 0))
    told = findings(config, 2)
    assert "TPP338" in told and "TPP333" not in told


def test_the_rule_of_a_plan_is_named(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    model = configs.write(tmp_path, llama(intermediate_size=48, quantization_config=BLOCK))
    plan = tmp_path / "plan.yaml"
    plan.write_text(
        "version: 1\nmodel:\n  id: x/y\n  auto_class: AutoModelForCausalLM\n  config: {model_type: llama}\n"
        "target: {tp_size: 2}\noverrides:\n  model.layers.*.mlp.gate_proj: colwise\n"
    )
    assert main(["check", str(plan), "--model", model, "--depth", "static"]) == 1
    assert f"{plan}:8:3 model.layers.*.mlp.gate_proj.weight: error TPP332" in capsys.readouterr().out


def test_rules_that_an_old_quantizer_takes_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """TPP337: Transformers 5.19 and 5.20 replaced the plan of Qwen3 models, so nothing of the experts is cut."""
    config = moe(moe_intermediate_size=48, quantization_config=BLOCK)
    judged = subject(config, 2)
    if not hasattr(internals().fp8_quantizer, "update_tp_plan"):
        assert dropped_rules(judged.spec.config) == () and "TPP332" in findings(config, 2)

        class Old:
            def update_tp_plan(self, config: object) -> object:
                dense = {rule: name for rule, name in config.base_model_tp_plan.items() if "experts" not in rule}
                config.base_model_tp_plan = {f"{rule}.weight": name for rule, name in dense.items()}
                return config

        monkeypatch.setattr(internals(), "fp8_quantizer", Old)
    told = findings(config, 2)
    assert "experts.down_proj" in told["TPP337"][0].evidence
    assert not any("experts" in str(found.where) + found.evidence for found in told.get("TPP332", []))


# Configs.


@pytest.mark.parametrize(
    ("raw", "key"),
    [
        ({}, "quant_method"),
        ([], ""),
        ("fp8", ""),
        (5, ""),
        (False, ""),
        ({"bits": 4, "group_size": 64}, "quant_method"),
        ({"quant_method": None}, "quant_method"),
        ({"quant_method": ["fp8"]}, "quant_method"),
        ({"quant_method": 3}, "quant_method"),
        ({"quant_method": "fp8", "weight_block_size": [0, 128]}, "weight_block_size"),
        ({"quant_method": "fp8", "weight_block_size": [-1, 128]}, "weight_block_size"),
        ({"quant_method": "fp8", "weight_block_size": 128}, "weight_block_size"),
        ({"quant_method": "fp8", "weight_block_size": ["a", "b"]}, "weight_block_size"),
        ({"quant_method": "fp8", "weight_block_size": [128]}, "weight_block_size"),
        ({"quant_method": "fp8", "weight_block_size": [True, True]}, "weight_block_size"),
        ({"quant_method": "fp8", "scale_fmt": "fp16"}, "scale_fmt"),
        ({"quant_method": "fp8", "dequantize": "yes"}, "dequantize"),
        ({"quant_method": "fp8", "modules_to_not_convert": "lm_head"}, "modules_to_not_convert"),
        ({"quant_method": "fp8", "modules_to_not_convert": [1]}, "modules_to_not_convert"),
        ({"quant_method": "fp8", "modules_to_not_convert": ["("]}, "modules_to_not_convert"),
        ({"quant_method": "gptq"}, "bits"),
        ({"quant_method": "gptq", "bits": 5}, "bits"),
        ({"quant_method": "gptq", "bits": "4"}, "bits"),
        ({"quant_method": "gptq", "bits": 4, "group_size": 0}, "group_size"),
        ({"quant_method": "gptq", "bits": 4, "modules_in_block_to_quantize": [3]}, "modules_in_block_to_quantize"),
        ({"quant_method": "awq", "group_size": -2}, "group_size"),
        ({"quant_method": "awq", "group_size": "128"}, "group_size"),
        ({"load_in_4bit": 1}, "load_in_4bit"),
        ({"load_in_4bit": True, "load_in_8bit": True}, "load_in_4bit"),
        ({"quant_method": "compressed-tensors"}, "config_groups"),
        ({"quant_method": "compressed-tensors", "config_groups": {"g": 1}}, "config_groups.g"),
        ({"quant_method": "compressed-tensors", "config_groups": {"g": {}}}, "config_groups.g.targets"),
        (
            {"quant_method": "compressed-tensors", "config_groups": {"g": {"targets": ["re:("], "weights": {}}}},
            "config_groups.g.targets",
        ),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {"g": {"targets": ["Linear"], "weights": {"strategy": "block"}}},
            },
            "config_groups.g.weights.block_structure",
        ),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {"g": {"targets": ["Linear"], "weights": {"strategy": "group"}}},
            },
            "config_groups.g.weights.group_size",
        ),
    ],
    ids=str,
)
def test_a_malformed_config_is_one_diagnostic(
    tmp_path: Path, capsys: pytest.CaptureFixture, raw: object, key: str
) -> None:
    with pytest.raises(Malformed) as caught:
        read_scheme(raw)
    assert caught.value.key == key
    model = configs.write(tmp_path, llama(quantization_config=raw))
    assert main(["check", model, "--tp-size", "2", "--depth", "static"]) == 2
    printed = capsys.readouterr()
    assert printed.out.count(" error TPP") == printed.out.count("error TPP330") == 1 and printed.err == ""


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 300) | st.text("abc*(re:.", max_size=5) | st.floats(allow_nan=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("abc", max_size=3), inner, max_size=3),
    max_leaves=4,
)
KEYS = [
    *("quant_method", "weight_block_size", "bits", "group_size", "desc_act", "sym", "config_groups", "load_in_4bit"),
    *("scale_fmt", "expert_dtype", "modules_to_not_convert", "ignore", "ignored_layers"),
    "modules_in_block_to_quantize",
]
NAMES = ["fp8", "gptq", "awq", "mxfp4", "compressed-tensors", "bitsandbytes", "modelopt", "quanto"]
GROUP_KEYS = ["num_bits", "type", "strategy", "group_size", "block_structure", "symmetric", "actorder"]
groups = st.dictionaries(st.sampled_from(GROUP_KEYS), json_values | st.sampled_from(["block", "group", "tensor"]))


@settings(deadline=None)
@given(
    raw=st.dictionaries(st.sampled_from(KEYS), json_values),
    method=st.sampled_from(NAMES),
    weights=groups,
    grouped=st.booleans(),
)
def test_no_config_raises_anything_else(raw: dict, method: str, weights: dict, grouped: bool) -> None:
    values = raw | {"quant_method": method}
    if grouped:
        values["config_groups"] = {"g": {"targets": ["Linear"], "weights": weights}}
    try:
        scheme = read_scheme(values)
    except Malformed:
        return
    quantized_weights(meta(), scheme)


def meta() -> object:
    return subject(llama(), 2).skeleton.model


def test_null_is_no_quantization() -> None:
    assert read_scheme(None) is None
    assert findings(llama(quantization_config=None), 2) == {}


def test_a_nested_config_counts_as_transformers_reads_it() -> None:
    nested = configs.qwen3_vl_30b_a3b()
    nested["text_config"]["quantization_config"] = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    assert subject(nested, 4).spec.scheme.layout.block == (128, 128)
    nested["quantization_config"] = {"quant_method": "fp8", "weight_block_size": [64, 64]}
    assert subject(nested, 4).spec.scheme.layout.block == (64, 64)
    nested["quantization_config"] = {}  # gives way, as in get_hf_quantizer
    assert subject(nested, 4).spec.scheme.layout.block == (128, 128)


def test_dequantized_on_cpu() -> None:
    def said(**raw: object) -> bool:
        return bool(read_scheme(raw).dequantized)

    assert said(quant_method="fp8") and said(quant_method="mxfp4")
    assert not said(quant_method="gptq", bits=4)


# A method is added as one row.


def test_a_method_is_one_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`hqq`, which Transformers has and tpplan does not describe: read, counted, told and kept in a plan."""
    raw = {"quant_method": "hqq", "level": 2, "skipped": ["lm_head", "model.layers.0.mlp", "model.layers.1.mlp"]}
    model = configs.write(tmp_path / "model", llama(quantization_config=raw | {"other": 1}))
    codes = {found.code for found in tpplan.check(model, 2, depth="static").diagnostics}
    assert "TPP338" in codes and "TPP333" not in codes

    def seven(layout: Layout, out: int, inner: int, itemsize: int) -> int:
        return 7

    def read(method: str, values: Values) -> Scheme:
        layout = Layout(stored=seven, bits=values.bits("level", (2,)), block=(1, 16))
        return Scheme(method=method, layout=layout, ignored=values.names("skipped"))

    def failure(scheme: Scheme, weight: Quantized, cut_dim: int | None) -> Failure | None:
        return Failure(outcome="the test raises", cause="it is told to") if cut_dim == 1 else None

    monkeypatch.setitem(METHODS, "hqq", Method(read=read, facts=("level",), lists=("skipped",), failure=failure))
    report = tpplan.check(model, 2, depth="static")
    (found,) = [found for found in report.diagnostics if found.code == "TPP333"]
    assert found.message == "hqq weights do not run with this plan at tp_size 2: the test raises"
    assert found.evidence == "the plan cuts model.layers.*.self_attn.o_proj.weight; it is told to"

    subject = open_request(make_request(model, 2))
    sizes = {name: parameter.bytes for name, parameter in subject.skeleton.parameters.items()}
    attention = {f"model.layers.{layer}.self_attn.{name}_proj.weight" for layer in "01" for name in "qkvo"}
    assert {name for name, size in sizes.items() if size == 7} == attention

    whole = {"model.layers.*.self_attn.o_proj": "replicated_with_grad_allreduce"}
    facts = {"quant_method": "hqq", "level": 2, "skipped": ["lm_head", "model.layers.*.mlp"]}
    assert tpplan.plan(model, 1).model.config["quantization_config"] == facts
    repaired = replace(subject, sharding=Sharding(tp_size=2, overrides=whole))
    assert not {"TPP333", "TPP338"} & {found.code for found in checks.findings(repaired)}
    with pytest.raises(Malformed, match="level is 3, must be one of 2"):
        read_scheme(raw | {"level": 3})


# Plans carry what decides.


def test_a_plan_judges_its_quantization_alone(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    names = [f"model.layers.{i}.{name}" for i in range(2) for name in ("mlp.gate", "input_layernorm")]
    raw = BLOCK | {"modules_to_not_convert": ["lm_head", *names], "activation_scheme": "dynamic"}
    model = configs.write(tmp_path / "model", llama(quantization_config=raw))
    plan = tmp_path / "plan.yaml"
    assert main(["plan", model, "--tp-size", "2", "--id", "x/y", "-o", str(plan)]) == 0
    assert "activation_scheme" not in plan.read_text() and plan.read_text().count("input_layernorm") == 1

    plan.write_text(plan.read_text().replace("intermediate_size: 96", "intermediate_size: 48"))
    assert main(["check", str(plan), "--depth", "static"]) == 1
    assert "error TPP332" in capsys.readouterr().out


def test_a_plan_is_stale_where_the_quantization_differs(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    model = configs.write(tmp_path / "model", llama(quantization_config=BLOCK))
    plan = tmp_path / "plan.yaml"
    assert main(["plan", model, "--tp-size", "2", "--id", "x/y", "-o", str(plan)]) == 0
    assert main(["check", str(plan), "--model", model, "--depth", "static"]) == 0
    configs.write(tmp_path / "model", llama(quantization_config=BLOCK | {"weight_block_size": [8, 8]}))
    assert main(["check", str(plan), "--model", model, "--depth", "static"]) == 1
    assert "TPP120" in capsys.readouterr().out


@pytest.mark.parametrize("ignored", [["model.layers.1.mlp"], ["lm_head", "model.layers.0.mlp.up_proj"]], ids=str)
def test_a_list_that_names_one_layer_stays_whole(ignored: list[str]) -> None:
    judged = subject(llama(quantization_config=BLOCK | {"modules_to_not_convert": ignored}), 2)
    facts = quantization_facts(judged.spec, judged.skeleton.model)
    assert facts == BLOCK | {"modules_to_not_convert": ignored}


def test_a_null_that_decides_is_kept() -> None:
    """`group_size: null` is one scale for all of the input dim, and a missing one is 128."""
    raw = {"quant_method": "awq", "bits": 4, "group_size": None}
    judged = subject(llama(quantization_config=raw | {"modules_to_not_convert": None}), 2)
    assert quantization_facts(judged.spec, judged.skeleton.model) == raw


def is_quantized(file: Path) -> bool:
    return '"quantization_config"' in file.read_text(encoding="utf-8")


@pytest.mark.parametrize("file", config_files(is_quantized))
def test_published_configs_are_judged(file: Path) -> None:
    from tpplan.diagnostics import InputError

    try:
        judged = open_request(make_request(file, 4))
    except InputError as error:
        assert [found.code for found in error.diagnostics] in (["TPP330"], ["TPP114"], ["TPP111"])
        return
    assert judged.spec.scheme is not None
    for tp_size in (1, 2, 8):
        sized = replace(judged, sharding=Sharding(tp_size=tp_size))
        assert [found.code for found in checks.findings(sized)] or tp_size == 1
    facts = quantization_facts(judged.spec, judged.skeleton.model)
    again: ModelSpec = replace(judged.spec, quantization_config=facts)
    assert facts is not None and quantization_facts(again, judged.skeleton.model) == facts, "a fact of a fact is itself"


@pytest.mark.parametrize("expression", ["a(", "a{99999999999999999999}", "(" * 3000 + ")" * 3000])
def test_a_name_that_is_no_expression_is_refused(tmp_path: Path, expression: str) -> None:
    """Whatever Python's re raises for it."""
    model = configs.write(tmp_path, llama(quantization_config=BLOCK | {"modules_to_not_convert": [expression]}))
    with pytest.raises(tpplan.InputError) as refused:
        tpplan.check(model, 2, depth="static")
    assert [found.code for found in refused.value.diagnostics] == ["TPP330"]
