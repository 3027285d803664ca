"""How fast a table is read: measured, shown, and held below a limit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Progress:
    """How far the seeding of one source is; `estimate` is the database's guess at its rows."""

    source: str
    rows: int
    estimate: int
    rows_per_s: float
    is_done: bool = False

    @property
    def left_s(self) -> float | None:
        """Seconds to go if the guess is right and the rate stays; None when nobody knows."""
        if self.is_done:
            return 0.0
        left = self.estimate - self.rows
        return left / self.rows_per_s if left > 0 and self.rows_per_s > 0 else None


Report = Callable[[Progress], None]


class Pace:
    """Holds reading below `most_rows_per_s` (0 = no limit), and says how fast it was.

    `wait` waits so many seconds, or less when somebody wants an end.
    """

    def __init__(
        self,
        most_rows_per_s: int,
        wait: Callable[[float], object],
        monotonic_s: Callable[[], float],
    ) -> None:
        self._most_rows_per_s = most_rows_per_s
        self._wait = wait
        self._monotonic_s = monotonic_s
        self._began_s = self._free_s = monotonic_s()
        self._rows = 0

    @property
    def rows_per_s(self) -> float:
        """The mean rate since it was made."""
        spent_s = self._monotonic_s() - self._began_s
        return self._rows / spent_s if spent_s > 0 else 0.0

    def limit(self, rows: int) -> int:
        """Return how many of so many rows to read at once: what a second may have, at most."""
        return min(rows, self._most_rows_per_s or rows)

    def count(self, rows: int) -> None:
        """Count rows that were read, and wait until the next may be."""
        self._rows += rows
        if self._most_rows_per_s:
            now_s = self._monotonic_s()
            # Time in which nothing was read is not saved up for a burst later.
            self._free_s = max(self._free_s + rows / self._most_rows_per_s, now_s)
            self._wait(self._free_s - now_s)
