"""Read a ring from any thread or process, at any speed, without delaying the writer.

A reader takes no lock and writes nothing. It copies first and reads head afterwards: if head
has passed the begin of the copy, it was overtaken, and the bytes may be of newer windows.

Bytes that were in the file when it was opened are checked before they are returned (`check`).
A read ends before damage, and a read that starts at damage raises DamagedWindowsError.
"""

from __future__ import annotations

from collections import deque
from pathlib import Path
from typing import NamedTuple

from databus.relay.ring.check import RingCheck
from databus.relay.ring.event_selector import (
    WINDOW_DONE,
    EventSelector,
    Position,
    SelectedEvents,
    has_optional,
    select_events,
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
    map_file,
)
from databus.relay.ring.row_count import Limits, RowCount, count_rows
from databus.relay.ring.scn_index import Extent, IndexEntry, ScnIndex
from databus.relay.ring.shared_copies import Range, SharedCopies
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

    Positions are logical offsets and valid for one request. Call `find` again for the next
    one, because a restarted writer may have dropped a damaged end.
    """

    def __init__(
        self, ring_file: RingFile, *, follows: bool = False, copies: SharedCopies | None = None
    ) -> None:
        self._follows = follows
        self._copies = copies or SharedCopies()
        self._openings = 0
        self._use(ring_file)

    @classmethod
    def open(
        cls, path: Path, *, follows: bool = False, copies: SharedCopies | None = None
    ) -> RingReader:
        """Map the ring at `path`; raises RingCorruptError, or RingError if there is none.

        With `follows`, `find` opens a file that has replaced this one. Use it only for a
        reader that belongs to one thread. `copies` may be shared with readers of other rings.
        """
        return cls(map_file(path), follows=follows, copies=copies)

    def follow(self) -> None:
        """Open the ring again if another file has replaced it; raises RingError."""
        if not self.is_replaced:
            return
        ring_file = map_file(self._file.path)
        if ring_file.cells[REPLACED]:
            ring_file.close()
            raise RingError(f"ring {self._file.path}: it is being replaced; ask again")
        self._file.close()
        self._use(ring_file)

    @property
    def is_replaced(self) -> bool:
        """Whether another file has replaced this one."""
        return bool(self._cells[REPLACED])

    @property
    def opening(self) -> int:
        """Number of files opened so far; positions found in an earlier one are invalid."""
        return self._openings

    def _use(self, ring_file: RingFile) -> None:
        self._openings += 1
        self._file = ring_file
        self._cells = ring_file.cells
        self._index = ScnIndex(ring_file.cells, ring_file.layout.index_slots, ring_file.core)
        self.check = RingCheck(ring_file, self._index)
        self._generation = self._cells[GENERATION]
        self._remembered: dict[int, Place] = {}  # by SCN: progress of requests into a window
        self._without_optional = (0, 0)  # the range known to contain no optional events

    def close(self) -> None:
        """Unmap the ring; no other thread may be in a call."""
        self._file.close()

    @property
    def name(self) -> str:
        """Name of the physical source."""
        return self._file.layout.name

    @property
    def ring_id(self) -> int:
        """What tells this ring from another one, and from itself before it was emptied."""
        return self._file.ring_id()

    @property
    def capacity_bytes(self) -> int:
        """Size of the data region."""
        return self._file.capacity_bytes

    @property
    def head(self) -> int:
        """Position of the oldest window, where a flexible checkpoint starts."""
        return int(self._cells[HEAD])

    @property
    def tail(self) -> int:
        """Position where the newest window ends."""
        return int(self._cells[TAIL])

    @property
    def min_scn(self) -> int:
        """SCN of the oldest window; -1 if the ring is empty."""
        return self.extent().min_scn

    @property
    def max_scn(self) -> int:
        """SCN of the newest window; equal to `prev_scn` if the ring is empty."""
        return self.newest()[0]

    @property
    def prev_scn(self) -> int:
        """Newest SCN no longer held, or after which capture began (0: all is held); -1: unknown."""
        return self.extent().prev_scn

    @property
    def first_timestamp_ns(self) -> int:
        """Timestamp of the oldest event; 0 if the ring is empty."""
        while True:
            extent = self.extent()
            if extent.head == extent.tail:
                return 0
            timestamp_ns = self._checked_timestamp(extent.head)
            if self._cells[HEAD] <= extent.head:
                return timestamp_ns

    @property
    def latest_timestamp_ns(self) -> int:
        """Timestamp of the newest window; 0 if there never was one."""
        return int(self._cells[NEWEST_TIMESTAMP])

    def extent(self) -> Extent:
        """Return a consistent snapshot of the ring's bounds."""
        cells = self._cells
        while True:
            first, end, tail = cells[FIRST], cells[NEXT], cells[TAIL]
            if first == end:
                prev_scn = self._file.scn(PREV_SCN)
                if cells[FIRST] == first and cells[NEXT] == end and cells[TAIL] == tail:
                    return Extent(tail, tail, UNKNOWN_SCN, prev_scn, first, end)
                continue
            oldest, last, head = self._index.get(first), self._index.get(end - 1), cells[HEAD]
            if cells[FIRST] != first:
                continue
            if oldest is None or last is None:
                raise RingCorruptError(str(self._file.path), "its index is damaged")
            if oldest.position >= tail:
                return Extent(tail, tail, UNKNOWN_SCN, oldest.prev_scn, first, first)
            if head == tail:  # the ring passes over a window that only the relay log has
                return Extent(tail, tail, UNKNOWN_SCN, oldest.scn, end, end)
            if last.position >= tail:  # the entry's window is not published yet
                end -= 1
            return Extent(oldest.position, tail, oldest.scn, oldest.prev_scn, first, end)

    def newest(self) -> tuple[int, int]:
        """Return the newest window's SCN and end position, as one consistent pair."""
        cells = self._cells
        for _ in range(3):
            tail = cells[TAIL]
            scn = self._file.scn(NEWEST_SCN)
            # The complement is changed first, tail last: while they match, it is of this tail.
            if cells[TAIL + 1] ^ tail == MASK:
                return scn, tail
        return self._walk_to_newest()

    def find(self, scn: int, window_offset: int) -> int | None:
        """Return the position of the first event after (scn, window_offset).

        `window_offset` counts all events of the window; -1 means the whole window. After an
        SCN between two windows comes the later window. SCN 0 means the beginning of the
        source, and is found only if no window of the source is missing.

        Returns None if the point is newer than the ring's newest window: nothing may be sent
        until the ring has caught up with it. Raises ScnNotFoundError if events after the
        point are no longer held, or are damaged.
        """
        self._check_generation()
        while True:
            extent = self.extent()
            begin = self._begin_walk(extent, scn, window_offset)
            if begin is None or begin.position == extent.tail:
                return None if begin is None else extent.tail
            try:
                if self._is_unread(extent, scn, window_offset):
                    raise ScnNotFoundError(scn, extent.min_scn)
                found = self._walk(begin, extent.tail, scn, window_offset)
            except ProtocolError as error:
                self._explain(error, begin.position)
                continue
            if self._cells[HEAD] <= begin.position:
                return found

    def window_at(self, scn: int) -> tuple[int, int] | None:
        """Return SCN and timestamp of the newest window up to `scn`; None if it is not held."""
        try:
            position = self.find(scn, WINDOW_DONE)
            if position is None or position - EOP_BYTES < self._cells[HEAD]:
                return None
            end = peek(self.read(position - EOP_BYTES, EOP_BYTES))
        except ScnNotFoundError:
            return None
        return end.scn, end.timestamp_ns

    def read(self, position: int, max_bytes: int) -> bytes:
        """Copy bytes from `position` up to the published tail; b"" at the tail.

        The copy may end inside an event, except before damage. Raises ScnNotFoundError if
        the reader was overtaken, or if the bytes at `position` are damaged.
        """
        # Before tail: bytes before an older writer's tail are not valid in a newer generation.
        generation, check = self._cells[GENERATION], self.check
        end = check.reach(position, min(position + max_bytes, self._cells[TAIL]))
        data: bytes | None = b""
        if end > position:
            wanted = Range(self._file, generation, check.doubts, position, end - position)
            data = self._copies.read(wanted)
        if data is None or self._cells[HEAD] > position:
            raise self._overtaken()
        return data

    def select(
        self,
        position: int,
        max_bytes: int,
        selector: EventSelector,
        place: Position,
        room_bytes: int,
    ) -> SelectedEvents | None:
        """Return the events that pass in the next `max_bytes`; None at the tail.

        At least one event is read. `place` and the errors are those of
        `event_selector.select_events`; raises ScnNotFoundError if overtaken.
        """
        tail = self._cells[TAIL]
        if position >= tail:
            return None
        end = self.check.reach(position, min(position + max_bytes, tail))
        selected = None
        try:
            selected = select_events(self._file, position, end, tail, selector, place, room_bytes)
        except ProtocolError as error:
            self._explain(error, position)
        if self._cells[HEAD] > position:
            raise self._overtaken()
        return selected

    def count(
        self, so_far: RowCount, max_bytes: int, tail: int, selector: EventSelector, limits: Limits
    ) -> RowCount:
        """Count the rows in the next `max_bytes`, but not beyond `tail`.

        The errors are those of `row_count.count_rows`; raises ScnNotFoundError if overtaken.
        """
        position = so_far.position
        end = self.check.reach(position, min(position + max_bytes, tail))
        try:
            so_far = count_rows(self._file, end, tail, selector, limits, so_far)
        except ProtocolError as error:
            self._explain(error, position)
        if self._cells[HEAD] > position:
            raise self._overtaken()
        return so_far

    def _overtaken(self) -> ScnNotFoundError:
        extent = self.extent()
        return ScnNotFoundError(extent.prev_scn, extent.min_scn)

    def block_before(self, timestamp_ns: int) -> IndexEntry | None:
        """Return a block whose first window was committed before a time, or else the oldest one.

        It is the last such block if commit times never decrease. None if the ring is empty.
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
        """Return the begin of the last block that begins before `end`; None without one."""
        while True:
            extent = self.extent()
            if end <= extent.head or extent.head == extent.tail:
                return None
            number = self._index.find_position(end - 1, extent.first, extent.end)
            entry = self._index.get(number)
            if entry is not None and self._cells[FIRST] <= number:
                return entry.position

    def timestamp_at(self, position: int) -> int:
        """Return the timestamp of the event that begins at a position; 0 if it is overwritten."""
        if not self._cells[HEAD] <= position < self._cells[TAIL]:
            return 0
        timestamp_ns = self._checked_timestamp(position)
        return timestamp_ns if self._cells[HEAD] <= position else 0

    def _checked_timestamp(self, position: int) -> int:
        """Return the timestamp of the event at a position; 0 if it is damaged."""
        try:
            self.check.reach(position, position + 1)
        except (DamagedWindowsError, RingCorruptError):
            return 0
        return timestamp_at(self._file, position)

    def end_of_windows(self, position: int, max_bytes: int, slack_bytes: int = 0) -> int:
        """Return the end of the last window that ends within `max_bytes` of `position`.

        Returns `position` itself if there is none. Scans one block at most, whatever `max_bytes`
        is, and none if the index has the end of a window at most `slack_bytes` before the limit.
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

    def has_optional(self, position: int, windows: bytes) -> bool:
        """Return whether whole windows read at `position` contain a statement or a truncate.

        A range found without them is remembered, so later requests do not scan it again.
        """
        end = position + len(windows)
        known_from, known_to = self._without_optional
        if known_from <= position and end <= known_to:
            return False
        if has_optional(windows):
            return True
        if known_from <= position <= known_to or position <= known_from <= end:
            position, end = min(position, known_from), max(end, known_to)
        self._without_optional = position, end
        return False

    def remember_end(self, scn: int, position: int) -> None:
        """Remember that window `scn` ends at `position`, where its reader continues."""
        self._remember(scn, Place(position, _PAST_EVERY_EVENT))

    def _is_unread(self, extent: Extent, scn: int, window_offset: int) -> bool:
        """Return whether a point is inside the window after which capture began: an empty one."""
        is_oldest = window_offset >= 0 and scn == extent.min_scn and extent.prev_scn == UNKNOWN_SCN
        return is_oldest and next(steps(self._file, extent.head, extent.tail)).is_eop

    def _begin_walk(self, extent: Extent, scn: int, window_offset: int) -> Place | None:
        """Return the place from which to walk to the point; None if it is ahead of the ring."""
        has_rest = window_offset >= 0 and scn > 0  # window 0 does not exist, so it has no rest
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
        # Without an entry the block was evicted meanwhile, so head has moved too.
        return Place(extent.head if entry is None else entry.position, 0)

    def _walk(self, begin: Place, tail: int, scn: int, window_offset: int) -> int | None:
        """Walk from `begin` to the requested point; None if it is ahead of the ring."""
        to_skip = window_offset - begin.offset if window_offset >= 0 else -1
        end = self.check.block_reach(begin.position, tail)
        position, newest = find_event(self._file, begin.position, end, scn, to_skip)
        if position == end < tail:
            self.check.reach(position, position + 1)  # raises if damage follows the point
            return position
        if position < tail and newest == scn:
            self._remember(scn, Place(position, window_offset))
        return None if newest < scn else position

    def _remember(self, scn: int, place: Place) -> None:
        """Remember a place in a window, so that a huge one is not walked once per request."""
        if len(self._remembered) >= _REMEMBERED_WINDOWS:
            self._remembered.clear()
        self._remembered[scn] = place

    def _walk_to_newest(self) -> tuple[int, int]:
        """Find the newest SCN in the data, because the writer stopped while publishing it."""
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
        """Return if the writer has overtaken a walk from `start`; otherwise raise for damage."""
        if self._cells[HEAD] <= start:
            # Damaged after it was written or checked; the block's check names the windows.
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
            self._without_optional = 0, 0
            # The file was at rest between the two writers, so all of it is checked again.
            self.check = RingCheck(self._file, self._index)
