"""Codes 30x and 31x: heads, ties, experts, defaults and what stays whole."""

from __future__ import annotations

from tpplan.codes.code import Code, error, note, warning

STRUCTURE: dict[str, Code] = {
    "TPP301": error(
        "kv-heads-split",
        "tp_size cuts a key/value head",
        "A column-cut key or value projection gives each rank its share of columns. When that share is not a whole "
        "number of heads, the view into heads inside the attention fails in the forward; loading says nothing.",
    ),
    "TPP302": error(
        "query-heads-split",
        "tp_size cuts a query head",
        "A column-cut query projection gives each rank its share of columns. When that share is not a whole number of "
        "heads, the view into heads inside the attention fails in the forward; loading says nothing.",
    ),
    "TPP303": error(
        "tied-styles-disagree",
        "two tied weights have styles that disagree",
        "Tied weights are one parameter and carry the placement of the embedding. A head whose style expects another "
        "placement then fails or reads the wrong part.",
    ),
    "TPP304": error(
        "tied-weights-tpu",
        "tied weights do not load on TPU with this Transformers",
        "When both names of a tied pair are in the checkpoint, Transformers compares the two tensors. Before 5.23 it "
        "did so with torch.equal on sharded tensors, a MIN all-reduce that the TPU backend cannot lower.",
    ),
    "TPP305": warning(
        "mostly-whole",
        "the plan leaves most of the model whole on every rank",
        "Every rank holds these parameters whole, so adding ranks does not save their memory. `tpplan plan "
        "--extend` tries rules for them and keeps those that pass; `bytes_per_rank` shows what a plan achieves against the ideal share.",
    ),
    "TPP306": note(
        "quantization-not-judged",
        "the structure was judged without its quantization",
        "The config has a quantization_config. Names, shapes, heads, forward and bytes were judged on the unquantized "
        "model; what quantization changes is told by TPP330 to TPP339.",
    ),
    "TPP307": note(
        "default-value-counts",
        "another value counts than the config seems to say",
        "Transformers goes by its class when it loads the model, so the verdict does too: a value that the config leaves "
        "out is the default of the config class, the class that is loaded follows from model_type and not from "
        "architectures, and of the places where tie_word_embeddings may stand the class reads one. Where the config names "
        "no dtype, from_pretrained takes that of the weights, which no check reads: --dtype says it.",
    ),
    "TPP308": warning(
        "head-arithmetic-disagrees",
        "the head arithmetic says no, the model's own code runs",
        "The model's code decides: the shapes stage ran it on the first and the last rank. The share of columns a "
        "rank holds is not a whole number of heads, which this model does not need.",
    ),
    "TPP309": error(
        "uneven-gather",
        "a gathered output does not divide by tp_size",
        "Before 5.21 Transformers raised when a rule gathers an output whose width tp_size does not divide, as with a "
        "vocabulary of 255 on 4 ranks. From 5.21 the last rank holds a shorter slice.",
    ),
    "TPP310": error(
        "experts-do-not-divide",
        "ep_size does not divide the experts",
        "Expert parallelism gives each rank an equal number of whole experts. Where ep_size does not divide their number, "
        "Transformers raises while it shards the model; there are no uneven shares of experts.",
    ),
    "TPP311": error(
        "ep-size-does-not-fit",
        "ep_size does not fit tp_size",
        "Expert-parallel ranks are made from the fsdp_size * tp_size ranks of a DistributedConfig: ep_size must be a multiple "
        "of tp_size and divide that product. A plan has no fsdp_size, so ep_size is tp_size, or it is left out.",
    ),
}
