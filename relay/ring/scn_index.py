"""The SCN index of a ring: a sparse, sorted map from SCNs to window positions.

It has one entry per block of windows, in a circular array of `index_slots` slots: entry `n`
is in slot `n % index_slots`. An entry has four 8-byte words:

    0  SCN of the block's first window
    1  logical position of that window
    2  SCN of the window before it
    3  check word over the other three and n

Word 2 becomes `prev_scn` when everything before the block is evicted: the *newest* SCN no
longer held. It is stored with the position it belongs to, so the two cannot disagree. The
check word covers n, so a slot that a later lap has overwritten, or that was never written,
is not taken for entry n.

This module evicts and publishes nothing; the caller keeps `first` and `next`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from databus.relay.ring.layout import MASK, PAGE_BYTES, UNKNOWN_SCN

if TYPE_CHECKING:
    from databus.relay.ring._core import RingData

_FACTORS = (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0xD6E8FEB86659FD93)
_SALT = 0x27D4EB2F165667C5


class IndexEntry(NamedTuple):
    """A block's first window: its SCN, its logical position, the SCN before it."""

    scn: int
    position: int
    prev_scn: int


class Extent(NamedTuple):
    """The bounds of a ring at one moment.

    In an empty ring `head == tail` and `min_scn` is UNKNOWN_SCN. The index entries in use
    are [first, end).
    """

    head: int
    tail: int
    min_scn: int
    prev_scn: int
    first: int
    end: int


class ScnIndex:
    """The index's entries, in the cells of a mapped ring file."""

    def __init__(self, cells: memoryview, slots: int, core: RingData | None = None) -> None:
        self._cells = cells
        self._slots = slots
        self._core = core

    def put(self, number: int, entry: IndexEntry) -> None:
        """Write an entry; it is valid once NEXT is past it."""
        at = self._at(number)
        scn, position, prev_scn = entry
        cells = self._cells
        cells[at] = scn
        cells[at + 1] = position
        cells[at + 2] = prev_scn & MASK
        cells[at + 3] = _check(number, scn, position, prev_scn & MASK)

    def get(self, number: int) -> IndexEntry | None:
        """Return entry `number`; None if its slot holds another entry, or is damaged."""
        if self._core is not None:
            words = self._core.index_entry(number, self._slots)
            return None if words is None else IndexEntry._make(words)
        at, cells = self._at(number), self._cells
        scn, position, prev_scn = cells[at], cells[at + 1], cells[at + 2]
        if cells[at + 3] != _check(number, scn, position, prev_scn):
            return None
        return IndexEntry(scn, position, prev_scn if prev_scn < 1 << 63 else UNKNOWN_SCN)

    def begin_of(self, number: int) -> tuple[int, int]:
        """Return an entry's position and prev_scn unchecked, for the writer that stored them."""
        at = self._at(number)
        prev_scn = self._cells[at + 2]
        return self._cells[at + 1], prev_scn if prev_scn < 1 << 63 else UNKNOWN_SCN

    def next_begin(self, position: int, first: int, end: int, tail: int) -> int:
        """Return where the first entry of [first, end) begins that is not before `position`.

        It is `tail` if all of them begin before.
        """
        for number in range(self.find_position(position, first, end), end):
            if (begin := self.begin_of(number)[0]) >= position:
                return begin
        return tail

    def wipe(self, number: int) -> None:
        """Erase the slot of entry `number`."""
        at = self._at(number)
        for word in range(at, at + 4):
            self._cells[word] = 0

    def find_scn(self, scn: int, first: int, end: int) -> int:
        """Return the last entry in [first, end) that begins at or before `scn`.

        Returns `first` if there is none. The caller then checks whether FIRST has moved:
        entries before it may have been overwritten during the search.
        """
        return self._bisect(0, scn, first, end)

    def find_position(self, position: int, first: int, end: int) -> int:
        """Return the last entry in [first, end) that begins at or before `position`."""
        return self._bisect(1, position, first, end)

    def _bisect(self, word: int, wanted: int, first: int, end: int) -> int:
        if self._core is not None:
            return self._core.index_bisect(word, wanted, first, end, self._slots)
        cells, slots = self._cells, self._slots
        base = PAGE_BYTES // 8 + word
        low, high = first, end - 1
        while low < high:
            middle = (low + high + 1) >> 1
            if cells[base + middle % slots * 4] <= wanted:
                low = middle
            else:
                high = middle - 1
        return low

    def _at(self, number: int) -> int:
        return PAGE_BYTES // 8 + number % self._slots * 4


def _check(number: int, scn: int, position: int, prev_scn: int) -> int:
    # Odd factors: a change of any single word always changes the sum.
    a, b, c, d = _FACTORS
    return (number * a + scn * b + position * c + prev_scn * d + _SALT) & MASK
