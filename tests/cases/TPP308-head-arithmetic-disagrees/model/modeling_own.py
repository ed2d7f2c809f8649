"""Attention that weighs keys and values elementwise: heads are in the config, and no code views columns as heads."""

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.modeling_outputs import CausalLMOutputWithPast

from .configuration_own import OwnConfig


class OwnAttention(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.head_dim = config.head_dim
        width = config.num_key_value_heads * config.head_dim
        self.q_proj = nn.Linear(config.hidden_size, width, bias=False)
        self.k_proj = nn.Linear(config.hidden_size, width, bias=False)
        self.v_proj = nn.Linear(config.hidden_size, width, bias=False)
        self.o_proj = nn.Linear(width, config.hidden_size, bias=False)

    def forward(self, x):
        return self.o_proj(torch.sigmoid(self.q_proj(x) * self.k_proj(x)) * self.v_proj(x))


class OwnLayer(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.self_attn = OwnAttention(config)

    def forward(self, x):
        return x + self.self_attn(x)


class OwnPreTrainedModel(PreTrainedModel):
    config_class = OwnConfig
    base_model_prefix = "model"


class OwnModel(OwnPreTrainedModel):
    def __init__(self, config):
        super().__init__(config)
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList([OwnLayer(config) for _ in range(config.num_hidden_layers)])
        self.post_init()

    def forward(self, input_ids):
        x = self.embed_tokens(input_ids)
        for layer in self.layers:
            x = layer(x)
        return x


class OwnForCausalLM(OwnPreTrainedModel):
    def __init__(self, config):
        super().__init__(config)
        self.model = OwnModel(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    def forward(self, input_ids, **kwargs):
        return CausalLMOutputWithPast(logits=self.lm_head(self.model(input_ids)))
