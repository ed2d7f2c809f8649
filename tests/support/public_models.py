"""The models of the public reports: the values of a config that decide, over the defaults of its class.

Each is a pair (model_type, values). Heads, experts and widths of the language model are those of the published config,
or of the report; depth is small and towers are narrow, as neither decides. q, kv: query and key/value heads.
"""

from __future__ import annotations

from typing import Any

Numbers = dict[str, Any]
Model = tuple[str, Numbers]


def flat(model_type: str, **values: Any) -> Model:
    return model_type, {"dtype": "bfloat16"} | values


def dense(model_type: str, q: int, kv: int, hidden: int, mlp: int, **more: Any) -> Model:
    return flat(model_type, **_text(q, kv, hidden, mlp) | more)


def llama(q: int, kv: int, **more: Any) -> Model:
    """Heads of 128 columns."""
    more = {"intermediate_size": 4096} | more
    return dense("llama", q, kv, 128 * q, more.pop("intermediate_size"), **more)


def gpt2_xl() -> Model:
    return flat("gpt2", n_head=25, n_embd=1600, n_layer=2)


def phi_4() -> Model:
    return dense("phi3", 40, 10, 5120, 17920, vocab_size=100352, pad_token_id=0)


def qwen2(q: int, kv: int, hidden: int, mlp: int, *, tied: bool) -> Model:
    return dense("qwen2", q, kv, hidden, mlp, tie_word_embeddings=tied)


def qwen2_7b() -> Model:
    return qwen2(28, 4, 3584, 18944, tied=False)


def qwen2_15b() -> Model:
    return qwen2(12, 2, 1536, 8960, tied=True)


def qwen25_3b() -> Model:
    return qwen2(16, 2, 2048, 11008, tied=True)


def qwen3_06b() -> Model:
    return dense("qwen3", 16, 8, 1024, 3072, head_dim=128, tie_word_embeddings=True)


def qwen3_30b_a3b() -> Model:
    moe = {"moe_intermediate_size": 768, "num_experts": 128, "num_experts_per_tok": 8, "tie_word_embeddings": False}
    return dense("qwen3_moe", 32, 4, 2048, 6144, head_dim=128, **moe)


def qwen3_vl_30b() -> Model:
    moe = {"moe_intermediate_size": 768, "num_experts": 128, "num_experts_per_tok": 8}
    text = _text(32, 4, 2048, 6144) | {"head_dim": 128, "rope_parameters": _mrope(24, 20, 20, interleaved=True)} | moe
    return _nested("qwen3_vl_moe", text, _tower(16, 2048, deepstack_visual_indexes=[0]), tie_word_embeddings=False)


def qwen3_next() -> Model:
    """Qwen3-Next-80B-A3B: the class defaults are its numbers; three linear layers and one of full attention."""
    return flat("qwen3_next", num_hidden_layers=4)


def qwen3_5(kv: int = 4) -> Model:
    """Qwen3.5-27B: 24 query heads, gated; three linear layers, one of full attention."""
    text = _text(24, kv, 5120, 17408) | {"linear_num_value_heads": 48, "num_hidden_layers": 4}
    return _nested("qwen3_5", text, _tower(16, 5120), architectures=["Qwen3_5ForConditionalGeneration"])


def qwen3_5_moe(q: int, hidden: int, experts: int, mlp: int, linear: int) -> Model:
    """2 key/value heads; three linear layers, one of full attention. linear: value heads of the linear ones."""
    moe = {"num_experts": experts, "moe_intermediate_size": mlp, "shared_expert_intermediate_size": mlp}
    text = {"num_attention_heads": q, "num_key_value_heads": 2, "hidden_size": hidden, "num_hidden_layers": 4} | moe
    text["linear_num_value_heads"] = linear
    return _nested("qwen3_5_moe", text, _tower(16, hidden), architectures=["Qwen3_5MoeForConditionalGeneration"])


def qwen3_5_35b() -> Model:
    return qwen3_5_moe(16, 2048, 256, 512, 32)


def qwen3_5_397b() -> Model:
    return qwen3_5_moe(32, 4096, 512, 1024, 64)


def qwen2_vl(q: int, kv: int, hidden: int, mlp: int) -> Model:
    tower = {"depth": 1, "num_heads": 16, "embed_dim": 256, "hidden_size": hidden}
    return _nested("qwen2_vl", _text(q, kv, hidden, mlp) | {"rope_parameters": _mrope(16, 24, 24)}, tower)


def qwen25_vl_3b() -> Model:
    text = _text(16, 2, 2048, 11008) | {"rope_parameters": _mrope(16, 24, 24), "vocab_size": 151936}
    return _nested("qwen2_5_vl", text, _tower(16, 2048, fullatt_block_indexes=[0]), tie_word_embeddings=True)


def gemma4(q: int, kv: int, full: int | None, hidden: int, mlp: int, **more: Any) -> Model:
    """Five sliding layers of kv heads, then one of `full` heads (None: as many) of 512 columns."""
    heads = {"num_global_key_value_heads": full, "attention_k_eq_v": full is not None, "head_dim": 256}
    kinds = {"layer_types": ["sliding_attention"] * 5 + ["full_attention"], "num_hidden_layers": 6}
    rest = {"hidden_size_per_layer_input": 0, "num_kv_shared_layers": 0, "global_head_dim": 512}
    text = _text(q, kv, hidden, mlp) | heads | kinds | rest | more
    return _nested("gemma4", text, architectures=["Gemma4ForConditionalGeneration"])


def gemma4_31b() -> Model:
    return gemma4(32, 16, 4, 5376, 21504)


def gemma4_26b_a4b() -> Model:
    moe = {"enable_moe_block": True, "num_experts": 128, "top_k_experts": 8, "moe_intermediate_size": 704}
    return gemma4(16, 8, 2, 2816, 2112, **moe)


def gemma4_e4b(sixes: int = 1, shared: int = 0) -> Model:
    """An embedding for each layer. sixes: 7 at its real depth. shared: layers that read the cache of others, 18."""
    kinds = {"layer_types": (["sliding_attention"] * 5 + ["full_attention"]) * sixes, "num_hidden_layers": 6 * sixes}
    return gemma4(8, 2, None, 2560, 10240, hidden_size_per_layer_input=256, **kinds, num_kv_shared_layers=shared)


def glm4v_moe() -> Model:
    """GLM-4.5V."""
    moe = {"n_routed_experts": 128, "moe_intermediate_size": 1408, "first_k_dense_replace": 1, "head_dim": 128}
    rope = {"rope_parameters": _mrope(8, 12, 12, partial=True)}
    return _nested("glm4v_moe", _text(96, 8, 4096, 10944) | moe | rope, _tower(12, 4096), tie_word_embeddings=False)


def glm4v() -> Model:
    """GLM-4.1V."""
    rope = {"rope_parameters": _mrope(8, 12, 12, partial=True)}
    return _nested("glm4v", _text(32, 2, 4096, 13696) | rope, _tower(12, 4096))


def internvl(q: int, kv: int, hidden: int, mlp: int) -> Model:
    """A vision tower of 25 heads."""
    tower = {"num_attention_heads": 25, "hidden_size": 400, "intermediate_size": 400, "num_hidden_layers": 3}
    text = _text(q, kv, hidden, mlp) | {"model_type": "qwen2", "vocab_size": 151674}
    return _nested("internvl", text, tower, tie_word_embeddings=False)


def gpt_oss_120b() -> Model:
    """The class defaults are its numbers."""
    return flat("gpt_oss", num_hidden_layers=2)


def deepseek_v4_flash(**more: Any) -> Model:
    """The class defaults are its numbers."""
    return flat("deepseek_v4", num_hidden_layers=3, **more)


def nemotron_h() -> Model:
    kinds = {"layers_block_type": ["mamba", "moe", "attention", "moe"], "num_hidden_layers": 4}
    moe = {"n_routed_experts": 64, "moe_intermediate_size": 2688, "intermediate_size": 2688}
    return flat("nemotron_h", num_attention_heads=64, num_key_value_heads=2, hidden_size=4096, **moe, **kinds)


def codegen() -> Model:
    """Queries, keys and values of 16 heads in one projection, in four groups of q, v, k."""
    return flat("codegen", n_embd=1024, n_head=16, rotary_dim=32, n_layer=2)


def marian() -> Model:
    return flat("marian", encoder_layers=2, decoder_layers=2, architectures=["MarianMTModel"])


def _text(q: int, kv: int, hidden: int, mlp: int) -> Numbers:
    heads = {"num_attention_heads": q, "num_key_value_heads": kv}
    return heads | {"hidden_size": hidden, "intermediate_size": mlp, "num_hidden_layers": 2}


def _tower(heads: int, out: int, **more: Any) -> Numbers:
    width = 16 * heads
    return {
        "depth": 1,
        "num_heads": heads,
        "hidden_size": width,
        "intermediate_size": width,
        "out_hidden_size": out,
    } | more


def _nested(model_type: str, text: Numbers, vision: Numbers | None = None, **more: Any) -> Model:
    tied = {name: more[name] for name in ("tie_word_embeddings",) if name in more}
    text = {"model_type": f"{model_type}_text", "dtype": "bfloat16"} | text | tied
    return flat(model_type, text_config=text, **({"vision_config": vision} if vision else {}), **more)


def _mrope(*section: int, interleaved: bool = False, partial: bool = False) -> Numbers:
    rope: Numbers = {"rope_type": "default", "rope_theta": 1000000.0, "mrope_section": list(section)}
    rope |= {"mrope_interleaved": True} if interleaved else {}
    return rope | ({"partial_rotary_factor": 0.5} if partial else {})
