"""A fair queue for work on the event loop: a few milliseconds of work per turn of the loop.

Fifty readers at full speed, or two hundred woken by one window, would otherwise do all
their work in one turn of the loop, and every other request would wait for them. Work runs
in the order in which it came.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

BUDGET_S = 0.004
_LIKELY_S = 0.0005  # assumed cost of a piece of work before the first measurement
_SENDING_S = 0.0003  # added to each: writing headers and the first bytes to the socket
_WEIGHT = 0.1  # of the newest measurement in the moving average


class FairQueue:
    """Admits pieces of work in order. On the loop's thread only."""

    def __init__(self, budget_s: float = BUDGET_S) -> None:
        self._budget_s = budget_s
        self._average_s = _LIKELY_S
        self._waiting: deque[asyncio.Future[None] | Callable[[], None]] = deque()
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
        if not self._admits():
            future = asyncio.get_running_loop().create_future()
            self._waiting.append(future)
            await future

    def call(self, work: Callable[[], None]) -> None:
        """Call a function: now, while this turn of the loop has budget left, or else later."""
        if self._admits():
            work()
        else:
            self._waiting.append(work)

    def _admits(self) -> bool:
        if not self._is_going:
            self._is_going, self._left = True, self.most
            asyncio.get_running_loop().call_soon(self._next)
        if self._left > 0 and not self._waiting:
            self._left -= 1
            return True
        return False

    def spent(self, seconds: float) -> None:
        """Record how long a piece of work took."""
        self._average_s += _WEIGHT * (seconds - self._average_s)

    def _next(self) -> None:
        """Admit the next ones; stop being scheduled after a turn without work."""
        self._left = most = self.most
        loop = asyncio.get_running_loop()
        while self._waiting and self._left > 0:
            waiting = self._waiting.popleft()
            if not isinstance(waiting, asyncio.Future):
                loop.call_soon(waiting)  # not here, where an error of it would stop the queue
            elif waiting.done():  # it was cancelled by its request
                continue
            else:
                waiting.set_result(None)
            self._left -= 1
        self._is_going = self._left < most
        if self._is_going:
            loop.call_soon(self._next)
