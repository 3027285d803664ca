"""Windows between a source and a ring: batches of whole windows, and pieces of one. Pure.

The bytes are version 2 events (`event/v2.py`); each window ends with its EOP. Pieces are
*unstamped*: SCN, timestamp and header CRC are zero until the end of the transaction is known.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

NO_SCN = -1
NO_PLACE = -1


class EncodedWindow(NamedTuple):
    """A whole window; `data` has its version 2 events and its EOP."""

    scn: int
    data: bytes
    timestamp_ns: int


# A window of a batch: SCN, end offset in the data, timestamp (ns), number of row events.
MARK = struct.Struct("<qqqq")


class WindowBatch(NamedTuple):
    """Consecutive whole windows with rising SCNs; each ends with its EOP.

    `marks` has a packed `MARK` for each window. So no code that fills, skips or appends windows
    makes an object per window.

    A *placed* batch has been written behind the newest window of its ring already: `place` is
    the position there, and `data` is empty. `Ring.lift` returns it with its data.
    """

    data: bytes
    marks: bytes
    place: int = NO_PLACE

    @property
    def first_scn(self) -> int:
        """SCN of the first window; NO_SCN without windows."""
        scn: int = MARK.unpack_from(self.marks)[0] if self.marks else NO_SCN
        return scn

    @property
    def last_scn(self) -> int:
        """SCN of the last window; NO_SCN without windows."""
        return self._mark(self.window_count - 1)[0] if self.marks else NO_SCN

    def after(self, scn: int) -> WindowBatch:
        """Return the windows newer than `scn`; a placed batch must not have older ones."""
        if scn < self.first_scn:
            return self
        count = self._count_until(scn)
        if count == 0:
            return self
        if self.is_placed:
            raise ValueError("windows of a placed batch are not to be taken out")
        begin = self._mark(count - 1)[1]
        marks = [
            MARK.pack(scn, end - begin, timestamp_ns, rows)
            for scn, end, timestamp_ns, rows in MARK.iter_unpack(self.marks[count * MARK.size :])
        ]
        return WindowBatch(self.data[begin:], b"".join(marks))

    def until(self, scn: int) -> WindowBatch:
        """Return the windows that are not newer than `scn`."""
        if scn >= self.last_scn:
            return self
        count = self._count_until(scn)
        end = self._mark(count - 1)[1] if count else 0
        return self._replace(data=self.data[:end], marks=self.marks[: count * MARK.size])

    def windows(self) -> Iterator[EncodedWindow]:
        """Yield the windows, each with a copy of its bytes."""
        begin = 0
        for scn, end, timestamp_ns, _ in MARK.iter_unpack(self.marks):
            yield EncodedWindow(scn, self.data[begin:end], timestamp_ns)
            begin = end

    @property
    def last_timestamp_ns(self) -> int:
        """Timestamp of the last window; the batch must not be empty."""
        return self._mark(self.window_count - 1)[2]

    @property
    def size_bytes(self) -> int:
        """Size of all windows."""
        return self._mark(self.window_count - 1)[1] if self.marks else 0

    @property
    def is_placed(self) -> bool:
        """Whether the data is in the ring already."""
        return self.place != NO_PLACE

    @property
    def row_count(self) -> int:
        """Number of row events."""
        # The fourth number of each mark, summed without unpacking the marks.
        return sum(memoryview(self.marks).cast("q")[3::4])

    @property
    def window_count(self) -> int:
        """Number of windows."""
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
    """A window without rows: the source's log was read up to this SCN."""

    scn: int
    timestamp_ns: int


class WindowPiece(NamedTuple):
    """Unstamped bytes of an unfinished window, from `at` bytes after its beginning on.

    They replace earlier pieces from `at` on, which were rolled back. The window's SCN is not
    known yet. `begin_scn` is the SCN of its beginning in the source's log: it is lower than the
    window's own, and not lower than that of any earlier window.
    """

    at: int
    data: bytes
    begin_scn: int


class WindowEnd(NamedTuple):
    """The end of a window that was delivered in pieces; `length` includes its EOP."""

    length: int
    scn: int
    timestamp_ns: int
    rows: int
