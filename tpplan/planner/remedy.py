"""The `fix` of what a repair or another size may mend, run before it is offered: every plan and size in it passed.

Whatever depth a check was asked for, a fix is proven by all stages.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from tpplan.answers import Attempt
from tpplan.checks.experts import expert_sizes
from tpplan.checks.heads import dividing_sizes
from tpplan.diagnostics import Diagnostic, Status
from tpplan.model.skeleton import Sharding, known_styles
from tpplan.planner.repair import Repair
from tpplan.planner.solve import could_fit, solve
from tpplan.planner.strategies import STRATEGIES
from tpplan.stages.bench import Bench
from tpplan.stages.costs import is_asked_for
from tpplan.stages.judge import MEMORY_CODES, Judgement, judge
from tpplan.stages.result import REPAIRABLE
from tpplan.subject import Subject
from tpplan.targets import resolve
from tpplan.units import joined

EXPERT_CODES = frozenset({"TPP310", "TPP311"})
MAX_SIZES = 4
# Running as one of so many ranks costs time in their number, and a repair is a run for each proposal: above this only
# `tpplan plan` looks for one.
MAX_RANKS_FOR_REPAIR = 256


@dataclass(frozen=True, kw_only=True)
class Advice:
    """What is known of mending an error. fix: the action, empty where none is known. tried: what was, to no avail."""

    fix: str = ""
    tried: str = ""

    def put_on(self, diagnostic: Diagnostic) -> Diagnostic:
        """The diagnostic with its fix, and with what was tried as evidence."""
        evidence = "; ".join(part for part in (diagnostic.evidence, self.tried) if part)
        return replace(diagnostic, fix=self.fix, evidence=evidence)


def with_fixes(judgement: Judgement, bench: Bench) -> Judgement:
    """The judgement, its errors with the action that mends them."""
    later = [result.stage.status for name, result in judgement.results.items() if name != "static"]
    if not later:  # a static check runs nothing, for a fix neither
        return judgement
    for codes, advise in ADVISERS:
        lacking = [d for d in judgement.diagnostics if d.code in codes and not d.fix]
        # where nothing ran, no override that runs can be offered
        if not lacking or (codes is REPAIRABLE and all(status is Status.NOT_RUN for status in later)):
            continue
        advice = advise(judgement, bench)
        said = tuple(advice.put_on(d) if d in lacking else d for d in judgement.diagnostics)
        judgement = replace(judgement, diagnostics=said)
    return judgement


def _for_fault(judgement: Judgement, bench: Bench) -> Advice:
    """The plan that `tpplan plan` writes for the model at this tp_size, and the sizes at which it needs none."""
    plain = _without_overrides(judgement.subject)
    sizes = working_sizes(plain, bench)
    works = f"without overrides, tp_size {joined(sizes, 'or')} works" if sizes else ""
    if plain.sharding.tp_size > MAX_RANKS_FOR_REPAIR:
        sought = f"{plain.plan_command()} looks for a repair, which a check does up to tp_size {MAX_RANKS_FOR_REPAIR}"
        return Advice(fix="; ".join(part for part in (works, sought) if part))
    made = solve(plain, None, bench)
    if made.judgement.sound and not made.judgement.passed:  # what a repair leaves does not fit the device
        return _for_memory(made.judgement, bench)
    if made.judgement.passed:
        parts = (_offer(plain, made, "passes"), works if made.attempts else "")
        return Advice(fix="; ".join(part for part in parts if part))
    return Advice(fix=works, tried=_what_was_tried(made))


def _what_was_tried(made: Repair) -> str:
    if not made.tried:
        return ""
    subject = made.judgement.subject
    lacking = [need for entry in STRATEGIES.values() if (need := entry.needs(subject.training))]
    missing = [style for style in dict.fromkeys(lacking) if style not in known_styles()]
    without = f"; this Transformers has no style {joined(missing)}" if missing else ""
    return f"no repair is known: strategy {made.strategy} was tried on {made.tried}{without}"


def _for_memory(judgement: Judgement, bench: Bench) -> Advice:
    """A plan that fits at this size, else the next sizes at which one does."""
    plain = _without_overrides(judgement.subject)
    if plain.sharding.tp_size > MAX_RANKS_FOR_REPAIR:
        return Advice()
    made = solve(plain, None, bench)
    if made.judgement.passed:
        return Advice(fix=_offer(plain, made, "fits"))
    fits = (size for size in _larger_sizes(plain) if solve(plain.at(size), None, bench).judgement.passed)
    smallest = next(fits, None)
    if smallest:
        return Advice(fix=f"{plain.at(smallest).plan_command()} writes a plan that fits, the smallest size that does")
    return Advice(tried=f"no plan that tpplan knows fits {plain.device} at this tp_size, nor at the next larger ones")


def _larger_sizes(subject: Subject) -> list[int]:
    """The next sizes of the device at which an even split of the parameters would fit."""
    hardware, tp_size = resolve(subject.device), subject.sharding.tp_size
    sizes = sorted({*hardware.host_counts, *hardware.slice_counts()})
    larger = (size for size in sizes if tp_size < size <= MAX_RANKS_FOR_REPAIR)
    return [size for size in larger if could_fit(subject.at(size))][: MAX_SIZES // 2]


def _for_expert_ranks(judgement: Judgement, bench: Bench) -> Advice:
    """The sizes at which the plan passes with its experts shared, and whether it passes without sharing them."""
    subject = judgement.subject
    tp_size = subject.sharding.tp_size

    def passes(tp_size: int, ep_size: int | None) -> bool:
        sharding = replace(subject.sharding, tp_size=tp_size, ep_size=ep_size)
        return tp_size <= MAX_RANKS_FOR_REPAIR and judge(replace(subject, sharding=sharding), bench=bench).passed

    sizes = [size for size in expert_sizes(subject)[-MAX_SIZES:] if passes(size, size)]
    others = [size for size in sizes if size != tp_size]
    ways = [f"give ep_size {tp_size}"] if tp_size in sizes else []
    ways += [f"give tp_size and ep_size {joined(others, 'or')}"] if others else []
    ways += ["leave ep_size out"] if passes(tp_size, None) else []
    return Advice(fix=", or ".join(ways))


ADVISERS: tuple[tuple[frozenset[str], Callable[[Judgement, Bench], Advice]], ...] = (
    (EXPERT_CODES, _for_expert_ranks),
    (REPAIRABLE, _for_fault),
    (MEMORY_CODES, _for_memory),
)


def working_sizes(subject: Subject, bench: Bench) -> list[int]:
    """Sizes below tp_size at which the model passes as it is: each was run, the largest few only.

    Size 1 is not run again unless memory is weighed: a failure counts as one of sharding once the unsharded model
    ran.
    """
    sizes = [size for size in dividing_sizes(subject) if size <= MAX_RANKS_FOR_REPAIR]
    ran = () if is_asked_for(subject) else (1,)
    return [size for size in sizes[-MAX_SIZES:] if size in ran or judge(subject.at(size), bench=bench).passed]


def _without_overrides(subject: Subject) -> Subject:
    """The model at this tp_size with nothing but its own plan."""
    sharding = Sharding(tp_size=subject.sharding.tp_size)
    return subject if sharding == subject.sharding else replace(subject, sharding=sharding, file=None, facts=None)


def _offer(subject: Subject, made: Repair, does: str) -> str:
    """The command that writes the repaired plan, and what that overrides."""
    command = subject.plan_command()
    if not made.attempts:
        return f"the model's own plan {does}; {command} writes it"
    changed: dict[str, Attempt] = {}
    for attempt in made.attempts:  # two steps on one block are one change of it
        before = changed.get(attempt.block, attempt)
        changed[attempt.block] = replace(attempt, overrides={**before.overrides, **attempt.overrides})
    blocks = ", ".join(f"{block or 'the model'} ({attempt.describe()})" for block, attempt in changed.items())
    return f"{command} writes a plan that {does}: {blocks}"
