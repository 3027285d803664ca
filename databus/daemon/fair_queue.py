"""A fair queue for work on the event loop: a few milliseconds of work per turn of the loop.

Fifty readers at full speed, or two hundred woken by one window, would otherwise do all
their work in one turn of the loop, and every other request would wait for them. Work runs
in the order in which it came.
"""

from __future__ import annotations

import asyncio
from collections import deque

BUDGET_S = 0.004
_LIKELY_S = 0.0005  # assumed cost of a piece of work before the first measurement
_SENDING_S = 0.0003  # added to each: writing headers and the first bytes to the socket
_WEIGHT = 0.1  # of the newest measurement in the moving average


class FairQueue:
    """Admits pieces of work in order. On the loop's thread only."""

    def __init__(self, budget_s: float = BUDGET_S) -> None:
        self._budget_s = budget_s
        self._average_s = _LIKELY_S
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._left = 0
        self._is_going = False

    @property
    def waiting(self) -> int:
        """Number of pieces of work that wait."""
        return len(self._waiting)

    @property
    def most(self) -> int:
        """Number of pieces of work admitted in one turn of the loop."""
        return max(1, int(self._budget_s / (self._average_s + _SENDING_S)))

    async def take(self) -> None:
        """Wait for admission: none while this turn of the loop has budget left."""
        loop = asyncio.get_running_loop()
        if not self._is_going:
            self._is_going, self._left = True, self.most
            loop.call_soon(self._next)
        if self._left > 0 and not self._waiting:
            self._left -= 1
            return
        future = loop.create_future()
        self._waiting.append(future)
        await future

    def spent(self, seconds: float) -> None:
        """Record how long a piece of work took."""
        self._average_s += _WEIGHT * (seconds - self._average_s)

    def _next(self) -> None:
        """Admit the next ones; stop being scheduled after a turn without work."""
        self._left = most = self.most
        while self._waiting and self._left > 0:
            future = self._waiting.popleft()
            if not future.done():  # a done future was cancelled by its request
                future.set_result(None)
                self._left -= 1
        self._is_going = self._left < most
        if self._is_going:
            asyncio.get_running_loop().call_soon(self._next)
