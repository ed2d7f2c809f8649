"""Codes 33x: quantized checkpoints."""

from __future__ import annotations

from tpplan.codes.code import Code, error, note, warning

QUANTIZED: dict[str, Code] = {
    "TPP330": error(
        "quantization-config-refused",
        "the quantization_config cannot be read",
        "Without a quant_method, or with block and group sizes that are not positive integers, from_pretrained raises "
        "before it reads a weight. A checkpoint of another library (mlx) has values of its own there. `null` means that "
        "the weights are not quantized.",
    ),
    "TPP331": error(
        "unknown-quantization-method",
        "the installed Transformers has no such quantization method",
        "Transformers skips a method that it does not know with a warning and loads the tensors as if they were plain "
        "weights. Packed ones have other shapes, and it raises; FP8 weights of the same shape load without their scales, "
        "and every number is wrong.",
    ),
    "TPP332": error(
        "quantization-block-cut",
        "tp_size cuts a block of weights that share a scale",
        "On cpu and TPU, FP8 weights are dequantized while they load. Transformers slices the scales of a weight by the "
        "weight's own style and gives each scale of a rank an equal part of the rank's slice. Unless the slice is a "
        "whole number of blocks, elements get the scale of another block, and nothing raises; a rank that is left "
        "without a scale raises. Use a tp_size whose slices are whole blocks, or what `tpplan plan` writes: experts "
        "sharded by ep_size, so that each stays whole, and other weights kept whole by an override. Or dequantize the "
        "checkpoint once and save it.",
    ),
    "TPP333": error(
        "quantization-not-shardable",
        "Transformers does not shard weights of this quantization method",
        "The plan cuts weights whose packed form or scales Transformers leaves whole or slices wrongly. What happens, "
        "and where, is in the evidence. It does not depend on the sizes.",
    ),
    "TPP334": warning(
        "quantization-group-cut",
        "a rank's slice is not a whole number of quantization groups",
        "GPTQ, AWQ and compressed-tensors share one scale along groups of the input dim, so a rowwise slice should be a "
        "whole number of groups; engines that shard such checkpoints refuse others. Transformers does not shard the "
        "method at all, so this was not run.",
    ),
    "TPP335": error(
        "quantization-block-partial",
        "a quantized weight is not a whole number of blocks",
        "Transformers dequantizes a weight by giving each of its scales an equal part of it. When the last block is "
        "short, that raises, or, where the weight happens to divide by its number of scales, gives elements the scale "
        "of another block. This does not depend on tp_size. A GPU with FP8 kernels is not affected.",
    ),
    "TPP336": note(
        "dequantized-at-load",
        "the checkpoint is dequantized while it loads",
        "There are no kernels for this format on the device, so each rank holds its share of the weights in the dtype "
        "of the load: an FP8 checkpoint takes twice its size on disk in bfloat16.",
    ),
    "TPP337": warning(
        "quantizer-changes-plan",
        "the quantizer replaces the model's plan",
        "In 5.20 and older the fp8 quantizer gave every Qwen3 model the plan of a dense one, so the fused experts stay whole "
        "on every rank, and `bytes_per_rank` is too small.",
    ),
    "TPP338": warning(
        "quantization-not-proven",
        "whether the quantized checkpoint loads sharded was not proven",
        "Nobody ran this method, or this release of Transformers, with sharded weights for tpplan. `tpplan verify` on "
        "the target shows what happens.",
    ),
    "TPP339": warning(
        "quantization-on-tpu",
        "quantized checkpoints are not proven on TPU",
        "The TPU guide of Transformers says that quantization on TPU is still being integrated. Other findings about "
        "the checkpoint hold for the part of loading that does not depend on the device.",
    ),
}
