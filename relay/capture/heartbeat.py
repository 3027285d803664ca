"""When an empty transaction becomes an empty window.

It must, now and then: it moves the SCN of a quiet table, so that consumers'
checkpoints stay inside the source's log. It must not each time: a source whose
other tables are busy would fill the ring with nothing and evict the data.
"""

from __future__ import annotations

FIRST_WAIT_S = 1.0
LONGEST_WAIT_S = 60.0


class IdleAdvance:
    """Lets an empty window through after 1 s without one, then after 2, 4 … 60 s."""

    def __init__(self) -> None:
        self._wait_s = FIRST_WAIT_S
        self._last_s = float("-inf")

    def data_appended(self, now_s: float) -> None:
        """Note that a window with data went into the ring."""
        self._wait_s = FIRST_WAIT_S
        self._last_s = now_s

    def is_due(self, now_s: float) -> bool:
        """Say whether an empty window may be appended now."""
        return now_s - self._last_s >= self._wait_s

    def empty_appended(self, now_s: float) -> None:
        """Note that an empty window went into the ring."""
        self._wait_s = min(LONGEST_WAIT_S, 2 * self._wait_s)
        self._last_s = now_s
