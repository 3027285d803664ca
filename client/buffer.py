"""Windows on their way from the puller to the callbacks: bounded by bytes.

The puller asks the relay for no more than fits, and waits until that is so: it
never has to leave an answer half read. A window larger than the whole buffer
is let in when the buffer is empty: the bound is then that window.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from threading import Condition
from typing import Generic, Protocol, TypeVar


class Sized(Protocol):
    """What can be put into the buffer."""

    @property
    def size_bytes(self) -> int:
        """How many bytes it counts for."""


Item = TypeVar("Item", bound=Sized)


class BufferClosedError(Exception):
    """There is nothing more to come. Never leaves this package."""


class Buffer(Generic[Item]):
    """A queue for one thread that puts and one that gets.

    `on_room` is called, on the getting thread, once after an `ask_room` that
    was refused, when there is room; `on_item`, on the putting thread, when
    something came in or the buffer was closed.
    """

    def __init__(self, capacity_bytes: int) -> None:
        self.capacity_bytes = capacity_bytes
        self.on_room: Callable[[], None] = _nothing
        self.on_item: Callable[[], None] = _nothing
        self._items: deque[Item] = deque()
        self._held_bytes = 0
        self._call_at_bytes: int | None = None
        self._is_closed = False
        self._changed = Condition()

    @property
    def held_bytes(self) -> int:
        """How many bytes wait, those of the item last given out included."""
        return self._held_bytes

    def ask_room(self, size_bytes: int) -> bool:
        """Say whether so many bytes fit now; if not, `on_room` is called when they do.

        More than the capacity fits when there is nothing else.
        """
        limit_bytes = max(0, self.capacity_bytes - size_bytes)
        with self._changed:
            self._call_at_bytes = None if self._held_bytes <= limit_bytes else limit_bytes
            return self._call_at_bytes is None

    def put(self, items: Sequence[Item]) -> None:
        """Add items; never blocks. After `close` they are dropped."""
        if not items:
            return
        size_bytes = sum(item.size_bytes for item in items)
        with self._changed:
            if self._is_closed:
                return
            self._items.extend(items)
            self._held_bytes += size_bytes
            self._changed.notify()
        self.on_item()

    def get(self, timeout_s: float | None = None) -> Item | None:
        """Return the oldest item; None when none came in time.

        It counts as held until `done` is told of it. Raises BufferClosedError
        when there is none and none will come.
        """
        try:
            return self._items.popleft()  # atomic: nearly always without the lock
        except IndexError:
            pass
        with self._changed:
            if timeout_s != 0:
                self._changed.wait_for(lambda: self._items or self._is_closed, timeout_s)
            if self._items:
                return self._items.popleft()
            if self._is_closed:
                raise BufferClosedError
            return None

    def done(self, item: Item) -> None:
        """Say that an item that `get` gave out is consumed: its bytes are free."""
        with self._changed:
            self._held_bytes -= item.size_bytes
            call_at_bytes = self._call_at_bytes
            if call_at_bytes is None or self._held_bytes > call_at_bytes:
                return
            self._call_at_bytes = None
        self.on_room()

    def close(self) -> None:
        """Drop what waits, and wake whoever waits for it."""
        with self._changed:
            self._is_closed = True
            self._items.clear()
            self._changed.notify_all()
        self.on_item()


def _nothing() -> None:
    pass
