"""How a capture thread wakes the requests that are held for news.

Threads ring, the loop listens. Rings that come faster than the loop turns are
one ring. A request must listen first and look at the ring buffer second: then
what is appended after its look wakes it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator


class Bell:
    """One per physical source."""

    def __init__(self) -> None:
        self._waiting: set[asyncio.Future[None]] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_ringing = False

    @property
    def waiting(self) -> int:
        """How many listen now."""
        return len(self._waiting)

    def ring(self) -> None:
        """Wake everybody who listens. Any thread may call; it never blocks."""
        # Nobody is missed: who listens from now on has not looked yet.
        if not self._waiting or self._is_ringing or self._loop is None:
            return
        self._is_ringing = True
        # The loop may be closed meanwhile: then nobody is left to wake.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._wake)

    @contextlib.contextmanager
    def listen(self) -> Iterator[asyncio.Future[None]]:
        """Give a future that is done when it rings. On the loop's thread only."""
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            # A ring that the loop before it did not live to hear must not stand for those to come.
            self._loop, self._is_ringing = loop, False
        future = loop.create_future()
        self._waiting.add(future)
        try:
            yield future
        finally:
            self._waiting.discard(future)
            future.cancel()

    def _wake(self) -> None:
        self._is_ringing = False
        for future in self._waiting:
            if not future.done():
                future.set_result(None)
