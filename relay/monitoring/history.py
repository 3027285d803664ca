"""A physical source's history: every second of the last ten minutes, then coarser. Pure.

Three series of samples, one second, ten seconds and one minute apart, each of fixed length:
a day takes about 3,500 samples, however long the relay runs. Counters are stored as totals,
so a coarser step has the mean rate; of other values a step stores the maximum, so that no
peak is lost.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

from databus.relay.monitoring.writing_times import WritingTimes

# Seconds between samples, and the number of steps stored.
LEVELS = ((1, 600), (10, 360), (60, 1440))


class Sample(NamedTuple):
    """A source at one moment: counters since the start, and current values.

    `written_bytes` is the ring's tail, which grows with each append.
    """

    at: float  # seconds since 1970
    events: int
    windows: int
    size_bytes: int
    written_bytes: int
    used_bytes: int
    delay_s: float | None
    behind_s: float | None


class Rates(NamedTuple):
    """Per second, over the last few seconds."""

    events: float = 0.0
    windows: float = 0.0
    size_bytes: float = 0.0
    written_bytes: float = 0.0


class Steps(NamedTuple):
    """Samples of one level, the oldest first; the first one is the base of the rates."""

    step_s: float
    samples: Sequence[Sample]

    def times(self) -> list[float]:
        """Return the end time of each step."""
        return [sample.at for sample in self.samples[1:]]

    def rates(self, counter: Callable[[Sample], int]) -> list[float | None]:
        """Return the rate of a counter in each step, per second."""
        return [_rate(before, after, counter) for before, after in pairwise(self.samples)]


class _Level:
    """The samples of one step size."""

    def __init__(self, step_s: int, count: int) -> None:
        self.step_s = step_s
        self.samples: deque[Sample] = deque(maxlen=count + 1)
        self._last_step = -1
        self._delay_s: float | None = None
        self._behind_s: float | None = None

    def add(self, now_s: float, sample: Sample) -> None:
        self._delay_s = _larger(self._delay_s, sample.delay_s)
        self._behind_s = _larger(self._behind_s, sample.behind_s)
        # Timers are not exact: up to half a second early still counts for the next step.
        step = int((now_s + 0.5) // self.step_s)
        if step == self._last_step:
            return
        self._last_step = step
        self.samples.append(sample._replace(delay_s=self._delay_s, behind_s=self._behind_s))
        self._delay_s = self._behind_s = None


def _larger(before: float | None, value: float | None) -> float | None:
    """Return the larger of the known values, or None."""
    known = [one for one in (before, value) if one is not None]
    return max(known, default=None)


class SourceHistory:
    """The samples of one physical source. One thread."""

    def __init__(self) -> None:
        self._levels = [_Level(step_s, count) for step_s, count in LEVELS]
        self.writing = WritingTimes()

    def add(self, now_s: float, sample: Sample) -> None:
        """Add a sample; `now_s` is of a monotonic clock."""
        for level in self._levels:
            level.add(now_s, sample)
        self.writing.add(now_s, sample.written_bytes)

    def steps(self, seconds: int) -> Steps:
        """Return the finest steps that reach back `seconds`, or else the coarsest."""
        level = next(
            (x for x in self._levels if x.step_s * (x.samples.maxlen or 1) > seconds),
            self._levels[-1],
        )
        return Steps(float(level.step_s), list(level.samples)[-seconds // level.step_s - 1 :])

    def rates(self, now: Sample) -> Rates:
        """Return the rates from a few seconds ago until now."""
        recent = self._levels[0].samples
        if not recent:
            return Rates()
        then = recent[-min(SECONDS, len(recent))]
        return Rates(
            _rate(then, now, lambda s: s.events),
            _rate(then, now, lambda s: s.windows),
            _rate(then, now, lambda s: s.size_bytes),
            _rate(then, now, lambda s: s.written_bytes),
        )


def _rate(before: Sample, after: Sample, counter: Callable[[Sample], int]) -> float:
    passed_s = after.at - before.at
    # The wall clock may be set back, and an emptied ring resets its counter.
    return max(0.0, (counter(after) - counter(before)) / passed_s) if passed_s > 0 else 0.0


SECONDS = 5  # ticks over which a rate is measured
SMOOTH_S = 30.0


class RateCounter:
    """The values of a counter at the last ticks."""

    __slots__ = ("_ticks",)

    def __init__(self) -> None:
        self._ticks: deque[tuple[float, int]] = deque(maxlen=SECONDS)

    def tick(self, now_s: float, value: int) -> None:
        """Record the counter's value; to be called about once a second."""
        self._ticks.append((now_s, value))

    def rate(self, now_s: float, value: int) -> float:
        """Return the rate per second, from the oldest recorded tick until now."""
        if not self._ticks:
            return 0.0
        then_s, before = self._ticks[0]
        passed_s = now_s - then_s
        return max(0.0, (value - before) / passed_s) if passed_s > 0 else 0.0


class SmoothRate:
    """A rate as a mean that forgets: what was SMOOTH_S seconds ago counts a third."""

    __slots__ = ("_last", "_rate", "_weight")

    def __init__(self) -> None:
        self._last: tuple[float, int] | None = None
        self._rate = self._weight = 0.0

    def tick(self, now_s: float, value: int) -> None:
        """Record the counter's value; to be called about once a second."""
        self._rate, self._weight = self._with(now_s, value)
        self._last = (now_s, value)

    def rate(self, now_s: float, value: int) -> float:
        """Return the rate per second until now."""
        rate, weight = self._with(now_s, value)
        return rate / weight if weight > 0 else 0.0

    def _with(self, now_s: float, value: int) -> tuple[float, float]:
        """Return the sums of rates and weights, with the time since the last tick."""
        if self._last is None or now_s <= self._last[0]:
            return self._rate, self._weight
        passed_s = now_s - self._last[0]
        kept = math.exp(-passed_s / SMOOTH_S)
        rate = max(0.0, (value - self._last[1]) / passed_s)
        return self._rate * kept + rate * (1 - kept), self._weight * kept + 1 - kept
