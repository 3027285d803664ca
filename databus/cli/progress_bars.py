"""Progress bars of a command, on stderr."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, TaskID, TextColumn


class ProgressBars:
    """Bars by name: a description, a bar, and words that say how far the work is."""

    def __init__(self, bars: Progress) -> None:
        self._bars = bars
        self._tasks: dict[str, TaskID] = {}

    def update(self, name: str, words: str, *, completed: int, total: int | None) -> None:
        """Set a bar, which is added on first use; `total` is None if it is not known."""
        if name not in self._tasks:
            self._tasks[name] = self._bars.add_task(name, words="")
        self._bars.update(self._tasks[name], completed=completed, total=total, words=words)


@contextmanager
def progress_bars(*more_columns: ProgressColumn) -> Iterator[ProgressBars]:
    """Show bars during a `with`; nothing is shown when stderr is not a terminal."""
    console = Console(stderr=True)
    bars = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[words]}"),
        *more_columns,
        console=console,
        disable=not console.is_terminal,
    )
    with bars:
        yield ProgressBars(bars)
