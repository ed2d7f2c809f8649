"""What became of the ranks of a launch, as diagnostics and facts."""

from __future__ import annotations

import math
import signal
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from tpplan.codes import Severity
from tpplan.diagnostics import Diagnostic, Place
from tpplan.launch.worker import LaunchPhase, RankResult
from tpplan.model.skeleton import known_styles, wildcard
from tpplan.stages.difference import TOLERANCES
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

    def phase(self, rank: int) -> LaunchPhase:
        return LaunchPhase(self.results[rank].phase) if rank in self.results else LaunchPhase.START


def failure(ended: Ended, subject: Subject) -> Diagnostic | None:
    """Why the ranks did not all come to their end, or None when they did. What follows from it is not said again."""
    if all(ended.phase(rank) is LaunchPhase.DONE for rank in ended.ranks):
        return None
    place = Place(file=subject.spec.source.name)
    if ended.after is not None:
        return _hangs(ended, subject, place)
    signals = {rank: -code for rank, code in ended.exit_codes.items() if code < 0}
    killed = {rank: number for rank, number in signals.items() if number != signal.SIGTERM}
    if killed:
        return _killed(ended, subject, place, killed)
    if any(result.error for result in ended.results.values()):
        return _raised(ended, subject, place)
    exited = [rank for rank, code in ended.exit_codes.items() if code > 0]
    if exited:  # it could not write down why
        rank = min(exited)
        message = f"{_ranks([rank], subject)} ended with exit code {ended.exit_codes[rank]} in {ended.phase(rank)}"
        evidence = f"its stderr: {ended.stderr.get(rank) or 'empty'}"
        return Diagnostic(code="TPP510", message=message, where=place, evidence=evidence)
    if signals:  # by torchrun, which does so when another rank fails; but none did
        return _killed(ended, subject, place, signals)
    code, words = ended.launcher
    return Diagnostic(
        code="TPP913",
        message=f"torchrun ended with {code} before the ranks had finished",
        where=place,
        evidence=f"its last lines: {words or 'none'}",
    )


def _hangs(ended: Ended, subject: Subject, place: Place) -> Diagnostic:
    late = [rank for rank in ended.ranks if ended.phase(rank) is not LaunchPhase.DONE]
    stopped = [rank for rank in late if ended.states.get(rank) == STOPPED]
    least = min(PHASES.index(ended.phase(rank)) for rank in late)
    named = stopped or [rank for rank in late if PHASES.index(ended.phase(rank)) == least]
    phase = ended.phase(named[0])
    evidence = []
    for rank in late[:LISTED]:
        state = ", stopped by a signal" if rank in stopped else ""
        evidence.append(f"rank {rank} in {ended.phase(rank)}{state}: {ended.stderr.get(rank) or 'nothing on stderr'}")
    return Diagnostic(
        code="TPP512",
        message=f"{_ranks(named, subject)} did not finish {phase} within {ended.after:g} s, and all were ended",
        where=place,
        evidence="; ".join(evidence),
    )


def _killed(ended: Ended, subject: Subject, place: Place, killed: Mapping[int, int]) -> Diagnostic:
    ranks = sorted(killed)
    name = signal_name(killed[ranks[0]])
    by_kernel = ended.out_of_memory and killed[ranks[0]] == signal.SIGKILL
    peaks = [f"rank {rank} had {mib(ended.results[rank].peak_bytes)}" for rank in ranks if rank in ended.results]
    evidence = [f"stderr of rank {ranks[0]}: {ended.stderr.get(ranks[0]) or 'empty'}"]
    evidence += ["the kernel killed a process for memory during the launch"] if by_kernel else []
    evidence += [f"peak memory when last heard of: {', '.join(peaks)}"] if peaks else []
    return Diagnostic(
        code="TPP513" if by_kernel else "TPP511",
        message=f"{name} ended {_ranks(ranks, subject)} in {ended.phase(ranks[0])}",
        where=place,
        evidence="; ".join(evidence),
    )


def _raised(ended: Ended, subject: Subject, place: Place) -> Diagnostic:
    """The first error counts, with the ranks that raised the very same."""
    raised = sorted((result for result in ended.results.values() if result.error), key=lambda r: r.error["at"])
    first = raised[0]

    def same(result: RankResult) -> bool:
        return all(result.error[key] == first.error[key] for key in ("type", "message")) and result.phase == first.phase

    ranks = sorted(result.rank for result in raised if same(result))
    later = [result for result in raised if not same(result)]
    said = f"{first.error['type']}: {first.error['message']}"
    before = ended.stderr.get(ranks[0], "").partition(said[:60])[0].rstrip(" |")
    evidence = f"{said}; on stderr of rank {ranks[0]}: {before or 'nothing more'}"
    if later:
        evidence += f"; later rank {later[0].rank} in {later[0].phase}: {later[0].error['type']}"
    return Diagnostic(
        code="TPP513" if first.error["memory"] else "TPP510",
        message=f"{_ranks(ranks, subject)} raised {first.error['type']} in {first.phase}",
        where=place,
        evidence=evidence,
    )


def findings(ended: Ended, subject: Subject, predicted: int | None) -> list[Diagnostic]:
    """All that is wrong with a launch: why it did not come to its end, and what the ranks measured.

    Of wrong numbers only the first kind is said, and not what a rank raises after it: the rest follows. subject: what
    was launched. predicted: parameter bytes of the largest rank.
    """
    place = Place(file=subject.spec.source.name)
    results = [ended.results[rank] for rank in ended.ranks if rank in ended.results]
    failed = failure(ended, subject)
    wrong = list(_missing_weights(ended, results, place))
    for check in (_wrong_logits, _wrong_gradients, _wrong_tokens):
        if not any(diagnostic.severity is Severity.ERROR for diagnostic in wrong):
            wrong += check(results, ended.unsharded, subject, place)
    found = [*_wrong_bytes(ended, results, predicted, place), *wrong]
    follows = failed and failed.code == "TPP510" and any(diagnostic.code == "TPP514" for diagnostic in wrong)
    return [failed, *found] if failed and not follows else found


def _missing_weights(ended: Ended, results: list[RankResult], place: Place) -> Iterator[Diagnostic]:
    loaded = [*results, *([ended.unsharded] if ended.unsharded else [])]
    missing = sorted({name for result in loaded for name in result.missing})
    if missing:
        yield Diagnostic(
            code="TPP522",
            message=f"the checkpoint gave no value to {_counted(len(missing), 'parameter')}, which are random now",
            where=place,
            evidence=first_few(missing, LISTED),
        )


def _wrong_bytes(ended: Ended, results: list[RankResult], predicted: int | None, place: Place) -> Iterator[Diagnostic]:
    held = [result.parameter_bytes for result in results if result.parameter_bytes is not None]
    all_loaded = len(held) == len(ended.ranks) and ended.ranks[0] == 0  # the first rank's share is the largest
    if predicted is not None and all_loaded and max(held) != predicted:
        yield Diagnostic(
            code="TPP517",
            message=f"the largest rank holds {max(held)} bytes of parameters, {predicted} were predicted",
            where=place,
            evidence=", ".join(f"rank {result.rank}: {result.parameter_bytes}" for result in results),
        )


def _wrong_logits(
    results: list[RankResult], unsharded: RankResult | None, subject: Subject, place: Place
) -> Iterator[Diagnostic]:
    tolerance = TOLERANCES[subject.spec.dtype].logits
    wrong = [result for result in results if result.logits and not result.logits["error"] <= tolerance]
    if not wrong:
        return
    worst = max(wrong, key=lambda result: result.logits["error"])
    yield Diagnostic(
        code="TPP514",
        message=f"the logits on {_ranks([r.rank for r in wrong], subject)} are not the unsharded model's",
        where=place,
        evidence=f"rank {worst.rank}: {_off(worst.logits['error'], 'logit')}, tolerance {tolerance:g} "
        f"({subject.spec.dtype}); {worst.logits['first']}",
    )


def _wrong_gradients(
    results: list[RankResult], unsharded: RankResult | None, subject: Subject, place: Place
) -> Iterator[Diagnostic]:
    """One diagnostic for each factor by which gradients are wrong, and one for those without."""
    by_ratio: dict[float | None, dict[str, tuple[int, Mapping[str, Any]]]] = defaultdict(dict)
    for result in results:
        for wrong in (result.gradients or {}).get("wrong", ()):
            ratio = None if wrong["ratio"] is None else round(wrong["ratio"], 3)
            by_ratio[ratio].setdefault(wrong["parameter"], (result.rank, wrong))
    for ratio, found in sorted(by_ratio.items(), key=lambda item: (item[0] is None, item[0])):
        rules = sorted({wildcard(name) for name in found})
        rank, worst = max(found.values(), key=lambda item: item[1]["error"])
        how = f"{ratio:g} times the unsharded ones" if ratio is not None else "not the unsharded ones"
        yield Diagnostic(
            code="TPP516",
            message=f"the gradients of {_counted(len(found), 'parameter')} are {how}",
            where=place,
            evidence=f"{first_few(rules, LISTED)}; worst on rank {rank}, {worst['parameter']}: "
            f"{_off(worst['error'], 'gradient')}, {worst['first']}",
            fix=_gradient_fix(ratio, rules, subject),
        )


def _gradient_fix(ratio: float | None, rules: list[str], subject: Subject) -> str:
    """`replicate` sums nothing; it is the cure where the style that sums is what these rules have."""
    modules = sorted({rule.rpartition(".")[0] for rule in rules})
    summed = all(subject.style_name(module) == "replicated_with_grad_allreduce" for module in modules)
    if ratio != subject.sharding.tp_size or not summed or "replicate" not in known_styles():
        return ""
    return f"give the style `replicate` to {', '.join(modules)}"


def _wrong_tokens(
    results: list[RankResult], unsharded: RankResult | None, subject: Subject, place: Place
) -> Iterator[Diagnostic]:
    if unsharded is None:
        return
    wrong = [result for result in results if result.first_token is not None]
    if unsharded.tokens is None:
        reason = unsharded.generate_error or "the class cannot generate"
        yield Diagnostic(code="TPP524", message="no tokens were generated", where=place, evidence=reason)
    if not wrong:
        return
    first = min(wrong, key=lambda result: (result.first_token, result.rank))
    index = first.first_token
    margin = unsharded.margins[index]
    near = margin <= TOLERANCES[subject.spec.dtype].logits
    yield Diagnostic(
        code="TPP519" if near else "TPP515",
        message=f"the tokens generated on {_ranks([r.rank for r in wrong], subject)} are not the unsharded model's, "
        f"from number {index + 1} of {len(unsharded.tokens)} on",
        where=place,
        evidence=f"rank {first.rank}: {first.tokens}, unsharded {unsharded.tokens} with a {unsharded.cache} cache; "
        f"there its two best logits are {margin:.2g} of the largest apart",
    )


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
