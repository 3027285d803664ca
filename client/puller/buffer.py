"""The buffer between puller and callbacks, bounded in bytes.

The puller requests no more than fits, and waits until it does, so it never has to leave an
answer half read. A window larger than the whole buffer is admitted when the buffer is
empty; the bound is then the size of that window.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from threading import Condition
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

    The lock is only for waiting. Bytes put and bytes consumed are separate counters with one
    writer each, so taking an available item needs no lock.
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
        self._changed = Condition()

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
        with self._changed:
            if self._is_closed:
                return
            self._put_bytes += sum(item.size_bytes for item in items)
            self._items.extend(items)
            self._changed.notify()
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
        with self._changed:
            if timeout_s != 0:
                self._changed.wait_for(lambda: self._items or self._is_closed, timeout_s)
            item = self.take()
            if item is None and self._is_closed:
                raise BufferClosedError
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
        with self._changed:
            self._is_closed = True
            self._items.clear()
            self._changed.notify_all()
        self.on_item()


def _nothing() -> None:
    pass
