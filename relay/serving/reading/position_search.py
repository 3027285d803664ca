"""Find the SCN after which reading begins at a named place, in one ring and its log.

The search goes forward in steps of bounded size. The log's index of GTIDs says which of its frames
may have one. There, and in what has no such index, it is found by its bytes first; only the events
of the frame, or of the ring's block around them, are walked.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from databus.conf.named_places import (
    BinlogPlace,
    GtidPlace,
    NamedPlace,
    ScnPlace,
    TimePlace,
    Word,
)
from databus.relay.log.archive.away import Away, SegmentAwayError, Steps
from databus.relay.log.gtids.frame_gtids import split_gtid
from databus.relay.log.gtids.gtid_span import GtidSpan
from databus.relay.log.history import HistoryReader
from databus.relay.ring.event_selector import NOTHING, WINDOW_DONE, EventSelector
from databus.relay.ring.layout import UNKNOWN_SCN
from databus.relay.ring.reader import RingReader
from databus.relay.ring.row_count import Limits, RowCount
from databus.relay.ring.scn_index import Extent
from databus.relay.ring.selection import Selection
from databus.relay.span import ALWAYS, FirstScn
from databus.schemas.checkpoint import Checkpoint
from databus.schemas.errors import (
    DamagedWindowsError,
    InvalidParameterError,
    PlaceNotFoundError,
    ScnAheadError,
    ScnNotFoundError,
)
from databus.schemas.event.layout import V2, struct_of
from databus.schemas.event.metadata import EventMetadata, gtid_bytes, metadata_of
from databus.schemas.event.v2 import SMALLEST_BYTES, decode, peek
from databus.schemas.scn import BinlogPosition

_STEP_BYTES = 1 << 20
_SEARCHED_BLOCKS = 64
_LENGTH = struct_of(V2.length)


class FoundPosition(NamedTuple):
    """The window after which reading begins, and what is known of it.

    `timestamp_ns` is its commit time, `transaction` the metadata of its first row. Both are None
    if the window is no longer held, and the second one if it has no row. With `is_nearest` the
    place is not held, and this is the end of what is held that is nearest to it.
    """

    scn: int
    timestamp_ns: int | None = None
    transaction: EventMetadata | None = None
    is_nearest: bool = False


class PositionSearch:
    """One search in one ring and its log, a bounded number of bytes per step."""

    def __init__(
        self,
        reader: RingReader | HistoryReader,
        place: NamedPlace,
        physical_source: str,
        epoch: int,
        first: FirstScn,
        *,
        takes_nearest: bool = False,
    ) -> None:
        """`first` is the first SCN of the source that is going to be read.

        With `takes_nearest`, an end of what is held is found for a place outside of it.
        """
        self._reader = reader
        self._place = place
        self._physical_source = physical_source
        self._epoch = epoch
        self._first = first
        self._takes_nearest = takes_nearest
        self._steps = Steps(self._run)

    def step(self) -> FoundPosition | None:
        """Search on; return None while there is more to search.

        Raises ScnNotFoundError for a place before the oldest window, ScnAheadError for one after
        the newest, and PlaceNotFoundError for a GTID that no window has.
        """
        return self._steps.step()

    def _run(self) -> Iterator[FoundPosition | SegmentAwayError | None]:
        try:
            yield from self._search()
        except (ScnNotFoundError, ScnAheadError) as error:
            if not self._takes_nearest or isinstance(error, DamagedWindowsError):
                raise
            is_ahead = isinstance(error, ScnAheadError)
            yield (self._latest() if is_ahead else self._earliest())._replace(is_nearest=True)

    def _search(self) -> Iterator[FoundPosition | SegmentAwayError | None]:
        match self._place:
            case Word.BEGINNING:
                rule = "beginning is a table's rows, which a bootstrap server has; use earliest"
                raise InvalidParameterError("at", str(self._place), rule)
            case ScnPlace(scn):
                yield self._at_scn(scn)
            case BinlogPlace():
                self._check_file(self._place)
                yield self._at_scn(self._scn_of(self._place))
            case GtidPlace(gtid):
                yield self._at_scn((yield from self._scn_of_gtid(gtid)))
            case TimePlace(time_ns):
                yield self._at_scn((yield from self._scn_before(time_ns)))
            case Word.EARLIEST:
                yield self._earliest()
            case Word.LATEST:
                yield self._latest()

    def _earliest(self) -> FoundPosition:
        """Return the window before the oldest one that the source has and that is held."""
        begun = self._first.scn if self._first.scn > ALWAYS else UNKNOWN_SCN
        return self._described(max(self._reader.prev_scn, begun))

    def _latest(self) -> FoundPosition:
        return self._described(self._reader.max_scn)

    def _at_scn(self, scn: int) -> FoundPosition:
        """Return the newest window up to an SCN; raise ScnNotFoundError or ScnAheadError."""
        self._first.check((scn, WINDOW_DONE), self._reader.min_scn)
        max_scn = self._reader.max_scn
        if self._reader.find(scn, WINDOW_DONE) is None or scn > max(max_scn, 0):
            raise ScnAheadError(f"scn {scn}", max_scn)
        window = self._reader.window_at(scn)
        # Without one it is the window before the oldest, or a place between those two.
        return self._described(self._reader.prev_scn if window is None else window[0])

    def _scn_of(self, place: BinlogPlace) -> int:
        return BinlogPosition(self._epoch, place.file_number, place.offset).to_scn()

    def _check_file(self, place: BinlogPlace) -> None:
        """Raise PlaceNotFoundError if the source's log has no files of that name."""
        transaction = self._some_transaction()
        if transaction is None:
            return
        base, dot, number = transaction.file.rpartition(".")
        if not dot or not number.isdigit():
            raise PlaceNotFoundError(f"{place}: {self._physical_source} has no binlog")
        expected = f"{base}.{place.file_number:06}"
        if place.file != expected:
            raise PlaceNotFoundError(f"{place}: that binlog would be named {expected}")

    def _some_transaction(self) -> EventMetadata | None:
        """Return the newest transaction with rows in the last blocks; None without one."""
        end = self._reader.tail
        for _ in range(_SEARCHED_BLOCKS):
            begin = self._reader.block_before_position(end)
            if begin is None:
                return None
            position, found = begin, None
            while position < end:
                header = peek(self._reader.read(position, SMALLEST_BYTES))
                if header.src_id >= 0:
                    found = metadata_of(decode(self._reader.read(position, header.length))[0])
                position += header.length
            if found is not None:
                return found
            end = begin
        return None

    def _scn_before(self, time_ns: int) -> Away[int]:
        """Return the SCN of the window before the first one committed at a time or later.

        The ring is read from its begin, because commit times may decrease along the log; the log
        knows the newest commit time up to each frame. What neither holds is taken to be older than
        the oldest window.
        """
        nothing = Selection(self._physical_source, Checkpoint.flexible(), src_ids=frozenset())
        selector = EventSelector(nothing, render=None)
        while True:
            extent, tail = self._reader.extent(), self._reader.newest()[1]
            so_far = RowCount(self._begin_before(time_ns, extent))
            try:
                while not so_far.is_over and so_far.position < tail:
                    limits = Limits(before_ns=time_ns)
                    so_far = self._reader.count(so_far, _STEP_BYTES, tail, selector, limits)
                    yield None
            except DamagedWindowsError:
                raise
            except ScnNotFoundError:
                continue  # overwritten meanwhile
            break
        if not so_far.is_over:
            raise ScnAheadError(str(self._place), self._reader.max_scn)
        if so_far.scn == NOTHING and extent.prev_scn == 0:
            return 0  # the ring holds the source's log from its begin
        if so_far.scn == NOTHING or self._is_a_mere_begin(so_far.scn, extent):
            raise ScnNotFoundError(extent.prev_scn, extent.min_scn)
        return so_far.scn

    def _begin_before(self, time_ns: int, extent: Extent) -> int:
        """Return a position before the first window of a time, with windows in between if any."""
        reader = self._reader
        found = reader.place_before(time_ns) if isinstance(reader, HistoryReader) else None
        return extent.head if found is None else found

    def _is_a_mere_begin(self, scn: int, extent: Extent) -> bool:
        """Whether a window only says where capture began: its time is not that of a commit."""
        is_first = scn == extent.min_scn and extent.prev_scn == UNKNOWN_SCN
        return is_first and self._described(scn).transaction is None

    def _scn_of_gtid(self, gtid: str) -> Away[int]:
        """Return the SCN of the window with a GTID; raise PlaceNotFoundError."""
        extent = self._reader.extent()
        position = extent.head
        while position < extent.tail:
            try:
                span = self._gtid_span(gtid, position, extent.tail)
                if span.is_frame:
                    position, scn = span.end, self._scn_in_frame(gtid, span)
                else:
                    position, scn = self._scn_in_span(gtid, span)
            except DamagedWindowsError:
                raise
            except ScnNotFoundError:
                position = max(self._reader.head, position)  # overwritten meanwhile
                continue
            except SegmentAwayError as away:
                yield away
                continue
            if scn is not None:
                return scn
            yield None
        raise PlaceNotFoundError(
            f"no window that is held has GTID {gtid}; it holds scn {extent.min_scn} to "
            f"{self._reader.max_scn}. Transactions without rows of the relay's sources have none"
        )

    def _gtid_span(self, gtid: str, position: int, tail: int) -> GtidSpan:
        """Return where to search next."""
        if isinstance(self._reader, HistoryReader):
            return self._reader.gtid_span(position, split_gtid(gtid.encode()))
        return GtidSpan(position, tail)

    def _scn_in_frame(self, gtid: str, span: GtidSpan) -> int | None:
        """Return the SCN of the window with a GTID among the whole events of a frame, if any."""
        data, wanted = self._reader.read(span.begin, span.end - span.begin), gtid_bytes(gtid)
        begin, at = 0, data.find(wanted)
        while at >= 0:
            while (end := begin + int(_LENGTH.unpack_from(data, begin)[0])) <= at:
                begin = end
            scn = _scn_if(gtid, data[begin:end])
            if scn is not None:
                return scn
            # It was a value in a row: continue behind it.
            at = data.find(wanted, at + 1)
        return None

    def _scn_in_span(self, gtid: str, span: GtidSpan) -> tuple[int, int | None]:
        """Search the next bytes; return where to continue, and the window's SCN if it is found."""
        wanted, size = gtid_bytes(gtid), span.end - span.begin
        data = self._reader.read(span.begin, min(size, _STEP_BYTES + len(wanted)))
        at = data.find(wanted)
        if at >= 0:
            return span.begin + at + 1, self._scn_with(gtid, span.begin + at)
        is_over = len(data) == size or len(data) < len(wanted)
        return (span.end if is_over else span.begin + len(data) - len(wanted) + 1), None

    def _scn_with(self, gtid: str, position: int) -> int | None:
        """Return the SCN of the event around a position if its transaction has the GTID."""
        begin = self._reader.block_before_position(position + 1)
        while begin is not None and begin <= position:
            header = peek(self._reader.read(begin, SMALLEST_BYTES))
            if begin + header.length > position:
                return _scn_if(gtid, self._reader.read(begin, header.length))
            begin += header.length
        return None

    def _described(self, scn: int) -> FoundPosition:
        try:
            begin = self._reader.find(scn, 0) if scn > 0 else None
            if begin is None:
                return FoundPosition(scn)
            length = peek(self._reader.read(begin, SMALLEST_BYTES)).length
            event, _ = decode(self._reader.read(begin, length))
        except ScnNotFoundError:
            return FoundPosition(scn)
        if event.scn != scn:
            return FoundPosition(scn)
        return FoundPosition(scn, event.timestamp_ns, metadata_of(event))


def _scn_if(gtid: str, event_bytes: bytes) -> int | None:
    """Return an event's SCN if its transaction has a GTID."""
    event, _ = decode(event_bytes)
    metadata = metadata_of(event)
    return event.scn if metadata is not None and metadata.gtid == gtid else None
