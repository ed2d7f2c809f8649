"""The shapes stage on the miniature, for models whose code looks at values that only weights can give.

Routing that counts the tokens of each expert, or an indexer that selects keys, cannot run on weights without values. The
miniature has values, the same heads, kinds of layers and remainders, and is run as one rank of the fake group at a time.
"""

from __future__ import annotations

import time
from dataclasses import replace

from tpplan.miniature import Miniature
from tpplan.model.quiet import quiet
from tpplan.model.ranks import fake_rank
from tpplan.model.simulation import fill, one_thread
from tpplan.model.skeleton import Sharding, build_on_meta, shard, tie
from tpplan.model.trail import Trail
from tpplan.shapes import Outcome, Phase, Stop, example_inputs, main_output, runnable


def run_stand_in(miniature: Miniature, sharding: Sharding, outcome: Outcome, *, training: bool = False) -> Outcome:
    """The outcome of running the miniature in place of the full model.

    outcome: of the full model, which could not run; the sizes it found are kept, and its reason is said.
    """
    started = time.perf_counter()
    entered: frozenset[str] = frozenset()
    for rank in outcome.ranks:
        with one_thread(), quiet(), fake_rank(rank, sharding.tp_size):
            stop, entered = _run_rank(miniature, sharding, rank, training)
        if stop:
            break
    return replace(
        outcome,
        stop=stop,
        not_run="",
        on_miniature=outcome.not_run,
        entered=entered,
        seconds=outcome.seconds + time.perf_counter() - started,
    )


def _run_rank(
    miniature: Miniature, sharding: Sharding, rank: int, training: bool
) -> tuple[Stop | None, frozenset[str]]:
    import torch

    model = build_on_meta(miniature.spec, torch.float32)
    trail, phase = Trail(model), Phase.SHARDING
    try:
        model = shard(model, sharding)
        fill(model, miniature.model)
        tie(model)
        phase = Phase.FORWARD
        with trail.follow(training), torch.set_grad_enabled(training):
            output = main_output(runnable(model.train(training))(**example_inputs(miniature.spec)))
            if training:
                phase = Phase.BACKWARD
                output.float().sum().backward()
    except Exception as error:  # the model's own code may raise anything
        module = trail.last_gradient if phase is Phase.BACKWARD else trail.innermost
        text = f"{type(error).__name__}: {' '.join(str(error).split())[:500]}"
        return Stop(rank=rank, phase=phase, module=module, error=f"on a miniature: {text}"), trail.entered
    return None, trail.entered
