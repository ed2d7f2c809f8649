from transformers import PretrainedConfig


class OwnConfig(PretrainedConfig):
    model_type = "own"
    base_model_tp_plan = {
        "layers.*.self_attn.q_proj": "colwise",
        "layers.*.self_attn.k_proj": "colwise",
        "layers.*.self_attn.v_proj": "colwise",
        "layers.*.self_attn.o_proj": "rowwise",
    }

    hidden_size: int = 64
    num_attention_heads: int = 8
    num_key_value_heads: int = 2
    head_dim: int = 8
    num_hidden_layers: int = 2
    vocab_size: int = 160
