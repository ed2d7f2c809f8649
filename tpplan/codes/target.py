"""Codes 32x and 34x: the device, its sizes and its memory."""

from __future__ import annotations

from tpplan.codes.code import Code, error, note, warning

TARGET: dict[str, Code] = {
    "TPP320": error(
        "no-such-device-count",
        "the target has no host and no slice with tp_size devices",
        "A rank is one device (a v7 chip has two). torch_tpu knows a topology for some numbers of devices on one host and "
        "refuses to prepare a launch with another number; slices of several hosts come in published shapes, of hosts "
        "with 2x2 chips. The evidence lists all numbers that exist.",
    ),
    "TPP321": note(
        "several-hosts",
        "tp_size devices are a slice of several hosts",
        "Each host starts its own ranks, and they must agree on the rest. torch_tpu derives it from TPU_WORKER_HOSTNAMES "
        "(all hosts, comma-separated, the same on each), JOB_COMPLETION_INDEX (this host, from 0) and TORCH_TPU_TOPOLOGY "
        "(the whole slice, in chips; without it torch_tpu writes the topology of this host alone). torchrun does not read "
        "NNODES, NODE_RANK, MASTER_ADDR and MASTER_PORT from the environment, so give them to `tpplan launch` as "
        "options: `tpplan launch --device tpu --print-env` prints them.",
    ),
    "TPP322": warning(
        "training-on-tpu",
        "training on TPU is still being integrated into Transformers",
        "The Transformers guide to TPU says so under its limits. A verdict for training says that gradients are right "
        "as the model's code computes them on cpu; it does not say that a training run on TPU works. `tpplan verify` on "
        "the TPU host runs a forward and a backward there.",
    ),
    "TPP323": note(
        "tpu-generation-unknown",
        "no generation of TPU is named, so the limits of the target are unknown",
        "Generations differ in memory and in how many devices a host has. With --device tpu the generation is the one "
        "on this machine's PCI bus, read as torch_tpu reads it; where there is none, neither the number of ranks nor "
        "their memory is checked. Name a generation, such as --device tpu-v6e, to have it checked anywhere.",
    ),
    "TPP340": error(
        "does-not-fit",
        "what a rank holds is more than its device has",
        "Parameters under the plan (on the rank that holds most), a static KV cache for --batch sequences of --max-length "
        "tokens with the key/value heads that a rank really keeps, and gradients for training. `tpplan sizes` shows every "
        "size of the device. Gathered attention, more ranks, a smaller batch or a shorter length need less.",
    ),
    "TPP341": warning(
        "little-room",
        "what a rank holds fits, activations on top of it may not",
        "The estimate of the activations counts all tensors that the largest layer makes for a prompt of the full length, "
        "as if none were freed: an upper bound. A shorter prompt, or one processed in chunks, needs less.",
    ),
    "TPP342": note(
        "cache-not-measured",
        "the memory of the cache is not part of the sum",
        "The cache is measured by running the model at full size without weights. This model's code looks at values that "
        "only weights give, so it could not be measured.",
    ),
}
