"""Codes 33x: quantized checkpoints."""

from __future__ import annotations

from tpplan.codes.code import Code, error, note, warning

QUANTIZED: dict[str, Code] = {
    "TPP330": error(
        "quantization-config-refused",
        "the quantization_config cannot be read",
        meaning="The quantization_config has no quant_method, or block or group sizes that are not positive integers. "
        "A checkpoint of another library (mlx) has values of its own there.",
        reason="from_pretrained raises before it reads a weight.",
        example='tpplan check config.json --tp-size 2 --depth static\nconfig.json: "weight_block_size": [0, 128]',
        action="Correct the value. Where the weights are not quantized, remove quantization_config or make it null.",
    ),
    "TPP331": error(
        "unknown-quantization-method",
        "the installed Transformers has no such quantization method",
        meaning="Transformers skips a method that it does not know with a warning, and loads the tensors as if they "
        "were plain weights.",
        reason="Packed weights have different shapes, and loading raises. FP8 weights of the same shape load without "
        "their scales, and every number is wrong.",
        example='tpplan check config.json --tp-size 2 --depth static\nconfig.json: "quant_method": "modelopt"',
        action="Use a checkpoint that is not quantized, or quantized by a method that Transformers has.",
    ),
    "TPP332": error(
        "quantization-block-cut",
        "tp_size cuts a block of weights that share a scale",
        meaning="On cpu and TPU, FP8 weights are dequantized while they load. Transformers slices the scales of a "
        "weight by the weight's own style and gives each scale of a rank an equal part of the rank's slice. The slice "
        "is not a whole number of blocks.",
        reason="Elements get the scale of a different block, and nothing raises; or a rank has no scale, and loading "
        "raises.",
        example='tpplan check config.json --tp-size 8 --depth static\nconfig.json: "moe_intermediate_size": 1536\n'
        'config.json: "weight_block_size": [128, 128]',
        action="Run `tpplan plan`: it shards experts by ep_size, so that each stays in one piece, and replicates other "
        "weights by an override. Or use a tp_size whose slices are whole blocks, or a checkpoint that was dequantized "
        "once.",
    ),
    "TPP333": error(
        "quantization-not-shardable",
        "Transformers does not shard weights of this quantization method",
        meaning="The plan shards weights whose packed form or scales Transformers replicates or slices wrongly. The "
        "evidence says what happens, and where. It does not depend on the sizes.",
        reason="Loading or the forward raises, or the numbers are wrong.",
        example='tpplan check config.json --tp-size 2 --depth static\nconfig.json: "quant_method": "bitsandbytes"',
        action="Use a checkpoint that is not quantized, or load at tp_size 1.",
    ),
    "TPP334": warning(
        "quantization-group-cut",
        "a rank's slice is not a whole number of quantization groups",
        meaning="GPTQ, AWQ and compressed-tensors share one scale along groups of the input dim, so a rowwise slice "
        "should be a whole number of groups.",
        reason="Engines that shard such checkpoints refuse other slices. Transformers does not shard the method at "
        "all, so this was not run.",
        example='tpplan check config.json --tp-size 4 --depth static\nconfig.json: "intermediate_size": 11008\n'
        'config.json: "group_size": 128',
        action="Use a tp_size at which each slice is a whole number of groups.",
    ),
    "TPP335": error(
        "quantization-block-partial",
        "a quantized weight is not a whole number of blocks",
        meaning="Transformers dequantizes a weight by giving each of its scales an equal part of it, and the last "
        "block of this weight is short. This does not depend on tp_size.",
        reason="Loading raises or, where the weight happens to divide by its number of scales, elements get the scale "
        "of a different block. A GPU with FP8 kernels is not affected.",
        example='tpplan check config.json --tp-size 2 --depth static\nconfig.json: "kv_lora_rank": 512\n'
        'config.json: "qk_rope_head_dim": 64\nconfig.json: "weight_block_size": [128, 128]',
        action="Dequantize the checkpoint once on a GPU with FP8 kernels, and save it.",
    ),
    "TPP336": note(
        "dequantized-at-load",
        "the checkpoint is dequantized while it loads",
        meaning="There are no kernels for this format on the device, or the load does not ask for them, so each rank "
        "holds its share of the weights in the dtype of the load.",
        reason="An FP8 checkpoint takes twice its size on disk in bfloat16.",
        example='tpplan check config.json --tp-size 2 --depth static\nconfig.json: "quant_method": "fp8"',
        action="Nothing; bytes per rank are already those of the dequantized weights.",
    ),
    "TPP337": warning(
        "quantizer-changes-plan",
        "the quantizer replaces the model's plan",
        meaning="In Transformers 5.20 and older the fp8 quantizer gave every Qwen3 model the plan of a dense one, so "
        "the fused experts are replicated.",
        reason="`bytes_per_rank` is too small.",
        example="Transformers 5.20 and older show it: a Qwen3 model with experts and an fp8 quantization_config.",
        action="Install Transformers 5.22 or newer.",
    ),
    "TPP338": warning(
        "quantization-not-proven",
        "whether the quantized checkpoint loads sharded was not proven",
        meaning="This method, or this release of Transformers, was not run with sharded weights when tpplan was "
        "tested.",
        reason="The checkpoint may not load sharded, or with wrong numbers.",
        example='tpplan check config.json --tp-size 2 --depth static\nconfig.json: "quant_method": "quanto"',
        action="Run `tpplan verify` on the target, with the checkpoint.",
    ),
    "TPP339": warning(
        "quantization-on-tpu",
        "quantized checkpoints are not proven on TPU",
        meaning="The TPU guide of Transformers says that quantization on TPU is still being integrated.",
        reason="Other findings about the checkpoint hold only for the part of loading that does not depend on the "
        "device.",
        example="tpplan check config.json --tp-size 4 --device tpu-v6e --depth static\n"
        'config.json: "quant_method": "fp8"',
        action="Run `tpplan verify` on the TPU host, with the checkpoint.",
    ),
}
