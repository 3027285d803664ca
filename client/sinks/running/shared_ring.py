"""The commit ring of a sink's threads: one begins entries, several are done with them."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Generic, TypeVar

from databus.client.sinks.rules.commit_ring import MAX_BYTES, CommitRing

Place = TypeVar("Place")


class RingClosedError(Exception):
    """The sink ends. Never leaves its threads."""


class SharedRing(Generic[Place]):
    """A `CommitRing` for several threads. `begin` waits for room: that is the back-pressure."""

    def __init__(self, capacity: int, interval: int = 1, most_bytes: int = MAX_BYTES) -> None:
        self._ring = CommitRing[Place](capacity, interval, most_bytes)
        self._changed = threading.Condition()
        self._is_closed = False

    @property
    def held(self) -> int:
        """The size of what is begun and not passed."""
        with self._changed:
            return self._ring.held

    @property
    def oldest(self) -> tuple[int, Place | None]:
        """How many positions are begun and not passed, and the oldest of them."""
        with self._changed:
            return self._ring.places, self._ring.oldest

    def has_room(self, size: int, size_bytes: int = 0) -> bool:
        """Whether `begin` would not wait now."""
        with self._changed:
            return self._ring.has_room(size, size_bytes)

    def begin(self, position: Place | None, size: int = 1, size_bytes: int = 0) -> int:
        """Take an entry as soon as there is room; raise RingClosedError when the ring is closed."""
        with self._changed:
            while not self._is_closed and not self._ring.has_room(size, size_bytes):
                self._changed.wait()
            self._check()
            return self._ring.begin(position, size, size_bytes)

    def done(self, numbers: Iterable[int]) -> Place | None:
        """Take note that entries are durable; return the position to store, if there is one."""
        found = None
        with self._changed:
            for number in numbers:
                found = self._ring.done(number) or found
            self._changed.notify_all()
        return found

    def is_passed(self, number: int) -> bool:
        """Whether an entry and all before it are done."""
        with self._changed:
            return self._ring.is_passed(number)

    def take(self) -> Place | None:
        """Return the newest position that was not returned yet."""
        with self._changed:
            return self._ring.take()

    def wait_until_empty(self) -> None:
        """Return when everything begun is done; raise RingClosedError when the ring is closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_closed or self._ring.is_empty)
            self._check()

    @property
    def is_empty(self) -> bool:
        """Whether everything begun is done."""
        with self._changed:
            return self._ring.is_empty

    def close(self) -> None:
        """Wake who waits, with RingClosedError."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def _check(self) -> None:
        if self._is_closed:
            raise RingClosedError
