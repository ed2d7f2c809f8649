"""The shapes stage on the miniature, for models whose code looks at values that only weights can give.

Routing that counts the tokens of each expert, or an indexer that selects keys, cannot run on weights without values.
The miniature has values, the same heads, kinds of layers and remainders, and is run as one rank of the fake group at a
time; where experts get their tokens from other ranks, which one rank does not have, on all ranks of the simulation.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from tpplan.miniature.build import Miniature
from tpplan.model.errors import out_of_memory
from tpplan.model.forward import example_inputs, main_output, runnable
from tpplan.model.quiet import quiet
from tpplan.model.ranks import fake_rank
from tpplan.model.simulation import fill, one_thread, raised_by_simulator, simulated
from tpplan.model.skeleton import Sharding, build_on_meta, shard, tie
from tpplan.model.trail import Trail
from tpplan.stages.full_size import Phase, ShapesOutcome, Stop, where
from tpplan.units import one_line


def run_stand_in(
    miniature: Miniature, sharding: Sharding, outcome: ShapesOutcome, *, training: bool = False
) -> ShapesOutcome:
    """The outcome of running the miniature in place of the full model.

    outcome: of the full model, which could not run; the sizes it found are kept, and its reason is said.
    """
    started = time.perf_counter()
    run = _Run(training)
    for rank in (None,) if sharding.ep_size else outcome.ranks:
        with quiet():
            run.on(rank, miniature, sharding)
        if run.stop or run.not_run:
            break
    return replace(
        outcome,
        stop=run.stop,
        not_run=f"{outcome.not_run}; and on a miniature {run.not_run}" if run.not_run else "",
        on_miniature=outcome.not_run,
        entered=run.entered,
        seconds=outcome.seconds + time.perf_counter() - started,
    )


class _Run:
    """Runs the miniature, and holds where that stopped or why it says nothing, and the modules that it reached."""

    def __init__(self, training: bool) -> None:
        self._training = training
        self.stop: Stop | None = None
        self.not_run = ""
        self.entered: frozenset[str] = frozenset()

    def on(self, rank: int | None, miniature: Miniature, sharding: Sharding) -> None:
        """Be this rank, or all ranks together with None."""
        import torch

        trail: Trail | None = None
        phase = Phase.SHARDING
        try:
            with _sharded(rank, miniature, sharding) as model:
                trail, phase = Trail(model), Phase.FORWARD
                with trail.follow(self._training), torch.set_grad_enabled(self._training):
                    output = main_output(runnable(model.train(self._training))(**example_inputs(miniature.spec)))
                    if self._training:
                        phase = Phase.BACKWARD
                        output.float().sum().backward()
        except Exception as error:  # the model's own code may raise anything
            text = one_line(error)
            if out_of_memory(error):
                self.not_run = f"there is not enough memory: {text}"
            elif rank is None and raised_by_simulator(error):
                self.not_run = f"the simulation of ranks cannot run the {phase}: {text}"
            else:
                module = where(trail, phase) if trail else None
                self.stop = Stop(rank=rank, phase=phase, module=module, error=f"on a miniature: {text}")
        self.entered = trail.entered if trail else frozenset()


@contextmanager
def _sharded(rank: int | None, miniature: Miniature, sharding: Sharding) -> Iterator[Any]:
    """The miniature as one rank of a fake group has it, or simulated on all ranks."""
    import torch

    if rank is None:
        with simulated(miniature.spec, sharding, miniature.model) as model:
            yield model
        return
    with one_thread(), fake_rank(rank, sharding.tp_size):
        model = shard(build_on_meta(miniature.spec, torch.float32), sharding)
        fill(model, miniature.model)
        tie(model)
        yield model
