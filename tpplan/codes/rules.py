"""Codes 2xx: rules of a plan, their names and styles."""

from __future__ import annotations

from tpplan.codes.code import Code, error

RULES: dict[str, Code] = {
    "TPP201": error(
        "rule-matches-nothing",
        "a rule names no module and no parameter",
        meaning="An override key names nothing in the class that is loaded. Keys carry the full path inside that "
        "class, with `*` for each layer number: `model.layers.*.self_attn.q_proj` for most causal language models, "
        "`model.language_model.layers.*...` inside most multimodal wrappers.",
        reason="Transformers raises on such a key before it shards anything.",
        example="tpplan check plan.yaml\nplan.yaml: layers.*.self_attn.q_proj: replicated_with_grad_allreduce",
        action="Write the key that the fix names, or remove the rule.",
    ),
    "TPP202": error(
        "rule-names-one-layer",
        "a rule names one layer and is never looked up",
        meaning="An override key has a layer number where Transformers looks for `*`.",
        reason="Transformers replaces the layer numbers of a module's name by `*` before it looks the name up, so the "
        "key is never found. Layers cannot be overridden one by one.",
        example="tpplan check plan.yaml\nplan.yaml: model.layers.1.mlp.up_proj: colwise",
        action="Write `*` instead of the number; the rule then holds for every layer.",
    ),
    "TPP203": error(
        "unknown-style",
        "the installed Transformers has no such style",
        meaning="An override has a style that is not in the registry of parallel styles of the installed Transformers.",
        reason="from_pretrained raises. Styles differ by release: `replicate` and `embedding_colwise` exist from 5.21.",
        example="tpplan check plan.yaml\nplan.yaml: model.layers.*.self_attn.q_proj: replicated",
        action="Write one of the styles in the evidence.",
    ),
    "TPP205": error(
        "no-tp-plan",
        "the model class has no tensor-parallel plan",
        meaning="Neither the model class nor its config class has rules, and the plan gives none.",
        reason="Transformers raises when tp_size is above 1 and there are no rules.",
        example='tpplan check config.json --tp-size 5\nconfig.json: "model_type": "gpt2"',
        action="`tpplan plan MODEL --tp-size N --extend` tries rules for its linear layers and embeddings and writes "
        "those that pass. Other places for rules: `overrides` in a plan file, `base_model_tp_plan` on the config "
        "class, `_tp_plan` on the model class.",
    ),
    "TPP206": error(
        "key-value-alone",
        "keys and values are gathered, queries are not",
        meaning="An override gives each rank all key/value heads, while it has only its share of the query heads.",
        reason="Each rank pairs its query head i with key/value head i of the full list instead of its own group. "
        "Nothing raises, and the numbers are wrong. Only with one key/value head is this right.",
        example="tpplan check plan.yaml\n"
        "plan.yaml: num_key_value_heads: 2\n"
        "plan.yaml: model.layers.*.self_attn.k_proj: replicated_with_grad_allreduce\n"
        "plan.yaml: model.layers.*.self_attn.v_proj: replicated_with_grad_allreduce",
        action="Override q, k, v and o together, or remove the override.",
    ),
    "TPP207": error(
        "unpaired-projection",
        "a projection and the one that reads its output do not fit together",
        meaning="A projection leaves its output sharded, and the one that reads it expects all of it; or the reverse.",
        reason="The forward multiplies matrices of different widths and raises.",
        example="tpplan check plan.yaml\n"
        "plan.yaml: model.layers.*.self_attn.q_proj: replicated_with_grad_allreduce\n"
        "plan.yaml: model.layers.*.self_attn.k_proj: replicated_with_grad_allreduce\n"
        "plan.yaml: model.layers.*.self_attn.v_proj: replicated_with_grad_allreduce",
        action="Give the reader the style of the fix: rowwise reads a sharded input, rowwise_split_input a replicated "
        "one.",
    ),
    "TPP208": error(
        "narrow-logits",
        "the head leaves its logits split over ranks",
        meaning="The style of the output head leaves each rank vocab_size / tp_size columns of logits.",
        reason="The model returns them as if they were the logits of the full vocabulary, and nothing raises.",
        example="tpplan check plan.yaml\nplan.yaml: lm_head: colwise",
        action="Give the head the style colwise_gather_output.",
    ),
}
