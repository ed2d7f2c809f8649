"""The progress of a launch, drawn on a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def progress_bar(first: str) -> Iterator[Callable[[str, float], None] | None]:
    """A function of what runs and the part done (0 to 1) that draws a bar on stderr; None where it is no terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    if not console.is_terminal:
        yield None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(first, total=1.0)
        yield lambda what, done: bar.update(task, description=what, completed=done)
