"""The configs that the tests judge: the numbers of a published config that decide, and small made-up ones.

Each is a function that returns a new dict in the form of config.json; keyword arguments change or add values.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

Config = dict[str, Any]


def write(directory: Path, config: Config) -> str:
    """Write `config` as the config.json of a model directory, and return the directory as a user would name it."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return str(directory)


# Published models: the values of their config.json that set names, shapes, heads, layer kinds and ties.


def glm4_9b(**changes: Any) -> Config:
    """GLM-4-9B-0414: 32 query heads and 2 key/value heads."""
    config = _published(
        "glm4",
        hidden_size=4096,
        num_attention_heads=32,
        num_key_value_heads=2,
        head_dim=128,
        num_hidden_layers=40,
        intermediate_size=13696,
        vocab_size=151552,
        tie_word_embeddings=False,
        attention_bias=True,
        pad_token_id=151329,
    )
    return config | changes


def phi_4(**changes: Any) -> Config:
    """phi-4: 40 query heads and 10 key/value heads in one fused projection, which its plan gathers."""
    config = _published(
        "phi3",
        hidden_size=5120,
        num_attention_heads=40,
        num_key_value_heads=10,
        num_hidden_layers=40,
        intermediate_size=17920,
        vocab_size=100352,
        tie_word_embeddings=False,
        max_position_embeddings=16384,
        original_max_position_embeddings=16384,
        bos_token_id=100257,
        eos_token_id=100265,
        pad_token_id=100349,
    )
    return config | changes


def qwen3_8b(**changes: Any) -> Config:
    """Qwen3-8B: 32 query heads, 8 key/value heads, q_norm and k_norm."""
    return _qwen3(hidden_size=4096, intermediate_size=12288, num_hidden_layers=36, tie_word_embeddings=False) | changes


def qwen3_4b(**changes: Any) -> Config:
    """Qwen3-4B: as Qwen3-8B, narrower and tied."""
    return _qwen3(hidden_size=2560, intermediate_size=9728, num_hidden_layers=36, tie_word_embeddings=True) | changes


def qwen3_06b(**changes: Any) -> Config:
    """Qwen3-0.6B: 16 query heads, 8 key/value heads, tied; its checkpoint has both names of the tied pair."""
    config = _qwen3(hidden_size=1024, intermediate_size=3072, num_hidden_layers=28, tie_word_embeddings=True)
    return config | {"num_attention_heads": 16} | changes


def qwen3_vl_30b_a3b(**changes: Any) -> Config:
    """Qwen3-VL-30B-A3B: a language model of 4 key/value heads, nested in a multimodal wrapper."""
    text = {
        "model_type": "qwen3_vl_moe_text",
        "dtype": "bfloat16",
        "hidden_size": 2048,
        "num_attention_heads": 32,
        "num_key_value_heads": 4,
        "head_dim": 128,
        "num_hidden_layers": 48,
        "intermediate_size": 6144,
        "moe_intermediate_size": 768,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "rope_scaling": {"mrope_interleaved": True, "mrope_section": [24, 20, 20], "rope_type": "default"},
        "vocab_size": 151936,
    }
    vision = {
        "model_type": "qwen3_vl_moe",
        "depth": 27,
        "hidden_size": 1152,
        "intermediate_size": 4304,
        "num_heads": 16,
        "out_hidden_size": 2048,
        "patch_size": 16,
        "deepstack_visual_indexes": [8, 16, 24],
    }
    tokens = {"image_token_id": 151655, "video_token_id": 151656}
    wrapper = {"model_type": "qwen3_vl_moe", "architectures": ["Qwen3VLMoeForConditionalGeneration"]}
    return wrapper | tokens | {"text_config": text, "vision_config": vision, "tie_word_embeddings": False} | changes


def gpt_oss_20b(**changes: Any) -> Config:
    """gpt-oss-20b: its plan has rules for the embedding and the head only; quantized."""
    config = _published(
        "gpt_oss",
        hidden_size=2880,
        num_attention_heads=64,
        num_key_value_heads=8,
        head_dim=64,
        num_hidden_layers=24,
        layer_types=["sliding_attention", "full_attention"] * 12,
        sliding_window=128,
        intermediate_size=2880,
        num_local_experts=32,
        num_experts_per_tok=4,
        vocab_size=201088,
        tie_word_embeddings=False,
        attention_bias=True,
        quantization_config={"quant_method": "mxfp4"},
    )
    return config | changes


def gemma_4_31b(**changes: Any) -> Config:
    """gemma-4-31B: 16 key/value heads in sliding layers, 4 of four times the width in full ones."""
    rope = {
        "full_attention": {"partial_rotary_factor": 0.25, "rope_theta": 1000000.0, "rope_type": "proportional"},
        "sliding_attention": {"rope_theta": 10000.0, "rope_type": "default"},
    }
    text = {
        "model_type": "gemma4_text",
        "dtype": "bfloat16",
        "hidden_size": 5376,
        "num_attention_heads": 32,
        "num_key_value_heads": 16,
        "num_global_key_value_heads": 4,
        "head_dim": 256,
        "global_head_dim": 512,
        "attention_k_eq_v": True,
        "num_hidden_layers": 60,
        "layer_types": (["sliding_attention"] * 5 + ["full_attention"]) * 10,
        "intermediate_size": 21504,
        "hidden_size_per_layer_input": 0,
        "num_kv_shared_layers": 0,
        "rope_parameters": rope,
        "sliding_window": 1024,
        "vocab_size": 262144,
        "vocab_size_per_layer_input": 262144,
    }
    vision = {
        "model_type": "gemma4_vision",
        "hidden_size": 1152,
        "intermediate_size": 4304,
        "num_attention_heads": 16,
        "num_key_value_heads": 16,
        "head_dim": 72,
        "num_hidden_layers": 27,
    }
    wrapper = {"model_type": "gemma4", "architectures": ["Gemma4ForConditionalGeneration"], "dtype": "bfloat16"}
    return wrapper | {"text_config": text, "vision_config": vision, "audio_config": None} | changes


def gpt2_xl(**changes: Any) -> Config:
    """gpt2-xl: an architecture without any tensor-parallel plan."""
    sizes = {"n_embd": 1600, "n_head": 25, "n_layer": 48, "n_positions": 1024, "vocab_size": 50257}
    return {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"]} | sizes | changes


# Small ones: two narrow layers each, for tests that compute.


def llama(**changes: Any) -> Config:
    """8 query heads and 2 key/value heads: tp_size 4 cuts a key/value head."""
    return _small("llama", num_attention_heads=8, num_key_value_heads=2, head_dim=8) | changes


def llama_2_70b(**changes: Any) -> Config:
    """64 query heads, 8 key/value heads, 69B parameters: 32.1 GiB per rank at tp_size 4 in bfloat16."""
    sizes = {"hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 80, "vocab_size": 32000}
    heads = {"num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 128}
    return {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "dtype": "bfloat16",
        **sizes,
        **heads,
    } | changes


def qwen3(**changes: Any) -> Config:
    """As `llama`, with q_norm and k_norm inside the attention."""
    return _small("qwen3", num_attention_heads=8, num_key_value_heads=2, head_dim=8) | changes


def phi3(**changes: Any) -> Config:
    """20 query and 5 key/value heads in one fused projection: phi-4's 40 and 10 at half the size."""
    config = _small("phi3", hidden_size=160, num_attention_heads=20, num_key_value_heads=5)
    return config | {"original_max_position_embeddings": 128, "pad_token_id": 0} | changes


def apertus(**changes: Any) -> Config:
    """An MLP whose activation has parameters of its own, replicated ones on a sharded activation."""
    return _small("apertus", num_attention_heads=8, num_key_value_heads=4, pad_token_id=0) | changes


def gpt_neox(**changes: Any) -> Config:
    """6 heads in one fused projection, query_key_value, which its plan cuts."""
    return _small("gpt_neox", hidden_size=48, num_attention_heads=6) | changes


def falcon(**changes: Any) -> Config:
    """No rule at all, one fused projection, and an MLP whose output the attention's is added to in place."""
    sizes = {"ffn_hidden_size": 128, "num_attention_heads": 4, "num_kv_heads": 2, "pad_token_id": 0}
    kind = {"new_decoder_architecture": True, "parallel_attn": True, "bias": False}
    return _small("falcon", **sizes, **kind) | changes


def llava(**changes: Any) -> Config:
    """`llama` inside a multimodal wrapper, next to a vision tower."""
    vision = {
        "model_type": "clip_vision_model",
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_attention_heads": 2,
        "num_hidden_layers": 1,
        "image_size": 28,
        "patch_size": 14,
    }
    wrapper = {"model_type": "llava", "image_token_index": 150, "vision_feature_layer": -1, "dtype": "float32"}
    return wrapper | {"text_config": llama(), "vision_config": vision} | changes


def mimo_v2_flash(**changes: Any) -> Config:
    """Keys of 12 columns a head and values of 8, 4 heads of each; sliding layers have 8 of each."""
    full = {"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 12, "v_head_dim": 8}
    sliding = {f"swa_{name}": value for name, value in full.items()} | {"swa_num_key_value_heads": 8}
    kinds = {"hybrid_layer_pattern": [0, 1], "moe_layer_freq": [0, 0], "sliding_window": 8}
    return _small("mimo_v2_flash", **full, **sliding, **kinds) | changes


def mixtral(**changes: Any) -> Config:
    """Four experts, cut by the plan in their width and by the expert plan one by one."""
    sizes = {"num_attention_heads": 8, "num_key_value_heads": 4, "num_local_experts": 4, "num_experts_per_tok": 2}
    return _small("mixtral", **sizes) | changes


def gemma3_text(**changes: Any) -> Config:
    """Layers of two kinds, and a tied head."""
    sizes = {"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 8, "sliding_window": 8}
    kinds = ["sliding_attention", "full_attention"]
    return _small("gemma3_text", **sizes, layer_types=kinds, pad_token_id=0) | changes


def gemma4_text(**changes: Any) -> Config:
    """Full-attention layers with wider and fewer key/value heads, 2, than the sliding ones, 4."""
    sizes = {"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 8, "sliding_window": 8}
    full = {"num_global_key_value_heads": 2, "global_head_dim": 16, "attention_k_eq_v": True}
    kinds = {"layer_types": ["sliding_attention", "full_attention"], "num_kv_shared_layers": 0}
    small = {"vocab_size_per_layer_input": 160, "hidden_size_per_layer_input": 0, "pad_token_id": 0}
    return _small("gemma4_text", **sizes, **full, **kinds, **small) | changes


def gemma3n_text(**changes: Any) -> Config:
    """Its MLP keeps the activations above a quantile, which a rank takes over its own columns alone."""
    config = _small(
        "gemma3n_text",
        num_hidden_layers=2,
        num_kv_shared_layers=0,
        layer_types=["sliding_attention", "full_attention"],
        intermediate_size=[96, 96],
        activation_sparsity_pattern=[0.95, 0.0],
        hidden_size_per_layer_input=16,
        vocab_size_per_layer_input=160,
        laurel_rank=16,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        pad_token_id=0,
    )
    return config | changes


def default(model_type: str) -> Config:
    """The default config of the installed Transformers for this type, every value written out."""
    from transformers import CONFIG_MAPPING

    return json.loads(CONFIG_MAPPING[model_type]().to_json_string(use_diff=False))


def sarvam_moe(**changes: Any) -> Config:
    """Experts that the loader fuses while it reads them, and a fused query_key_value."""
    config = _small(
        "sarvam_moe",
        num_attention_heads=8,
        num_key_value_heads=4,
        head_dim=8,
        moe_intermediate_size=64,
        num_experts=4,
        num_experts_per_tok=2,
        num_shared_experts=1,
        first_k_dense_replace=1,
        n_group=1,
        topk_group=1,
    )
    return config | changes


def _qwen3(**sizes: Any) -> Config:
    heads = {"num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936}
    return _published("qwen3", **heads, **sizes)


def _published(model_type: str, **values: Any) -> Config:
    return {"model_type": model_type, "dtype": "bfloat16"} | values


def _small(model_type: str, **values: Any) -> Config:
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "vocab_size": 160}
    return {"model_type": model_type, "dtype": "float32", "max_position_embeddings": 128} | sizes | values


PUBLISHED: tuple[Callable[..., Config], ...] = (
    glm4_9b,
    phi_4,
    qwen3_8b,
    qwen3_4b,
    qwen3_06b,
    qwen3_vl_30b_a3b,
    gpt_oss_20b,
    gemma_4_31b,
    gpt2_xl,
)
