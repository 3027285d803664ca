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
        ...


Item = TypeVar("Item", bound=Sized)


class BufferClosedError(Exception):
    """There is nothing more to come. Never leaves this package."""


class Buffer(Generic[Item]):
    """A queue for one thread that puts and one that gets.

    `on_room` is called, on the getting thread, after an `ask_room` that was
    refused, when there is room; `on_item`, on the putting thread, when
    something came in or the buffer was closed.

    The lock is only for waiting. What came in and what is done with are
    counted apart, each by the one thread that may, so that taking an item that
    is there costs no lock.
    """

    def __init__(self, capacity_bytes: int) -> None:
        self.capacity_bytes = capacity_bytes
        self.on_room: Callable[[], None] = _nothing
        self.on_item: Callable[[], None] = _nothing
        self._items: deque[Item] = deque()
        self._put_bytes = 0
        self._done_bytes = 0
        self._room_at_bytes: int | None = None  # call `on_room` when so few are held
        self._is_closed = False
        self._changed = Condition()

    @property
    def held_bytes(self) -> int:
        """How many bytes wait, those of the item last given out included."""
        return self._put_bytes - self._done_bytes

    def ask_room(self, size_bytes: int) -> bool:
        """Say whether so many bytes fit now; if not, `on_room` is called when they do.

        More than the capacity fits when there is nothing else.
        """
        limit_bytes = max(0, self.capacity_bytes - size_bytes)
        # Before the look, as `done` counts before it looks here: so one of the
        # two sees the other, whichever comes first.
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
        """Return the oldest item, or None when there is none now.

        It counts as held until `done` is told of it.
        """
        try:
            return self._items.popleft()
        except IndexError:
            return None

    def get(self, timeout_s: float | None = None) -> Item | None:
        """Wait for the oldest item and return it; None when none came in time.

        Raises BufferClosedError when there is none and none will come.
        """
        with self._changed:
            if timeout_s != 0:
                self._changed.wait_for(lambda: self._items or self._is_closed, timeout_s)
            item = self.take()
            if item is None and self._is_closed:
                raise BufferClosedError
            return item

    def done(self, item: Item) -> None:
        """Say that an item that was given out is consumed: its bytes are free."""
        self._done_bytes += item.size_bytes
        room_at_bytes = self._room_at_bytes
        if room_at_bytes is not None and self.held_bytes <= room_at_bytes:
            self._room_at_bytes = None
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
