"""Estimate how far N rows reach in a ring, for read planning.

A planner gives a start position and limits on rows and bytes; the answer is the window at
which such a read ends. Nothing is copied, and the ring is read in steps of bounded size, as
by a `StreamJob`.

The first window with rows counts however large it is, and windows without rows always
count: so every read makes progress.

The start may also be a time: after the newest window before the first one that was
committed at that time or later. Commit times may decrease from one window to the next. As
long as they decrease by less than `BACK_NS`, no window of that time or later is missed; some
earlier ones may be included.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from databus.relay.log.archive.away import Away, SegmentAwayError, Steps
from databus.relay.ring.event_selector import NOTHING, WINDOW_DONE, EventSelector, Position
from databus.relay.ring.layout import UNKNOWN_SCN
from databus.relay.ring.row_count import Limits, RowCount
from databus.relay.ring.scn_index import IndexEntry
from databus.relay.ring.selection import Selection
from databus.relay.serving.databus.parameters import MeasureRequest
from databus.relay.serving.reading.marks import check_marks
from databus.relay.serving.reading.stream import COMPILED_STEP_BYTES, STEP_BYTES
from databus.relay.serving.reading.window_reader import (
    Finder,
    HeldWindows,
    find_first,
    stands_for_begin,
)
from databus.relay.span import NO_LIMITS, Span, Spans
from databus.schemas.checkpoint import Checkpoint
from databus.schemas.errors import DamagedWindowsError, ScnNotFoundError
from databus.schemas.rendering import SchemaText
from databus.schemas.scn import MAX_SCN

# Parallel replication and adjusted clocks: the search starts a few minutes earlier.
BACK_NS = 300 * 10**9


class Extent(Protocol):
    """The content of a ring at one moment."""

    @property
    def head(self) -> int:
        """Position of the oldest window."""
        ...

    @property
    def tail(self) -> int:
        """Position where the newest window ends."""
        ...

    @property
    def min_scn(self) -> int:
        """SCN of the oldest window; negative without one."""
        ...

    @property
    def prev_scn(self) -> int:
        """SCN of the newest overwritten window; negative if unknown."""
        ...


class CountingReader(Finder, HeldWindows, Protocol):
    """The reader of a ring; `count` may raise ScnNotFoundError, too."""

    @property
    def latest_timestamp_ns(self) -> int:
        """Commit time of the newest window."""
        ...

    def extent(self) -> Extent:
        """Return the content of the ring."""
        ...

    def count(
        self, so_far: RowCount, max_bytes: int, tail: int, selector: EventSelector, limits: Limits
    ) -> RowCount:
        """Count the rows in the next `max_bytes`."""
        ...

    def block_before(self, timestamp_ns: int) -> IndexEntry | None:
        """Return a block that begins before a time, or the oldest one; None without one."""
        ...


@dataclass(frozen=True, slots=True)
class Measured:
    """The answer: `rows` lie in the windows after `from_scn`, up to and including `scn`.

    `from_scn` is -1 if the window before the oldest one with rows is unknown. `size_bytes` is
    the size of the rows' events alone. `timestamp_ns` is the commit time of window `scn`, 0 if
    unknown.
    """

    from_scn: int
    scn: int
    rows: int
    size_bytes: int
    timestamp_ns: int
    max_scn: int
    max_timestamp_ns: int
    is_ahead: bool = False


class MeasureJob:
    """One measurement of one ring, a bounded number of bytes per step."""

    def __init__(
        self,
        reader: CountingReader,
        request: MeasureRequest,
        spans: Spans = NO_LIMITS,
        span: Span | None = None,
        schema_text: SchemaText | None = None,
    ) -> None:
        """`spans` are those of the ring's sources, `span` that of the selected ones, as it is seen
        from the place; None without limits.

        `schema_text` finds the schemas of rows, for filters that read their columns.
        """
        self._reader = reader
        self._schema_text = schema_text
        self._spans, self._span = spans, Span() if span is None else span
        self._selection = request.selection
        self._limits = request.limits
        self._since_ns = request.since_ns
        self._steps = Steps(self._run)

    def step(self) -> Measured | None:
        """Read on; return None while there is more to read.

        Raises ScnNotFoundError, OtherLogError, and TableStoppedError where a selected source is
        stopped.
        """
        return self._steps.step()

    def _run(self) -> Iterator[Measured | SegmentAwayError | None]:
        while True:
            max_scn, tail = self._reader.newest()
            begin = yield from self._find_begin(max_scn, tail)
            self._check_stop(begin)
            try:
                yield (yield from self._measure(begin, max_scn, tail))
                return
            except DamagedWindowsError:
                raise  # retrying does not help
            except ScnNotFoundError:
                if self._asked is not None:
                    raise
                # The oldest window was requested and has been overwritten: start again.
                yield None

    def _measure(self, begin: _Begin, max_scn: int, tail: int) -> Away[Measured]:
        from_scn, position, limits = begin.scn, begin.position, self._limits
        newest_ns = self._reader.latest_timestamp_ns
        stop = self._span.stop
        end = min(self._span.end, MAX_SCN if stop is None else stop.scn)
        limits = limits._replace(until_scn=min(limits.until_scn, end))
        if position is None or position >= tail:
            is_ahead = position is None and from_scn > max(max_scn, 0)
            timestamp_ns = newest_ns if from_scn == max_scn else 0
            return Measured(
                from_scn, from_scn, 0, 0, timestamp_ns, max_scn, newest_ns, is_ahead=is_ahead
            )
        if from_scn < 0:
            # A later read from "the oldest" could not detect that windows were overwritten
            # meanwhile. So the answer covers the oldest window alone: it is there or not.
            limits = limits._replace(until_scn=min(limits.until_scn, begin.first_scn))
        found = yield from self._count(RowCount(position), tail, self._selection, limits)
        scn = from_scn if found.scn == NOTHING else found.scn
        is_newest = scn == max_scn
        return Measured(
            from_scn,
            scn,
            found.rows,
            found.size_bytes,
            found.timestamp_ns,
            max_scn,
            found.timestamp_ns if is_newest and found.scn != NOTHING else newest_ns,
        )

    def _check_stop(self, begin: _Begin) -> None:
        """Raise an error if no window after the begin is complete."""
        stop, hole = self._span.stop, self._span.hole
        if hole is not None and begin.scn >= self._span.end < self._limits.until_scn:
            raise ScnNotFoundError(begin.scn, hole.until_scn + 1)
        if stop is None or self._limits.until_scn <= stop.scn:
            return
        if begin.scn >= stop.scn or begin.first_scn > stop.scn:
            raise stop.error()

    def _count(
        self, so_far: RowCount, tail: int, selection: Selection, limits: Limits
    ) -> Away[RowCount]:
        selector = EventSelector(selection, render=None, schema_text=self._schema_text)
        step_bytes = STEP_BYTES if selector.plan is None else COMPILED_STEP_BYTES
        while True:
            try:
                so_far = self._reader.count(so_far, step_bytes, tail, selector, limits)
            except SegmentAwayError as away:
                yield away
                continue
            if so_far.is_over or so_far.position >= tail:
                return so_far
            yield None

    @property
    def _asked(self) -> Position | None:
        checkpoint = self._selection.checkpoint
        if checkpoint.is_flexible or self._selection.from_latest:
            return None
        return checkpoint.window_scn, checkpoint.window_offset

    def _find_begin(self, max_scn: int, tail: int) -> Away[_Begin]:
        if self._selection.from_latest:
            return _Begin(max_scn, tail)
        if self._asked is not None:
            self._span.first.check(self._asked, self._reader.extent().min_scn)
            place = self._span.place(self._asked)
            # Before the lookup: an SCN of another log may exist in this one by chance.
            check_marks(self._reader, self._spans, self._selection)
            return _Begin(place[0], self._reader.find(*place))
        if self._since_ns is None:
            return self._oldest()
        return (yield from self._find_time(self._since_ns))

    def _oldest(self) -> _Begin:
        extent = self._reader.extent()
        if self._span.first.scn > extent.prev_scn:
            position = find_first(self._reader, self._span.first.scn)
            if position is not None:
                return _Begin(self._span.first.scn, position, self._span.first.scn + 1)
            extent = self._reader.extent()
        is_all = extent.prev_scn == UNKNOWN_SCN and extent.head < extent.tail
        if is_all and stands_for_begin(self._reader, extent.min_scn):
            # What follows it is all there is.
            return _Begin(extent.min_scn, self._reader.find(extent.min_scn, WINDOW_DONE))
        return _Begin(extent.prev_scn, extent.head, extent.min_scn)

    def _find_time(self, since_ns: int) -> Away[_Begin]:
        """Return where the windows of a time begin; raise ScnNotFoundError if some are gone."""
        nothing = Selection(
            self._selection.physical_source, Checkpoint.flexible(), src_ids=frozenset()
        )
        while True:
            block = self._reader.block_before(since_ns - BACK_NS)
            scn = NOTHING
            if block is not None:
                limits = Limits(before_ns=since_ns)
                begin = RowCount(block.position)
                _, tail = self._reader.newest()
                try:
                    scn = (yield from self._count(begin, tail, nothing, limits)).scn
                    position = self._reader.find(scn, -1) if scn != NOTHING else None
                except DamagedWindowsError:
                    raise
                except ScnNotFoundError:
                    yield None  # overwritten meanwhile
                    continue
                if scn != NOTHING:
                    self._span.first.check((scn, WINDOW_DONE), self._reader.extent().min_scn)
                    return _Begin(scn, position)
            oldest = self._oldest()
            if oldest.scn > 0:
                raise ScnNotFoundError(oldest.scn, oldest.first_scn)
            return oldest


class _Begin(NamedTuple):
    """The window after which reading begins, and its end position; None if not there yet.

    `first_scn` is the first window read, if that is the oldest one.
    """

    scn: int
    position: int | None
    first_scn: int = NOTHING
