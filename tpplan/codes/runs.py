"""Codes 4xx and 50x: what the shapes and the numerics stage find."""

from __future__ import annotations

from tpplan.codes.code import Code, error

RUNS: dict[str, Code] = {
    "TPP401": error(
        "sharding-raises",
        "sharding the model raises",
        meaning="Applying the resolved plan to the real model class raised, before any forward.",
        reason="from_pretrained shards in the same way and raises too.",
        example="tpplan check plan.yaml\nplan.yaml: model.norm: colwise",
        action="Run the command of the fix, or change the rule of the module that the evidence names.",
    ),
    "TPP402": error(
        "forward-raises",
        "the sharded forward raises",
        meaning="The real model class, at full size and without weights, was sharded as one rank of tp_size, and its "
        "forward raised. The module named is the innermost one whose forward did not return.",
        reason="The model loads, and its first forward raises in the same place.",
        example='tpplan check config.json --tp-size 2\nconfig.json: "model_type": "doge"',
        action="Run the command of the fix: it writes a plan that runs.",
    ),
    "TPP403": error(
        "backward-raises",
        "the sharded backward raises",
        meaning="The forward of the sharded model ran, and its backward raised.",
        reason="Training with this plan stops at the first step; inference is not affected.",
        example="A model shows it whose sharded forward runs and whose backward does not, with --purpose training. The "
        "tests make one.",
        action="Run `tpplan plan MODEL --tp-size N --purpose training`: it tries other rules for the module.",
    ),
    "TPP501": error(
        "wrong-numbers",
        "the sharded model gives logits different from the unsharded one's, and nothing raises",
        meaning="A miniature of the model was sharded over all ranks in one process and compared with the unsharded "
        "miniature, same weights and inputs, in float32. The module named is the first whose output differs.",
        reason="The model runs and answers, and its answers are wrong.",
        example="tpplan check plan.yaml --depth numerics\nplan.yaml: model.layers.*.mlp: all_reduce",
        action="Run the command of the fix, or remove the overrides around the module.",
    ),
    "TPP502": error(
        "wrong-gradients",
        "a gradient is wrong, and nothing raises",
        meaning="A parameter whose input and output gradient are replicated must be `replicate`; with "
        "`replicated_with_grad_allreduce` its gradient is tp_size times too large. One that works on a sharded "
        "activation has a part of its gradient on each rank and must be `replicated_with_grad_allreduce`.",
        reason="Training runs, and updates these parameters by wrong steps.",
        example="tpplan check config.json --tp-size 2 --depth numerics --purpose training\n"
        'config.json: "model_type": "apertus"',
        action="Run the command of the fix, or give the module the other of the two styles.",
    ),
    "TPP504": error(
        "sharded-run-raises",
        "the sharded miniature raises where the unsharded one runs",
        meaning="The shapes at full size ran, so this is about values or about the cache. The part that raised is "
        "named.",
        reason="The model raises in that part, such as generation with a static cache.",
        example="tpplan check plan.yaml --depth numerics\n"
        "plan.yaml: num_key_value_heads: 1\n"
        "plan.yaml: model.layers.*.self_attn.k_proj: replicated_with_grad_allreduce\n"
        "plan.yaml: model.layers.*.self_attn.v_proj: replicated_with_grad_allreduce",
        action="Run the command of the fix, or leave out the part, such as the static cache.",
    ),
    "TPP505": error(
        "load-raises",
        "from_pretrained raises while it loads the sharded model",
        meaning="A saved miniature was loaded by from_pretrained with this DistributedConfig as one rank of tp_size. "
        "Sharding the built model worked; reading a checkpoint into it did not. Weight conversion and fused experts "
        "are the usual places.",
        reason="The real checkpoint goes through the same code.",
        example='tpplan check config.json --tp-size 2 --depth numerics\nconfig.json: "model_type": "sarvam_moe"',
        action="Run the command of the fix, which replicates what cannot be loaded sharded.",
    ),
    "TPP506": error(
        "loaded-slice-wrong",
        "a rank gets values that differ from its slice of what one device gets",
        meaning="from_pretrained ran, and a parameter of the rank is not the slice that its placement says of the "
        "parameter that from_pretrained gives one device from the same checkpoint. The usual place is a fused weight "
        "that is split while it loads.",
        reason="Nothing raises, and the model is wrong.",
        example="hrm_text of Transformers 5.24 shows it. No smaller model of the installed release does.",
        action="Run the command of the fix, which replicates what is sliced wrongly.",
    ),
}
