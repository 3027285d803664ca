"""The buffer between puller and callbacks, bounded in bytes.

The puller requests no more than fits, and waits until it does, so it never has to leave an
answer half read. A window larger than the whole buffer is admitted when the buffer is
empty; the bound is then the size of that window.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from threading import Lock
from time import monotonic
from typing import Generic, Protocol, TypeVar


class Sized(Protocol):
    """An item of the buffer."""

    @property
    def size_bytes(self) -> int:
        """Number of bytes that it counts for."""
        ...


Item = TypeVar("Item", bound=Sized)


class BufferClosedError(Exception):
    """The buffer is closed and empty. Never leaves this package."""


class Buffer(Generic[Item]):
    """A queue between one putting and one getting thread.

    `on_room` is called on the getting thread when there is room after a refused `ask_room`.
    `on_item` is called on the putting thread after each `put`, and after `close`.

    The lock is only for putting and closing. Bytes put and bytes consumed are separate counters
    with one writer each, so taking an available item needs no lock.
    """

    def __init__(self, capacity_bytes: int) -> None:
        self.capacity_bytes = capacity_bytes
        self.on_room: Callable[[], None] = _nothing
        self.on_item: Callable[[], None] = _nothing
        self._items: deque[Item] = deque()
        self._put_bytes = 0
        self._done_bytes = 0
        self._room_at_bytes: int | None = None  # call `on_room` when no more than this is held
        self._is_closed = False
        self._changing = Lock()
        # Who acquires it waits until another thread releases it. A Condition would make a lock of
        # its own for each wait.
        self._arrived = Lock()
        self._arrived.acquire()

    @property
    def held_bytes(self) -> int:
        """Number of bytes held, including the item being consumed."""
        return self._put_bytes - self._done_bytes

    def ask_room(self, size_bytes: int) -> bool:
        """Return whether so many bytes fit now; if not, `on_room` is called when they do.

        More bytes than the capacity fit into an empty buffer.
        """
        limit_bytes = max(0, self.capacity_bytes - size_bytes)
        # Set before the check, as `done` counts before it checks this value: whichever
        # thread comes second sees what the other has written.
        self._room_at_bytes = limit_bytes
        if self.held_bytes > limit_bytes:
            return False
        self._room_at_bytes = None
        return True

    def put(self, items: Sequence[Item]) -> None:
        """Add items; never blocks. After `close` they are dropped."""
        if not items:
            return
        with self._changing:
            if self._is_closed:
                return
            self._put_bytes += sum([item.size_bytes for item in items])
            self._items.extend(items)
            self._wake()
        self.on_item()

    def take(self) -> Item | None:
        """Return the oldest item, or None if the buffer is empty.

        The item counts as held until `done` is called with it.
        """
        try:
            return self._items.popleft()
        except IndexError:
            return None

    def peek(self, place: int = 0) -> Item | None:
        """Return the item behind `place` older ones, or None; for the getting thread."""
        try:
            return self._items[place]
        except IndexError:
            return None

    def get(self, timeout_s: float | None = None) -> Item | None:
        """Wait for the oldest item and return it; None after the timeout.

        Raises BufferClosedError if the buffer is closed.
        """
        deadline_s = None if timeout_s is None else monotonic() + timeout_s
        while (item := self.take()) is None:
            if self._is_closed:
                raise BufferClosedError
            # It may have been released for an item that was taken without waiting.
            left_s = -1.0 if deadline_s is None else max(0.0, deadline_s - monotonic())
            if not self._arrived.acquire(timeout=left_s):
                return self.take()
        return item

    def done(self, item: Item) -> None:
        """Mark an item as consumed and free its bytes."""
        self._done_bytes += item.size_bytes
        room_at_bytes = self._room_at_bytes
        if room_at_bytes is not None and self.held_bytes <= room_at_bytes:
            self._room_at_bytes = None
            self.on_room()

    def close(self) -> None:
        """Drop all items and wake the getting thread."""
        with self._changing:
            self._is_closed = True
            self._items.clear()
            self._wake()
        self.on_item()

    def _wake(self) -> None:
        """Release the getting thread, if it waits; once, however often this is called."""
        if self._arrived.locked():
            self._arrived.release()


def _nothing() -> None:
    pass
