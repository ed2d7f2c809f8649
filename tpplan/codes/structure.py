"""Codes 30x and 31x: heads, ties, experts, values that the config leaves open, and what stays replicated."""

from __future__ import annotations

from tpplan.codes.code import Code, error, note, warning

STRUCTURE: dict[str, Code] = {
    "TPP301": error(
        "kv-heads-split",
        "tp_size cuts a key/value head",
        meaning="A column-cut key or value projection gives each rank its share of columns, and that share is not a "
        "whole number of heads.",
        reason="The view into heads inside the attention fails in the forward. Loading gives no message.",
        example='tpplan check config.json --tp-size 4\nconfig.json: "num_key_value_heads": 2',
        action="`tpplan plan MODEL --tp-size N` writes a plan in which attention is not cut inside a head, or use a "
        "tp_size that divides the heads.",
    ),
    "TPP302": error(
        "query-heads-split",
        "tp_size cuts a query head",
        meaning="A column-cut query projection gives each rank its share of columns, and that share is not a whole "
        "number of heads.",
        reason="The view into heads inside the attention fails in the forward. Loading gives no message.",
        example='tpplan check config.json --tp-size 4\nconfig.json: "num_attention_heads": 6',
        action="`tpplan plan MODEL --tp-size N` writes a plan in which attention is not cut inside a head, or use a "
        "tp_size that divides the heads.",
    ),
    "TPP303": error(
        "tied-styles-disagree",
        "two tied weights have styles that disagree",
        meaning="An override shards one of two tied weights along a dim different from that of the other's style.",
        reason="Tied weights are one parameter and carry the placement of the embedding. A head whose style expects a "
        "different placement raises or reads the wrong part.",
        example="tpplan check plan.yaml\nplan.yaml: tie_word_embeddings: true\nplan.yaml: lm_head: rowwise_split_input",
        action="Remove the override, or override both so that they are sharded along the same dim.",
    ),
    "TPP304": error(
        "tied-weights-tpu",
        "tied weights do not load on TPU with this Transformers",
        meaning="Both names of a tied pair are in the checkpoint, and Transformers before 5.23 compares the two "
        "sharded tensors with torch.equal while it loads them.",
        reason="torch.equal on sharded tensors is a MIN all-reduce of an int64, so loading raises. libtpu's compiler "
        "refuses it: UNIMPLEMENTED: Supported lowering only of Sum all reduce.",
        example="Transformers before 5.23 shows it: a tied model whose checkpoint has model.embed_tokens.weight and "
        "lm_head.weight, with --device tpu-v5e.",
        action="Install Transformers 5.23 or newer.",
    ),
    "TPP305": warning(
        "mostly-replicated",
        "the plan leaves most of the model replicated",
        meaning="The largest rank holds more than 1.5 times an even split of the parameters, because the plan has no "
        "rule for the parameters in the evidence, or rules that replicate them.",
        reason="Each rank holds all of these parameters, so more ranks do not save their memory.",
        example='tpplan check config.json --tp-size 4\nconfig.json: "model_type": "gpt_oss"\nconfig.json: '
        '"num_local_experts": 32',
        action="Run the command of the fix: it tries more rules, or the model's expert plan, and keeps what passes.",
    ),
    "TPP306": note(
        "quantization-not-judged",
        "the structure was judged without its quantization",
        meaning="The config has a quantization_config. Names, shapes, heads, forward and bytes were judged on the "
        "unquantized model.",
        reason="Bytes per rank are those of the unquantized weights where the checkpoint stays quantized.",
        example='tpplan check config.json --tp-size 2 --depth static\nconfig.json: "quant_method": "fp8"',
        action="See TPP330 to TPP339 in the same output for what the quantization changes.",
    ),
    "TPP307": note(
        "head-count-default",
        "a number of heads is the default of the config class",
        meaning="The config leaves a number of heads out, and the default of its class is a number of its own.",
        reason="Transformers uses the default when it loads the model, so the verdict is about that number.",
        example='tpplan check config.json --tp-size 2 --depth static\nconfig.json: "model_type": "glm4"',
        action="Put the number of heads into config.json if the model has a different one.",
    ),
    "TPP308": warning(
        "head-arithmetic-disagrees",
        "tp_size cuts heads, and the model's own code runs",
        meaning="The share of columns per rank is not a whole number of heads, and the shapes stage ran the model's "
        "own code on the first and the last rank without an error.",
        reason="The model's code decides, so this is no error: the code does not view the columns as heads. Whether "
        "its numbers are right is for the numerics stage to say.",
        example="tpplan check model --tp-size 4 --trust-remote-code\n"
        'model/config.json: "num_key_value_heads": 2\n'
        "model/modeling_own.py: torch.sigmoid(self.q_proj(x) * self.k_proj(x))",
        action="Nothing, when the numerics stage passes too.",
    ),
    "TPP309": error(
        "uneven-gather",
        "a gathered output does not divide by tp_size",
        meaning="A rule gathers an output whose width tp_size does not divide, as with a vocabulary of 255 on 4 ranks.",
        reason="Transformers before 5.21 raises when it shards such a layer. From 5.21 the last rank holds a shorter "
        "slice.",
        example="Transformers before 5.21 shows it: a model with a vocab_size of 255, with --tp-size 4.",
        action="Install Transformers 5.21 or newer.",
    ),
    "TPP310": error(
        "experts-do-not-divide",
        "ep_size does not divide the experts",
        meaning="Expert parallelism gives each rank the same number of experts, and ep_size does not divide their "
        "number.",
        reason="Transformers raises while it shards the model; there are no uneven shares of experts.",
        example="tpplan check plan.yaml\nplan.yaml: num_local_experts: 6\nplan.yaml: ep_size: 4",
        action="Use an ep_size that divides the experts, or remove ep_size.",
    ),
    "TPP311": error(
        "ep-size-does-not-fit",
        "ep_size does not fit tp_size",
        meaning="Expert-parallel ranks are made from the fsdp_size * tp_size ranks of a DistributedConfig: ep_size "
        "must be a multiple of tp_size and divide that product. A plan has no fsdp_size, so ep_size is tp_size, or is "
        "left out.",
        reason="Transformers refuses the pair before it loads anything.",
        example="tpplan check plan.yaml\nplan.yaml: tp_size: 2\nplan.yaml: ep_size: 3",
        action="Set ep_size to tp_size, or remove ep_size.",
    ),
    "TPP312": note(
        "dtype-not-named",
        "the config names no dtype",
        meaning="Neither the config nor the call names the dtype of the parameters.",
        reason="from_pretrained takes that of the weights, which no check reads; bytes per rank are those of the dtype "
        "in the message.",
        example='tpplan check config.json --tp-size 2 --depth static\nconfig.json: "model_type": "llama"',
        action="Give --dtype with the dtype that the model is loaded in.",
    ),
    "TPP313": note(
        "tie-flag-not-followed",
        "the model does not follow a tie_word_embeddings of the config",
        meaning="tie_word_embeddings may be at the top of the config and in the nested config of the language model. "
        "The model class reads one of the two places, and the other says something else.",
        reason="Whether the head is tied to the embedding decides which parameters there are, and how they may be "
        "sharded.",
        example='tpplan check config.json --tp-size 2 --depth static\nconfig.json: "tie_word_embeddings": true',
        action="Put the same value in both places.",
    ),
    "TPP314": note(
        "architectures-not-followed",
        "the class that is loaded is not the one that architectures names",
        meaning="Auto classes choose the model class by model_type, and architectures in the config names a different "
        "class.",
        reason="The verdict is about the class that is loaded; the checkpoint may be of the other one.",
        example='tpplan check config.json --tp-size 2 --depth static\nconfig.json: "architectures": '
        '["Qwen3ForCausalLM"]\n'
        'config.json: "model_type": "llama"',
        action="Correct architectures or model_type, or name the auto class with --auto-class.",
    ),
    "TPP315": error(
        "heads-not-shared",
        "the query heads cannot share the key/value heads evenly",
        meaning="The number of key/value heads does not divide the number of query heads.",
        reason="The attention repeats each key/value head a whole number of times, and their number then differs from "
        "that of the query heads. The model may load, and its forward raises at every tp_size.",
        example='tpplan check config.json --tp-size 2 --depth static\nconfig.json: "num_attention_heads": 8\n'
        'config.json: "num_key_value_heads": 16',
        action="Correct num_attention_heads or num_key_value_heads in config.json.",
    ),
    "TPP316": warning(
        "tied-weights-tpu-unknown",
        "tied weights may not load on TPU with this Transformers",
        meaning="The model is tied, the checkpoint is not at hand, and Transformers before 5.23 cannot load on TPU a "
        "checkpoint that has both names of a tied pair.",
        reason="If the checkpoint has both names, loading it raises (TPP304).",
        example="Transformers before 5.23 shows it: the config of a tied model without its checkpoint, with --device "
        "tpu-v5e.",
        action="Install Transformers 5.23 or newer, or check the directory that has the checkpoint.",
    ),
}
