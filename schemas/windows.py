"""Windows on their way into a ring: whole ones, many at once, and one that comes in pieces. Pure.

The bytes are version 2 events (`event/v2.py`), each window ended by its EOP. What
a source hands over in pieces is *unstamped*: SCN, timestamp and header CRC are
zero until the transaction's end tells them.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

NO_SCN = -1


class EncodedWindow(NamedTuple):
    """A window ready for the ring: `data` is its v2 events and the EOP that ends it."""

    scn: int
    data: bytes
    timestamp_ns: int


# A window of a batch: SCN, where in the data it ends, timestamp (ns), number of row events.
MARK = struct.Struct("<qqqq")


class WindowBatch(NamedTuple):
    """Whole windows in one piece: the bytes of one after another, SCNs rising.

    Each ends with its EOP. `marks` has a `MARK` for each window: no object is
    made per window by whoever fills, drops or appends them.
    """

    data: bytes
    marks: bytes

    @property
    def first_scn(self) -> int:
        """SCN of the first window; NO_SCN when there is none."""
        scn: int = MARK.unpack_from(self.marks)[0] if self.marks else NO_SCN
        return scn

    @property
    def last_scn(self) -> int:
        """SCN of the last window; NO_SCN when there is none."""
        return self._mark(self.window_count - 1)[0] if self.marks else NO_SCN

    def after(self, scn: int) -> WindowBatch:
        """Return the windows newer than `scn`."""
        count = self._count_until(scn)
        if count == 0:
            return self
        begin = self._mark(count - 1)[1]
        marks = [
            MARK.pack(scn, end - begin, timestamp_ns, rows)
            for scn, end, timestamp_ns, rows in MARK.iter_unpack(self.marks[count * MARK.size :])
        ]
        return WindowBatch(self.data[begin:], b"".join(marks))

    def until(self, scn: int) -> WindowBatch:
        """Return the windows that are not newer than `scn`."""
        count = self._count_until(scn)
        if count == self.window_count:
            return self
        end = self._mark(count - 1)[1] if count else 0
        return WindowBatch(self.data[:end], self.marks[: count * MARK.size])

    def windows(self) -> Iterator[EncodedWindow]:
        """Yield the windows, each with a copy of its bytes."""
        begin = 0
        for scn, end, timestamp_ns, _ in MARK.iter_unpack(self.marks):
            yield EncodedWindow(scn, self.data[begin:end], timestamp_ns)
            begin = end

    @property
    def last_timestamp_ns(self) -> int:
        """Timestamp of the last window; there must be one."""
        return self._mark(self.window_count - 1)[2]

    @property
    def row_count(self) -> int:
        """How many row events there are."""
        return sum(memoryview(self.marks).cast("q")[3::4])

    @property
    def window_count(self) -> int:
        """How many windows there are."""
        return len(self.marks) // MARK.size

    def _count_until(self, scn: int) -> int:
        low, high = 0, self.window_count
        while low < high:
            middle = (low + high) // 2
            if self._mark(middle)[0] <= scn:
                low = middle + 1
            else:
                high = middle
        return low

    def _mark(self, number: int) -> tuple[int, int, int, int]:
        return MARK.unpack_from(self.marks, number * MARK.size)


class EmptyWindow(NamedTuple):
    """A place in the source's log behind which nothing of it is missing: a window without rows."""

    scn: int
    timestamp_ns: int


class WindowPiece(NamedTuple):
    """Unstamped bytes of a window that is not finished, `at` bytes behind where it begins.

    What was handed over of it beyond `at` is taken back. Its own SCN is not
    known yet, but that of the place where it begins in the source's log, which
    is before that of its end and not before that of any earlier window.
    """

    at: int
    data: bytes
    begin_scn: int


class WindowEnd(NamedTuple):
    """A window that came in pieces is finished: `length` bytes, its EOP included."""

    length: int
    scn: int
    timestamp_ns: int
    rows: int
