"""The loop shared fairly: work of a few milliseconds in one turn of it, the rest in the next ones.

Fifty readers at full speed, or two hundred that are woken by one window, would
otherwise each do all that they can in one turn, and whoever asks for anything
else waits until all of them have. First come, first served.
"""

from __future__ import annotations

import asyncio
from collections import deque

BUDGET_S = 0.004
_LIKELY_S = 0.0005  # what a piece of work is taken to cost before any was done
_SENDING_S = 0.0003  # and what comes after each: headers, the first bytes to the socket
_WEIGHT = 0.1  # of the newest in the average


class Turns:
    """Says when a piece of work may be done. On the loop's thread only."""

    def __init__(self, budget_s: float = BUDGET_S) -> None:
        self._budget_s = budget_s
        self._average_s = _LIKELY_S
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._left = 0
        self._is_going = False

    @property
    def waiting(self) -> int:
        """How many wait for their turn."""
        return len(self._waiting)

    @property
    def most(self) -> int:
        """How many pieces of work are done in one turn of the loop."""
        return max(1, int(self._budget_s / (self._average_s + _SENDING_S)))

    async def take(self) -> None:
        """Return when it is one's turn: at once when there is room in this one."""
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
        """Note how long a piece of work took."""
        self._average_s += _WEIGHT * (seconds - self._average_s)

    def _next(self) -> None:
        """Begin another turn: wake the next ones; rest when nobody came in the last."""
        self._left = most = self.most
        while self._waiting and self._left > 0:
            future = self._waiting.popleft()
            if not future.done():  # else who waited is gone
                future.set_result(None)
                self._left -= 1
        self._is_going = self._left < most
        if self._is_going:
            asyncio.get_running_loop().call_soon(self._next)
