"""Probes a source's database regularly: how far capture is behind, and what the log still has.

It has its own thread, because a slow server must not delay capture, and because a log is
also purged while capture is paused, in error or disconnected. It compares the newest window
of the ring with the database's log: that is where capture would continue.

After `RESET MASTER` a server does not end the streams of the old log: they stay connected
and silent. So while a stream brings nothing the probes come often, and a probe that doubts
the log makes capture open it again, which checks that it is the same log.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any

from databus.daemon.log_setup import about
from databus.relay.sources.log_status import Holding, LogProbe, LogStatus
from databus.relay.sources.source import Newest
from databus.schemas.errors import SourceError

log = logging.getLogger(__name__)

PROBE_EVERY_S = 60.0
QUIET_EVERY_S = 4.0
EARLY_S = 0.5


def _never_silent() -> int | None:
    """Return None: no stream is open."""
    return None


def _ignore(_doubt: str) -> None:
    """Do nothing with a doubt."""


class LogMonitor:
    """Probes one physical source's database until it is stopped.

    The monitor's thread calls `newest`, `reading_at` (the position up to which an open
    stream was read; None = no stream is open) and `on_doubt` (with the reason).
    Without a `probe` the monitor does nothing. All public methods are thread-safe.
    """

    def __init__(
        self,
        name: str,
        probe: LogProbe | None,
        newest: Callable[[], Newest | None],
        every_s: float = PROBE_EVERY_S,
        wall_ns: Callable[[], int] = time.time_ns,
        reading_at: Callable[[], int | None] = _never_silent,
        on_doubt: Callable[[str], None] = _ignore,
        quiet_every_s: float = QUIET_EVERY_S,
    ) -> None:
        self._name = name
        self._probe = probe
        self._newest = newest
        self._every_s = every_s
        self._wall_ns = wall_ns
        self._reading_at, self._on_doubt = reading_at, on_doubt
        self._quiet_every_s = quiet_every_s
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self._status = LogStatus()
        self._probed_at = 0.0

    @property
    def status(self) -> LogStatus:
        """Result of the last probe."""
        return self._status

    @property
    def probed_at(self) -> float:
        """Start of the last probe, in seconds since 1970; 0 before the first."""
        return self._probed_at

    def start(self) -> None:
        """Start the thread, unless it runs or there is nothing to probe."""
        if self._probe is None or self._thread is not None:
            return
        name = f"log-monitor-{self._name}"
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def stop(self, timeout_s: float) -> bool:
        """Cancel a running probe and end the thread; return False if it did not end in time."""
        self._stopped.set()
        if self._probe is None or self._thread is None:
            return True
        # The probe may be waiting for a server that never answers.
        self._probe.cancel()
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def probe_now(self) -> LogStatus:
        """Probe once, store the result and log a change of state."""
        if self._probe is None:
            return self._status
        before, began_at = self._status, self._wall_ns() / 1e9
        try:
            found = self._probe.probe(self._newest)
        except SourceError as error:
            found = LogStatus(warning=f"the database could not be asked about its log: {error}")
        except Exception as error:
            # After a stop that took too long the ring is closed, and `newest` raises.
            if self._stopped.is_set():
                return before
            log.exception("probing the log of %s failed", self._name, extra=self._about())
            found = LogStatus(warning=f"internal error: {error!r}; see the log")
        # A probe cancelled by `stop` has found nothing.
        if not self._stopped.is_set():
            self._status, self._probed_at = found, began_at
            self._log_change(before, found)
            if found.doubt:
                self._on_doubt(found.doubt)
        return found

    def _run(self) -> None:
        while not self._stopped.is_set():
            found = self.probe_now()
            # While the ring is empty there is nothing to compare, and the server was not asked.
            is_early = found == LogStatus()
            if is_early:
                self._stopped.wait(min(EARLY_S, self._every_s))
            else:
                self._await_next()

    def _await_next(self) -> None:
        """Wait until the next probe is due: sooner while an open stream brings nothing."""
        place, left_s = self._reading_at(), self._every_s
        while left_s > 0 and not self._stopped.wait(min(self._quiet_every_s, left_s)):
            before, place = place, self._reading_at()
            # The stream has brought nothing for a whole interval.
            if place is not None and place == before:
                return
            left_s -= self._quiet_every_s

    def _log_change(self, before: LogStatus, found: LogStatus) -> None:
        """Log a change of state only: the numbers in a warning differ in every probe."""
        was, now = (before.holding, bool(before.warning)), (found.holding, bool(found.warning))
        if was == now:
            return
        if found.warning:
            log.warning("the log of %s: %s", self._name, found.warning, extra=self._about())
        elif before.holding in (Holding.NEAR_PURGE, Holding.GONE):
            problem = "the server has what capture needs again"
            log.warning("the log of %s: %s", self._name, problem, extra=self._about())

    def _about(self) -> dict[str, Any]:
        return about(physical_source=self._name)
