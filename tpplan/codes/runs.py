"""Codes 4xx and 50x: what the shapes and the numerics stage find."""

from __future__ import annotations

from tpplan.codes.code import Code, error

RUNS: dict[str, Code] = {
    "TPP401": error(
        "sharding-raises",
        "sharding the model raises",
        "Applying the resolved plan to the real model class raised, before any forward; from_pretrained would too.",
    ),
    "TPP402": error(
        "forward-raises",
        "the sharded forward raises",
        "The real model class, at full size and without weights, was sharded as one rank of tp_size and its forward "
        "raised. The module named is the innermost one whose forward did not return.",
    ),
    "TPP403": error(
        "backward-raises",
        "the sharded backward raises",
        "The forward of the sharded model ran, its backward raised; training with this plan stops there.",
    ),
    "TPP405": error(
        "no-repair",
        "no override that tpplan knows makes it run",
        "Each proposal was run and failed; the evidence is of the last one.",
    ),
    "TPP501": error(
        "wrong-numbers",
        "the sharded model gives other logits, and nothing raises",
        "A miniature of the model was sharded over all ranks in one process and compared with the unsharded miniature, "
        "same weights and inputs, in float32. The module named is the first whose output differs.",
    ),
    "TPP502": error(
        "wrong-gradients",
        "a gradient is wrong, and nothing raises",
        "A parameter whose input and output gradient are whole on every rank must be `replicate`; with "
        "`replicated_with_grad_allreduce` its gradient is tp_size times too large. One that works on a split "
        "activation holds a part of its gradient on each rank and must be `replicated_with_grad_allreduce`.",
    ),
    "TPP504": error(
        "sharded-run-raises",
        "the sharded miniature raises where the unsharded one runs",
        "The full-size shapes ran, so this is about values or about the cache: the part that raised is named.",
    ),
    "TPP505": error(
        "load-raises",
        "from_pretrained raises while it loads the sharded model",
        "The saved miniature was loaded by from_pretrained with this DistributedConfig as one rank of tp_size. Sharding "
        "the built model worked; reading a checkpoint into it did not: weight conversion and fused experts are the "
        "usual places.",
    ),
    "TPP506": error(
        "loaded-slice-wrong",
        "a rank gets other values than its slice of what one device gets",
        "from_pretrained ran, and a parameter of the rank is not the slice that its placement says of the parameter that "
        "from_pretrained gives one device from the same checkpoint: the usual place is a fused weight that is split while "
        "it loads. Nothing raises, and the model is wrong.",
    ),
}
