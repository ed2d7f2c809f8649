"""Codes 2xx: rules of a plan, their names and styles."""

from __future__ import annotations

from tpplan.codes.code import Code, error

RULES: dict[str, Code] = {
    "TPP201": error(
        "rule-matches-nothing",
        "a rule names no module and no parameter",
        "Transformers raises on an override key that names nothing in the class that is loaded. Keys carry the whole "
        "path inside that class, with `*` for each layer number: `model.layers.*.self_attn.q_proj` for most causal "
        "language models, `model.language_model.layers.*...` inside most multimodal wrappers.",
    ),
    "TPP202": error(
        "rule-names-one-layer",
        "a rule names one layer and is never looked up",
        "Transformers replaces the layer numbers of a module's name by `*` before it looks the name up, so a key with "
        "a number in it is never found. Layers cannot be overridden one by one.",
    ),
    "TPP203": error(
        "unknown-style",
        "the installed Transformers has no such style",
        "Style names come from the installed Transformers (its registry of parallel styles). `replicate` and "
        "`embedding_colwise` exist from 5.21.",
    ),
    "TPP205": error(
        "no-tp-plan",
        "the model class has no tensor-parallel plan",
        "Transformers raises when tp_size is above 1 and the model has no rules. `tpplan plan --extend` tries rules for its "
        "linear layers and embeddings and writes those that pass. Other ways to give it some: `overrides` in a plan file, "
        "`base_model_tp_plan` on the config class, `_tp_plan` on the model class.",
    ),
    "TPP206": error(
        "key-value-alone",
        "keys and values are gathered, queries are not",
        "Each rank would hold all key/value heads but only its own query heads, and pair query head i with key/value "
        "head i of the whole list instead of its own group. Nothing raises; the numbers are wrong. Only with one "
        "key/value head is this right. Override q, k, v and o together.",
    ),
    "TPP207": error(
        "unpaired-projection",
        "a projection is cut and its partner is not",
        "A column-cut projection leaves its output split over ranks, so the projection that reads it must take split "
        "input (rowwise); one that is left whole multiplies matrices of different widths.",
    ),
    "TPP208": error(
        "narrow-logits",
        "the head leaves its logits split over ranks",
        "With `colwise` on the output head each rank returns vocab_size / tp_size columns, and nothing raises. Use "
        "`colwise_gather_output`.",
    ),
}
