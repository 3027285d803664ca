"""Decides when an empty transaction becomes an empty window, the heartbeat of a quiet source.

Some must: they move the SCN of a quiet table, so that consumers' checkpoints stay within the
source's log. Not all may: a source whose other tables are busy would fill the ring with
empty windows and evict the data.
"""

from __future__ import annotations

FIRST_WAIT_S = 1.0
LONGEST_WAIT_S = 60.0


class Heartbeat:
    """Allows an empty window after 1 s without a window, then after 2, 4 … 60 s."""

    def __init__(self) -> None:
        self._wait_s = FIRST_WAIT_S
        self._last_s = float("-inf")

    def data_appended(self, now_s: float) -> None:
        """Record a window with data."""
        self._wait_s = FIRST_WAIT_S
        self._last_s = now_s

    def is_due(self, now_s: float) -> bool:
        """Return whether an empty window may be appended now."""
        return now_s - self._last_s >= self._wait_s

    def empty_appended(self, now_s: float) -> None:
        """Record an empty window."""
        self._wait_s = min(LONGEST_WAIT_S, 2 * self._wait_s)
        self._last_s = now_s
