"""Measures, reports and limits the rate at which a table is read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of one source's seeding; `estimate` is the database's estimate of its rows."""

    source: str
    rows: int
    estimate: int
    rows_per_s: float
    is_done: bool = False

    @property
    def left_s(self) -> float | None:
        """Seconds left if the estimate is right and the rate stays the same, or None."""
        if self.is_done:
            return 0.0
        left = self.estimate - self.rows
        return left / self.rows_per_s if left > 0 and self.rows_per_s > 0 else None


Report = Callable[[Progress], None]


class RateLimiter:
    """Limits reading to `most_rows_per_s` (0 = no limit) and measures its rate.

    `wait` waits the given seconds, or less when the job is stopped.
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
        """The mean rate since it was created."""
        spent_s = self._monotonic_s() - self._began_s
        return self._rows / spent_s if spent_s > 0 else 0.0

    def limit(self, rows: int) -> int:
        """Return how many of `rows` to read at once: one second's worth at most."""
        return min(rows, self._most_rows_per_s or rows)

    def count(self, rows: int) -> None:
        """Count rows that were read, and wait until the next may be read."""
        self._rows += rows
        if self._most_rows_per_s:
            now_s = self._monotonic_s()
            # Idle time is not credited: that would allow a burst later.
            self._free_s = max(self._free_s + rows / self._most_rows_per_s, now_s)
            self._wait(self._free_s - now_s)
