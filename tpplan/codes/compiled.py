"""Codes 6xx: the TPU's compiler and what torch_tpu lowers."""

from __future__ import annotations

from tpplan.codes.code import Code, error

COMPILED: dict[str, Code] = {
    "TPP601": error(
        "compiled-too-large",
        "a program as compiled needs more than a chip has",
        meaning="One rank's program of the full-size model was compiled by libtpu for this device. What it holds at "
        "once (weights, cache, temporaries, outputs, code) is more than the memory of one chip, by the compiler's own "
        "numbers; or the compiler refused it for that reason.",
        reason="The load, or the first prompt, would end in an out-of-memory error on every chip.",
        example="The TPU's compiler shows it: `tpplan check MODEL --tp-size 4 --device tpu-v5e --depth aot` of a "
        "model of 70B parameters.",
        action="Use more devices, or ones with more memory, a shorter cache (--max-length), a smaller batch or a "
        "shorter prefill. `tpplan sizes` shows what fits by its estimate.",
    ),
    "TPP602": error(
        "wrong-as-lowered",
        "what torch_tpu lowers the sharded model to gives wrong numbers",
        meaning="Every rank's own program of a miniature was lowered by torch_tpu, computed on CPU with the "
        "collectives between its parts, and the logits differ from the unsharded model's by more than rounding.",
        reason="Nothing would raise on the TPU, and every answer of the model would be wrong.",
        example="The TPU's compiler shows it: a plan with the style all_reduce for an MLP whose output is summed "
        "already, with --depth aot.",
        action="Where the numerics stage fails too, mend the plan as its fix says. Where it passes, the lowering is at "
        "fault: report it to torch_tpu.",
    ),
}
