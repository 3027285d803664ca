"""One reader of a ring and of the log behind it.

A reader at a place that the ring has evicted is served from the log, and from the ring again as
soon as it has read that far; if the writer overtakes it, from the log once more. Both have the
same bytes. Positions are the ring's; a window that only the log has lies before the ring's head,
at the position that it had in the ring, or at a negative one if a ring of another size had it.

Nothing is read from the log before it is certain that it is the ring's (`Join`). Until then a
position that the ring does not have is neither served nor refused: the client asks again.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple, Protocol

from databus.relay.log.archive.away import SegmentAwayError, here
from databus.relay.log.frames.stored_windows import StoredWindows
from databus.relay.log.gtids.frame_gtids import GtidKey
from databus.relay.log.gtids.gtid_span import GtidSpan
from databus.relay.log.layout import UNKNOWN_SCN
from databus.relay.log.reader import LogReader, SegmentList
from databus.relay.ring.event_selector import EventSelector, Position, SelectedEvents, has_optional
from databus.relay.ring.reader import RingReader
from databus.relay.ring.row_count import Limits, RowCount
from databus.relay.ring.scn_index import Extent, IndexEntry
from databus.schemas.errors import (
    DamagedWindowsError,
    RelayLogDamagedError,
    RelayLogError,
    ScnNotFoundError,
)

# A window of the log is read, and decompressed, on the loop that serves all requests.
MOST_BYTES = 2 << 20


class Join(NamedTuple):
    """Where ring and log are one: `shift` is added to a position of the log for the ring's.

    `openings` is that of the log.
    """

    ring_id: int
    openings: int
    shift: int


class JoinedLog(SegmentList, Protocol):
    """The log of a ring."""

    @property
    def join(self) -> Join | None:
        """How the log continues the ring; None until that is certain."""
        ...

    @property
    def problem(self) -> str:
        """Why the log cannot be written or read; "" if it can."""
        ...

    @property
    def is_complete(self) -> bool:
        """Whether all its segments are known, those in an archive too."""
        ...

    def note_damage(self, error: DamagedWindowsError | RelayLogDamagedError) -> bool:
        """Take note of windows, or of an index of GTIDs, that a reader could not read.

        Return whether `segments` has another copy of those windows now.
        """
        ...


@contextmanager
def _unless_overtaken() -> Iterator[None]:
    """Go on behind a read of the ring that came too late: the log has those windows."""
    try:
        yield
    except DamagedWindowsError:
        raise
    except ScnNotFoundError:
        pass


class HistoryReader:
    """Reads a ring and its log as one. On one thread; `close` must follow.

    The methods are those of `RingReader`.
    """

    def __init__(self, ring: RingReader, log: JoinedLog) -> None:
        self._ring = ring
        self._log = log
        self._reader = LogReader(log)
        self._join: Join | None = None
        self._joins = 0
        self._is_used = False  # since the last `rest`
        self.read_bytes = 0  # of events, out of the log

    def close(self) -> None:
        """Close the log's files; the ring's reader is the caller's."""
        self._reader.close()

    def rest(self) -> None:
        """Close the log's files if nobody has read it since the last call.

        Otherwise the segment that was read last would never be deleted.
        """
        if not self._is_used:
            self._reader.close()
        self._is_used = False

    @property
    def opening(self) -> int:
        """Changes when ring or log begin anew; positions found before are then invalid."""
        self._follow()
        return self._ring.opening + self._joins

    @property
    def head(self) -> int:
        """Position of the oldest window."""
        return self.extent().head

    @property
    def tail(self) -> int:
        """Position where the newest window ends."""
        return self._ring.tail

    @property
    def min_scn(self) -> int:
        """SCN of the oldest window; -1 without one."""
        return self.extent().min_scn

    @property
    def max_scn(self) -> int:
        """SCN of the newest window."""
        return self._ring.max_scn

    @property
    def prev_scn(self) -> int:
        """Newest SCN no longer held; -1 if unknown."""
        return self.extent().prev_scn

    @property
    def latest_timestamp_ns(self) -> int:
        """Timestamp of the newest window; 0 if there never was one."""
        return self._ring.latest_timestamp_ns

    def newest(self) -> tuple[int, int]:
        """Return the newest window's SCN and end position."""
        return self._ring.newest()

    def extent(self) -> Extent:
        """Return the bounds of log and ring; the index entries are the ring's."""
        self._follow()
        extent, log = self._ring.extent(), self._reader
        shift = self._shift
        if shift is None or log.opening != self._opened:
            return extent
        head, min_scn, prev_scn = log.head + shift, log.min_scn, log.prev_scn
        if min_scn == UNKNOWN_SCN or head >= extent.head or log.opening != self._opened:
            return extent
        return extent._replace(head=head, min_scn=min_scn, prev_scn=prev_scn)

    def find(self, scn: int, window_offset: int) -> int | None:
        """Return the position of the first event after (scn, window_offset), as `RingReader`.

        Raises ScnNotFoundError with the oldest SCN of the log, and RelayLogError if the log
        may have it and cannot be read now.
        """
        self._follow()
        try:
            return self._ring.find(scn, window_offset)
        except DamagedWindowsError:
            raise
        except ScnNotFoundError as error:
            found = self._find_in_log(scn, window_offset)
            if found is None:
                raise error from None
            return found

    def window_at(self, scn: int) -> tuple[int, int] | None:
        """Return SCN and timestamp of the newest window up to `scn`; None if it is not held."""
        found = self._ring.window_at(scn)
        if found is not None:
            return found
        self._follow()
        if self._shift is None or scn > self._ring.newest()[0]:
            return None
        with self._in_log():
            return self._reader.window_at(scn)

    def read(self, position: int, max_bytes: int) -> bytes:
        """Return bytes from `position` on; b"" at the tail. Raises ScnNotFoundError."""
        if position >= self._ring.head:
            with _unless_overtaken():
                return self._ring.read(position, max_bytes)
        most_bytes = self._bounded(position, max_bytes)
        if most_bytes <= 0:
            return b""
        with self._in_log() as shift:
            data = self._reader.read(position - shift, most_bytes)
        self.read_bytes += len(data)
        if data and len(data) < max_bytes:
            # The log ends here, so the ring has what follows.
            data += self.read(position + len(data), max_bytes - len(data))
        return data or self._ring.read(position, max_bytes)

    def select(
        self,
        position: int,
        max_bytes: int,
        selector: EventSelector,
        place: Position,
        room_bytes: int,
    ) -> SelectedEvents | None:
        """Return the events that pass in the next `max_bytes`; None at the tail."""
        if position >= self._ring.head:
            with _unless_overtaken():
                return self._ring.select(position, max_bytes, selector, place, room_bytes)
        most_bytes = self._bounded(position, max_bytes)
        if most_bytes <= 0:
            return None
        with self._in_log() as shift:
            found = self._reader.select(position - shift, most_bytes, selector, place, room_bytes)
        if found is None:  # the log ends here
            return self._ring.select(position, max_bytes, selector, place, room_bytes)
        self.read_bytes += found.position + shift - position
        return found._replace(position=found.position + shift)

    def count(
        self, so_far: RowCount, max_bytes: int, tail: int, selector: EventSelector, limits: Limits
    ) -> RowCount:
        """Count the rows in the next `max_bytes`, but not beyond `tail`."""
        position = so_far.position
        if position >= self._ring.head:
            with _unless_overtaken():
                return self._ring.count(so_far, max_bytes, tail, selector, limits)
        with self._in_log() as shift:
            there = so_far._replace(position=position - shift)
            if there.position >= self._reader.tail:
                return self._ring.count(so_far, max_bytes, tail, selector, limits)
            found = self._reader.count(there, max_bytes, tail - shift, selector, limits)
        return found._replace(position=found.position + shift)

    def end_of_windows(self, position: int, max_bytes: int, slack_bytes: int = 0) -> int:
        """Return the end of the last window that ends within `max_bytes`, or `position`.

        In the log at most MOST_BYTES are looked at.
        """
        if position >= self._ring.head:
            end = self._ring.end_of_windows(position, max_bytes, slack_bytes)
            if end > position or position >= self._ring.head:
                return end
        most_bytes = self._bounded(position, min(max_bytes, MOST_BYTES))
        if most_bytes <= 0:
            return position
        with self._in_log() as shift:
            at = position - shift
            end = self._reader.end_of_windows(at, most_bytes, slack_bytes)
        return end + shift

    def stored_windows(self, position: int, max_bytes: int) -> StoredWindows | None:
        """Return windows of the log that begin with a compressed frame, for a client of zstd.

        None if the ring has them, or no such frame begins there.
        """
        most_bytes = self._bounded(position, max_bytes)
        if position >= self._ring.head or most_bytes <= 0:
            return None
        with self._in_log() as shift:
            found = self._reader.stored_windows(position - shift, most_bytes)
        if found is None:
            return None
        self.read_bytes += found.plain_bytes
        return found._replace(end=found.end + shift)

    def rest_of_frame(self, position: int) -> int:
        """Return how many bytes of a compressed frame of the log follow a position in it; or 0."""
        if position >= self._ring.head:
            return 0
        with self._in_log() as shift:
            return max(0, self._bounded(position, self._reader.rest_of_frame(position - shift)))

    def has_optional(self, position: int, windows: bytes) -> bool:
        """Return whether whole windows contain a statement or a truncate."""
        if position >= self._ring.head:
            return self._ring.has_optional(position, windows)
        return has_optional(windows)

    def remember_end(self, scn: int, position: int) -> None:
        """Remember the end position of a window that was just sent."""
        if position >= self._ring.head:
            self._ring.remember_end(scn, position)

    def timestamp_at(self, position: int) -> int:
        """Return the timestamp of the event that begins at a position; 0 if it is not held."""
        found = self._ring.timestamp_at(position)
        self._follow()
        if found or position >= self._ring.tail or self._shift is None:
            return found
        with suppress(SegmentAwayError), self._in_log() as shift:
            return self._reader.timestamp_at(position - shift)
        return 0  # it is not worth fetching

    def block_before(self, timestamp_ns: int) -> IndexEntry | None:
        """Return a block that begins with a window before a time, or else the oldest one."""
        found = self._ring.block_before(timestamp_ns)
        self._follow()
        shift = self._shift
        if shift is None or self._reader.min_scn == UNKNOWN_SCN:
            return found
        if found is not None and 0 < self._ring.timestamp_at(found.position) < timestamp_ns:
            return found
        with self._in_log():
            entry, extent = self._reader.frame_before(timestamp_ns), self.extent()
        if entry is None:
            return IndexEntry(extent.min_scn, extent.head, extent.prev_scn)
        return IndexEntry(entry.first_scn, entry.position + shift, entry.prev_scn)

    def place_before(self, timestamp_ns: int) -> int | None:
        """Return where the last windows of the log begin before which, and in which, all are older.

        None if there are none in the log.
        """
        self._follow()
        if self._shift is None:
            return None
        with self._in_log() as shift:
            entry = self._reader.frame_until(timestamp_ns)
        return None if entry is None else entry.position + shift

    def block_before_position(self, end: int) -> int | None:
        """Return the begin of the last block that begins before `end`; None without one."""
        found = self._ring.block_before_position(end)
        self._follow()
        if found is not None or self._shift is None:
            return found
        with self._in_log() as shift:
            entry = self._reader.frame_before_position(end - shift)
        return None if entry is None else entry.position + shift

    def gtid_span(self, position: int, gtid: GtidKey) -> GtidSpan:
        """Return where a GTID may be, behind a position, up to the tail.

        A segment whose index of GTIDs is damaged is searched as one without. What the log has not
        got yet is searched, too. Raises ScnNotFoundError.
        """
        self._follow()
        shift, log, tail = self._shift, self._reader, self.tail
        if shift is None or log.opening != self._opened or position - shift >= log.tail:
            return GtidSpan(position, tail)
        head, end = log.head + shift, log.tail + shift
        if position < head:
            return GtidSpan(position, min(head, tail))
        self._is_used = True
        found = log.gtid_span(position - shift, gtid, self._log.note_damage)
        if log.opening != self._opened:
            return GtidSpan(position, tail)
        if found is None:
            return GtidSpan(min(end, tail), tail)
        return found._replace(begin=found.begin + shift, end=found.end + shift)

    def _bounded(self, position: int, max_bytes: int) -> int:
        """Return at most as many bytes as the ring has been given behind a position.

        The log has a window larger than the ring a moment before the ring has passed over it.
        """
        return min(max_bytes, self._ring.tail - position)

    @property
    def _shift(self) -> int | None:
        """The join's shift, as long as it is of this ring."""
        join = self._join
        return None if join is None or join.ring_id != self._ring.ring_id else join.shift

    @property
    def _opened(self) -> int:
        """The opening of the log that the join is of."""
        return -1 if self._join is None else self._join.openings

    def _follow(self) -> None:
        """Take over how the log continues the ring."""
        join = self._log.join
        if join != self._join:
            self._join, self._joins = join, self._joins + 1

    @contextmanager
    def _in_log(self) -> Iterator[int]:
        """Yield the shift; raise RelayLogError if the log is not there, or begins anew.

        What was read from a log that begins anew meanwhile is of no use, and neither is its error.
        Raises SegmentAwayError for damage if the archive has those windows.
        """
        shift = self._shift
        if shift is None:
            raise self._away()
        self._is_used = True
        try:
            yield shift
        except DamagedWindowsError as error:
            if self._log.note_damage(error):
                self._reader.close()  # it has the damaged file open
                raise SegmentAwayError(error.path, here) from error
            raise
        finally:
            if self._reader.opening != self._opened:
                raise self._away()

    def _away(self) -> RelayLogError:
        problem = self._log.problem or "it is being opened, or compared with the ring"
        return RelayLogError(
            f"the relay log of {self._ring.name} cannot be read now, and the ring no longer has "
            f"this position; ask again later: {problem}"
        )

    def _find_in_log(self, scn: int, window_offset: int) -> int | None:
        try:
            with self._in_log() as shift:
                found = self._reader.find(scn, window_offset)
        except DamagedWindowsError:
            raise
        except ScnNotFoundError:
            if self._log.is_complete:
                raise
            raise RelayLogError(
                f"the archive of {self._ring.name} was not listed yet, and may have scn {scn}; "
                "ask again later"
            ) from None
        return None if found is None else found + shift
