"""Codes 32x and 34x: the device, its sizes and its memory."""

from __future__ import annotations

from tpplan.codes.code import Code, error, note, warning

TARGET: dict[str, Code] = {
    "TPP320": error(
        "no-such-device-count",
        "the target has no host and no slice with tp_size devices",
        meaning="A rank is one device (a v7 chip has two). One host has some numbers of devices, and slices of several "
        "hosts come in published shapes, of hosts with 2x2 chips; tp_size is none of these numbers.",
        reason="torch_tpu refuses to prepare a launch with a number of devices for which it knows no topology.",
        example="tpplan check config.json --tp-size 2 --device tpu-v5e --depth static",
        action="Use a number of devices from the evidence, which lists all that exist.",
    ),
    "TPP321": note(
        "several-hosts",
        "tp_size devices are a slice of several hosts",
        meaning="No host of this device has so many devices, so the ranks run on several hosts.",
        reason="Each host starts its own ranks, and they must agree. torch_tpu reads TPU_WORKER_HOSTNAMES (all hosts, "
        "comma-separated, the same on each), JOB_COMPLETION_INDEX (this host, from 0) and TORCH_TPU_TOPOLOGY (the "
        "complete slice, in chips; without it torch_tpu writes the topology of this host alone). torchrun does not "
        "read NNODES, NODE_RANK, MASTER_ADDR and MASTER_PORT from the environment.",
        example="tpplan check config.json --tp-size 16 --device tpu-v7 --depth static",
        action="Set the three variables on each host. `tpplan launch --device tpu --print-env` prints the others, "
        "which are given to `tpplan launch` as options.",
    ),
    "TPP322": warning(
        "training-on-tpu",
        "training on TPU is still being integrated into Transformers",
        meaning="The purpose is training and the device is a TPU. The Transformers guide to TPU names training among "
        "its limits.",
        reason="A verdict for training says that gradients are right as the model's code computes them on cpu. It does "
        "not say that a training run on TPU works.",
        example="tpplan check config.json --tp-size 4 --device tpu-v6e --purpose training --depth static",
        action="Run `tpplan verify` on the TPU host: it runs a forward and a backward there.",
    ),
    "TPP323": note(
        "tpu-generation-unknown",
        "no generation of TPU is named, so the limits of the target are unknown",
        meaning="With --device tpu the generation is the one on this machine's PCI bus, read as torch_tpu reads it, "
        "and this machine has none.",
        reason="Generations differ in memory and in how many devices a host has, so neither was checked.",
        example="tpplan check config.json --tp-size 4 --device tpu --depth static",
        action="Name a generation, such as --device tpu-v6e; its limits are then checked on any machine.",
    ),
    "TPP340": error(
        "does-not-fit",
        "what each rank holds is more than its device has",
        meaning="The sum of the parameters under the plan (on the rank that holds most), a static KV cache for --batch "
        "sequences of --max-length tokens with the key/value heads that each rank really keeps, and gradients for "
        "training, is more than the memory of the device.",
        reason="Loading, or the first long prompt, runs out of memory.",
        example="tpplan check . --tp-size 1 --device tpu-v5e --max-length 8192",
        action="Use more ranks, gathered attention, a smaller batch or a shorter length. `tpplan sizes` shows every "
        "size of the device.",
    ),
    "TPP341": warning(
        "little-room",
        "what each rank holds fits, activations in addition may not",
        meaning="The estimate of the activations is the sum of all tensors that the largest layer makes for a prompt "
        "of the full length, as if none were freed: an upper bound. It is more than the memory that is left.",
        reason="A prompt of the full length may run out of memory.",
        example="tpplan check . --tp-size 1 --device tpu-v5e",
        action="Use a shorter prompt, process it in chunks, or use more ranks.",
    ),
    "TPP342": note(
        "cache-not-measured",
        "the memory of the cache is not part of the sum",
        meaning="The cache is measured by running the model at full size without weights. This model's code looks at "
        "values that only weights give, so it could not be measured.",
        reason="The memory that each rank needs is more than the sum shown.",
        example="Models whose code depends on values of their weights show it, where --batch or --max-length asks for "
        "the memory.",
        action="Leave room for the cache, or measure it with `tpplan verify` on the target.",
    ),
}
