"""The command line of the sweep."""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

from tests.support.shared import collection

from . import children, summary
from .cases import Case, architecture_cases, chosen, config_cases
from .product import Numerics
from .record import Sweep, records

# Ignored by git; kept, so that a sweep that was stopped goes on.
RESULTS = Path(__file__).parents[2] / "build" / "sweep"
TP_SIZES = (2, 4, 8, 16)


def main(arguments: list[str] | None = None) -> int:
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.kind != "architectures" and not options.summary and not (options.configs and options.configs.is_dir()):
        parser.error(f"--kind {options.kind} needs --configs, or TPPLAN_SHARED with a directory `configs`")
    options.tp = options.tp or list(TP_SIZES)
    file = options.results / "results.jsonl"
    if not options.summary:
        options.results.mkdir(parents=True, exist_ok=True)
        children.preload()
        _sweep(_cases(options), options, file)
    print(summary.summary([record for record in summary.read(file) if _wanted(record, options)]))
    return 0


def _sweep(cases: list[Case], options: argparse.Namespace, file: Path) -> None:
    limits = children.Limits(seconds=options.timeout, gib=options.memory)
    sweep = Sweep(
        purpose=options.purpose,
        numerics=options.numerics,
        limits=limits,
        log=options.results / "child.log",
        layers=options.layers,
    )
    done = summary.done(summary.read(file), options.numerics)
    stop = time.monotonic() + 60 * options.minutes if options.minutes else float("inf")
    for number, case in enumerate(cases, start=1):
        if time.monotonic() > stop:
            print(
                f"stopped after {options.minutes:g} minutes, {number - 1} of {len(cases)} cases seen", file=sys.stderr
            )
            return
        sizes = [size for size in options.tp if (case.name, size, options.purpose) not in done]
        if not sizes:
            continue
        started = time.monotonic()
        for record in records(case, sizes, sweep):
            with file.open("a", encoding="utf-8") as stream:
                stream.write(json.dumps(record) + "\n")
            words = record.get("skipped") or f"{record['agreement']}, {record.get('holding', 'nothing to repair')}"
            print(f"{number}/{len(cases)} {case.name} tp {record['tp_size']}: {words}", file=sys.stderr)
        print(f"{number}/{len(cases)} {case.name}: {time.monotonic() - started:.1f} s", file=sys.stderr, flush=True)


def _cases(options: argparse.Namespace) -> list[Case]:
    cases = []
    if options.kind != "architectures":
        cases += config_cases(options.configs)
    if options.kind != "configs":
        cases += architecture_cases()
    return chosen(cases, options.only, options.sample)


def _wanted(record: dict, options: argparse.Namespace) -> bool:
    is_architecture = ":" in record["case"]
    return record["purpose"] == options.purpose and (
        options.kind == "all" or is_architecture == (options.kind == "architectures")
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.sweep", description=__doc__)
    parser.add_argument("--kind", choices=("configs", "architectures", "all"), default="all", help="which cases")
    shared = collection()
    parser.add_argument(
        "--configs",
        type=Path,
        default=shared and shared / "configs",
        help="directory of config files (default: `configs` in the directory that TPPLAN_SHARED names)",
    )
    parser.add_argument("--only", metavar="GLOB", help="cases whose name or model type matches")
    parser.add_argument("--sample", type=int, metavar="N", help="N of these cases, the same each time")
    parser.add_argument("--tp", type=int, action="append", metavar="N", help=f"tp sizes (default: {TP_SIZES})")
    parser.add_argument(
        "--layers", type=int, metavar="N", help="keep N layers of an architecture's default (default: all)"
    )
    parser.add_argument("--purpose", choices=("inference", "training"), default="inference")
    parser.add_argument("--numerics", type=Numerics, choices=list(Numerics), default=Numerics.REPAIRS)
    parser.add_argument("--timeout", type=float, default=120.0, metavar="S", help="seconds for each answer of a child")
    parser.add_argument("--memory", type=float, default=10.0, metavar="GIB", help="memory of a child")
    parser.add_argument("--minutes", type=float, metavar="M", help="start no case after M minutes")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where results are kept (default: %(default)s)")
    parser.add_argument("--summary", action="store_true", help="run nothing, print the summary of what is there")
    return parser
