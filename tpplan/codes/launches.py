"""Codes 51x and 52x: what real ranks find."""

from __future__ import annotations

from tpplan.codes.code import Code, error, note, warning

LAUNCHES: dict[str, Code] = {
    "TPP510": error(
        "rank-raises",
        "a rank of the launch raises",
        "A process that torchrun started raised in the phase named: start, load (from_pretrained), forward, backward, "
        "compare or generate. When several ranks raise, the first one counts: the others often only lose their peer.",
    ),
    "TPP511": error(
        "rank-killed",
        "a rank of the launch is ended by a signal",
        "The process was gone without a word of its own: killed from outside, or crashed in native code. torchrun then "
        "ended the other ranks.",
    ),
    "TPP512": error(
        "rank-hangs",
        "the launch does not finish in time",
        "When --timeout was over, ranks were still running, and everything was ended. In a collective each rank waits "
        "for all others, so the rank that is furthest behind, or stopped, is named; the evidence has where each one "
        "stood. A large checkpoint may just need a longer --timeout.",
    ),
    "TPP513": error(
        "rank-out-of-memory",
        "a rank of the launch runs out of memory",
        "The allocator gave up, or the kernel killed the process for memory: it counts such kills, and it counted one "
        "during the launch. Use more ranks, a smaller dtype, or --miniature.",
    ),
    "TPP514": error(
        "launched-logits-differ",
        "the launched model gives other logits than the unsharded one",
        "Same weights, same token ids, one forward; the largest difference is beyond rounding. Nothing raises, so "
        "without a comparison it stays unseen.",
    ),
    "TPP515": error(
        "launched-tokens-differ",
        "the launched model generates other tokens than the unsharded one",
        "The logits of one forward agree and greedy generation still leaves the unsharded model's path, where its "
        "choice was clear: the fault is in the decode steps, which read keys and values from the cache.",
    ),
    "TPP516": error(
        "launched-gradients-differ",
        "the launched model's gradients are not the unsharded ones",
        "After one backward of the same scalar. A factor of exactly tp_size means that every rank held the whole "
        "gradient and they were summed.",
    ),
    "TPP517": warning(
        "bytes-not-as-predicted",
        "a rank holds other parameter bytes than predicted",
        "`bytes_per_rank` was computed without weights; the loaded model holds more or less, so memory figures for "
        "this model are off by that much.",
    ),
    "TPP518": warning(
        "launch-not-compared",
        "the launched model was not compared with the unsharded one",
        "It loaded and ran. Whether its numbers are right was not seen: the unsharded model does not fit into the "
        "memory that is free, its process was killed, or its own logits are not finite. --miniature compares a small "
        "model of the same structure.",
    ),
    "TPP519": warning(
        "launched-tokens-near-tie",
        "tokens differ where the unsharded model was undecided",
        "At the first token that differs the unsharded model's two best logits are closer than rounding, so either "
        "token is right.",
    ),
    "TPP520": note(
        "miniature-launched",
        "a miniature was launched, not the checkpoint",
        "There are no weights at hand, or --miniature asked for it: the ranks loaded a small model of the same "
        "structure with random weights. Load time and memory of the full model were not seen.",
    ),
    "TPP521": error(
        "unsharded-fails",
        "the unsharded model does not load or run",
        "The same class, the same checkpoint, one process, no sharding. Nothing was learned about tensor parallelism.",
    ),
    "TPP522": error(
        "weights-missing",
        "the checkpoint lacks weights, or the loader does not find them",
        "from_pretrained fills missing weights with random values and goes on. Each process draws its own, so nothing "
        "that follows can be trusted.",
    ),
    "TPP523": error(
        "ranks-do-not-fit",
        "the ranks do not fit into the memory of this machine",
        "Parameters of all ranks of this host and the least that a process needs are more than the memory that is "
        "free; the launch would have the kernel kill something. Nothing was started.",
    ),
    "TPP524": note(
        "generation-not-seen",
        "no tokens were generated",
        "The class has no head to generate with, or the unsharded model cannot generate from the example input.",
    ),
}
