"""How long a ring took to be written, and so how long it lasts. Pure: the time is passed in.

A rate over a fixed time jumps whenever a burst enters or leaves that time: a ring that lasts an
hour was said to last two minutes, then ten, then two. Here the time is as long as the answer: the
rates of the last half of the ring and of all of it are averaged. A steady load gives the exact
time. Bursts that come several times in a ring move it a little. A load that grows moves it as fast
as it fills the ring.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from typing import NamedTuple

# Seconds between samples, and the number of samples kept: ten minutes, an hour, two days.
_LEVELS = ((1, 600), (10, 360), (60, 2880))
_PARTS = 2


class _Written(NamedTuple):
    """The ring's tail at one moment of a monotonic clock."""

    at_s: float
    tail: int


class WritingTimes:
    """The times at which the positions of one ring were written. One thread."""

    def __init__(self) -> None:
        self._levels = [deque[_Written](maxlen=count) for _, count in _LEVELS]

    def add(self, now_s: float, tail: int) -> None:
        """Record the ring's tail; to be called once a second."""
        if self._levels[0] and tail < self._levels[0][-1].tail:
            self._levels = [deque(maxlen=count) for _, count in _LEVELS]  # the ring was emptied
        for (step_s, _), level in zip(_LEVELS, self._levels, strict=True):
            # Timers are not exact: half a second early still counts.
            if not level or now_s - level[-1].at_s > step_s - 0.5:
                level.append(_Written(now_s, tail))

    def lasts_s(self, size_bytes: float, now_s: float, tail: int) -> float | None:
        """Return how long it takes to write `size_bytes`; None while nothing is written.

        The harmonic mean over parts of `size_bytes`: of their rates, the mean.
        """
        shares = [size_bytes * part / _PARTS for part in range(1, _PARTS + 1)]
        rates = [self._rate_of(share, now_s, tail) for share in shares]
        mean = sum(rates) / len(rates)
        return size_bytes / mean if mean > 0 else None

    def _rate_of(self, size_bytes: float, now_s: float, tail: int) -> float:
        """Return the rate at which the last bytes were written; of all that is known if less."""
        begin = self._time_of(tail - size_bytes, _Written(now_s, tail))
        if begin is not None:
            return size_bytes / max(now_s - begin, 1e-3)
        oldest = min((level[0] for level in self._levels if level), default=None)
        if oldest is None or now_s <= oldest.at_s:
            return 0.0
        return max(0, tail - oldest.tail) / (now_s - oldest.at_s)

    def _time_of(self, position: float, newest: _Written) -> float | None:
        """Return when a position was written, interpolated; None if that is too long ago."""
        for level in self._levels:
            if not level or level[0].tail > position:
                continue
            place = bisect_right(level, position, key=lambda one: one.tail)
            before = level[place - 1]
            after = level[place] if place < len(level) else newest
            if after.tail <= before.tail:
                return before.at_s
            share = (position - before.tail) / (after.tail - before.tail)
            return before.at_s + share * (after.at_s - before.at_s)
        return None
