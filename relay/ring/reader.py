"""Read a ring: from any thread, any process, at any speed, never in the writer's way.

A reader takes no lock and writes nothing. It copies first and looks at head
afterwards: if head has passed where the copy began, the writer may have
overwritten what was copied, and the reader was overtaken.

What lay in the file when it was opened is checked before it is given out
(`check`): where it is damaged everything ends before it, and who asks for
what follows gets DamagedWindowsError.
"""

from __future__ import annotations

import os
from collections import deque
from pathlib import Path
from typing import NamedTuple

from databus.relay.ring.check import RingCheck
from databus.relay.ring.event_selector import (
    WINDOW_DONE,
    Position,
    Sieve,
    Sifted,
    may_have_ddl,
    sift,
)
from databus.relay.ring.events import EOP_BYTES, find_event, last_end, steps, timestamp_at
from databus.relay.ring.layout import (
    FIRST,
    GENERATION,
    HEAD,
    MASK,
    NEWEST_SCN,
    NEWEST_TIMESTAMP,
    NEXT,
    PREV_SCN,
    REPLACED,
    TAIL,
    UNKNOWN_SCN,
    RingFile,
    open_file,
)
from databus.relay.ring.row_count import Limits, RowCount, count_rows
from databus.relay.ring.scn_index import Extent, IndexEntry, ScnIndex
from databus.schemas.errors import (
    DamagedWindowsError,
    ProtocolError,
    RingCorruptError,
    RingError,
    ScnNotFoundError,
)
from databus.schemas.event.v2 import peek

_REMEMBERED_WINDOWS = 256
_PAST_EVERY_EVENT = 1 << 62


class Place(NamedTuple):
    """A position, and how many events of its window lie before it."""

    position: int
    offset: int


class RingReader:
    """A ring mapped read-only. Any thread may call any method but `close`.

    Positions are logical offsets and good for one request: ask `find` again
    for the next one, because a restarted writer may have dropped a damaged end.
    """

    def __init__(self, ring_file: RingFile, *, follows: bool = False) -> None:
        self._follows = follows
        self._openings = 0
        self._use(ring_file)

    @classmethod
    def open(cls, path: Path, *, follows: bool = False) -> RingReader:
        """Map the ring at `path`; raises RingCorruptError, or RingError when it isn't there.

        With `follows`, `find` opens the file again that took the name of this
        one: for a reader that one thread alone uses.
        """
        return cls(_map(path), follows=follows)

    def follow(self) -> None:
        """Open the ring again when another file has taken its name; raises RingError."""
        if not self.is_replaced:
            return
        ring_file = _map(self._file.path)
        if ring_file.cells[REPLACED]:
            ring_file.close()
            raise RingError(f"ring {self._file.path}: it is being replaced; ask again")
        self._file.close()
        self._use(ring_file)

    @property
    def is_replaced(self) -> bool:
        """Whether another file has taken this one's name."""
        return bool(self._cells[REPLACED])

    @property
    def opening(self) -> int:
        """Another number for each file that had the name: what was found is to be found anew."""
        return self._openings

    def _use(self, ring_file: RingFile) -> None:
        self._openings += 1
        self._file = ring_file
        self._cells = ring_file.cells
        self._index = ScnIndex(ring_file.cells, ring_file.layout.index_slots, ring_file.core)
        self.check = RingCheck(ring_file, self._index)
        self._generation = self._cells[GENERATION]
        self._remembered: dict[int, Place] = {}  # by SCN: how far requests into a window got
        self._without_ddl = (0, 0)  # from where to where there is none, as far as was looked

    def close(self) -> None:
        """Unmap the ring; no other thread may be in a call."""
        self._file.close()

    @property
    def name(self) -> str:
        """Name of the physical source."""
        return self._file.layout.name

    @property
    def capacity_bytes(self) -> int:
        """Size of the data region."""
        return self._file.capacity_bytes

    @property
    def head(self) -> int:
        """Position of the oldest window: where a flexible checkpoint starts."""
        head: int = self._cells[HEAD]
        return head

    @property
    def tail(self) -> int:
        """Position where the newest window ends."""
        tail: int = self._cells[TAIL]
        return tail

    @property
    def min_scn(self) -> int:
        """SCN of the oldest window; -1 when the ring is empty."""
        return self.extent().min_scn

    @property
    def max_scn(self) -> int:
        """SCN of the newest window; that of `prev_scn` when the ring is empty."""
        return self.newest()[0]

    @property
    def prev_scn(self) -> int:
        """Newest SCN not held any more, or never held; -1 when that isn't known.

        When nothing was ever evicted it is the SCN that capture started after:
        0 if that was the beginning of the source.
        """
        return self.extent().prev_scn

    @property
    def first_timestamp_ns(self) -> int:
        """Timestamp of the oldest event; 0 when the ring is empty."""
        while True:
            extent = self.extent()
            if extent.head == extent.tail:
                return 0
            timestamp_ns = self._checked_timestamp(extent.head)
            if self._cells[HEAD] <= extent.head:
                return timestamp_ns

    @property
    def latest_timestamp_ns(self) -> int:
        """Timestamp of the newest window; 0 when there never was one."""
        timestamp_ns: int = self._cells[NEWEST_TIMESTAMP]
        return timestamp_ns

    def extent(self) -> Extent:
        """Return what the ring holds, as of one moment."""
        cells = self._cells
        while True:
            first, end, tail = cells[FIRST], cells[NEXT], cells[TAIL]
            if first == end:
                prev_scn = self._file.scn(PREV_SCN)
                if cells[FIRST] == first and cells[NEXT] == end and cells[TAIL] == tail:
                    return Extent(tail, tail, UNKNOWN_SCN, prev_scn, first, end)
                continue
            oldest, last = self._index.get(first), self._index.get(end - 1)
            if cells[FIRST] != first:
                continue
            if oldest is None or last is None:
                raise RingCorruptError(str(self._file.path), "its index is damaged")
            if oldest.position >= tail:
                return Extent(tail, tail, UNKNOWN_SCN, oldest.prev_scn, first, first)
            if last.position >= tail:  # its window is not published yet
                end -= 1
            return Extent(oldest.position, tail, oldest.scn, oldest.prev_scn, first, end)

    def newest(self) -> tuple[int, int]:
        """Return the newest window's SCN and the position after it, belonging together."""
        cells = self._cells
        for _ in range(3):
            tail = cells[TAIL]
            scn = self._file.scn(NEWEST_SCN)
            # The writer changes tail's complement first and tail last: while
            # they match, what was read in between belongs to this tail.
            if cells[TAIL + 1] ^ tail == MASK:
                return scn, tail
        return self._walk_to_newest()

    def find(self, scn: int, window_offset: int) -> int | None:
        """Return the position of the first event after (scn, window_offset).

        `window_offset` counts all events of the window, -1 stands for all. An
        SCN between two windows is followed by the later one. SCN 0 is "the
        beginning": answered only by a ring from which nothing is missing.

        None when the point is newer than all the ring holds: nothing may be
        sent until the ring has caught up with it. Raises ScnNotFoundError when
        events after the point are no longer held, or damaged.
        """
        self._check_generation()
        while True:
            extent = self.extent()
            begin = self._begin_walk(extent, scn, window_offset)
            if begin is None or begin.position == extent.tail:
                return None if begin is None else extent.tail
            try:
                found = self._walk(begin, extent.tail, scn, window_offset)
            except ProtocolError as error:
                self._explain(error, begin.position)
                continue
            if self._cells[HEAD] <= begin.position:
                return found

    def window_at(self, scn: int) -> tuple[int, int] | None:
        """Return SCN and timestamp of the newest window up to `scn`; None when it is not held."""
        try:
            position = self.find(scn, WINDOW_DONE)
            if position is None or position - EOP_BYTES < self._cells[HEAD]:
                return None
            end = peek(self.read(position - EOP_BYTES, EOP_BYTES))
        except ScnNotFoundError:
            return None
        return end.scn, end.timestamp_ns

    def read(self, position: int, max_bytes: int) -> bytes:
        """Copy bytes from `position` up to the published tail, b"" at the tail.

        The end may cut an event, but for one at damage. Raises ScnNotFoundError
        when overtaken, or damaged from here on.
        """
        end = self.check.reach(position, min(position + max_bytes, self._cells[TAIL]))
        length = end - position
        data = self._file.copy_out(position, length) if length > 0 else b""
        if self._cells[HEAD] > position:
            extent = self.extent()
            raise ScnNotFoundError(extent.prev_scn, extent.min_scn)
        return data

    def sift(
        self, position: int, max_bytes: int, sieve: Sieve, place: Position, room_bytes: int
    ) -> Sifted | None:
        """Return what passes of the next `max_bytes`, one event at least; None at the tail.

        `place` and the errors are those of `event_selector.sift`; raises
        ScnNotFoundError when overtaken.
        """
        tail = self._cells[TAIL]
        if position >= tail:
            return None
        end = self.check.reach(position, min(position + max_bytes, tail))
        sifted = None
        try:
            sifted = sift(self._file, position, end, tail, sieve, place, room_bytes)
        except ProtocolError as error:
            self._explain(error, position)
        if self._cells[HEAD] > position:
            extent = self.extent()
            raise ScnNotFoundError(extent.prev_scn, extent.min_scn)
        return sifted

    def count(
        self, so_far: RowCount, max_bytes: int, tail: int, sieve: Sieve, limits: Limits
    ) -> RowCount:
        """Count the rows of the next `max_bytes`, and no further than `tail`.

        Errors are those of `row_count.count_rows`; raises ScnNotFoundError when overtaken.
        """
        position = so_far.position
        end = self.check.reach(position, min(position + max_bytes, tail))
        try:
            so_far = count_rows(self._file, end, tail, sieve, limits, so_far)
        except ProtocolError as error:
            self._explain(error, position)
        if self._cells[HEAD] > position:
            extent = self.extent()
            raise ScnNotFoundError(extent.prev_scn, extent.min_scn)
        return so_far

    def block_before(self, timestamp_ns: int) -> IndexEntry | None:
        """Return a block whose first window was committed before a time, the oldest when none was.

        The last such block where commit times never go back. None when the ring is empty.
        """
        while True:
            extent = self.extent()
            if extent.head == extent.tail:
                return None
            low, high = extent.first, extent.end - 1
            while low < high:
                middle = (low + high + 1) >> 1
                entry = self._index.get(middle)
                if entry is None:
                    break  # evicted and overwritten meanwhile
                self.check.reach(entry.position, entry.position + 1)
                if timestamp_at(self._file, entry.position) < timestamp_ns:
                    low = middle
                else:
                    high = middle - 1
            found = self._index.get(low)
            if low == high and found is not None and self._cells[FIRST] <= low:
                return found

    def block_before_position(self, end: int) -> int | None:
        """Return where the last block begins that begins before `end`; None when none does."""
        while True:
            extent = self.extent()
            if end <= extent.head or extent.head == extent.tail:
                return None
            number = self._index.find_position(end - 1, extent.first, extent.end)
            entry = self._index.get(number)
            if entry is not None and self._cells[FIRST] <= number:
                return entry.position

    def timestamp_at(self, position: int) -> int:
        """Return the timestamp of the event that begins at a position; 0 when it is gone."""
        if not self._cells[HEAD] <= position < self._cells[TAIL]:
            return 0
        timestamp_ns = self._checked_timestamp(position)
        return timestamp_ns if self._cells[HEAD] <= position else 0

    def _checked_timestamp(self, position: int) -> int:
        """Return the timestamp of the event there; 0 where that is damaged."""
        try:
            self.check.reach(position, position + 1)
        except (DamagedWindowsError, RingCorruptError):
            return 0
        return timestamp_at(self._file, position)

    def end_of_windows(self, position: int, max_bytes: int, slack_bytes: int = 0) -> int:
        """Return where the last window ends that ends within `max_bytes` of `position`.

        `position` itself when none does. Looks at one block of the ring at
        most, whatever `max_bytes` is; and at none when the index knows of an
        end that is no more than `slack_bytes` short of the limit.
        """
        while True:
            extent = self.extent()
            limit = position + max_bytes
            sound_end = self.check.reach(position, min(limit, extent.tail))
            if sound_end < min(limit, extent.tail):
                return sound_end
            if extent.tail <= limit:
                return max(extent.tail, position)
            number = self._index.find_position(limit, extent.first, extent.end)
            entry = self._index.get(number)
            start = max(entry.position, position) if entry and entry.position <= limit else position
            if start > position and limit - start <= slack_bytes and self._cells[FIRST] <= number:
                return start
            end = start
            try:
                end = last_end(self._file, start, extent.tail, limit)
            except ProtocolError as error:
                self._explain(error, position)
            if self._cells[HEAD] > position:
                return position  # overtaken: `read` says so
            if self._cells[FIRST] <= number:
                return end

    def may_have_ddl(self, position: int, windows: bytes) -> bool:
        """Say whether there may be a DDL event in whole windows that were read there.

        What one request looked at, the next ones, of whichever client, need not.
        """
        end = position + len(windows)
        known_from, known_to = self._without_ddl
        if known_from <= position and end <= known_to:
            return False
        if may_have_ddl(windows):
            return True
        if known_from <= position <= known_to or position <= known_from <= end:
            position, end = min(position, known_from), max(end, known_to)
        self._without_ddl = position, end
        return False

    def remember_end(self, scn: int, position: int) -> None:
        """Note that window `scn` ends at `position`: its reader will ask for what follows it."""
        self._remember(scn, Place(position, _PAST_EVERY_EVENT))

    def _begin_walk(self, extent: Extent, scn: int, window_offset: int) -> Place | None:
        """Return where to walk from to find the point; None when it is ahead of the ring."""
        has_rest = window_offset >= 0 and scn > 0  # there is no window 0 to be in the middle of
        is_empty = extent.head == extent.tail
        if is_empty and (extent.prev_scn == UNKNOWN_SCN or scn > extent.prev_scn):
            return None
        if is_empty or scn < extent.min_scn:
            is_next = scn == extent.prev_scn and not has_rest
            if extent.prev_scn == UNKNOWN_SCN or not (is_next or scn > extent.prev_scn):
                raise ScnNotFoundError(scn, extent.min_scn)
            return Place(extent.head, 0)
        if not has_rest and (scn, extent.tail) == self.newest():
            return Place(extent.tail, 0)
        remembered = self._remembered.get(scn)
        is_held = remembered is not None and remembered.position >= extent.head
        if remembered and is_held and (not has_rest or remembered.offset <= window_offset):
            return remembered
        number = self._index.find_scn(scn, extent.first, extent.end)
        following = self._index.get(number + 1) if number + 1 < extent.end else None
        if following and not has_rest and scn >= following.prev_scn:
            return Place(following.position, 0)
        entry = self._index.get(number)
        # None: evicted and overwritten meanwhile; head has moved too.
        return Place(extent.head if entry is None else entry.position, 0)

    def _walk(self, begin: Place, tail: int, scn: int, window_offset: int) -> int | None:
        """Go on from `begin` to the point asked for."""
        to_skip = window_offset - begin.offset if window_offset >= 0 else -1
        end = self.check.block_reach(begin.position, tail)
        position, newest = find_event(self._file, begin.position, end, scn, to_skip)
        if position == end < tail:
            self.check.reach(position, position + 1)  # what follows the point, unless it is damaged
            return position
        if position < tail and newest == scn:
            self._remember(scn, Place(position, window_offset))
        return None if newest < scn else position

    def _remember(self, scn: int, place: Place) -> None:
        """Note how far a window was read, so that a huge one isn't walked again and again."""
        if len(self._remembered) >= _REMEMBERED_WINDOWS:
            self._remembered.clear()
        self._remembered[scn] = place

    def _walk_to_newest(self) -> tuple[int, int]:
        """Find the newest SCN by its window: the writer stopped in the middle of publishing."""
        while True:
            extent = self.extent()
            if extent.head == extent.tail:
                return extent.prev_scn, extent.tail
            number = self._index.find_position(extent.tail - 1, extent.first, extent.end)
            entry = self._index.get(number)
            start = extent.head if entry is None else entry.position
            try:
                last = deque(steps(self._file, start, extent.tail), maxlen=1)
            except ProtocolError as error:
                self._explain(error, start)
                continue
            if last and self._cells[HEAD] <= start:
                return last[0].scn, extent.tail

    def _explain(self, error: ProtocolError, start: int) -> None:
        """Return when the writer has overtaken a walk from `start`; otherwise it is damage."""
        if self._cells[HEAD] <= start:
            # It came to harm since it was written or checked: whose it is says the block.
            self.check.check_at(start)
            raise RingCorruptError(str(self._file.path), str(error)) from error

    def _check_generation(self) -> None:
        if self._cells[REPLACED]:
            if not self._follows:
                raise RingError(f"ring {self._file.path}: replaced by another file; open it again")
            self.follow()
        generation = self._cells[GENERATION]
        if generation != self._generation:
            self._generation = generation
            self._remembered.clear()
            self._without_ddl = 0, 0
            self.check = RingCheck(self._file, self._index)  # it was at rest in between


def _map(path: Path) -> RingFile:
    try:
        fd = os.open(path, os.O_RDONLY)
        try:
            return open_file(path, fd, writable=False)
        finally:
            os.close(fd)
    except OSError as error:
        raise RingError(f"ring {path}: {error}") from error
