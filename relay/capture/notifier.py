"""Wakes the requests that wait for new windows of a physical source.

The capture thread calls `notify`; requests subscribe on the event loop. Several
notifications between two turns of the loop wake the subscribers once. A request must
subscribe before it reads the ring: then a window appended after its read wakes it.

A commit wakes the subscribers of its tables at once. The others are woken together, at most
once in `OTHERS_EVERY_S`: their positions move with windows of other tables, too, but a
thousand of them must not cost a commit more than ten.

A subscriber may do its work at the wake-up itself, and stay subscribed: a turn of a task for each
commit costs more than the work. Those beyond the first few milliseconds are woken as all others.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

OTHERS_EVERY_S = 1.0
AT_ONCE_S = 0.004  # of work in one wake-up
FEW_BYTES = 64 << 10  # of events, taken at once


class Appended(Protocol):
    """The sources with rows in new windows."""

    def begin(self) -> None:
        """Skip what has been appended so far."""
        ...

    def take(self) -> frozenset[int] | None:
        """Return the ids of sources with rows since the last call; None if it may be any."""
        ...


class Notifier:
    """Wakes the waiting requests of one physical source; all of them without `appended`."""

    def __init__(self, appended: Appended | None = None) -> None:
        self._appended = appended
        self._waiting: dict[asyncio.Future[None], frozenset[int] | None] = {}
        self._at_once: dict[asyncio.Future[None], Callable[[], bool]] = {}
        # The same futures by the sources that they wait for; None: for any window.
        self._by_source: dict[int | None, set[asyncio.Future[None]]] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_notifying = False
        self._is_for_all = False
        self._later: asyncio.TimerHandle | None = None
        # Called with each `notify`, on its thread, for those who wait in other processes.
        self.on_news: Callable[[], None] | None = None
        self.waiting_elsewhere = 0

    @property
    def waiting(self) -> int:
        """Number of subscribers, those in other processes included."""
        return len(self._waiting) + self.waiting_elsewhere

    def notify(self) -> None:
        """Wake the subscribers of the windows that were appended. Thread-safe; never blocks."""
        if self.on_news is not None:
            self.on_news()
        # The check without a lock is safe: a request that subscribes after it reads the
        # ring after it too, and finds the new window there.
        if not self._waiting or self._is_notifying or self._loop is None:
            return
        self._is_notifying = True
        # RuntimeError: the loop has been closed, so nobody is left to wake.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._wake)

    def notify_all(self) -> None:
        """Wake all subscribers. Thread-safe; never blocks."""
        self._is_for_all = True
        self.notify()

    def add(
        self,
        future: asyncio.Future[None] | None = None,
        src_ids: frozenset[int] | None = None,
        at_once: Callable[[], bool] | None = None,
    ) -> asyncio.Future[None]:
        """Return a future that completes at the next `notify`; `remove` must follow.

        `at_once` is called before; if it returns True, the future waits for the next `notify`.

        It is a new one, or the one that the caller waits for in other places, too. Windows
        without rows of `src_ids` complete it a little later. On the loop's thread only.
        """
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            # Drop a wake-up queued on a closed loop: it would block all later ones.
            self._loop, self._is_notifying, self._later = loop, False, None
        if future is None:
            future = loop.create_future()
        if not self._waiting and self._appended is not None:
            self._appended.begin()
        self._waiting[future] = src_ids
        if at_once is not None:
            self._at_once[future] = at_once
        for src_id in _keys(src_ids):
            self._by_source.setdefault(src_id, set()).add(future)
        return future

    def remove(self, future: asyncio.Future[None]) -> None:
        """Forget a future; nothing completes it any more."""
        self._forget(future)
        future.cancel()

    @contextlib.contextmanager
    def subscribe(
        self,
        future: asyncio.Future[None] | None = None,
        src_ids: frozenset[int] | None = None,
    ) -> Iterator[asyncio.Future[None]]:
        """Yield the future of `add`; remove it at the end."""
        added = self.add(future, src_ids)
        try:
            yield added
        finally:
            self.remove(added)

    def _wake(self) -> None:
        # Before the new windows are looked at: a later one is notified again.
        self._is_notifying = False
        is_for_all, self._is_for_all = self._is_for_all, False
        found = None if self._appended is None else self._appended.take()
        if is_for_all:
            self._at_once.clear()  # it may not be about windows
        if found is None or is_for_all:
            self._complete(list(self._waiting))
            return
        for src_id in (None, *found):
            self._complete(list(self._by_source.get(src_id, ())))
        if self._waiting and self._later is None and self._loop is not None:
            self._later = self._loop.call_later(OTHERS_EVERY_S, self._wake_others)

    def _wake_others(self) -> None:
        self._later = None
        self._complete(list(self._waiting))

    def _complete(self, futures: list[asyncio.Future[None]]) -> None:
        until_s = time.perf_counter() + AT_ONCE_S
        for future in futures:
            at_once = self._at_once.get(future)
            if at_once is not None and time.perf_counter() < until_s and at_once():
                continue
            self._forget(future)
            if not future.done():
                future.set_result(None)

    def _forget(self, future: asyncio.Future[None]) -> None:
        if future not in self._waiting:
            return
        self._at_once.pop(future, None)
        for src_id in _keys(self._waiting.pop(future)):
            futures = self._by_source[src_id]
            futures.discard(future)
            if not futures:
                del self._by_source[src_id]


class Coalescing:
    """Lets transactions that follow one another closely be read, and go to the consumers, together.

    A transaction that comes alone costs relay and client more CPU time than one of several. So
    capture may rest for `rest_s` after a few rows (0: never), and then finds those of the next
    transactions together. The first one after a pause is not held up, and a log that brings much
    at a time is read without rests.
    """

    def __init__(self, rest_s: float, rest: Callable[[float], None] = time.sleep) -> None:
        self._rest_s = rest_s
        self._rest = rest
        self._taken_bytes = 0

    def took(self, all_bytes: int) -> None:
        """Rest if a few bytes were taken since the last call; `all_bytes` were taken so far."""
        is_due = 0 < all_bytes - self._taken_bytes <= FEW_BYTES
        self._taken_bytes = all_bytes
        if is_due and self._rest_s:
            self._rest(self._rest_s)


def _keys(src_ids: frozenset[int] | None) -> Iterable[int | None]:
    return (None,) if src_ids is None else src_ids
