"""What a relay remembers for monitoring: history, clients, errors.

The data path does not depend on any of it. Used on the loop's thread, except for
`problems`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from databus.relay.monitoring.clients import ClientTable
from databus.relay.monitoring.errors import ErrorLog
from databus.relay.monitoring.history import RateCounter, Sample, SourceHistory

log = logging.getLogger(__name__)

EVERY_S = 1.0


@dataclass(frozen=True, slots=True)
class Monitor:
    """History, clients and errors of one relay, all of bounded size."""

    histories: dict[str, SourceHistory]
    clients: ClientTable = field(default_factory=ClientTable)
    problems: ErrorLog = field(default_factory=ErrorLog)
    served: RateCounter = field(default_factory=RateCounter)

    @classmethod
    def of(cls, physical_sources: Iterable[str]) -> Monitor:
        """Return the monitor of a relay with these physical sources."""
        return cls({name: SourceHistory() for name in physical_sources})

    def add(self, physical_source: str) -> None:
        """Begin the history of one more physical source."""
        self.histories[physical_source] = SourceHistory()

    def tick(self, now_s: float, samples: Mapping[str, Sample], served_bytes: int) -> None:
        """Record one sample per physical source; called once a second."""
        for name, sample in samples.items():
            self.histories[name].add(now_s, sample)
        self.served.tick(now_s, served_bytes)
        self.clients.tick(now_s)


class Ticker:
    """Calls a function once a second on the loop; errors are logged and ignored."""

    def __init__(
        self,
        tick: Callable[[], None],
        every_s: float = EVERY_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._tick = tick
        self._every_s = every_s
        self._clock = clock
        self._next_s = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Start; on the loop's thread."""
        if self._timer is None:
            self._next_s = self._clock()
            self._run()

    def stop(self) -> None:
        """Stop; on the loop's thread."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _run(self) -> None:
        try:
            self._tick()
        except Exception:
            log.exception("the sample of this second is lost")
        now_s = self._clock()
        # A loop that was blocked for long does not make up for missed ticks.
        self._next_s = max(self._next_s + self._every_s, now_s)
        self._timer = asyncio.get_running_loop().call_later(self._next_s - now_s, self._run)
