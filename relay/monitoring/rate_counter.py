"""Rates over the last few seconds, of counters that somebody reads once a second. Pure."""

from __future__ import annotations

from collections import deque

SECONDS = 5  # a rate is over so many ticks


class Recent:
    """What a counter was at the last ticks."""

    __slots__ = ("_ticks",)

    def __init__(self) -> None:
        self._ticks: deque[tuple[float, int]] = deque(maxlen=SECONDS)

    def tick(self, now_s: float, value: int) -> None:
        """Note the counter's value; to be called about once a second."""
        self._ticks.append((now_s, value))

    def rate(self, now_s: float, value: int) -> float:
        """Return by how much it rose in a second, from the oldest tick kept until now."""
        if not self._ticks:
            return 0.0
        then_s, before = self._ticks[0]
        passed_s = now_s - then_s
        return max(0.0, (value - before) / passed_s) if passed_s > 0 else 0.0
