"""Codes 51x and 52x: what real ranks find."""

from __future__ import annotations

from tpplan.codes.code import Code, error, note, warning

LAUNCHES: dict[str, Code] = {
    "TPP510": error(
        "rank-raises",
        "a rank of the launch raises",
        meaning="A process that torchrun started raised in the phase named: start, load (from_pretrained), forward, "
        "backward, compare or generate. When several ranks raise, the first is named: the others often only lose their "
        "peer.",
        reason="The model does not run on this machine with this plan.",
        example="Real ranks show it, under `tpplan verify`: a plan whose forward raises.",
        action="Read the error in the evidence. `tpplan check` at the same size tells errors of the plan without a "
        "launch.",
    ),
    "TPP511": error(
        "rank-killed",
        "a rank of the launch is ended by a signal",
        meaning="The process ended without an error of its own: killed from outside, or crashed in native code. "
        "torchrun then ended the other ranks.",
        reason="The launch did not finish, so nothing after that phase is known.",
        example="Real ranks show it, under `tpplan verify`: `kill -9` on one of them.",
        action="Look in the evidence for what the process wrote last, and run it again; a crash at the same place is "
        "one of a native library.",
    ),
    "TPP512": error(
        "rank-hangs",
        "the launch does not finish in time",
        meaning="When --timeout was over, ranks were still running, and all were ended. In a collective each rank "
        "waits for all others, so the rank that is furthest behind, or stopped, is named; the evidence says where each "
        "one was.",
        reason="Without the limit it would wait for ever.",
        example="Real ranks show it, under `tpplan verify --timeout 15`: `kill -STOP` on one of them.",
        action="Give a longer --timeout for a large checkpoint; else look at the rank that is named.",
    ),
    "TPP513": error(
        "rank-out-of-memory",
        "a rank of the launch runs out of memory",
        meaning="The allocator raised, or the kernel killed the process for memory: its counter of such kills went up "
        "during the launch.",
        reason="The model does not fit into the memory of this machine with this plan.",
        example="Real ranks show it, under `tpplan verify`: a checkpoint larger than the memory of the machine.",
        action="Use more ranks, a smaller dtype, or --miniature.",
    ),
    "TPP514": error(
        "launched-logits-differ",
        "the launched model gives logits different from the unsharded one's",
        meaning="Same weights, same token ids, one forward; the largest difference is beyond rounding.",
        reason="Nothing raises, so without a comparison it stays unseen.",
        example="Real ranks show it, under `tpplan verify`: k_proj and v_proj replicated and q_proj sharded.",
        action="`tpplan plan MODEL --tp-size N` writes a plan whose numbers were proven.",
    ),
    "TPP515": error(
        "launched-tokens-differ",
        "the launched model generates tokens different from the unsharded one's",
        meaning="The logits of one forward agree, and greedy generation leaves the unsharded model's path where its "
        "choice was clear.",
        reason="The fault is in the decode steps, which read keys and values from the cache; every generation is "
        "affected.",
        example="Real ranks show it, under `tpplan verify`: a cache that keeps the key/value heads of another rank.",
        action="Try another strategy (`tpplan plan --strategy`), and report it with the evidence.",
    ),
    "TPP516": error(
        "launched-gradients-differ",
        "the launched model's gradients are not the unsharded ones",
        meaning="After one backward of the same scalar the gradients differ. A factor of exactly tp_size means that "
        "every rank had the full gradient and they were summed.",
        reason="Training runs, and updates these parameters by wrong steps.",
        example="Real ranks show it, under `tpplan verify` with purpose training: a norm that is "
        "replicated_with_grad_allreduce on a replicated activation.",
        action="Give the modules the style of the fix, or run `tpplan plan MODEL --tp-size N --purpose training`.",
    ),
    "TPP517": warning(
        "bytes-not-as-predicted",
        "a rank's parameter bytes differ from the prediction",
        meaning="`bytes_per_rank` was computed without weights; the loaded model holds more or less.",
        reason="Memory figures for this model are off by that much.",
        example="Real ranks show it, under `tpplan verify`: a model that adds parameters while it loads.",
        action="Use the bytes that the ranks measured.",
    ),
    "TPP518": warning(
        "launch-not-compared",
        "the launched model was not compared with the unsharded one",
        meaning="It loaded and ran. The unsharded model does not fit into the memory that is free, its process was "
        "killed, or its own logits are not finite.",
        reason="Whether the numbers of the launched model are right was not seen.",
        example="Real ranks show it, under `tpplan verify`: a checkpoint that fits only when it is sharded.",
        action="Run `tpplan verify --miniature`, which compares a small model of the same structure.",
    ),
    "TPP519": warning(
        "launched-tokens-near-tie",
        "tokens differ where the unsharded model was undecided",
        meaning="At the first token that differs the unsharded model's two best logits are closer than rounding.",
        reason="Either token is right, so the difference says nothing about the plan.",
        example="Real ranks show it, under `tpplan verify`: random weights in bfloat16.",
        action="Nothing.",
    ),
    "TPP520": note(
        "miniature-launched",
        "a miniature was launched, not the checkpoint",
        meaning="There are no weights at hand, or --miniature asked for it: the ranks loaded a small model of the same "
        "structure with random weights.",
        reason="Load time and memory of the full model were not seen.",
        example="Real ranks show it, under `tpplan verify` with a config.json that has no weights beside it.",
        action="Run `tpplan verify` on the directory with the checkpoint to see the full model.",
    ),
    "TPP521": error(
        "unsharded-fails",
        "the unsharded model does not load or run",
        meaning="The same class and the same checkpoint, in one process without sharding, raised.",
        reason="Nothing was learned about tensor parallelism.",
        example="Real ranks show it, under `tpplan verify`: a checkpoint with a damaged file.",
        action="Make the model load in one process first; the evidence is its error.",
    ),
    "TPP522": error(
        "weights-missing",
        "the checkpoint lacks weights, or the loader does not find them",
        meaning="from_pretrained gave parameters random values, because the checkpoint has none under their names.",
        reason="Each process draws its own values, so nothing that follows can be trusted.",
        example="Real ranks show it, under `tpplan verify`: a checkpoint without lm_head.weight of an untied model.",
        action="Use a complete checkpoint, or the auto class that it was saved with.",
    ),
    "TPP523": error(
        "ranks-do-not-fit",
        "the ranks do not fit into the memory of this machine",
        meaning="Parameters of all ranks of this host and the least that a process needs are more than the memory that "
        "is free. Nothing was started.",
        reason="The launch would make the kernel kill a process.",
        example="Real ranks would show it, under `tpplan verify`: a checkpoint larger than the memory of the machine.",
        action="Use a machine with more memory, a smaller dtype, or --miniature.",
    ),
    "TPP524": note(
        "generation-not-seen",
        "no tokens were generated",
        meaning="The class has no head to generate with, or the unsharded model cannot generate from the example "
        "input.",
        reason="Decode steps and their cache were not compared.",
        example="Real ranks show it, under `tpplan verify --auto-class AutoModel`.",
        action="Name the auto class that generates with --auto-class, where there is one.",
    ),
}
