"""Numbers and errors as people read them."""

from __future__ import annotations

import signal
from collections.abc import Iterable, Sequence

BYTES = (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10), ("B", 1))
COUNTS = (("B", 10**9), ("M", 10**6), ("K", 10**3), ("", 1))
ERROR_LENGTH = 500


def gib(size: int) -> str:
    """Bytes as GiB, or as MiB where that would show as nothing."""
    return f"{size / 2**30:.2f} GiB" if size >= 2**30 // 100 or not size else f"{size / 2**20:.2f} MiB"


def message(error: BaseException) -> str:
    """What an error says, in one line of at most ERROR_LENGTH characters."""
    return " ".join(str(error).split())[:ERROR_LENGTH]


def one_line(error: BaseException) -> str:
    """`Type: message`, or the type alone where there is no message."""
    return f"{type(error).__name__}: {said}" if (said := message(error)) else type(error).__name__


def signal_name(number: int) -> str:
    """SIGKILL for 9; the real-time signals have no names."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def joined(items: Iterable[object], word: str = "and") -> str:
    """`1`, `1 and 2`, or `1, 2 and 4`."""
    *most, last = map(str, items)
    return f"{', '.join(most)} {word} {last}" if most else last


def first_few(names: Sequence[str], limit: int) -> str:
    """The first `limit` names, and how many more there are."""
    more = f", and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + more


def in_one_unit(*sizes: int) -> list[str]:
    """Bytes in the unit that fits the largest of them, so that one line can be compared by eye."""
    name, unit = _unit_of(max(sizes), BYTES)
    return [f"under 0.01 {name}" if 0 < size < unit / 100 else _decimal(size, name, unit, " ") for size in sizes]


def count(number: int) -> str:
    """A number of parameters, in thousands (K), millions (M) or billions (B) as fits."""
    return _decimal(number, *_unit_of(number, COUNTS))


def _unit_of(number: int, units: tuple[tuple[str, int], ...]) -> tuple[str, int]:
    return next((pair for pair in units if number >= pair[1]), units[-1])


def _decimal(number: int, name: str, unit: int, space: str = "") -> str:
    return f"{number}{space}{name}" if unit == 1 else f"{number / unit:.2f}{space}{name}"
