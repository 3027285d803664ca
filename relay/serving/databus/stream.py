"""From a stream request to the bytes of its response, given a reader of the ring.

No sockets and no waiting: a `StreamJob` looks at the ring in steps of bounded
size, so that a request with a filter that lets nothing through cannot hold up
the others, and says in the end what to answer.

Whole windows are sent. Only a window larger than `size` is cut, at an event,
and continued by the next request at (windowScn, windowOffset). The offset
counts *all* events of the window, filtered out or not: counted in filtered
events, as the original does it, the same events would come again and again.
`StreamResponse.resume` says where to go on, so nobody has to count.

A selection that ends with a window is cut there: the place in the ring is
looked for once a request, and nothing from there on is looked at.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

from databus.relay.ring.event_selector import NOTHING, WINDOW_DONE, Position, Sieve, Sifted
from databus.relay.ring.events import EOP_BYTES
from databus.relay.ring.selection import Selection
from databus.schemas.errors import DamagedWindowsError, OtherLogError, ScnNotFoundError
from databus.schemas.event.v2 import SMALLEST_BYTES, Peek, peek
from databus.schemas.rendering import Render
from databus.schemas.scn import MAX_SCN

# One step is about 5 ms of Python on the loop that serves everybody, and less where
# compiled code looks at the events.
STEP_BYTES = 512 << 10
COMPILED_STEP_BYTES = 4 << 20
# No match in so many bytes: answer with how far it got, and let the client ask on.
MAX_SCAN_BYTES = 64 << 20
# A response this much smaller than `size` is not worth a walk through a block.
SLACK_DIVISOR = 16


class WindowReader(Protocol):
    """What is asked of a ring's reader; `find`, `read` and `sift` may raise ScnNotFoundError."""

    @property
    def opening(self) -> int:
        """Another number once the ring was emptied: places are to be found anew."""
        ...

    @property
    def head(self) -> int:
        """Where the oldest window begins."""
        ...

    @property
    def min_scn(self) -> int:
        """The oldest window; negative when there is none."""
        ...

    @property
    def max_scn(self) -> int:
        """The newest window; negative when there was never one."""
        ...

    def newest(self) -> tuple[int, int]:
        """Return the newest window's SCN and where it ends."""
        ...

    def find(self, scn: int, window_offset: int) -> int | None:
        """Return where the next event after (scn, window_offset) lies; None when not here yet."""
        ...

    def window_at(self, scn: int) -> tuple[int, int] | None:
        """Return SCN and timestamp of the newest window up to `scn`; None when it is not held."""
        ...

    def read(self, position: int, max_bytes: int) -> bytes:
        """Return bytes from there on, up to the published tail."""
        ...

    def sift(
        self, position: int, max_bytes: int, sieve: Sieve, place: Position, room_bytes: int
    ) -> Sifted | None:
        """Return what passes of so many bytes; None at the published tail."""
        ...

    def end_of_windows(self, position: int, max_bytes: int, slack_bytes: int = 0) -> int:
        """Return where the last window ends that fits, or nearly so; or `position`."""
        ...

    def may_have_ddl(self, position: int, windows: bytes) -> bool:
        """Say whether whole windows that were read there may have a DDL event."""
        ...

    def remember_end(self, scn: int, position: int) -> None:
        """Note where a window ends that was just sent."""


@dataclass(frozen=True, slots=True)
class StreamResponse:
    """What to answer.

    `resume` is None only when nothing was asked for by SCN and nothing is sent.
    `is_caught_up`: there was nothing to look at, so holding the request may help.
    """

    body: bytes
    resume: Position | None
    pending_event_bytes: int | None = None
    is_ahead: bool = False
    is_caught_up: bool = False

    @property
    def is_cut(self) -> bool:
        """Whether the body ends inside a window."""
        return bool(self.body) and self.resume is not None and self.resume[1] != WINDOW_DONE


class StreamJob:
    """One request's way through one ring.

    `start` finds the place (again, when the ring has grown), `step` looks at
    a bounded number of bytes and returns the response once it is complete.
    `render` is None when events are sent as the ring has them.
    """

    def __init__(
        self, reader: WindowReader, selection: Selection, size_bytes: int, render: Render | None
    ) -> None:
        self._reader = reader
        self._selection = selection
        self._sieve = Sieve(selection, render)
        self._copies_bytes = render is None and self._sieve.takes_all_rows
        self._place: tuple[int, Position | None] | None = None
        self._walk: _Walk | None = None
        self._size_bytes = size_bytes
        self._end: _End | None = None
        self._opening = reader.opening
        self._copied_until = -1

    @property
    def selection(self) -> Selection:
        """What is read."""
        return self._selection

    def start(self, size_bytes: int | None = None) -> None:
        """Begin a look at the ring; raises ScnNotFoundError."""
        self._size_bytes = self._size_bytes if size_bytes is None else size_bytes
        self._walk = None
        if self._is_done:
            return
        if self._opening != self._reader.opening:
            # What lies at the place now may be older than what was asked for.
            self._place, self._end = None, None
            self._opening = self._reader.opening
        if self._place is None:
            self._place = self._find_place()
        if self._place is not None and self._end is None:
            self._end = self._find_end(self._place[0])

    @property
    def begin(self) -> Position | None:
        """Where it began to read; None when that is the oldest window or not found yet."""
        return self._asked if self._place is None else self._place[1]

    @property
    def position(self) -> int | None:
        """Where in the ring that is; None when it is not found, or not here yet."""
        return None if self._place is None else self._place[0]

    @property
    def read_until(self) -> int:
        """Up to where in the ring it has read; -1 when it has not begun."""
        return self._copied_until if self._walk is None else self._walk.position

    @property
    def is_inside_window(self) -> bool:
        """Whether the first window was read in part by an earlier request."""
        return self.begin is not None and self.begin[1] > 0

    def next_event(self) -> Peek | None:
        """Return the fixed fields of the event that comes next; None when there is none."""
        if self._place is None:
            return None
        try:
            data = self._reader.read(self._place[0], SMALLEST_BYTES)
        except ScnNotFoundError:
            return None  # overtaken meanwhile: `step` says so, or goes on at the oldest
        return peek(data) if len(data) >= SMALLEST_BYTES else None

    def step(self) -> StreamResponse | None:
        """Look further; None when there is more to look at. Raises ScnNotFoundError."""
        if self._is_done:
            return StreamResponse(b"", (self._selection.until_scn, WINDOW_DONE))
        if self._place is None:
            is_ahead = self._asked is not None and self._asked[0] > max(self._reader.max_scn, 0)
            return StreamResponse(b"", self._asked, is_ahead=is_ahead, is_caught_up=True)
        try:
            if self._opening == self._reader.opening:
                return self._look(*self._place)
            self.start()
            return None
        except DamagedWindowsError:
            raise  # they do not go away, whatever was asked for
        except ScnNotFoundError:
            if self._asked is not None or self._selection.from_latest:
                raise
            # Asked for whatever is oldest, which is another window by now.
            self._place = None
            self.start()
            return None

    def _look(self, position: int, begin: Position | None) -> StreamResponse | None:
        if self._end is not None and position >= self._end.position:
            return StreamResponse(b"", self._end.resume)
        if self._copies_bytes and self._walk is None:
            response = _copy_windows(
                self._reader, position, begin, self._sieve, self._size_bytes, self._end
            )
            if response is not None:
                self._copied_until = position + len(response.body)
                return response
        if self._walk is None:
            self._walk = _Walk(
                self._reader, position, begin, self._sieve, self._size_bytes, self._end
            )
        return self._walk.step()

    @property
    def _asked(self) -> Position | None:
        checkpoint = self._selection.checkpoint
        if checkpoint.is_flexible:
            return None
        return checkpoint.window_scn, checkpoint.window_offset

    def _find_place(self) -> tuple[int, Position | None] | None:
        if self._selection.from_latest:
            # Of a ring that never held a window the newest is -1: "go on at -1" means that
            # everything that will ever come is newer than this request.
            scn, tail = self._reader.newest()
            return tail, (scn, WINDOW_DONE)
        asked = self._asked
        if asked is None:
            return self._reader.head, None
        self._check_mark()
        found = self._reader.find(*asked)
        return None if found is None else (found, asked)

    def _check_mark(self) -> None:
        """Refuse a consumer whose last rows are of a window that this log should have, and has not.

        An SCN alone proves nothing: another database has the same ones. Windows without rows
        are no mark, for each relay writes its own (heartbeat.py).
        """
        mark = self._selection.checkpoint.mark
        held = None if mark is None else self._reader.window_at(mark[0])
        if mark is not None and held is not None and held != mark:
            raise OtherLogError.of(self._selection.physical_source, mark, held)

    @property
    def _is_done(self) -> bool:
        """Whether the checkpoint is behind all that is wanted, wherever the ring is."""
        asked, until_scn = self._asked, self._selection.until_scn
        if asked is None or self._selection.from_latest or until_scn == MAX_SCN:
            return False
        return asked[0] > until_scn or asked == (until_scn, WINDOW_DONE)

    def _find_end(self, begin: int) -> _End | None:
        """Return where the last window wanted ends; None when that is not here yet.

        Raises ScnNotFoundError when it is gone: also when the oldest was asked for,
        for an empty answer would say that nothing was there.
        """
        until_scn = self._selection.until_scn
        if until_scn == MAX_SCN:
            return None
        end = self._reader.find(until_scn, WINDOW_DONE)
        if end is None:
            return None
        if end <= begin and self._asked is None and not self._selection.from_latest:
            raise ScnNotFoundError(until_scn, self._reader.min_scn)
        return _End(end, (until_scn, WINDOW_DONE))


class _End(NamedTuple):
    """Where reading ends because no more is wanted: a position, and what to resume from."""

    position: int
    resume: Position


def _copy_windows(
    reader: WindowReader,
    position: int,
    begin: Position | None,
    sieve: Sieve,
    size_bytes: int,
    last: _End | None,
) -> StreamResponse | None:
    """Answer with the ring's own bytes; None when the first window does not fit.

    None, too, when there is DDL among them that is not wanted: that is rare.
    """
    is_rest = last is not None and last.position - position <= size_bytes
    if last is not None and is_rest:
        end = last.position
    else:
        end = reader.end_of_windows(position, size_bytes, size_bytes // SLACK_DIVISOR)
    if end > position:
        body = reader.read(position, end - position)
        scn = peek(body, len(body) - EOP_BYTES).scn
        reader.remember_end(scn, end)
        if not sieve.wants_ddl and reader.may_have_ddl(position, body):
            return None
        return StreamResponse(body, last.resume if last and is_rest else (scn, WINDOW_DONE))
    if not reader.read(position, 1):
        return StreamResponse(b"", begin, is_caught_up=True)
    return None


class _Walk:
    """Event by event: filters, conversion, and windows too large for the response."""

    def __init__(
        self,
        reader: WindowReader,
        position: int,
        begin: Position | None,
        sieve: Sieve,
        size_bytes: int,
        last: _End | None,
    ) -> None:
        self._reader = reader
        self._last = last
        self.position = position
        self._sieve = sieve
        self._size_bytes = size_bytes
        self._begin = begin
        self._place = begin or (-1, 0)
        self._pieces: list[bytes] = []
        self._piece_bytes = 0
        self._whole_bytes = 0
        self._whole_scn = NOTHING
        self._scanned_bytes = 0
        self._overflow_bytes: int | None = None

    def step(self) -> StreamResponse | None:
        """Look at one piece; returns the response when that was the last one."""
        step_bytes = STEP_BYTES if self._sieve.plan is None else COMPILED_STEP_BYTES
        room_bytes = self._size_bytes - self._piece_bytes
        if self._last is not None:
            step_bytes = min(step_bytes, self._last.position - self.position)
        try:
            sifted = self._reader.sift(
                self.position, step_bytes, self._sieve, self._place, room_bytes
            )
        except ScnNotFoundError:
            if self._whole_scn == NOTHING:
                raise
            return self._response(is_caught_up=False)
        if sifted is None:
            return self._response(is_caught_up=True)
        self._take(sifted)
        if self._last is not None and self.position >= self._last.position:
            return StreamResponse(b"".join(self._pieces), self._last.resume)
        if self._overflow_bytes is not None or self._scanned_bytes >= MAX_SCAN_BYTES:
            return self._response(is_caught_up=False)
        return None

    def _take(self, sifted: Sifted) -> None:
        if sifted.whole_scn != NOTHING:
            self._whole_bytes = self._piece_bytes + sifted.whole_bytes
            self._whole_scn = sifted.whole_scn
        self._pieces.append(sifted.data)
        self._piece_bytes += len(sifted.data)
        self._scanned_bytes += sifted.position - self.position
        self.position = sifted.position
        self._place = sifted.scn, sifted.offset
        if sifted.overflow_bytes != NOTHING:
            self._overflow_bytes = sifted.overflow_bytes

    def _response(self, *, is_caught_up: bool) -> StreamResponse:
        body = b"".join(self._pieces)
        if self._whole_scn != NOTHING:
            return StreamResponse(body[: self._whole_bytes], (self._whole_scn, WINDOW_DONE))
        here = self._place if self._scanned_bytes else self._begin
        if body:
            return StreamResponse(body, here)
        return StreamResponse(b"", here, self._overflow_bytes, is_caught_up=is_caught_up)


def run(job: StreamJob) -> StreamResponse:
    """Run a job to its end at once: for callers with no loop to share."""
    job.start()
    while (response := job.step()) is None:
        pass
    return response
