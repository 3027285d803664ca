"""Counters of one registration, updated where its events pass. Pure: the clock is passed in.

Each counter has one writer: the thread that consumes (dispatcher or loop), the one that
reads (`failed_request`), or the one that samples (`sample`). So counting takes no lock, and
a reader on another thread sees values of a moment ago. Counting is per window, never per
row; a window costs about a microsecond.

Callback time is measured per window, or per page of a bootstrap: all callbacks of all its
events. In a loop it is the time until the next window is requested. Failed attempts do not
count.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import NamedTuple

from databus.client.puller.buffer_items import BootstrapPage, Phase, ReadWindow

Clock = Callable[[], float]

# Upper bounds of a Prometheus histogram, in seconds; one more bucket is +Inf.
BUCKETS_S = (
    *(0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05),
    *(0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0),
)

RATE_S = 5.0  # rates are over this time
QUANTILE_S = 60.0  # quantiles are over this time
_SAMPLE_EVERY_S = 0.9
_IDLE_S = 5.0  # without a window: a relay that has more sends it sooner
_LEAST_S = 0.1  # over a shorter time a rate means nothing


class Sample(NamedTuple):
    """The counters at one moment."""

    at_s: float
    events: int
    callbacks: tuple[int, ...]


class Newest(NamedTuple):
    """The newest consumed window: its commit time, and the clock when it was consumed."""

    timestamp_ns: int
    consumed_at_s: float


class RegistrationStats:
    """Counters of one registration since its creation."""

    def __init__(self, clock: Clock) -> None:
        self.events = 0
        self.windows = 0  # with events
        self.snapshot_rows = 0  # of the current or last bootstrap
        self.catch_up_rows = 0
        self.snapshot_source = ""
        self.phase = Phase.LIVE  # of the item being consumed
        self.bootstraps = 0
        self.rollbacks = 0
        self.failed_requests = 0
        self.failed_events = 0  # that were skipped, or kept as dead letters
        self.callbacks = [0] * (len(BUCKETS_S) + 1)  # number of windows per bucket
        self.callback_s = 0.0  # total
        self._newest: tuple[int, float] | None = None  # of `Newest`, which is slower to make
        self._held_ns = 0  # commit time of the window being consumed; 0 = none or unknown
        self.now_s = self._clock = clock  # its time is the `began_s` of `took`
        self._samples: tuple[Sample, ...] = (self._look(clock()),)

    # Counting, on the thread that consumes

    def holds(self, item: ReadWindow) -> None:
        """Record the window whose callbacks begin now; `took` ends it."""
        self._held_ns = item.window.timestamp_ns

    def took(self, item: ReadWindow | BootstrapPage, began_s: float) -> None:
        """Count a window or page whose callbacks began at `began_s` and have just succeeded."""
        now_s = self._clock()
        window = item.window
        count = len(window.events)
        if count:
            took_s = now_s - began_s
            self.events += count
            self.callback_s += took_s
            self.callbacks[bisect_left(BUCKETS_S, took_s)] += 1
        if isinstance(item, ReadWindow):
            if count:  # an empty window only moves the position
                self.windows += item.transactions
            self._newest = window.timestamp_ns, now_s
            self._held_ns = 0
        else:
            self._took_page(item, count)

    def begin_bootstrap(self, is_from_the_start: bool) -> None:
        """Count a bootstrap that starts, continues after a restart of the client, or restarts."""
        if self.phase is Phase.LIVE:
            self.bootstraps += 1
            self.phase = Phase.SNAPSHOT
        if is_from_the_start:
            self.snapshot_rows = self.catch_up_rows = 0
            self.snapshot_source = ""

    def end_bootstrap(self) -> None:
        """Record the end of a bootstrap."""
        self.phase = Phase.LIVE
        self.snapshot_source = ""

    def rolled_back(self) -> None:
        """Count a window or page that is delivered again."""
        self.rollbacks += 1

    # Counting, on the thread that reads

    def failed_request(self) -> None:
        """Count a request without an answer, or with an error or something bad as its answer."""
        self.failed_requests += 1

    def sample(self) -> None:
        """Keep a sample of the counters; to be called about once a second."""
        now_s = self._clock()
        if now_s - self._samples[-1].at_s >= _SAMPLE_EVERY_S:
            kept = [s for s in self._samples if now_s - s.at_s <= QUANTILE_S]
            self._samples = (*kept, self._look(now_s))

    # Reading, on any thread

    @property
    def newest(self) -> Newest | None:
        """The newest consumed window; None before the first."""
        newest = self._newest
        return None if newest is None else Newest(*newest)

    @property
    def retries(self) -> int:
        """Number of retries: rolled back windows and failed requests."""
        return self.rollbacks + self.failed_requests

    @property
    def events_per_s(self) -> float:
        """Events per second over the last few seconds."""
        now_s, events = self._clock(), self.events
        since = self._samples[0]
        for sample in self._samples:
            if now_s - sample.at_s >= RATE_S:
                since = sample
        took_s = now_s - since.at_s
        return max(0, events - since.events) / took_s if took_s >= _LEAST_S else 0.0

    def quantile_s(self, share: float) -> float | None:
        """Return a quantile of the callback time in the last minute; None without windows.

        It interpolates within a bucket, as Prometheus' `histogram_quantile` does.
        """
        before = self._samples[0].callbacks
        counts = [now - then for now, then in zip(self.callbacks, before, strict=True)]
        return quantile(counts, share)

    def lag_s(self, wall_s: float, is_waiting: bool) -> float | None:
        """Return the age of the newest window when it was consumed; None if unknown.

        `is_waiting`: the buffer is not empty. Then the result is the age of the window being
        consumed, or else of the newest consumed one; 0 once nothing has come for some seconds.
        """
        newest, held_ns = self.newest, self._held_ns
        if is_waiting and held_ns > 0:
            return max(0.0, wall_s - held_ns / 1e9)
        if newest is None or newest.timestamp_ns <= 0:
            return None
        age_s = wall_s - newest.timestamp_ns / 1e9
        since_s = 0.0 if is_waiting else self._clock() - newest.consumed_at_s
        return 0.0 if since_s > _IDLE_S else max(0.0, age_s - since_s)

    def _took_page(self, page: BootstrapPage, count: int) -> None:
        self.phase = page.phase
        if page.phase is Phase.SNAPSHOT:
            self.snapshot_rows += count
            self.snapshot_source = page.after.snapshot_source
        else:
            self.catch_up_rows += count
            self.snapshot_source = ""

    def _look(self, now_s: float) -> Sample:
        return Sample(now_s, self.events, tuple(self.callbacks))


def quantile(counts: Sequence[int], share: float) -> float | None:
    """Return the quantile of times in `BUCKETS_S`, interpolated linearly within a bucket."""
    sums = list(accumulate(counts))
    if sums[-1] <= 0:
        return None
    rank = share * sums[-1]
    place = bisect_left(sums, rank)
    if place >= len(BUCKETS_S):
        return BUCKETS_S[-1]
    lower_s = BUCKETS_S[place - 1] if place else 0.0
    below = sums[place - 1] if place else 0
    return lower_s + (BUCKETS_S[place] - lower_s) * (rank - below) / counts[place]
