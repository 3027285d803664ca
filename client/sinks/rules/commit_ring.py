"""Which position may be stored while several lanes write: everything before it is done. Pure.

    ring = CommitRing(capacity=1000)
    first, second = ring.begin(p1), ring.begin(p2)
    ring.done(second)   # None: the first is not done
    ring.done(first)    # p2: both are

Entries are begun in the order of the log and done in any. An entry with a position is the last of
its window: only such positions are ever stored.
"""

from __future__ import annotations

from collections import deque
from typing import Generic, TypeVar

from databus.schemas.errors import IllegalTransitionError

Place = TypeVar("Place")
MAX_BYTES = 1 << 62


class _Entry(Generic[Place]):
    __slots__ = ("is_done", "position", "size", "size_bytes")

    def __init__(self, position: Place | None, size: int, size_bytes: int) -> None:
        self.position, self.size, self.size_bytes = position, size, size_bytes
        self.is_done = False


class CommitRing(Generic[Place]):
    """The entries that are begun and not yet passed."""

    def __init__(self, capacity: int, interval: int = 1, most_bytes: int = MAX_BYTES) -> None:
        """Hold entries of at most `capacity` in size; give a position every `interval` entries."""
        self._capacity, self._most_bytes, self._interval = capacity, most_bytes, interval
        self._entries: deque[_Entry[Place]] = deque()
        self._first = 0  # number of the oldest entry
        self._held = self._held_bytes = 0
        self._places = 0
        self._passed = 0  # since a position was given
        self._newest: Place | None = None  # that may be stored, and was not given

    @property
    def is_empty(self) -> bool:
        """Whether everything that was begun is done."""
        return not self._entries

    @property
    def places(self) -> int:
        """How many positions are begun and not passed."""
        return self._places

    @property
    def oldest(self) -> Place | None:
        """The oldest position that is begun and not passed; None if there is none."""
        return next((one.position for one in self._entries if one.position is not None), None)

    @property
    def held(self) -> int:
        """The size of what is begun and not passed."""
        return self._held

    def has_room(self, size: int = 1, size_bytes: int = 0) -> bool:
        """Whether an entry may begin; one that is larger than the ring, when it is empty."""
        fits = self._held_bytes + size_bytes <= self._most_bytes
        return not self._entries or (fits and self._held + size <= self._capacity)

    def begin(self, position: Place | None, size: int = 1, size_bytes: int = 0) -> int:
        """Take an entry, and return its number. Raises IllegalTransitionError without room."""
        if not self.has_room(size, size_bytes):
            raise IllegalTransitionError("full", "begin")
        self._entries.append(_Entry(position, size, size_bytes))
        self._held += size
        self._held_bytes += size_bytes
        self._places += position is not None
        return self._first + len(self._entries) - 1

    def done(self, number: int) -> Place | None:
        """Take note that an entry is durable; return the position to store now, if there is one.

        Raises IllegalTransitionError for an entry that is done already, or was never begun.
        """
        at = number - self._first
        if not 0 <= at < len(self._entries) or self._entries[at].is_done:
            raise IllegalTransitionError(f"of entry {number}", "done")
        self._entries[at].is_done = True
        while self._entries and self._entries[0].is_done:
            self._pass(self._entries.popleft())
        return self.take() if self._passed >= self._interval else None

    def is_passed(self, number: int) -> bool:
        """Whether an entry and all before it are done."""
        return number < self._first

    def take(self) -> Place | None:
        """Return the newest position that may be stored and was not returned yet."""
        found, self._newest = self._newest, None
        if found is not None:
            self._passed = 0
        return found

    def _pass(self, entry: _Entry[Place]) -> None:
        self._first += 1
        self._held -= entry.size
        self._held_bytes -= entry.size_bytes
        self._passed += 1
        if entry.position is not None:
            self._places -= 1
            self._newest = entry.position
