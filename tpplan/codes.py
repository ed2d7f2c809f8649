"""The table of codes: every diagnostic that tpplan can give, with its page for `tpplan explain`.

A number names its family (1xx files and input, 2xx names and styles, 3xx heads, shapes, ties and memory,
4xx the shapes stage, 5xx numerics and launch, 9xx the environment) and is never used for anything else.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Severity(StrEnum):
    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


@dataclass(frozen=True, kw_only=True)
class Code:
    """slug: stable short name. title: one line. page: what it means, why it matters, what to do."""

    slug: str
    severity: Severity
    title: str
    page: str


def _error(slug: str, title: str, page: str) -> Code:
    return Code(slug=slug, severity=Severity.ERROR, title=title, page=page)


def _warning(slug: str, title: str, page: str) -> Code:
    return Code(slug=slug, severity=Severity.WARNING, title=title, page=page)


def _note(slug: str, title: str, page: str) -> Code:
    return Code(slug=slug, severity=Severity.NOTE, title=title, page=page)


CODES: dict[str, Code] = {
    # 1xx: files and input
    "TPP101": _error(
        "file-unreadable",
        "a file cannot be read as text, or cannot be written",
        "The file does not exist, is not a regular file, is larger than a plan or a config can be, or is not UTF-8; "
        "nothing was checked. Or it cannot be written; nothing was changed.",
    ),
    "TPP102": _error(
        "yaml-syntax",
        "the plan file is not YAML",
        "The YAML parser stopped at the place shown, and what follows it was not read. Plans are one mapping of "
        "scalars, lists and mappings. Control characters, and the line separators that YAML 1.1 and 1.2 disagree "
        "about, stand in a plan only as escapes inside double quotes.",
    ),
    "TPP103": _error(
        "plan-schema",
        "the plan file does not have the shape of a plan",
        "A key is unknown, missing, or not a string, or a value has the wrong type or is outside its range. `tpplan "
        "schema` prints the JSON Schema that plans are checked against. Scalars are read as written: `true`, `null`, "
        "`~` and numbers as JSON writes them are what they look like, all else is a string, so `010` and `no` are not "
        "numbers or booleans. Numbers are finite, and integers have at most 64 digits.",
    ),
    "TPP104": _error(
        "duplicate-key",
        "a key stands twice in one mapping",
        "YAML readers keep the later of two equal keys without a word, so one of the two rules would silently vanish. "
        "Keep one of them.",
    ),
    "TPP105": _error(
        "yaml-refused",
        "the plan file uses YAML that a plan never needs",
        "Tags, anchors, aliases, merge keys, several documents, and nesting beyond a plan's depth are refused: plans "
        "are data, and such constructs make a small file expensive or its meaning depend on the reader.",
    ),
    "TPP110": _error(
        "config-unreadable",
        "no config.json that can be parsed",
        "MODEL must be a directory with a config.json, a config file, or a hub id. The file must hold one JSON object.",
    ),
    "TPP111": _error(
        "unknown-model-type",
        "the installed Transformers has no such model_type",
        "The config names a model_type that the installed Transformers does not know. A newer Transformers may know "
        "it; a model with its own code needs --trust-remote-code.",
    ),
    "TPP112": _error(
        "config-field-missing",
        "the config lacks a value that decides",
        "Transformers would fill in the default of the model class without a word, and the verdict would be about "
        "another model. Put the value into config.json.",
    ),
    "TPP113": _error(
        "config-rejected",
        "Transformers refuses the config",
        "The config class of the installed Transformers raised on these values, as from_pretrained would. Or they "
        "contradict each other: a number of heads that is none, two names of one value that differ, key/value heads that "
        "the query heads cannot share; such a model may load, and runs at no tp_size.",
    ),
    "TPP114": _error(
        "remote-code",
        "the model brings its own code",
        "The config names Python files of the model's repository (auto_map). They are run only with "
        "--trust-remote-code; read them first.",
    ),
    "TPP115": _error(
        "no-auto-class",
        "no auto class loads this config",
        "None of the auto classes that tpplan tries maps this config class to a model class. Name one with "
        "--auto-class.",
    ),
    "TPP116": _error(
        "class-does-not-build",
        "the model's class cannot be built from this config",
        "The constructor of the model class raised, as it would in from_pretrained: a package that it needs is missing, "
        "or values of the config contradict each other.",
    ),
    "TPP120": _error(
        "stale-facts",
        "the plan was made for another config",
        "The plan carries the config values that it depends on, and the model's config has others now. What was "
        "proven no longer holds; make the plan anew.",
    ),
    "TPP130": _error(
        "bad-usage",
        "the call makes no sense",
        "An option is missing, contradicts the plan file, or has a value outside its range.",
    ),
    # 2xx: names and styles
    "TPP201": _error(
        "rule-matches-nothing",
        "a rule names no module and no parameter",
        "Transformers raises on an override key that names nothing in the class that is loaded. Keys carry the whole "
        "path inside that class, with `*` for each layer number: `model.layers.*.self_attn.q_proj` for most causal "
        "language models, `model.language_model.layers.*...` inside most multimodal wrappers.",
    ),
    "TPP202": _error(
        "rule-names-one-layer",
        "a rule names one layer and is never looked up",
        "Transformers replaces the layer numbers of a module's name by `*` before it looks the name up, so a key with "
        "a number in it is never found. Layers cannot be overridden one by one.",
    ),
    "TPP203": _error(
        "unknown-style",
        "the installed Transformers has no such style",
        "Style names come from the installed Transformers (its registry of parallel styles). `replicate` and "
        "`embedding_colwise` exist from 5.21.",
    ),
    "TPP205": _error(
        "no-tp-plan",
        "the model class has no tensor-parallel plan",
        "Transformers raises when tp_size is above 1 and the model has no rules. Three ways to give it some: "
        "`overrides` in a plan file, `base_model_tp_plan` on the config class, `_tp_plan` on the model class.",
    ),
    "TPP206": _error(
        "key-value-alone",
        "keys and values are gathered, queries are not",
        "Each rank would hold all key/value heads but only its own query heads, and pair query head i with key/value "
        "head i of the whole list instead of its own group. Nothing raises; the numbers are wrong. Only with one "
        "key/value head is this right. Override q, k, v and o together.",
    ),
    "TPP207": _error(
        "unpaired-projection",
        "a projection is cut and its partner is not",
        "A column-cut projection leaves its output split over ranks, so the projection that reads it must take split "
        "input (rowwise); one that is left whole multiplies matrices of different widths.",
    ),
    "TPP208": _error(
        "narrow-logits",
        "the head leaves its logits split over ranks",
        "With `colwise` on the output head each rank returns vocab_size / tp_size columns, and nothing raises. Use "
        "`colwise_gather_output`.",
    ),
    # 3xx: heads, shapes, ties, memory
    "TPP301": _error(
        "kv-heads-split",
        "tp_size cuts a key/value head",
        "A column-cut key or value projection gives each rank its share of columns. When that share is not a whole "
        "number of heads, the view into heads inside the attention fails in the forward; loading says nothing.",
    ),
    "TPP302": _error(
        "query-heads-split",
        "tp_size cuts a query head",
        "A column-cut query projection gives each rank its share of columns. When that share is not a whole number of "
        "heads, the view into heads inside the attention fails in the forward; loading says nothing.",
    ),
    "TPP303": _error(
        "tied-styles-disagree",
        "two tied weights have styles that disagree",
        "Tied weights are one parameter and carry the placement of the embedding. A head whose style expects another "
        "placement then fails or reads the wrong part.",
    ),
    "TPP304": _error(
        "tied-weights-tpu",
        "tied weights do not load on TPU with this Transformers",
        "When both names of a tied pair are in the checkpoint, Transformers compares the two tensors. Before 5.23 it "
        "did so with torch.equal on sharded tensors, a MIN all-reduce that the TPU backend cannot lower.",
    ),
    "TPP305": _warning(
        "mostly-whole",
        "the plan leaves most of the model whole on every rank",
        "Every rank holds these parameters whole, so adding ranks does not save their memory. Rules for them can be "
        "added as overrides; `bytes_per_rank` shows what a plan achieves against the ideal share.",
    ),
    "TPP306": _note(
        "quantization-not-judged",
        "the structure was judged without its quantization",
        "The config has a quantization_config. Names, shapes, heads, forward and bytes were judged on the unquantized "
        "model; what quantization changes is told by TPP330 to TPP339.",
    ),
    "TPP307": _note(
        "default-value-counts",
        "another value counts than the config seems to say",
        "Transformers goes by its class when it loads the model, so the verdict does too: a value that the config leaves "
        "out is the default of the config class, the class that is loaded follows from model_type and not from "
        "architectures, and of the places where tie_word_embeddings may stand the class reads one.",
    ),
    "TPP308": _warning(
        "head-arithmetic-disagrees",
        "the head arithmetic says no, the model's own code runs",
        "The model's code decides: the shapes stage ran it on the first and the last rank. The share of columns a "
        "rank holds is not a whole number of heads, which this model does not need.",
    ),
    "TPP309": _error(
        "uneven-gather",
        "a gathered output does not divide by tp_size",
        "Before 5.21 Transformers raised when a rule gathers an output whose width tp_size does not divide, as with a "
        "vocabulary of 255 on 4 ranks. From 5.21 the last rank holds a shorter slice.",
    ),
    "TPP310": _error(
        "experts-do-not-divide",
        "ep_size does not divide the experts",
        "Expert parallelism gives each rank an equal number of whole experts. Where ep_size does not divide their number, "
        "Transformers raises while it shards the model; there are no uneven shares of experts.",
    ),
    "TPP311": _error(
        "ep-size-does-not-fit",
        "ep_size does not fit tp_size",
        "Expert-parallel ranks are made from the fsdp_size * tp_size ranks of a DistributedConfig: ep_size must be a multiple "
        "of tp_size and divide that product. A plan has no fsdp_size, so ep_size is tp_size, or it is left out.",
    ),
    "TPP320": _error(
        "no-such-device-count",
        "the target has no host and no slice with tp_size devices",
        "A rank is one device (a v7 chip has two). torch_tpu knows a topology for some numbers of devices on one host and "
        "refuses to prepare a launch with another number; slices of several hosts come in published shapes, of hosts "
        "with 2x2 chips. The evidence lists all numbers that exist.",
    ),
    "TPP321": _note(
        "several-hosts",
        "tp_size devices are a slice of several hosts",
        "Each host starts its own ranks, and they must agree on the rest. torch_tpu derives it from TPU_WORKER_HOSTNAMES "
        "(all hosts, comma-separated, the same on each), JOB_COMPLETION_INDEX (this host, from 0) and TORCH_TPU_TOPOLOGY "
        "(the whole slice, in chips; without it torch_tpu writes the topology of this host alone). torchrun does not read "
        "NNODES, NODE_RANK, MASTER_ADDR and MASTER_PORT from the environment, so give them to `tpplan launch` as "
        "options: `tpplan launch --device tpu --print-env` prints them.",
    ),
    "TPP322": _warning(
        "training-on-tpu",
        "training on TPU is still being integrated into Transformers",
        "The Transformers guide to TPU says so under its limits. A verdict for training says that gradients are right "
        "as the model's code computes them on cpu; it does not say that a training run on TPU works. `tpplan verify` on "
        "the TPU host runs a forward and a backward there.",
    ),
    "TPP323": _note(
        "tpu-generation-unknown",
        "no generation of TPU is named, so the limits of the target are unknown",
        "Generations differ in memory and in how many devices a host has. With --device tpu the generation is the one "
        "on this machine's PCI bus, read as torch_tpu reads it; where there is none, neither the number of ranks nor "
        "their memory is checked. Name a generation, such as --device tpu-v6e, to have it checked anywhere.",
    ),
    "TPP330": _error(
        "quantization-config-refused",
        "the quantization_config cannot be read",
        "Without a quant_method, or with block and group sizes that are not positive integers, from_pretrained raises "
        "before it reads a weight. A checkpoint of another library (mlx) has values of its own there. `null` means that "
        "the weights are not quantized.",
    ),
    "TPP331": _error(
        "unknown-quantization-method",
        "the installed Transformers has no such quantization method",
        "Transformers skips a method that it does not know with a warning and loads the tensors as if they were plain "
        "weights. Packed ones have other shapes, and it raises; FP8 weights of the same shape load without their scales, "
        "and every number is wrong.",
    ),
    "TPP332": _error(
        "quantization-block-cut",
        "tp_size cuts a block of weights that share a scale",
        "On cpu and TPU, FP8 weights are dequantized while they load. Transformers slices the scales of a weight by the "
        "weight's own style and gives each scale of a rank an equal part of the rank's slice. Unless the slice is a "
        "whole number of blocks, elements get the scale of another block, and nothing raises; a rank that is left "
        "without a scale raises. Use a tp_size whose slices are whole blocks, keep these weights whole by an override, "
        "or dequantize the checkpoint once and save it.",
    ),
    "TPP333": _error(
        "quantization-not-shardable",
        "Transformers does not shard weights of this quantization method",
        "The plan cuts weights whose packed form or scales Transformers leaves whole or slices wrongly. What happens, "
        "and where, is in the evidence. It does not depend on the sizes.",
    ),
    "TPP334": _warning(
        "quantization-group-cut",
        "a rank's slice is not a whole number of quantization groups",
        "GPTQ, AWQ and compressed-tensors share one scale along groups of the input dim, so a rowwise slice should be a "
        "whole number of groups; engines that shard such checkpoints refuse others. Transformers does not shard the "
        "method at all, so this was not run.",
    ),
    "TPP335": _error(
        "quantization-block-partial",
        "a quantized weight is not a whole number of blocks",
        "Transformers dequantizes a weight by giving each of its scales an equal part of it. When the last block is "
        "short, that raises, or, where the weight happens to divide by its number of scales, gives elements the scale "
        "of another block. This does not depend on tp_size. A GPU with FP8 kernels is not affected.",
    ),
    "TPP336": _note(
        "dequantized-at-load",
        "the checkpoint is dequantized while it loads",
        "There are no kernels for this format on the device, so each rank holds its share of the weights in the dtype "
        "of the load: an FP8 checkpoint takes twice its size on disk in bfloat16.",
    ),
    "TPP337": _warning(
        "quantizer-changes-plan",
        "the quantizer replaces the model's plan",
        "In 5.20 and older the fp8 quantizer gave every Qwen3 model the plan of a dense one, so the fused experts stay whole "
        "on every rank, and `bytes_per_rank` is too small.",
    ),
    "TPP338": _warning(
        "quantization-not-proven",
        "whether the quantized checkpoint loads sharded was not proven",
        "Nobody ran this method, or this release of Transformers, with sharded weights for tpplan. `tpplan verify` on "
        "the target shows what happens.",
    ),
    "TPP339": _warning(
        "quantization-on-tpu",
        "quantized checkpoints are not proven on TPU",
        "The TPU guide of Transformers says that quantization on TPU is still being integrated. Other findings about "
        "the checkpoint hold for the part of loading that does not depend on the device.",
    ),
    "TPP340": _error(
        "does-not-fit",
        "what a rank holds is more than its device has",
        "Parameters under the plan (on the rank that holds most), a static KV cache for --batch sequences of --max-length "
        "tokens with the key/value heads that a rank really keeps, and gradients for training. `tpplan sizes` shows every "
        "size of the device. Gathered attention, more ranks, a smaller batch or a shorter length need less.",
    ),
    "TPP341": _warning(
        "little-room",
        "what a rank holds fits, activations on top of it may not",
        "The estimate of the activations counts all tensors that the largest layer makes for a prompt of the full length, "
        "as if none were freed: an upper bound. A shorter prompt, or one processed in chunks, needs less.",
    ),
    "TPP342": _note(
        "cache-not-measured",
        "the memory of the cache is not part of the sum",
        "The cache is measured by running the model at full size without weights. This model's code looks at values that "
        "only weights give, so it could not be measured.",
    ),
    # 4xx: the shapes stage
    "TPP401": _error(
        "sharding-raises",
        "sharding the model raises",
        "Applying the resolved plan to the real model class raised, before any forward; from_pretrained would too.",
    ),
    "TPP402": _error(
        "forward-raises",
        "the sharded forward raises",
        "The real model class, at full size and without weights, was sharded as one rank of tp_size and its forward "
        "raised. The module named is the innermost one whose forward did not return.",
    ),
    "TPP403": _error(
        "backward-raises",
        "the sharded backward raises",
        "The forward of the sharded model ran, its backward raised; training with this plan stops there.",
    ),
    "TPP405": _error(
        "no-repair",
        "no override that tpplan knows makes it run",
        "Each proposal was run and failed; the evidence is of the last one.",
    ),
    # 51x and 52x: the launch
    "TPP510": _error(
        "rank-raises",
        "a rank of the launch raises",
        "A process that torchrun started raised in the phase named: start, load (from_pretrained), forward, backward, "
        "compare or generate. When several ranks raise, the first one counts: the others often only lose their peer.",
    ),
    "TPP511": _error(
        "rank-killed",
        "a rank of the launch is ended by a signal",
        "The process was gone without a word of its own: killed from outside, or crashed in native code. torchrun then "
        "ended the other ranks.",
    ),
    "TPP512": _error(
        "rank-hangs",
        "the launch does not finish in time",
        "When --timeout was over, ranks were still running, and everything was ended. In a collective each rank waits "
        "for all others, so the rank that is furthest behind, or stopped, is named; the evidence has where each one "
        "stood. A large checkpoint may just need a longer --timeout.",
    ),
    "TPP513": _error(
        "rank-out-of-memory",
        "a rank of the launch runs out of memory",
        "The allocator gave up, or the kernel killed the process for memory: it counts such kills, and it counted one "
        "during the launch. Use more ranks, a smaller dtype, or --miniature.",
    ),
    "TPP514": _error(
        "launched-logits-differ",
        "the launched model gives other logits than the unsharded one",
        "Same weights, same token ids, one forward; the largest difference is beyond rounding. Nothing raises, so "
        "without a comparison it stays unseen.",
    ),
    "TPP515": _error(
        "launched-tokens-differ",
        "the launched model generates other tokens than the unsharded one",
        "The logits of one forward agree and greedy generation still leaves the unsharded model's path, where its "
        "choice was clear: the fault is in the decode steps, which read keys and values from the cache.",
    ),
    "TPP516": _error(
        "launched-gradients-differ",
        "the launched model's gradients are not the unsharded ones",
        "After one backward of the same scalar. A factor of exactly tp_size means that every rank held the whole "
        "gradient and they were summed.",
    ),
    "TPP517": _warning(
        "bytes-not-as-predicted",
        "a rank holds other parameter bytes than predicted",
        "`bytes_per_rank` was computed without weights; the loaded model holds more or less, so memory figures for "
        "this model are off by that much.",
    ),
    "TPP518": _warning(
        "launch-not-compared",
        "the launched model was not compared with the unsharded one",
        "It loaded and ran. Whether its numbers are right was not seen: the unsharded model does not fit into the "
        "memory that is free, its process was killed, or its own logits are not finite. --miniature compares a small "
        "model of the same structure.",
    ),
    "TPP519": _warning(
        "launched-tokens-near-tie",
        "tokens differ where the unsharded model was undecided",
        "At the first token that differs the unsharded model's two best logits are closer than rounding, so either "
        "token is right.",
    ),
    "TPP520": _note(
        "miniature-launched",
        "a miniature was launched, not the checkpoint",
        "There are no weights at hand, or --miniature asked for it: the ranks loaded a small model of the same "
        "structure with random weights. Load time and memory of the full model were not seen.",
    ),
    "TPP521": _error(
        "unsharded-fails",
        "the unsharded model does not load or run",
        "The same class, the same checkpoint, one process, no sharding. Nothing was learned about tensor parallelism.",
    ),
    "TPP522": _error(
        "weights-missing",
        "the checkpoint lacks weights, or the loader does not find them",
        "from_pretrained fills missing weights with random values and goes on. Each process draws its own, so nothing "
        "that follows can be trusted.",
    ),
    "TPP523": _error(
        "ranks-do-not-fit",
        "the ranks do not fit into the memory of this machine",
        "Parameters of all ranks of this host and the least that a process needs are more than the memory that is "
        "free; the launch would have the kernel kill something. Nothing was started.",
    ),
    "TPP524": _note(
        "generation-not-seen",
        "no tokens were generated",
        "The class has no head to generate with, or the unsharded model cannot generate from the example input.",
    ),
    # 5xx: numerics and launch
    "TPP501": _error(
        "wrong-numbers",
        "the sharded model gives other logits, and nothing raises",
        "A miniature of the model was sharded over all ranks in one process and compared with the unsharded miniature, "
        "same weights and inputs, in float32. The module named is the first whose output differs.",
    ),
    "TPP502": _error(
        "wrong-gradients",
        "a gradient is wrong, and nothing raises",
        "A parameter whose input and output gradient are whole on every rank must be `replicate`; with "
        "`replicated_with_grad_allreduce` its gradient is tp_size times too large. One that works on a split "
        "activation holds a part of its gradient on each rank and must be `replicated_with_grad_allreduce`.",
    ),
    "TPP504": _error(
        "sharded-run-raises",
        "the sharded miniature raises where the unsharded one runs",
        "The full-size shapes ran, so this is about values or about the cache: the part that raised is named.",
    ),
    "TPP505": _error(
        "load-raises",
        "from_pretrained raises while it loads the sharded model",
        "The saved miniature was loaded by from_pretrained with this DistributedConfig as one rank of tp_size. Sharding "
        "the built model worked; reading a checkpoint into it did not: weight conversion and fused experts are the "
        "usual places.",
    ),
    "TPP506": _error(
        "loaded-slice-wrong",
        "a rank gets other values than its slice of what one device gets",
        "from_pretrained ran, and a parameter of the rank is not the slice that its placement says of the parameter that "
        "from_pretrained gives one device from the same checkpoint: the usual place is a fused weight that is split while "
        "it loads. Nothing raises, and the model is wrong.",
    ),
    # 9xx: environment
    "TPP901": _error(
        "environment",
        "a package is missing, too old, or has moved",
        "tpplan needs torch and a Transformers from 5.19, with the internals that it names at its door.",
    ),
    "TPP902": _error(
        "hub-unreachable",
        "the config could not be fetched from the hub",
        "There is no network, the id does not exist, or access needs a token. Give a directory with a config.json, or "
        "fetch the config once with `hf download ID config.json`.",
    ),
    "TPP910": _error(
        "torch-tpu-missing",
        "torch_tpu is not installed",
        "A device of the TPU family was asked for. torch_tpu brings PyTorch's `tpu` device; without it every rank "
        "would run on CPU without a word.",
    ),
    "TPP911": _error(
        "no-tpu-chip",
        "there is no TPU chip",
        "torch_tpu loads and sees no chip on this machine (it looks at the PCI bus and /dev/vfio). Inside a container "
        "the devices must be passed through.",
    ),
    "TPP912": _error(
        "tpu-launch-environment",
        "torch_tpu cannot prepare a launch",
        "Before ranks start, torch.tpu.distributed.set_tpu_launch_env() must set what they agree on. It, or loading "
        "torch_tpu, raised. On several hosts it reads TPU_WORKER_HOSTNAMES (all hosts, comma-separated, the same on "
        "each), JOB_COMPLETION_INDEX (this host, from 0) and TORCH_TPU_TOPOLOGY (the whole slice, such as 2x4).",
    ),
    "TPP913": _error(
        "launcher-failed",
        "torchrun did not start the ranks, or lost them",
        "The evidence is the end of torchrun's own output. With several hosts, all must be given the same endpoint, "
        "and be able to reach it.",
    ),
    # 92x and 93x: what the doctor finds on a machine
    "TPP920": _error(
        "requirement-not-met",
        "a package is missing or outside a range that another asks for",
        "The ranges are those in the metadata of the installed packages, as pip reads them: what a package requires "
        "always, and its optional integration with a package that happens to be installed. pip keeps them when it "
        "installs, and breaks them when another package is installed later or without its dependencies.",
    ),
    "TPP921": _error(
        "no-native-library",
        "torch_tpu ships no native library for the installed torch",
        "torch_tpu has a set of libraries for each torch release that broke its binary interface, and loads the newest "
        "set that is not newer than torch. Before the oldest there is none, and `import torch` raises.",
    ),
    "TPP922": _error(
        "import-breaks",
        "torch, Transformers or torch_tpu does not import",
        "A child process imported it and raised, ended, or did not answer in time; the evidence is its last word. torch "
        "loads torch_tpu by itself, so a torch_tpu that is broken breaks `import torch`, on cpu too; "
        "TORCH_DEVICE_BACKEND_AUTOLOAD=0 keeps it out.",
    ),
    "TPP923": _error(
        "chips-not-usable",
        "the chips of this machine are not the ones that torch can use",
        "torch_tpu counts the TPUs on the PCI bus that /dev/vfio exposes. Ranks need as many as torch.accelerator sees, "
        "in a number for which torch_tpu knows a topology.",
    ),
    "TPP924": _error(
        "chip-held",
        "another process holds a chip",
        "A chip serves one process at a time. One that a finished launch left behind keeps the next one from starting, "
        "or makes it wait. Processes are found by their open files and by libtpu's lock, /tmp/libtpu_lockfile.",
    ),
    "TPP925": _error(
        "rank-variables-left",
        "the environment says that this process is a rank, and no launcher is there",
        "RANK, LOCAL_RANK, WORLD_SIZE or LOCAL_WORLD_SIZE is set without torchrun's TORCHELASTIC_RUN_ID. A process "
        "that loads a sharded model with them waits for ranks that nobody started.",
    ),
    "TPP926": _error(
        "launch-variables-at-odds",
        "the variables of the TPU launch contradict each other",
        "set_tpu_launch_env overwrites nothing that is set: variables of an earlier launch, of another topology or of "
        "other hosts go into the next one, which then raises or waits for ever.",
    ),
    "TPP927": _error(
        "torch-tpu-kept-out",
        "torch is told not to load torch_tpu",
        "TORCH_DEVICE_BACKEND_AUTOLOAD is neither unset nor 1. torch then has no tpu device, whatever is installed.",
    ),
    "TPP928": _warning(
        "tcmalloc-missing",
        "tcmalloc is not the allocator",
        "torch_tpu frees memory in other threads than the one that took it, for which glibc's malloc holds locks; "
        "torch_tpu warns of it on import. Preload tcmalloc before Python starts.",
    ),
    "TPP929": _error(
        "hub-kernels-incomplete",
        "kernels from the hub cannot run on TPU",
        "The kernels library has TPU kernels from 0.17; they wrap JAX and Pallas, so jax must be installed.",
    ),
    "TPP930": _error(
        "port-taken",
        "a port that the launch needs cannot be listened on",
        "Ranks meet at MASTER_PORT (29500 unless set), torch_tpu's processes at the ports in "
        "TORCH_TPU_SLICEBUILDER_ADDRESSES, from TORCH_TPU_BASE_PORT (8070) on where there are several hosts.",
    ),
    "TPP931": _error(
        "memory-too-small",
        "a process for each device does not fit into memory",
        "The memory that is free, of the machine or of this container if less, is below what processes need that have "
        "imported torch and Transformers, one for each device. A model comes on top.",
    ),
    "TPP932": _error(
        "chip-variables-left",
        "variables of libtpu are left over from another process",
        "torch_tpu's native code sets TPU_VISIBLE_CHIPS, TPU_PROCESS_BOUNDS and the like for each rank. Set for all "
        "processes, as JAX users do by hand, they make ranks see other chips. TPU_LIBRARY_PATH, when set, replaces the "
        "path of the installed libtpu.",
    ),
}
