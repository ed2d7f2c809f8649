"""What became of the ranks of a launch, as diagnostics."""

from __future__ import annotations

import math
import signal
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from tpplan.codes import Severity
from tpplan.diagnostics import Diagnostic, Place
from tpplan.difference import TOLERANCES
from tpplan.launch.records import LaunchPhase, RankResult, WrongGradient
from tpplan.model.skeleton import known_styles, wildcard
from tpplan.subject import Subject
from tpplan.units import first_few, signal_name

PHASES = list(LaunchPhase)
LISTED = 4
STOPPED = "T"  # the state letter in /proc/PID/stat of a process that a signal stopped


@dataclass(frozen=True, kw_only=True)
class Ended:
    """How the processes of a launch on this host ended.

    ranks: those of this host. results: by rank, where one was written. unsharded: the result to compare with, None
    when there is none. exit_codes: of the ranks that torchrun saw fail, negative for a signal. stderr: rank -> its
    last lines. states: rank -> letter of its process, when time was up. after: seconds given, when they were used up.
    out_of_memory: whether the kernel killed for memory meanwhile. launcher: exit code and last lines of torchrun.
    """

    ranks: tuple[int, ...]
    results: Mapping[int, RankResult]
    unsharded: RankResult | None = None
    exit_codes: Mapping[int, int] = field(default_factory=dict)
    stderr: Mapping[int, str] = field(default_factory=dict)
    states: Mapping[int, str] = field(default_factory=dict)
    after: float | None = None
    out_of_memory: bool = False
    launcher: tuple[int, str] = (0, "")

    @property
    def written(self) -> list[RankResult]:
        """The results in the order of the ranks."""
        return [self.results[rank] for rank in self.ranks if rank in self.results]

    def phase(self, rank: int) -> LaunchPhase:
        return self.results[rank].phase if rank in self.results else LaunchPhase.START

    def signals(self) -> dict[int, int]:
        """Rank -> the signal that ended it."""
        return {rank: -code for rank, code in self.exit_codes.items() if code < 0}


def failure(ended: Ended, subject: Subject) -> Diagnostic | None:
    """Why the ranks did not all come to their end, or None when they did. What follows from it is not said again."""
    if all(ended.phase(rank) == LaunchPhase.DONE for rank in ended.ranks):
        return None
    found = (cause(ended, subject) for cause in CAUSES)
    return next(diagnostic for diagnostic in found if diagnostic)


def _hangs(ended: Ended, subject: Subject) -> Diagnostic | None:
    if ended.after is None:
        return None
    late = [rank for rank in ended.ranks if ended.phase(rank) != LaunchPhase.DONE]
    stopped = [rank for rank in late if ended.states.get(rank) == STOPPED]
    least = min(PHASES.index(ended.phase(rank)) for rank in late)
    named = stopped or [rank for rank in late if PHASES.index(ended.phase(rank)) == least]
    evidence = []
    for rank in late[:LISTED]:
        state = ", stopped by a signal" if rank in stopped else ""
        evidence.append(f"rank {rank} in {ended.phase(rank)}{state}: {ended.stderr.get(rank) or 'nothing on stderr'}")
    phase = ended.phase(named[0])
    message = f"{_ranks(named, subject)} did not finish {phase} within {ended.after:g} s, and all were ended"
    return _found(subject, "TPP512", message, "; ".join(evidence))


def _killed(ended: Ended, subject: Subject) -> Diagnostic | None:
    """SIGTERM is left out: torchrun sends it when another rank fails."""
    killed = {rank: number for rank, number in ended.signals().items() if number != signal.SIGTERM}
    return _ended_by(killed, ended, subject) if killed else None


def _raised(ended: Ended, subject: Subject) -> Diagnostic | None:
    """The first error counts, with the ranks that raised the very same."""
    errors = {rank: result.error for rank, result in ended.results.items() if result.error}
    if not errors:
        return None

    def what(rank: int) -> tuple[str, str, LaunchPhase]:
        return errors[rank].type, errors[rank].message, ended.phase(rank)

    first, *others = sorted(errors, key=lambda rank: errors[rank].at)
    kind, message, phase = what(first)
    ranks = sorted(rank for rank in errors if what(rank) == what(first))
    before = ended.stderr.get(ranks[0], "").partition(f"{kind}: {message}"[:60])[0].rstrip(" |")
    evidence = f"{kind}: {message}; on stderr of rank {ranks[0]}: {before or 'nothing more'}"
    if later := [rank for rank in others if what(rank) != what(first)]:
        evidence += f"; later rank {later[0]} in {ended.phase(later[0])}: {errors[later[0]].type}"
    code = "TPP513" if errors[first].memory else "TPP510"
    return _found(subject, code, f"{_ranks(ranks, subject)} raised {kind} in {phase}", evidence)


def _exited(ended: Ended, subject: Subject) -> Diagnostic | None:
    """A rank that could not write down why."""
    exited = [rank for rank, code in ended.exit_codes.items() if code > 0]
    if not exited:
        return None
    rank = min(exited)
    message = f"{_ranks([rank], subject)} ended with exit code {ended.exit_codes[rank]} in {ended.phase(rank)}"
    return _found(subject, "TPP510", message, f"its stderr: {ended.stderr.get(rank) or 'empty'}")


def _terminated(ended: Ended, subject: Subject) -> Diagnostic | None:
    """By torchrun, it seems, which does so when another rank fails; but none did."""
    signals = ended.signals()
    return _ended_by(signals, ended, subject) if signals else None


def _launcher_ended(ended: Ended, subject: Subject) -> Diagnostic:
    code, words = ended.launcher
    message = f"torchrun ended with exit code {code} before the ranks had finished"
    return _found(subject, "TPP913", message, f"its last lines: {words or 'none'}")


CAUSES = (_hangs, _killed, _raised, _exited, _terminated, _launcher_ended)  # the first that applies is the cause


def _ended_by(signals: Mapping[int, int], ended: Ended, subject: Subject) -> Diagnostic:
    ranks = sorted(signals)
    first = signals[ranks[0]]
    by_kernel = ended.out_of_memory and first == signal.SIGKILL
    peaks = [f"rank {rank} had {mib(ended.results[rank].peak_bytes)}" for rank in ranks if rank in ended.results]
    evidence = [f"stderr of rank {ranks[0]}: {ended.stderr.get(ranks[0]) or 'empty'}"]
    evidence += ["the kernel killed a process for memory during the launch"] if by_kernel else []
    evidence += [f"peak memory when last heard of: {', '.join(peaks)}"] if peaks else []
    message = f"{signal_name(first)} ended {_ranks(ranks, subject)} in {ended.phase(ranks[0])}"
    return _found(subject, "TPP513" if by_kernel else "TPP511", message, "; ".join(evidence))


def findings(ended: Ended, subject: Subject, predicted: int | None) -> list[Diagnostic]:
    """All that is wrong with a launch: why it did not come to its end, and what the ranks measured.

    Of wrong numbers only the first kind is said, and not what a rank raises after it: the rest follows. subject: what
    was launched. predicted: parameter bytes of the largest rank.
    """
    failed = failure(ended, subject)
    wrong = list(_missing_weights(ended, subject))
    for check in (_wrong_logits, _wrong_gradients, _wrong_tokens):
        if not any(diagnostic.severity is Severity.ERROR for diagnostic in wrong):
            wrong += check(ended, subject)
    found = [*_wrong_bytes(ended, predicted, subject), *wrong]
    follows = failed and failed.code == "TPP510" and any(diagnostic.code == "TPP514" for diagnostic in wrong)
    return [failed, *found] if failed and not follows else found


def _missing_weights(ended: Ended, subject: Subject) -> Iterator[Diagnostic]:
    loaded = [*ended.written, *([ended.unsharded] if ended.unsharded else [])]
    missing = sorted({name for result in loaded for name in result.missing})
    if missing:
        message = f"the checkpoint has no value for {_counted(len(missing), 'parameter')}, so random ones were used"
        yield _found(subject, "TPP522", message, first_few(missing, LISTED))


def _wrong_bytes(ended: Ended, predicted: int | None, subject: Subject) -> Iterator[Diagnostic]:
    held = {result.rank: result.parameter_bytes for result in ended.written if result.parameter_bytes is not None}
    all_loaded = len(held) == len(ended.ranks) and ended.ranks[0] == 0  # the first rank's share is the largest
    if predicted is not None and all_loaded and max(held.values()) != predicted:
        message = f"the largest rank holds {max(held.values())} bytes of parameters, {predicted} were predicted"
        yield _found(subject, "TPP517", message, ", ".join(f"rank {rank}: {size}" for rank, size in held.items()))


def _wrong_logits(ended: Ended, subject: Subject) -> Iterator[Diagnostic]:
    tolerance = TOLERANCES[subject.spec.dtype].logits
    compared = {result.rank: result.logits for result in ended.written if result.logits}
    wrong = {rank: found for rank, found in compared.items() if not found.error <= tolerance}
    if not wrong:
        return
    worst = max(wrong, key=lambda rank: wrong[rank].error)
    off, allowed = _off(wrong[worst].error, "logit"), f"tolerance {tolerance:g} ({subject.spec.dtype})"
    message = f"the logits on {_ranks(wrong, subject)} are not the unsharded model's"
    yield _found(subject, "TPP514", message, f"rank {worst}: {off}, {allowed}; {wrong[worst].first}")


def _wrong_gradients(ended: Ended, subject: Subject) -> Iterator[Diagnostic]:
    """One diagnostic for each factor by which gradients are wrong, and one for those without."""
    by_ratio: dict[float | None, dict[str, tuple[int, WrongGradient]]] = defaultdict(dict)
    for result in ended.written:
        for wrong in result.gradients.wrong if result.gradients else ():
            ratio = None if wrong.ratio is None else round(wrong.ratio, 3)
            by_ratio[ratio].setdefault(wrong.parameter, (result.rank, wrong))
    for ratio in sorted(by_ratio, key=lambda ratio: math.inf if ratio is None else ratio):
        found = by_ratio[ratio]
        rules = sorted({wildcard(name) for name in found})
        rank, worst = max(found.values(), key=lambda item: item[1].error)
        how = f"{ratio:g} times the unsharded ones" if ratio is not None else "not the unsharded ones"
        message = f"the gradients of {_counted(len(found), 'parameter')} are {how}"
        off = f"worst on rank {rank}, {worst.parameter}: {_off(worst.error, 'gradient')}, {worst.first}"
        fix = _gradient_fix(ratio, rules, subject)
        yield _found(subject, "TPP516", message, f"{first_few(rules, LISTED)}; {off}", fix)


def _gradient_fix(ratio: float | None, rules: list[str], subject: Subject) -> str:
    """`replicate` sums nothing; it is the cure where the style that sums is what these rules have."""
    modules = sorted({rule.rpartition(".")[0] for rule in rules})
    summed = all(subject.style_name(module) == "replicated_with_grad_allreduce" for module in modules)
    if ratio != subject.sharding.tp_size or not summed or "replicate" not in known_styles():
        return ""
    return f"give the style `replicate` to {', '.join(modules)}"


def _wrong_tokens(ended: Ended, subject: Subject) -> Iterator[Diagnostic]:
    unsharded = ended.unsharded
    if unsharded is None:
        return
    if unsharded.tokens is None:
        reason = unsharded.generate_error or "the class cannot generate"
        yield _found(subject, "TPP524", "no tokens were generated", reason)
        return
    wrong = {result.rank: result.first_token for result in ended.written if result.first_token is not None}
    if not wrong:
        return
    rank = min(wrong, key=lambda rank: (wrong[rank], rank))
    index = wrong[rank]
    margin = unsharded.margins[index]
    near = margin <= TOLERANCES[subject.spec.dtype].logits
    from_number = f"from number {index + 1} of {len(unsharded.tokens)} on"
    message = f"the tokens generated on {_ranks(wrong, subject)} are not the unsharded model's, {from_number}"
    evidence = (
        f"rank {rank}: {ended.results[rank].tokens}, unsharded {unsharded.tokens} with a {unsharded.cache} cache; "
        f"there its two best logits are {margin:.2g} of the largest apart"
    )
    yield _found(subject, "TPP519" if near else "TPP515", message, evidence)


def _found(subject: Subject, code: str, message: str, evidence: str, fix: str = "") -> Diagnostic:
    place = Place(file=subject.spec.source.name)
    return Diagnostic(code=code, message=message, where=place, evidence=evidence, fix=fix)


def _ranks(ranks: Iterable[int], subject: Subject) -> str:
    shown = sorted(ranks)
    if len(shown) == subject.sharding.tp_size:
        return {1: "the only rank", 2: "both ranks"}.get(len(shown), f"all {len(shown)} ranks")
    if len(shown) == 1:
        return f"rank {shown[0]} of {subject.sharding.tp_size}"
    listed = ", ".join(map(str, shown[:LISTED])) + (", ..." if len(shown) > LISTED else "")
    return f"ranks {listed} of {subject.sharding.tp_size}"


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'s' * (count != 1)}"


def _off(error: float, what: str) -> str:
    return f"off by {error:.2g} of the largest {what}" if math.isfinite(error) else f"no {what} to compare"


def mib(size: int | None) -> str:
    """Bytes as MiB."""
    return f"{(size or 0) / 2**20:.0f} MiB"
