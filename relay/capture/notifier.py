"""Wakes the requests that wait for new windows of a physical source.

The capture thread calls `notify`; requests subscribe on the event loop. Several
notifications between two turns of the loop wake the subscribers once. A request must
subscribe before it reads the ring: then a window appended after its read wakes it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator


class Notifier:
    """Wakes the waiting requests of one physical source."""

    def __init__(self) -> None:
        self._waiting: set[asyncio.Future[None]] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_notifying = False

    @property
    def waiting(self) -> int:
        """Number of subscribers."""
        return len(self._waiting)

    def notify(self) -> None:
        """Wake all subscribers. Thread-safe; never blocks."""
        # The check without a lock is safe: a request that subscribes after it reads the
        # ring after it too, and finds the new window there.
        if not self._waiting or self._is_notifying or self._loop is None:
            return
        self._is_notifying = True
        # RuntimeError: the loop has been closed, so nobody is left to wake.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._wake)

    @contextlib.contextmanager
    def subscribe(self) -> Iterator[asyncio.Future[None]]:
        """Yield a future that completes at the next `notify`. On the loop's thread only."""
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            # Drop a wake-up queued on a closed loop: it would block all later ones.
            self._loop, self._is_notifying = loop, False
        future = loop.create_future()
        self._waiting.add(future)
        try:
            yield future
        finally:
            self._waiting.discard(future)
            future.cancel()

    def _wake(self) -> None:
        self._is_notifying = False
        for future in self._waiting:
            if not future.done():
                future.set_result(None)
