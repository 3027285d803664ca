"""Turns a stream request into the bytes of its response, given a reader of the ring.

No sockets and no waiting: a `StreamJob` reads the ring in steps of bounded size, so that a
request whose filter matches nothing cannot block the others.

Whole windows are sent. Only a window larger than `size` is cut, between two events, and the
next request continues it at (windowScn, windowOffset). The offset counts *all* events of
the window, filtered out or not; counted in filtered events, as the original Databus does it,
the same events would come again and again. `StreamResponse.resume` has the position to
continue from, so no client has to count.

If a selection ends with a window, the response ends there: that position is looked up once
per request, and nothing after it is read. So it does before the first window without the rows of
a selected source that is stopped alone; what is asked for after that is refused. A stop is noted
before such a window can be read, so whatever was read while a stop was noted is read again.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

from databus.relay.log.frames.stored_windows import StoredReader, StoredWindows
from databus.relay.ring.event_selector import (
    NOTHING,
    WINDOW_DONE,
    EventSelector,
    Position,
    SelectedEvents,
)
from databus.relay.ring.events import EOP_BYTES
from databus.relay.ring.selection import Selection
from databus.relay.serving.reading.marks import check_marks
from databus.relay.serving.reading.window_reader import WindowReader, find_first
from databus.relay.span import NO_LIMITS, Span, Spans, TableStop
from databus.schemas.errors import DamagedWindowsError, ScnNotFoundError
from databus.schemas.event.v2 import SMALLEST_BYTES, Peek, peek
from databus.schemas.rendering import Render, SchemaText
from databus.schemas.scn import MAX_SCN

# One step takes about 5 ms of Python on the loop that serves all requests, and less where
# compiled code reads the events.
STEP_BYTES = 512 << 10
COMPILED_STEP_BYTES = 4 << 20
# Without a match in this many bytes, answer with the position reached.
MAX_SCAN_BYTES = 64 << 20
# A response may stay below `size` by this share rather than scan a block for its last windows.
SLACK_DIVISOR = 16


@dataclass(frozen=True, slots=True)
class StreamResponse:
    """The response to a stream request.

    `resume` is None only if no SCN was requested and nothing is sent. `is_caught_up`: there
    was nothing to read, so the request may be held. `stored` are windows to send as they lie on
    disk, in place of a body; with `is_followed_by_stored` the next request may get such.
    """

    body: bytes
    resume: Position | None
    pending_event_bytes: int | None = None
    is_ahead: bool = False
    is_caught_up: bool = False
    stored: StoredWindows | None = None
    is_followed_by_stored: bool = False

    @property
    def size_bytes(self) -> int:
        """Bytes of its events, before compression."""
        return len(self.body) if self.stored is None else self.stored.plain_bytes

    @property
    def is_cut(self) -> bool:
        """Whether the body ends inside a window."""
        return bool(self.body) and self.resume is not None and self.resume[1] != WINDOW_DONE

    @property
    def has_whole_windows(self) -> bool:
        """Whether the body has windows, and ends with one."""
        return bool(self.size_bytes) and self.resume is not None and self.resume[1] == WINDOW_DONE


class StreamJob:
    """Reads one ring for one request.

    `start` looks up the position (again, if the ring has grown). `step` reads a bounded
    number of bytes, and returns the response once it is complete. `render` is None if
    events are sent as they are stored.
    """

    def __init__(
        self,
        reader: WindowReader,
        selection: Selection,
        size_bytes: int,
        render: Render | None,
        spans: Spans = NO_LIMITS,
        stored: StoredReader | None = None,
        schema_text: SchemaText | None = None,
    ) -> None:
        """`spans` are those of the ring's sources.

        `stored` is the reader, if the client takes windows as they lie on disk. `schema_text`
        finds the schemas of rows, for filters by column."""
        self._reader = reader
        self._spans, self._revision, self._span = spans, spans.revision - 1, Span()
        self._selection = selection
        self._until_scn = selection.until_scn
        self._selector = EventSelector(selection, render, schema_text)
        self._copies_bytes = render is None and self._selector.takes_all_rows
        self._stored = stored if self._copies_bytes and self._selector.wants_optional else None
        self._place: tuple[int, Position | None] | None = None
        self._walk: _Walk | None = None
        self._size_bytes = size_bytes
        self._end: _End | None = None
        self._opening = reader.opening
        self._copied_until = -1
        checkpoint = selection.checkpoint
        self._asked: Position | None = None  # the position to read from; None = the oldest window
        if not checkpoint.is_flexible:
            self._asked = checkpoint.window_scn, checkpoint.window_offset
        self._is_from_latest = selection.from_latest

    @property
    def copies_bytes(self) -> bool:
        """Whether whole windows are sent as they are stored, nothing filtered."""
        return self._copies_bytes

    @property
    def reader(self) -> WindowReader:
        """The reader of the rung that it reads."""
        return self._reader

    @property
    def selection(self) -> Selection:
        """The selection being read."""
        return self._selection

    def start(self, size_bytes: int | None = None) -> None:
        """Start reading the ring; raise ScnNotFoundError, TableStoppedError."""
        self._size_bytes = self._size_bytes if size_bytes is None else size_bytes
        self._walk = None
        if self._revision != self._spans.revision or self._span.hole is not None:
            self._take_span()
        self._check_stop()
        if self._is_done:
            return
        if self._opening != self._reader.opening:
            # The ring was emptied: the windows at this position may be older ones.
            self._place, self._end = None, None
            self._opening = self._reader.opening
        if self._place is None:
            self._place = self._find_place()
        if self._place is not None and (self._end is None or self._end.is_open):
            self._end = self._find_end(self._place[0])

    def _take_span(self) -> None:
        """Take over the span of the selected sources, and look up its end."""
        self._revision = self._spans.revision
        span = self._spans.of(self._selection.src_ids)
        if span.hole is not None and not self._is_from_latest:
            span = span.seen_from(self._asked, self._reader.prev_scn)
        self._span, stop = span, span.stop
        until_scn = min(self._selection.until_scn, span.end)
        self._until_scn = until_scn if stop is None else min(until_scn, stop.scn)
        self._end = None

    def _check_stop(self) -> None:
        """Raise TableStoppedError where nothing follows but windows without a stopped source."""
        stop = self._stop
        if stop is not None and (self._is_from_latest or self._is_done):
            raise stop.error()

    @property
    def _stop(self) -> TableStop | None:
        """The stop that comes before the selection's own end."""
        stop = self._span.stop
        until_scn = min(self._selection.until_scn, self._span.end)
        return stop if stop is not None and stop.scn < until_scn else None

    def go_on(self, response: StreamResponse) -> None:
        """Continue after a response of whole windows, as the client's next request would."""
        self._asked, self._is_from_latest, self._mark = response.resume, False, None
        self._place = None
        # Otherwise the position is looked up: a walk has read a part of the next window.
        if self._walk is None and self._copied_until >= 0:
            self._place = self._copied_until, response.resume
        elif self._walk is not None and self._walk.place == response.resume:
            self._place = self._walk.position, response.resume

    @property
    def begin(self) -> Position | None:
        """Where reading began; None if at the oldest window, or not looked up yet."""
        return self._asked if self._place is None else self._place[1]

    @property
    def told_begin(self) -> Position | None:
        """`begin` as it is told to clients."""
        begin = self.begin
        return begin if begin is None or self._place is None else self._span.told(begin)

    @property
    def position(self) -> int | None:
        """Ring position of `begin`; None if not looked up, or not in the ring yet."""
        return None if self._place is None else self._place[0]

    @property
    def read_until(self) -> int:
        """Ring position up to which it has read; -1 before the first read."""
        return self._copied_until if self._walk is None else self._walk.position

    @property
    def is_inside_window(self) -> bool:
        """Whether an earlier request has read a part of the first window."""
        return self.begin is not None and self.begin[1] > 0

    def next_event(self) -> Peek | None:
        """Return the fixed fields of the next event; None without one."""
        if self._place is None:
            return None
        try:
            data = self._reader.read(self._place[0], SMALLEST_BYTES)
        except ScnNotFoundError:
            return None  # overwritten meanwhile: `step` raises, or continues at the oldest window
        return peek(data) if len(data) >= SMALLEST_BYTES else None

    def step(self) -> StreamResponse | None:
        """Read on; return None while there is more to read.

        Raises ScnNotFoundError and TableStoppedError.
        """
        response = self._step()
        if self._revision == self._spans.revision:
            return response
        self.start()
        return None

    def _step(self) -> StreamResponse | None:
        if self._is_done:
            return StreamResponse(b"", (self._until_scn, WINDOW_DONE))
        if self._place is None:
            is_ahead = self._asked is not None and self._asked[0] > max(self._reader.max_scn, 0)
            return StreamResponse(b"", self._asked, is_ahead=is_ahead, is_caught_up=True)
        try:
            # Otherwise the ring was emptied since `start`: look the position up again.
            if self._opening == self._reader.opening:
                return self._told(self._read_on(*self._place))
            self.start()
            return None
        except DamagedWindowsError:
            raise  # retrying does not help
        except ScnNotFoundError:
            if self._asked is not None or self._is_from_latest:
                raise
            # The oldest window was requested and has been overwritten: start again.
            self._place = None
            self.start()
            return None

    def _told(self, response: StreamResponse | None) -> StreamResponse | None:
        """Return a response whose `resume` is as it is told to clients."""
        if response is None or response.resume is None:
            return response
        told = self._span.told(response.resume)
        return response if told is response.resume else replace(response, resume=told)

    def _read_on(self, position: int, begin: Position | None) -> StreamResponse | None:
        if self._end is not None and position >= self._end.position:
            if self._end.is_open:
                return StreamResponse(b"", begin, is_caught_up=True)
            return StreamResponse(b"", self._end.resume)
        if self._copies_bytes and self._walk is None:
            response = self._read_stored(position, begin)
            if response is None:
                response = _copy_windows(
                    self._reader, position, begin, self._selector, self._size_bytes, self._end
                )
            if response is not None:
                self._copied_until = position + response.size_bytes
                return response
        if self._walk is None:
            self._walk = _Walk(
                self._reader, position, begin, self._selector, self._size_bytes, self._end
            )
        return self._walk.step()

    def _read_stored(self, position: int, begin: Position | None) -> StreamResponse | None:
        """Return windows as they lie on disk, or those up to where such begin; None without any."""
        if self._stored is None:
            return None
        size_bytes, last = self._size_bytes, self._end
        if last is not None:
            size_bytes = min(size_bytes, last.position - position)
        found = self._stored.stored_windows(position, size_bytes)
        if found is not None:
            is_rest = last is not None and found.end == last.position
            resume = last.resume if last and is_rest else (found.scn, WINDOW_DONE)
            return StreamResponse(b"", resume, stored=found, is_followed_by_stored=True)
        rest_bytes = self._stored.rest_of_frame(position)
        if not 0 < rest_bytes <= size_bytes:
            return None
        # The rest of a frame, so that the next request begins with a whole one.
        response = _copy_windows(self._reader, position, begin, self._selector, rest_bytes, last)
        return None if response is None else replace(response, is_followed_by_stored=True)

    def _find_place(self) -> tuple[int, Position | None] | None:
        if self._is_from_latest:
            # In a ring that never held a window the newest SCN is -1: a request that
            # continues there gets every window to come.
            scn, tail = self._reader.newest()
            return tail, (scn, WINDOW_DONE)
        asked = self._asked
        if asked is None:
            return self._find_oldest()
        # Otherwise the oldest window need not be looked up.
        if asked[0] <= self._span.first.scn:
            self._span.first.check(asked, self._reader.min_scn)
        asked = self._span.place(asked)
        # Before the lookup: an SCN of another log may exist in this one by chance.
        check_marks(self._reader, self._spans, self._selection)
        found = self._reader.find(*asked)
        return None if found is None else (found, asked)

    def _find_oldest(self) -> tuple[int, Position | None]:
        """Return the oldest position after which no change of the selected sources is missing."""
        first_scn = self._span.first.scn
        if first_scn > self._reader.prev_scn:
            found = find_first(self._reader, first_scn)
            if found is not None:
                return found, (first_scn, WINDOW_DONE)
        return self._reader.head, None

    @property
    def _is_done(self) -> bool:
        """Whether the checkpoint is at or after the end of the selection."""
        asked, until_scn = self._asked, self._until_scn
        if asked is None or self._is_from_latest or until_scn == MAX_SCN:
            return False
        return asked[0] > until_scn or asked == (until_scn, WINDOW_DONE)

    def _find_end(self, begin: int) -> _End | None:
        """Return the end of the last window to read; None if there is none.

        If that window is not in the ring yet, the end is open, and that of the newest window.
        Raises ScnNotFoundError if it is overwritten, also if the oldest window was
        requested: an empty answer would claim that there was nothing. TableStoppedError if
        the oldest window is one without the rows of a stopped source.
        """
        until_scn = self._until_scn
        if until_scn == MAX_SCN:
            return None
        # Before it is looked for: a window that comes meanwhile may lie after the end.
        newest_scn, tail = self._reader.newest()
        try:
            end = self._reader.find(until_scn, WINDOW_DONE)
            if end is None:
                return _End(tail, (newest_scn, WINDOW_DONE), is_open=True)
            if end <= begin and self._asked is None and not self._is_from_latest:
                raise ScnNotFoundError(until_scn, self._reader.min_scn)
        except DamagedWindowsError:
            raise
        except ScnNotFoundError:
            if self._stop is not None:
                raise self._stop.error() from None
            raise
        return _End(end, (until_scn, WINDOW_DONE))


class _End(NamedTuple):
    """The end of a selection: ring position, and position to continue from."""

    position: int
    resume: Position
    is_open: bool = False  # the selection goes on after it


def _copy_windows(
    reader: WindowReader,
    position: int,
    begin: Position | None,
    selector: EventSelector,
    size_bytes: int,
    last: _End | None,
) -> StreamResponse | None:
    """Return a response with a copy of the ring's bytes; None if the first window is too large.

    Also None if the bytes contain DDL or truncates that were not requested, which is rare.
    """
    is_rest = last is not None and last.position - position <= size_bytes
    if last is not None and is_rest:
        end = last.position
    else:
        end = reader.end_of_windows(position, size_bytes, size_bytes // SLACK_DIVISOR)
    if end > position:
        body = reader.read(position, end - position)
        # The bytes end with the EOP of a window, which has its SCN.
        scn = peek(body, len(body) - EOP_BYTES).scn
        reader.remember_end(scn, end)
        if not selector.wants_optional and reader.has_optional(position, body):
            return None
        return StreamResponse(body, last.resume if last and is_rest else (scn, WINDOW_DONE))
    if not reader.read(position, 1):
        return StreamResponse(b"", begin, is_caught_up=True)
    return None


class _Walk:
    """Reads event by event: for filters, conversion, and windows larger than the response."""

    def __init__(
        self,
        reader: WindowReader,
        position: int,
        begin: Position | None,
        selector: EventSelector,
        size_bytes: int,
        last: _End | None,
    ) -> None:
        self._reader = reader
        self._last = last
        self.position = position
        self._selector = selector
        self._size_bytes = size_bytes
        self._begin = begin
        self.place = begin or (-1, 0)
        self._pieces: list[bytes] = []
        self._piece_bytes = 0
        self._whole_bytes = 0
        self._whole_scn = NOTHING
        self._scanned_bytes = 0
        self._overflow_bytes: int | None = None

    def step(self) -> StreamResponse | None:
        """Read one step; return the response if it is complete."""
        step_bytes = STEP_BYTES if self._selector.plan is None else COMPILED_STEP_BYTES
        room_bytes = self._size_bytes - self._piece_bytes
        # Nothing after the end of the selection is read.
        if self._last is not None:
            step_bytes = min(step_bytes, self._last.position - self.position)
        try:
            selected = self._reader.select(
                self.position, step_bytes, self._selector, self.place, room_bytes
            )
        except ScnNotFoundError:
            if self._whole_scn == NOTHING:
                raise
            # The writer has overtaken the walk: the windows that were read so far are valid.
            return self._response(is_caught_up=False)
        if selected is None:
            return self._response(is_caught_up=True)
        self._take(selected)
        if self._last is not None and self.position >= self._last.position:
            return StreamResponse(b"".join(self._pieces), self._last.resume)
        # A bound also for a filter that matches nothing, so that the client gets a new position.
        if self._overflow_bytes is not None or self._scanned_bytes >= MAX_SCAN_BYTES:
            return self._response(is_caught_up=False)
        return None

    def _take(self, selected: SelectedEvents) -> None:
        if selected.whole_scn != NOTHING:
            self._whole_bytes = self._piece_bytes + selected.whole_bytes
            self._whole_scn = selected.whole_scn
        self._pieces.append(selected.data)
        self._piece_bytes += len(selected.data)
        self._scanned_bytes += selected.position - self.position
        self.position = selected.position
        self.place = selected.scn, selected.offset
        if selected.overflow_bytes != NOTHING:
            self._overflow_bytes = selected.overflow_bytes

    def _response(self, *, is_caught_up: bool) -> StreamResponse:
        body = b"".join(self._pieces)
        # Whole windows only, if there is one. A window larger than the response is cut.
        if self._whole_scn != NOTHING:
            return StreamResponse(body[: self._whole_bytes], (self._whole_scn, WINDOW_DONE))
        here = self.place if self._scanned_bytes else self._begin
        if body:
            return StreamResponse(body, here)
        return StreamResponse(b"", here, self._overflow_bytes, is_caught_up=is_caught_up)


def run(job: StreamJob) -> StreamResponse:
    """Run a job to its end at once, for callers without an event loop."""
    job.start()
    while (response := job.step()) is None:
        pass
    return response
