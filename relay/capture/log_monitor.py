"""A look at each database now and then: how far behind the relay is, and what is still there.

On a thread of its own, because a server that is slow to answer must not hold up
what is read from it, and because a log is purged also while capture is paused,
in error or without a connection. What it compares is the newest window of the
ring: that is where capture would go on.

A log that was begun anew is not told to who reads the old one: the server lets that
stream wait at its old place, alive and silent. So while nothing comes the looks come
often, and a look that has a doubt has capture open its log again, and prove it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any

from databus.daemon.log_setup import about
from databus.relay.sources.log_status import Holding, LogLook, Standing
from databus.relay.sources.source import Newest
from databus.schemas.errors import SourceError

log = logging.getLogger(__name__)

LOOK_EVERY_S = 60.0
QUIET_EVERY_S = 4.0
EARLY_S = 0.5


def _never_silent() -> int | None:
    """Say that no stream waits."""
    return None


def _ignore(_doubt: str) -> None:
    """Tell nobody."""


class LogWatch:
    """Looks at one physical source's database, until it is stopped.

    `newest` is called on the watch's thread, and so are `reading_at`, to where an open
    stream was read (None = none is open), and `on_doubt`, with each doubt of a look.
    Without a `look` there is nothing to watch. The public methods may be called from any
    thread.
    """

    def __init__(
        self,
        name: str,
        look: LogLook | None,
        newest: Callable[[], Newest | None],
        every_s: float = LOOK_EVERY_S,
        wall_ns: Callable[[], int] = time.time_ns,
        reading_at: Callable[[], int | None] = _never_silent,
        on_doubt: Callable[[str], None] = _ignore,
        quiet_every_s: float = QUIET_EVERY_S,
    ) -> None:
        self._name = name
        self._look = look
        self._newest = newest
        self._every_s = every_s
        self._wall_ns = wall_ns
        self._reading_at, self._on_doubt = reading_at, on_doubt
        self._quiet_every_s = quiet_every_s
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self._standing = Standing()
        self._looked_at = 0.0

    @property
    def standing(self) -> Standing:
        """What the last look found."""
        return self._standing

    @property
    def looked_at(self) -> float:
        """When the last look began, in seconds since 1970; 0 before the first."""
        return self._looked_at

    def start(self) -> None:
        """Start looking; nothing when there is nothing to look at or it is started."""
        if self._look is None or self._thread is not None:
            return
        name = f"log-watch-{self._name}"
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def stop(self, timeout_s: float) -> bool:
        """End the thread, also in the middle of a look; returns whether it ended in time."""
        self._stopped.set()
        if self._look is None or self._thread is None:
            return True
        self._look.cancel()
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def look_now(self) -> Standing:
        """Look, keep what was found and log what is new about it."""
        if self._look is None:
            return self._standing
        before, began_at = self._standing, self._wall_ns() / 1e9
        try:
            found = self._look.look(self._newest)
        except SourceError as error:
            found = Standing(warning=f"the database could not be asked about its log: {error}")
        except Exception as error:
            # A closed ring is one, when stopping took too long: nobody asks any more.
            if self._stopped.is_set():
                return before
            log.exception("looking at the log of %s failed", self._name, extra=self._about())
            found = Standing(warning=f"internal error: {error!r}; see the log")
        if not self._stopped.is_set():
            self._standing, self._looked_at = found, began_at
            self._say(before, found)
            if found.doubt:
                self._on_doubt(found.doubt)
        return found

    def _run(self) -> None:
        while not self._stopped.is_set():
            found = self.look_now()
            # A ring that is empty yet: there is nothing to compare, and nobody was asked.
            is_early = found == Standing()
            if is_early:
                self._stopped.wait(min(EARLY_S, self._every_s))
            else:
                self._await_next()

    def _await_next(self) -> None:
        """Wait until the next look is due: soon where a stream is open and brings nothing."""
        place, left_s = self._reading_at(), self._every_s
        while left_s > 0 and not self._stopped.wait(min(self._quiet_every_s, left_s)):
            before, place = place, self._reading_at()
            if place is not None and place == before:
                return
            left_s -= self._quiet_every_s

    def _say(self, before: Standing, found: Standing) -> None:
        """Log a change of state; the figures in a warning are others at each look."""
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
