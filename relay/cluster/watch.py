"""Looks at the coordinator and up the chain on a thread, while somebody asks. No request waits.

What is seen is kept, with its time: a coordinator that is away is a `problem` beside what was seen
last. The upstream relay is asked what it knows of its own upstream, so a chain is known level by
level, and no request runs through it, or around a loop.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import closing

from databus.conf.settings import PhysicalSourceSettings
from databus.leases.errors import LeaseError
from databus.relay.cluster.chain import Above, read_above
from databus.relay.cluster.coordinator import Coordinator, Seen
from databus.relay.sources.upstream.requests import Upstream
from databus.schemas.errors import SourceError

log = logging.getLogger(__name__)

EVERY_S = 2.0
INTEREST_S = 300.0  # for which it goes on looking after somebody has asked
_FIRST_S, _FIRST_STEP_S = 1.0, 0.02

Upstreams = Callable[[], Mapping[str, PhysicalSourceSettings]]


class ClusterWatch:
    """What one relay sees of its cluster; any thread may read `seen`, `problem` and `above`."""

    def __init__(self, url: str, upstreams: Upstreams, every_s: float = EVERY_S) -> None:
        """Open nothing yet; without `url` there is no coordinator. Raises SettingsError.

        `upstreams` returns the settings of the physical sources that are read from other relays.
        """
        self.coordinator = Coordinator(url) if url else None
        self.seen = Seen()
        self.problem = ""
        """Why the coordinator cannot be looked at now."""
        self.above: Mapping[str, Above] = {}
        """What is known of the relays above this one, by physical source."""
        self._upstreams, self._every_s = upstreams, every_s
        self._lock, self._ended, self._asked = (
            threading.Lock(),
            threading.Event(),
            threading.Event(),
        )
        self._asked_s = float("-inf")
        self._has_looked = False
        self._thread: threading.Thread | None = None

    @property
    def is_alone(self) -> bool:
        """Whether there is neither a coordinator nor a relay above."""
        return self.coordinator is None and not self._upstreams()

    def ask(self) -> None:
        """Have it look from now on for some minutes; does not wait. Any thread."""
        if self.is_alone or self._ended.is_set():
            return
        self._asked_s = time.monotonic()
        self._asked.set()
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="cluster", daemon=True)
                self._thread.start()

    async def asked(self) -> None:
        """Do the same, and wait a moment for what is seen first."""
        self.ask()
        until_s = time.monotonic() + _FIRST_S
        while not self._has_looked and not self.is_alone and time.monotonic() < until_s:
            await asyncio.sleep(_FIRST_STEP_S)

    def stop(self, timeout_s: float) -> None:
        """End the thread, or leave it to end with the process: it writes nothing. Idempotent."""
        self._ended.set()
        self._asked.set()
        thread = self._thread
        if thread is not None:
            thread.join(timeout_s)
        elif self.coordinator is not None:
            self.coordinator.close()

    def _run(self) -> None:
        try:
            while not self._ended.is_set():
                self._asked.clear()
                if time.monotonic() - self._asked_s > INTEREST_S and not self._ended.is_set():
                    self._asked.wait()
                    continue
                self._look()
                self._has_looked = True
                self._ended.wait(self._every_s)
        finally:
            if self.coordinator is not None:
                self.coordinator.close()

    def _look(self) -> None:
        """Look once at everything."""
        if self.coordinator is not None:
            try:
                self.seen = self.coordinator.look()
                self.problem = ""
            except LeaseError as error:
                self.problem = str(error)
            except Exception as error:
                # A mistake in the code of this process: a view that stands still looks well.
                log.exception("the coordinator %s", self.coordinator.shown)
                self.problem = repr(error)
        found = {}
        for name, settings in self._upstreams().items():
            if self._ended.is_set():
                return
            found[name] = _above(settings)
        self.above = found


def _above(settings: PhysicalSourceSettings) -> Above:
    with closing(Upstream(settings)) as upstream:
        try:
            return upstream.get(
                "/api/v1/chain", lambda value: read_above(value, settings.name, upstream.url)
            )
        except SourceError as error:
            return Above((), upstream.url, str(error))


def upstreams_of(
    sources: Callable[[], Mapping[str, PhysicalSourceSettings]],
) -> Upstreams:
    """Return a function that returns those of the physical sources that are read from relays."""
    return lambda: {name: one for name, one in sources().items() if one.is_relay}
