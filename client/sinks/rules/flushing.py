"""When a lane flushes: after so many rows, or so long after the first of them. Pure."""

from __future__ import annotations


class FlushRule:
    """Decides when what a lane holds is written. Times are seconds of any clock."""

    def __init__(self, rows: int, seconds: float) -> None:
        self._rows, self._seconds = rows, seconds
        self._held = 0
        self._since_s: float | None = None

    def took(self, rows: int, now_s: float) -> None:
        """Take note of rows that the lane holds."""
        self._held += rows
        if self._since_s is None:
            self._since_s = now_s

    def flushed(self) -> None:
        """Take note that the lane holds nothing."""
        self._held, self._since_s = 0, None

    def due_in_s(self, now_s: float) -> float | None:
        """Return the seconds until the next flush, 0 = now; None: there is nothing to flush."""
        if self._since_s is None:
            return None
        if self._held >= self._rows:
            return 0.0
        return max(0.0, self._since_s + self._seconds - now_s)
