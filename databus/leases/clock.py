"""The clock of leases: one that no administrator sets, and that says when it went back.

Nothing about a lease is decided by the time of day, which differs between machines and is
corrected now and then.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import NamedTuple


def steady_s() -> float:
    """Return the seconds since this machine was started.

    Time in which it was suspended counts: an owner that slept has lost its lease, and
    `time.monotonic` would not tell it.
    """
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Moment(NamedTuple):
    """A reading of the clock: seconds, and how many times the clock has gone back before it."""

    steps_back: int
    at_s: float


class StepCountingClock:
    """Reads a clock, and counts how many times it went back. Thread-safe.

    Two moments with a step back between them have no known distance.
    """

    def __init__(self, clock_s: Callable[[], float] = steady_s) -> None:
        self._clock_s = clock_s
        self._lock = threading.Lock()
        self._last = Moment(0, clock_s())

    def read(self) -> Moment:
        """Return the present moment."""
        with self._lock:
            at_s = self._clock_s()
            self._last = Moment(self._last.steps_back + (at_s < self._last.at_s), at_s)
            return self._last
