"""The counts of a sweep, and every disagreement on a line of its own."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

from .product import Numerics

SLOW_SECONDS = 10.0
LEVELS = [str(level) for level in Numerics]
BAD = ("false pass", "false refusal", "refused, yet it builds", "tpplan crashed", "not run", "no oracle")
BAD_REPAIRS = ("repair does not hold", "repair crashed", "repair not proven", "no repair")


def read(file: Path) -> list[dict]:
    """One record for each key: the one with most numerics, the last of equals."""
    if not file.exists():
        return []
    best: dict[tuple, dict] = {}
    for record in map(json.loads, file.read_text(encoding="utf-8").splitlines()):
        if key(record) not in best or LEVELS.index(record["numerics"]) >= LEVELS.index(best[key(record)]["numerics"]):
            best[key(record)] = record
    return list(best.values())


def key(record: dict) -> tuple:
    return (record["case"], record["tp_size"], record["purpose"])


def done(records: list[dict], numerics: str) -> set[tuple]:
    """Keys of the records with at least these numerics."""
    return {key(record) for record in records if LEVELS.index(record["numerics"]) >= LEVELS.index(numerics)}


def summary(records: list[dict]) -> str:
    judged = [record for record in records if "skipped" not in record]
    skipped = {record["case"]: record["skipped"] for record in records if "skipped" in record}
    lines = [f"{len(judged)} runs of {len({record['case'] for record in judged})} cases; {len(skipped)} cases skipped"]
    lines += _counts("verdicts", (record["check"]["verdict"] for record in judged))
    lines += _counts("oracle", (record["oracle"]["status"] for record in judged))
    lines += _counts("agreement", (record["agreement"] for record in judged))
    lines += _counts("repairs", (record["holding"] for record in judged if "holding" in record))
    for name in BAD:
        lines += _listed(name, [record for record in judged if record["agreement"] == name], _disagreement)
    for name in BAD_REPAIRS:
        lines += _listed(name, [record for record in judged if record.get("holding") == name], _repair)
    unsharded = [r for r in judged if r["oracle"]["status"] == "unsharded-raises"]
    lines += _listed("does not run unsharded", unsharded, _disagreement)
    bare = [r for r in judged if r["check"]["verdict"] == "fail" and "repair" not in r]
    lines += _counts("fails with nothing to repair", (_codes(r) for r in bare))
    lines += _listed("other class", [r for r in judged if _other_class(r)], _classes)
    lines += _listed("other share", [r for r in judged if _other_share(r)], _shares)
    overruled = [record for record in judged if "TPP308" in record["check"].get("codes", ())]
    lines += _listed("head arithmetic overruled (TPP308)", overruled, _name)
    lines += _listed(f"over {SLOW_SECONDS:g} s", [r for r in judged if _slowest(r) > SLOW_SECONDS], _seconds)
    lines += [f"skipped: {case}: {reason}" for case, reason in sorted(skipped.items())]
    return "\n".join(lines)


def _counts(title: str, values: Iterable[str]) -> list[str]:
    counted = Counter(values)
    return [f"{title}: " + ", ".join(f"{count} {value}" for value, count in counted.most_common())] if counted else []


def _listed(title: str, records: list[dict], line) -> Iterator[str]:
    if records:
        yield f"\n{title} ({len(records)})"
    for record in sorted(records, key=key):
        yield f"  {line(record)}"


def _name(record: dict) -> str:
    return f"{record['case']} tp {record['tp_size']}" + (" training" if record["purpose"] == "training" else "")


def _codes(record: dict) -> str:
    return "+".join(sorted({error[0] for error in record["check"]["errors"]}))


def _disagreement(record: dict) -> str:
    return f"{_name(record)}: tpplan {_said(record['check'])}; oracle {_ran(record['oracle'])}"


def _repair(record: dict) -> str:
    rules = ", ".join(f"{rule}={style}" for rule, style in (record["repair"].get("overrides") or {}).items())
    ran = _ran(record["oracle_repair"]) if "oracle_repair" in record else "not asked"
    return f"{_name(record)}: tpplan {_said(record['repair'])}; oracle {ran}; overrides {rules or 'none'}"


def _said(judged: dict) -> str:
    reasons = [" ".join(" ".join(error).split())[-400:] for error in judged.get("errors", ())[:2]]
    reasons += [f"{stage}: {reason[:300]}" for stage, reason in judged.get("not_run", {}).items()]
    return f"{judged['verdict']} ({'; '.join(reasons)})" if reasons else judged["verdict"]


def _ran(run: dict) -> str:
    where = " in ".join(part for part in (run.get("phase"), run.get("module")) if part)
    return " ".join(part for part in (run["status"], where, (run.get("error") or "")[:250]) if part)


def _other_class(record: dict) -> bool:
    names = (record.get("class_name"), record["oracle"].get("class_name"))
    return all(names) and names[0] != names[1]


def _classes(record: dict) -> str:
    return f"{_name(record)}: tpplan {record['class_name']}, oracle {record['oracle']['class_name']}"


def _other_share(record: dict) -> bool:
    shares = (record["check"].get("share"), record["oracle"].get("share"))
    return None not in shares and abs(shares[0] - shares[1]) > 0.01 * shares[1]


def _shares(record: dict) -> str:
    return f"{_name(record)}: tpplan {record['check']['share']}, oracle {record['oracle']['share']} times the ideal"


def _slowest(record: dict) -> float:
    return max(record["check"]["seconds"], record.get("repair", {}).get("seconds", 0.0))


def _seconds(record: dict) -> str:
    stages = {**record["check"].get("stages", {}), **record.get("repair", {}).get("stages", {})}
    repair = record.get("repair", {}).get("seconds")
    return f"{_name(record)}: check {record['check']['seconds']}, repair {repair}, {stages}"
