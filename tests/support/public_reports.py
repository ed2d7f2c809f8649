"""Public reports of tensor parallelism that failed, reduced to what decides, with what is right for Transformers.

A row is one report: where it was made, the model, the tp_size, and what must come out: the verdict of the model's own
code, measured on Transformers 5.24 where a row does not say otherwise. Several rows may hold one report. Numbers that a
report does not state are the published config's. Reports about quantized checkpoints are in tests/test_quantization.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from tests.support import public_models as models
from tests.support.public_models import Model


class Right(StrEnum):
    """What is right for a report."""

    RUNS = "it runs, whatever another checker said"
    FIX = "the model's own plan stops, and an override makes it run with right numbers"
    FAILS = "it stops, and no plan is made"
    SILENT = "it runs with wrong numbers, and the check says so"
    WASTE = "it runs, and much of it stays whole on every rank"


@dataclass(frozen=True, kw_only=True)
class Row:
    """codes: of all diagnostics, as the report orders them. repaired, repaired_ep_size: the plan that is made, for FIX.
    sizes: those offered without a repair. says: words of the report. overrides, ep_size: of the plan that was reported,
    where it was not the model's own. depth: how far the check goes. gib: parameters of a rank. versions: releases of
    Transformers for which the row holds. slow: run with the sweeps.
    """

    id: str
    url: str
    model: Model
    tp_size: int
    right: Right
    codes: tuple[str, ...] = ()
    repaired: Mapping[str, str] = field(default_factory=dict)
    repaired_ep_size: int | None = None
    sizes: tuple[int, ...] = ()
    says: tuple[str, ...] = ()
    overrides: Mapping[str, str] = field(default_factory=dict)
    ep_size: int | None = None
    depth: str = "shapes"
    purpose: str = "inference"
    gib: float | None = None
    versions: str = ">=5.24"
    slow: bool = False

    @property
    def name(self) -> str:
        return f"{self.id}-{self.model[0]}-tp{self.tp_size}"


def row(id: str, where: str, model: Model, tp_size: int, right: Right, *codes: str, **more: Any) -> Row:
    return Row(id=id, url=f"https://github.com/{where}", model=model, tp_size=tp_size, right=right, codes=codes, **more)


SUMMED = "replicated_with_grad_allreduce"
RUNS, FIX, FAILS, SILENT, WASTE = Right
HF, VLLM, SGLANG = "huggingface/transformers", "vllm-project/vllm", "sgl-project/sglang"
TPU = "vllm-project/tpu-inference"
KV = ("TPP301",)
HEADS = ("TPP301", "TPP302")
E4B = ("TPP301", "TPP301", "TPP402", "TPP305")
UNEVEN = ("TPP309",)  # what Transformers refused before 5.21
NO_PLAN = ("TPP205",)


def whole(names: str = "qkvo", inside: str = "model.layers.*.self_attn.") -> dict[str, str]:
    """The documented repair: these projections on every rank."""
    return {f"{inside}{name}_proj": SUMMED for name in names}


FLAT = {"repaired": whole()}
NESTED = {"repaired": whole(inside="model.language_model.layers.*.self_attn.")}
TO_2, TO_4, TO_8 = ({"sizes": sizes} for sizes in ((1, 2), (1, 2, 4), (1, 2, 4, 8)))
PER_LAYER = NESTED["repaired"] | {"lm_head": SUMMED, "model.language_model.embed_tokens": SUMMED}
EXPERTS = "model.layers.*.mlp.experts"

# fmt: off
ROWS: tuple[Row, ...] = (
    # A: key/value heads
    row("A01", f"{HF}/issues/48307", models.qwen3_vl_30b(), 8, FIX, *KV, **NESTED, sizes=(1,),
        says=("512 columns / 8 ranks = 64 columns per rank, one head needs 128",), repaired_ep_size=8),
    row("A03", "pytorch/torchtitan/issues/2574", models.qwen3_5_35b(), 4, FIX, *KV, **NESTED, **TO_2, slow=True),
    row("A05", "NVIDIA-NeMo/Automodel/issues/799", models.phi_4(), 4, RUNS, depth="numerics"),
    row("A07", "deepspeedai/DeepSpeed/issues/7259", models.qwen25_3b(), 4, FIX, *KV, **FLAT, **TO_2),
    row("A08", "NVIDIA/TensorRT-LLM/issues/4308", models.qwen3_30b_a3b(), 8, FIX, *KV, **FLAT, **TO_4, slow=True),
    row("A14", "modelscope/ms-swift/issues/8219", models.qwen3_5_397b(), 8, FIX, *KV, **NESTED, **TO_2, slow=True),
    row("A15", f"{TPU}/pull/2661", models.qwen25_3b(), 8, FIX, *KV, **FLAT, **TO_2, slow=True),
    row("A16", f"{TPU}/pull/1429", models.llama(128, 8), 16, FIX, *KV, **FLAT, **TO_8, slow=True),
    row("A17", f"{TPU}/pull/2585", models.gemma4_26b_a4b(), 8, FIX, *KV, **NESTED, **TO_2, slow=True),
    row("A18", f"{VLLM}/issues/930", models.llama(64, 8, intermediate_size=28672), 16, FIX, *KV, **FLAT, **TO_8),
    row("A19", "verl-project/verl/issues/6681", models.qwen3_5_35b(), 8, FIX, *KV, **NESTED, **TO_2, slow=True),
    row("A20", "huggingface/text-generation-inference/issues/1987",
        models.dense("gemma", 8, 1, 2048, 16384, head_dim=256), 4, FIX, *KV, **FLAT, sizes=(1,)),
    row("A24", "InternLM/lmdeploy/issues/2839", models.dense("glm", 32, 2, 4096, 13696, head_dim=128, pad_token_id=0),
        4, FIX, *KV, **FLAT, **TO_2),
    row("A26", "NVIDIA/TensorRT-Model-Connect/pull/147", models.qwen25_vl_3b(), 4, FIX, *KV, **NESTED, **TO_2,
        slow=True),
    row("A27", "NVIDIA-NeMo/Automodel/pull/1861", models.gemma4_31b(), 8, FIX, *KV, **NESTED, **TO_4,
        says=("4 key/value heads in these layers; 2048 columns / 8 ranks = 256 columns per rank, one head needs 512",)),
    row("A28", "NVIDIA-NeMo/Automodel/pull/3512", models.gemma4_e4b(), 4, FIX, *E4B, sizes=(1,),
        says=("model.language_model.embed_tokens_per_layer.weight 0.75 GiB",), repaired=PER_LAYER),
    row("A28", "NVIDIA-NeMo/Automodel/pull/3512", models.gemma4_e4b(7, 18), 4, FIX, *E4B, sizes=(1,),
        says=("model.language_model.embed_tokens_per_layer.weight 5.25 GiB",), repaired=PER_LAYER, slow=True),
    row("A32", "TheTom/llama-cpp-turboquant/pull/324", models.qwen3_5(), 3, FIX, *KV, **NESTED, **TO_2, slow=True),
    row("A32", "TheTom/llama-cpp-turboquant/pull/324", models.qwen3_5(kv=2), 4, FIX, *KV, **NESTED, **TO_2, slow=True),
    row("A33", "ai-dynamo/modelexpress/pull/650", models.nemotron_h(), 8, WASTE, "TPP305"),
    row("A35", "exo-explore/exo/issues/1282", models.gpt_oss_120b(), 3, WASTE, "TPP305"),
    row("A35", "exo-explore/exo/issues/1282", models.gpt_oss_120b(), 4, WASTE, "TPP305"),
    row("A36", "deepspeedai/DeepSpeed/pull/8316", models.llama(12, 3), 4, FIX, *KV, **FLAT, sizes=(1, 3)),
    # B: query heads
    row("B02", f"{VLLM}/issues/2652", models.llama(52, 52, intermediate_size=17920), 8, FIX, *HEADS, **FLAT, **TO_4),
    row("B05", f"{VLLM}/issues/11797", models.qwen2_7b(), 8, FIX, *HEADS, **FLAT, **TO_4),
    row("B06", "THU-KEG/AdaptThink/issues/1", models.qwen2_7b(), 8, FIX, *HEADS, **FLAT, **TO_4, slow=True),
    row("B06", "THU-KEG/AdaptThink/issues/1", models.qwen2_7b(), 7, FIX, *KV, **FLAT, **TO_4),
    row("B07", f"{VLLM}/issues/1705", models.gpt2_xl(), 2, FAILS, *NO_PLAN),
    row("B07", f"{VLLM}/issues/1705", models.gpt2_xl(), 5, FAILS, *NO_PLAN),
    row("B09", f"{VLLM}/issues/52435", models.deepseek_v4_flash(), 3, FIX, "TPP402", **TO_2,
        repaired=dict.fromkeys((EXPERTS, f"{EXPERTS}.down_proj", f"{EXPERTS}.gate_up_proj"), SUMMED)),
    row("B09", f"{VLLM}/issues/52435", models.deepseek_v4_flash(), 3, FAILS, "TPP310", ep_size=3,
        says=("n_routed_experts = 256 (config.json); 256 % 3 = 1",)),
    row("B11", "gpustack/gpustack/issues/2642", models.internvl(64, 8, 8192, 29568), 4, RUNS),
    row("B12", "deepspeedai/DeepSpeed/issues/3634", models.llama(52, 52, intermediate_size=17920), 8, FIX, *HEADS,
        **FLAT, **TO_4, slow=True),
    row("B13", f"{VLLM}/pull/13934", models.qwen2_15b(), 8, FIX, *HEADS, **FLAT, **TO_2),
    row("B13", f"{VLLM}/pull/13934", models.dense("qwen2", 12 + 4, 2, 1536, 8960, head_dim=128), 4, SILENT, "TPP206",
        overrides=whole("kv"), depth="numerics", says=("gives logits different from the unsharded one's",)),
    row("B14", "MIV-XJTU/FSDrive/issues/21", models.qwen2_vl(12, 2, 1536, 8960), 8, FIX, *HEADS, **NESTED, **TO_2),
    # C: vision towers
    row("C02", f"{SGLANG}/issues/7854", models.internvl(32, 8, 4096, 14336), 2, RUNS, depth="numerics"),
    row("C03", f"{VLLM}/issues/24004", models.glm4v_moe(), 8, RUNS),
    row("C04", f"{VLLM}/issues/49368", models.glm4v(), 32, FIX, *KV, **NESTED, **TO_2, slow=True),
    row("C05", f"{SGLANG}/pull/9059", models.glm4v_moe(), 8, RUNS, depth="numerics", slow=True),
    row("C05", f"{SGLANG}/pull/9059", models.glm4v(), 8, FIX, *KV, **NESTED, **TO_2, slow=True),
    row("C06", f"{VLLM}/pull/57119", models.qwen2_vl(12, 2, 1536, 8960), 3, FIX, *KV, **NESTED, **TO_2),
    row("C06", f"{VLLM}/pull/57119", models.qwen2_vl(12, 6, 1536, 8960), 3, RUNS),
    # D: vocabulary and tied embeddings
    row("D01", f"{HF}/issues/37051", models.dense("granite", 32, 8, 2048, 8192, vocab_size=49152,
        tie_word_embeddings=True), 5, FIX, *HEADS, **FLAT, **TO_4),
    row("D01", f"{HF}/issues/37051", models.dense("granite", 40, 10, 2560, 8192, vocab_size=49152,
        tie_word_embeddings=True), 5, RUNS, depth="numerics", versions=">=5.21"),
    row("D01", f"{HF}/issues/37051", models.dense("granite", 40, 10, 2560, 8192, vocab_size=49152,
        tie_word_embeddings=True), 5, FIX, *UNEVEN, **TO_2, versions="<5.21",
        repaired={"lm_head": SUMMED, "model.embed_tokens": SUMMED}),
    row("D03", f"{VLLM}/issues/440", models.flat("bloom", vocab_size=250682), 8, FAILS, *NO_PLAN),
    row("D12", f"{HF}/pull/47503", models.qwen3_06b(), 2, RUNS, depth="numerics", versions=">=5.19"),
    row("D13", f"{HF}/pull/48824", models.deepseek_v4_flash(tie_word_embeddings=True), 2, RUNS, ep_size=2),
    row("D14", f"{HF}/pull/48779", models.flat("gpt_neox", num_hidden_layers=2, tie_word_embeddings=True), 2, FAILS,
        "TPP201", overrides={"gpt_neox.embed_tokens": "embedding_rowwise"}, says=("write 'gpt_neox.embed_in'",)),
    row("D15", "foundation-model-stack/foundation-model-stack/pull/331", models.llama(16, 4, tie_word_embeddings=True),
        2, RUNS, depth="numerics"),
    row("D16", f"{HF}/pull/47253", models.llama(8, 8, vocab_size=99), 2, RUNS, depth="numerics", versions=">=5.21"),
    row("D16", f"{HF}/pull/47253", models.llama(8, 8, vocab_size=99), 2, FIX, *UNEVEN, sizes=(1,), versions="<5.21",
        repaired={"lm_head": SUMMED}),
    # E: what stays whole
    row("E01", f"{HF}/issues/48308", models.qwen3_vl_30b(), 4, FIX, "TPP505", depth="numerics", sizes=(1,),
        repaired_ep_size=4),
    row("E05", "marin-community/marin/issues/1903", models.llama(128, 8, intermediate_size=53248, vocab_size=128256,
        num_hidden_layers=126), 8, RUNS, gib=94.5),
    row("E08", "tenstorrent/tt-xla/issues/5728", models.gemma4_31b(), 4, RUNS),
    # G: MLP width, fused layouts, names
    row("G01", f"{VLLM}/issues/3772", models.llama(56, 56, intermediate_size=19114), 8, RUNS, versions=">=5.21"),
    row("G01", f"{VLLM}/issues/3772", models.llama(40, 40, intermediate_size=13653), 4, RUNS, depth="numerics",
        versions=">=5.21"),
    row("G01", f"{VLLM}/issues/3772", models.llama(40, 40, intermediate_size=13653), 4, RUNS, purpose="training",
        versions=">=5.21"),
    row("G01", f"{VLLM}/issues/3772", models.llama(40, 40, intermediate_size=13653), 4, FAILS, "TPP402",
        "TPP305", purpose="training", versions="<5.21"),
    row("G02", "NVIDIA/Megatron-LM/pull/1989", models.qwen3_next(), 2, RUNS, depth="numerics"),
    row("G04", f"{VLLM}/pull/36242", models.qwen3_next(), 2, RUNS, depth="numerics", purpose="training", slow=True),
    row("G06", f"{VLLM}/pull/47759", models.qwen3_5(), 3, FIX, *KV, **NESTED, **TO_2, slow=True),
    row("G08", f"{HF}/issues/38419", models.marian(), 1, RUNS),
    row("G08", f"{HF}/issues/38419", models.marian(), 2, FAILS, *NO_PLAN),
    row("G09", "deepspeedai/DeepSpeed/pull/3844", models.codegen(), 2, RUNS, depth="numerics"),
    row("G09", "deepspeedai/DeepSpeed/pull/3844", models.codegen(), 4, RUNS, depth="numerics",
        slow=True),
    row("G10", "deepspeedai/DeepSpeed/issues/4016", models.llama(32, 32, intermediate_size=11008), 2, RUNS,
        depth="numerics"),
    row("G13", "FlashML-org/FreeToken/pull/440", models.qwen3_5_35b(), 2, FAILS, "TPP207",
        overrides={"model.language_model.layers.*.self_attn.o_proj": SUMMED}),
)
# fmt: on

# Reports that a test of their own holds: what they are about is no config at a tp_size.
OWN_TEST = {
    "E04": "a model class that the checkpoint brings, without a plan",
    "E07": "configs that lack values",
}

# Reports about another engine's own code, without a question to Transformers: id -> why.
NOT_TRANSFORMERS = {
    "A21": "the true head count lost between SGLang's prefill and decode servers, which tp_size alone does not have",
    "E06": "which models vLLM itself implements",
    "E09": "page size and packing of tpu-inference's own key/value cache",
    "G12": "Megatron's own vocabulary-parallel loss; logits that a rank holds in part are TPP208",
    "G14": "diffusion transformers of cache-dit, no Transformers model",
}
