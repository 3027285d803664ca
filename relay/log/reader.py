"""Read a relay log by SCN or by time, as `RingReader` reads a ring.

A reader sees the synced windows only. It has one segment open at a time, under a shared lock of
its file: what deletes old segments leaves such a file alone, in whichever process the reader is.

Damage is found by a frame's checksum, and refused as windows that cannot be read. The frames
before and after it are read.
"""

from __future__ import annotations

import fcntl
from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from zstandard import ZstdDecompressor

from databus.relay.log.frames.frame_events import FrameEvents
from databus.relay.log.frames.open_segment import OpenSegment, position_of
from databus.relay.log.frames.stored_windows import (
    StoredWindows,
    find_stored,
    rest_of_frame,
)
from databus.relay.log.gtids.frame_gtids import GtidKey
from databus.relay.log.gtids.gtid_span import GtidSpan, find_span
from databus.relay.log.layout import GOES_ON, UNKNOWN_SCN, IndexEntry
from databus.relay.log.segment import Segment, read_frame, read_index
from databus.relay.ring.event_selector import (
    WINDOW_DONE,
    EventSelector,
    Position,
    SelectedEvents,
    has_optional,
    select_events,
)
from databus.relay.ring.events import EOP_BYTES, find_event, last_end, steps, timestamp_at
from databus.relay.ring.row_count import Limits, RowCount, count_rows
from databus.schemas.errors import (
    DamagedWindowsError,
    ProtocolError,
    RelayLogDamagedError,
    RelayLogError,
    ScnNotFoundError,
)
from databus.schemas.event.v2 import peek


class SegmentList(Protocol):
    """The segments of one log, oldest first; a new tuple when one is added or deleted."""

    @property
    def segments(self) -> Sequence[Segment]:
        """The segments."""
        ...

    @property
    def openings(self) -> int:
        """Number of logs begun anew: positions of an earlier one are not valid."""
        ...


class SegmentTuple(NamedTuple):
    """The segments of a log that nobody writes to."""

    segments: tuple[Segment, ...]
    openings: int = 0


class LogReader:
    """Reads one log. One thread at a time may call it; `close` must follow.

    Positions are those of the log; they are not positions of the ring.
    """

    def __init__(self, log: SegmentList) -> None:
        self._log = log
        self._open: OpenSegment | None = None
        self._frame: tuple[int, FrameEvents] | None = None  # with its position
        self._decompressor = ZstdDecompressor()
        self.decompressed = 0  # frames, for tests and statistics

    def close(self) -> None:
        """Close the open segment, unless a part of it is being sent; may be called twice."""
        self._forget_frame()
        self._open = None

    @property
    def opening(self) -> int:
        """Changes when the log begins anew; positions found before are then invalid."""
        return self._log.openings

    @property
    def head(self) -> int:
        """Position of the oldest window; that of the end without one."""
        segments = self._log.segments
        return segments[0].header.position if segments else 0

    @property
    def tail(self) -> int:
        """Position where the newest window ends."""
        return self.newest()[1]

    @property
    def min_scn(self) -> int:
        """SCN of the oldest window; -1 without one."""
        segments = self._log.segments
        if not segments or self.head == self.tail:
            return UNKNOWN_SCN
        return segments[0].header.first_scn

    @property
    def max_scn(self) -> int:
        """SCN of the newest window; -1 without one."""
        return self.newest()[0]

    @property
    def prev_scn(self) -> int:
        """Newest SCN before the oldest window; -1 if unknown."""
        segments = self._log.segments
        return segments[0].header.prev_scn if segments else UNKNOWN_SCN

    def newest(self) -> tuple[int, int]:
        """Return the newest window's SCN and end position."""
        segments = self._log.segments
        if not segments:
            return UNKNOWN_SCN, 0
        end = segments[-1].end
        return end.scn, end.position

    def find(self, scn: int, window_offset: int) -> int | None:
        """Return the position of the first event after (scn, window_offset), as `RingReader.find`.

        None if the point is newer than the newest window. Raises ScnNotFoundError.
        """
        segments = self._log.segments
        has_rest = window_offset >= 0 and scn > 0
        newest, tail = self.newest()
        if self.min_scn == UNKNOWN_SCN or scn > newest:
            return None
        if scn < self.min_scn:
            is_next = scn == self.prev_scn and not has_rest
            if self.prev_scn == UNKNOWN_SCN or not (is_next or scn > self.prev_scn):
                raise ScnNotFoundError(scn, self.min_scn)
            return self.head
        if scn == newest and not has_rest:
            return tail
        segment = segments[bisect_right(segments, scn, key=_first_scn_of) - 1]
        if scn >= segment.end.scn and not has_rest:
            return segment.end.position
        if has_rest and scn == self.min_scn and self._begins_unread():
            raise ScnNotFoundError(scn, self.min_scn)
        return self._find_in(self._use(segment), scn, window_offset if has_rest else WINDOW_DONE)

    def find_time(self, timestamp_ns: int) -> int | None:
        """Return the position of the first window, in log order, committed at or after a time.

        None if there is none yet. Raises ScnNotFoundError if it may be older than the log. Commit
        times may fall from window to window: earlier ones come after it, too.
        """
        segments = self._log.segments
        number = bisect_right(segments, timestamp_ns - 1, key=_newest_timestamp_of)
        if self.min_scn == UNKNOWN_SCN or number == len(segments):
            return None
        position = self._find_time_in(self._use(segments[number]), timestamp_ns)
        before_ns = segments[0].header.newest_timestamp_ns
        is_certain = self.prev_scn == 0 or 0 < before_ns < timestamp_ns
        if position == self.head and not is_certain:
            raise ScnNotFoundError(self.prev_scn, self.min_scn, "the time may be before the log")
        return position

    def window_at(self, scn: int) -> tuple[int, int] | None:
        """Return SCN and timestamp of the newest window up to `scn`; None if it is not held."""
        try:
            position = self.find(scn, WINDOW_DONE)
            if position is None or position - EOP_BYTES < self.head:
                return None
            event = peek(self.read(position - EOP_BYTES, EOP_BYTES))
        except ScnNotFoundError:
            return None
        return event.scn, event.timestamp_ns

    def read(self, position: int, max_bytes: int) -> bytes:
        """Return bytes from `position` on; b"" at the end. Raises ScnNotFoundError."""
        end = min(position + max_bytes, self.tail)
        pieces = []
        while position < end:
            base, frame = self._load(position)
            size = min(end, base + frame.capacity_bytes) - position
            pieces.append(frame.copy_out(position - base, size))
            position += size
        return b"".join(pieces)

    def select(
        self,
        position: int,
        max_bytes: int,
        selector: EventSelector,
        place: Position,
        room_bytes: int,
    ) -> SelectedEvents | None:
        """Return the events that pass in the next `max_bytes` of a frame; None at the end.

        At least one event is read. `place` and the errors are those of
        `event_selector.select_events`; raises ScnNotFoundError.
        """
        if position >= self.tail:
            return None
        base, frame = self._load(position)
        begin, size = position - base, frame.capacity_bytes
        try:
            found = select_events(
                frame, begin, min(begin + max_bytes, size), size, selector, place, room_bytes
            )
        except ProtocolError as error:
            raise self._damaged(position) from error
        return found._replace(position=found.position + base)

    def count(
        self, so_far: RowCount, max_bytes: int, tail: int, selector: EventSelector, limits: Limits
    ) -> RowCount:
        """Count the rows in the next `max_bytes` of a frame, but not beyond `tail`.

        The errors are those of `row_count.count_rows`; raises ScnNotFoundError.
        """
        base, frame = self._load(so_far.position)
        begin = so_far.position - base
        stop = min(frame.capacity_bytes, tail - base)
        try:
            found = count_rows(
                frame,
                min(begin + max_bytes, stop),
                stop,
                selector,
                limits,
                so_far._replace(position=begin),
            )
        except ProtocolError as error:
            raise self._damaged(so_far.position) from error
        return found._replace(position=found.position + base)

    def timestamp_at(self, position: int) -> int:
        """Return the timestamp of the event that begins at a position; 0 if it is not held."""
        if not self.head <= position < self.tail:
            return 0
        try:
            base, frame = self._load(position)
        except ScnNotFoundError:
            return 0
        return timestamp_at(frame, position - base)

    def frame_before(self, timestamp_ns: int) -> IndexEntry | None:
        """Return a frame whose first window was committed before a time; None without one.

        It is the last such frame if commit times never decrease.
        """
        segments = self._log.segments
        number = bisect_right(segments, timestamp_ns - 1, key=_first_timestamp_of) - 1
        if number < 0 or self.min_scn == UNKNOWN_SCN:
            return None
        opened = self._use(segments[number])
        at = opened.index.last(_first_timestamp, timestamp_ns - 1, opened.count)
        return self._window_frame(opened, at)

    def frame_until(self, timestamp_ns: int) -> IndexEntry | None:
        """Return the last frame up to the end of which all windows were committed before a time."""
        segments = self._log.segments
        if self.min_scn == UNKNOWN_SCN:
            return None
        # The newest commit times never fall. In the first segment that reaches the time there may
        # be no such frame: then it is the last one of the segment before.
        number = bisect_right(segments, timestamp_ns - 1, key=_newest_timestamp_of)
        for segment in reversed(segments[max(0, number - 1) : number + 1]):
            opened = self._use(segment)
            at = opened.index.last(_newest_timestamp, timestamp_ns - 1, opened.count)
            if at >= 0:
                return self._window_frame(opened, at)
        return None

    def frame_before_position(self, end: int) -> IndexEntry | None:
        """Return the last frame that begins a window before a position; None without one."""
        if not self.head < end <= self.tail:
            return None
        opened = self._use_at(end - 1)
        return self._window_frame(opened, opened.index.last(position_of, end - 1, opened.count))

    def _window_frame(self, opened: OpenSegment, number: int) -> IndexEntry | None:
        """Return a frame, or the one in which its first window begins."""
        if number < 0:
            return None
        begin = opened.index[number].first_scn, 0
        return opened.index[opened.index.last(_first_event, begin, number + 1)]

    def gtid_span(
        self, position: int, gtid: GtidKey, note_damage: Callable[[RelayLogDamagedError], object]
    ) -> GtidSpan | None:
        """Return where a GTID may be, as `find_span`; raises ScnNotFoundError, too."""
        return find_span(self._log.segments, position, gtid, self._use, note_damage)

    def end_of_windows(self, position: int, max_bytes: int, slack_bytes: int = 0) -> int:
        """Return the end of the last window that ends within `max_bytes` of `position`.

        It may be one that ends at most `slack_bytes` before the limit, or the last of a frame if
        that is half of it; `position` without any. Windows after the end of the segment are left to
        the next read.
        """
        limit, found = position + max_bytes, position
        if position >= self.tail:
            return position
        for entry, end in self._use_at(position).frames_from(position):
            if end > limit:
                # So that the next read does not decompress the rest of a frame once more.
                if found > position and limit - found <= max(slack_bytes, max_bytes // 2):
                    return found
                base, frame = self._load(entry.position)
                begin = max(position - base, 0)
                stop = last_end(frame, begin, frame.capacity_bytes, limit - base)
                return stop + base if stop > begin else found
            if not entry.flags & GOES_ON:
                found = end
        return found

    def stored_windows(self, position: int, max_bytes: int) -> StoredWindows | None:
        """Return windows of at most `max_bytes` that begin with a compressed frame; else None.

        Raises ScnNotFoundError.
        """
        if position >= self.tail:
            return None
        return find_stored(self._use_at(position), position, max_bytes)

    def rest_of_frame(self, position: int) -> int:
        """Return how many bytes of a compressed frame follow a position in its middle; else 0.

        Raises ScnNotFoundError.
        """
        return rest_of_frame(self._use_at(position), position) if position < self.tail else 0

    def has_optional(self, _position: int, windows: bytes) -> bool:
        """Return whether whole windows contain a statement or a truncate."""
        return has_optional(windows)

    def remember_end(self, scn: int, position: int) -> None:
        """Do nothing: the index leads to every window."""

    def _begins_unread(self) -> bool:
        """Return whether the oldest window stands for one after which capture began."""
        if self.prev_scn != UNKNOWN_SCN:
            return False
        base, frame = self._load(self.head)
        try:
            return next(steps(frame, self.head - base, frame.capacity_bytes)).is_eop
        except ProtocolError as error:
            raise self._damaged(base) from error

    def _find_in(self, opened: OpenSegment, scn: int, window_offset: int) -> int:
        """Return the position after (scn, window_offset), which the segment has."""
        count, to_skip = opened.count, window_offset
        if window_offset == WINDOW_DONE:
            number = opened.index.last(_first_scn, scn, count)
            following = opened.index[number + 1] if number + 1 < count else None
            if following and following.first_offset == 0 and following.prev_scn <= scn:
                return following.position
        else:
            # Of the frames of one large window, the one that the event lies in.
            number = opened.index.last(_first_event, (scn, window_offset), count)
            if opened.index[number].first_scn == scn:
                to_skip -= opened.index[number].first_offset
        base, frame = self._load(opened.index[number].position)
        try:
            found, _ = find_event(frame, 0, frame.capacity_bytes, scn, to_skip)
        except ProtocolError as error:
            raise self._damaged(base) from error
        return base + found

    def _find_time_in(self, opened: OpenSegment, timestamp_ns: int) -> int:
        """Return the position of the first window of a segment committed at or after a time."""
        count = opened.count
        number = opened.index.last(_newest_timestamp, timestamp_ns - 1, count) + 1
        entry = opened.index[number]
        # A large window has one commit time, and its first frame the first event.
        base, frame = self._load(entry.position)
        begin = 0
        for event in steps(frame, 0, frame.capacity_bytes):
            if event.is_eop:
                if timestamp_at(frame, event.position) >= timestamp_ns:
                    break
                begin = event.position + event.length
        return base + begin

    def _load(self, position: int) -> tuple[int, FrameEvents]:
        """Return the frame that holds a position, and where it begins; raise ScnNotFoundError."""
        loaded = self._frame
        if loaded is not None and 0 <= position - loaded[0] < loaded[1].capacity_bytes:
            return loaded
        opened = self._use_at(position)
        entry, path = opened.frame_at(position), opened.segment.path
        try:
            header, data = read_frame(opened.file.fd, path, entry.offset, self._decompressor)
        except RelayLogDamagedError as error:
            raise self._damaged(position) from error
        except OSError as error:  # the disk may be there again later
            raise RelayLogError(f"relay log {path}: {error}") from error
        if (header.position, header.first_scn) != (entry.position, entry.first_scn):
            raise self._damaged(position)
        self._forget_frame()
        self.decompressed += 1
        self._frame = header.position, FrameEvents(data)
        return self._frame

    def _use_at(self, position: int) -> OpenSegment:
        """Open the segment that holds a position; raise ScnNotFoundError."""
        opened = self._open
        if opened is not None:
            segment = opened.segment
            if segment.header.position <= position < segment.end.position:
                return opened
        segments = self._log.segments
        number = bisect_right(segments, position, key=_position_of) - 1
        if number < 0:
            raise ScnNotFoundError(self.prev_scn, self.min_scn)
        return self._use(segments[number])

    def _use(self, segment: Segment) -> OpenSegment:
        """Open a segment, unless it is open; raise ScnNotFoundError, SegmentAwayError."""
        if self._open is not None and self._open.segment is segment:
            return self._open
        self.close()
        try:
            file = segment.open_file()
            fcntl.flock(file.fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
            index = segment.index
            if index is None:  # sealed
                segment.require(file, segment.end.offset, segment.size_bytes)
                index = read_index(file.fd, segment.path)
        except (FileNotFoundError, BlockingIOError):  # deleted meanwhile, or being deleted
            raise ScnNotFoundError(segment.end.scn, self.min_scn) from None
        except RelayLogDamagedError as error:
            at, scns = segment.end.offset, (segment.header.prev_scn, segment.end.scn)
            raise _damaged_windows(segment, *scns, at) from error
        except OSError as error:  # the disk may be there again later
            raise RelayLogError(f"relay log {segment.path}: {error}") from error
        self._open = OpenSegment(segment, file, index)
        return self._open

    def _forget_frame(self) -> None:
        if self._frame is not None:
            self._frame[1].release()
            self._frame = None

    def _damaged(self, position: int) -> DamagedWindowsError:
        """Return the error of a damaged frame, which names its windows."""
        opened = self._use_at(position)
        frames = opened.frames_from(position)
        entry, _ = next(frames)
        following = next(frames, None)
        until = opened.segment.end.scn if following is None else following[0].prev_scn
        until = max(until, entry.first_scn)
        return _damaged_windows(opened.segment, entry.prev_scn, until, entry.offset)


def _damaged_windows(segment: Segment, after: int, until: int, at: int) -> DamagedWindowsError:
    return DamagedWindowsError(str(segment.path), segment.header.source, (after, until), at)


def _first_scn_of(segment: Segment) -> int:
    return segment.header.first_scn


def _position_of(segment: Segment) -> int:
    return segment.header.position


def _newest_timestamp_of(segment: Segment) -> int:
    return segment.end.newest_timestamp_ns


def _first_scn(entry: IndexEntry) -> int:
    return entry.first_scn


def _first_timestamp(entry: IndexEntry) -> int:
    return entry.first_timestamp_ns


def _first_timestamp_of(segment: Segment) -> int:
    return segment.header.first_timestamp_ns


def _first_event(entry: IndexEntry) -> tuple[int, int]:
    return entry.first_scn, entry.first_offset


def _newest_timestamp(entry: IndexEntry) -> int:
    return entry.newest_timestamp_ns
