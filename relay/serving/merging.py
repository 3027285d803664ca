"""Windows of several physical sources in one order: by their commit times.

The order of each source never changes, and a window is never cut by another one's. Commit times of
several servers are comparable only as far as their clocks are: the order between sources is a
service, not a promise.

A source that has nothing to read now may still have an older window to come. So it is waited for,
but only for `wait_s` since it was last heard of. After that it is silent, and the others go on
without it until it has something again. The pure rule is `Merge`; `MergedFeed` reads with it.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from databus.relay.ring.event_selector import WINDOW_DONE, Position
from databus.schemas.errors import DatabusError, ProtocolError, ScnNotFoundError
from databus.schemas.event.event import EOP_SRC_ID
from databus.schemas.event.layout import V2, struct_of

_EVENT = struct_of(V2.length, V2.timestamp_ns, V2.src_id, V2.scn)
HOLD_S = 30.0  # a read of one source, for windows to come
RETRY_S = 1.0  # of a source that cannot be read


class Run(NamedTuple):
    """Events of one source, of whole windows or of a part of one, and the place after them."""

    source: str
    body: bytes
    place: Position


class SourceReading(NamedTuple):
    """One source of a merge. `is_waited_for`: the others wait for it to say something."""

    source: str
    is_waited_for: bool
    silent_s: float | None  # for which it has had nothing to read; None if it has
    problem: str  # why it cannot be read; "" = it can
    waiting_bytes: int  # that were read and wait for their turn


class _Piece(NamedTuple):
    timestamp_ns: int
    body: bytes
    place: Position

    @property
    def is_end(self) -> bool:
        return self.place[1] == WINDOW_DONE


@dataclass(slots=True)
class _Queue:
    source: str
    empty_since_s: float
    pieces: deque[_Piece] = field(default_factory=deque)
    newest_ns: int = -1  # of what was taken
    problem: str = ""


class Merge:
    """Decides whose window is next. Pure: whoever reads gives the time, in seconds."""

    def __init__(self, sources: Sequence[str], wait_s: float, now_s: float) -> None:
        self._wait_s = wait_s
        self._queues = {source: _Queue(source, now_s) for source in sources}
        self._open: _Queue | None = None  # has handed out a part of a window
        self.places: dict[str, Position] = {}
        """After what was taken, by source; without those of which nothing is known."""

    def add(self, source: str, body: bytes, place: Position | None) -> None:
        """Add what was read of a source, in its order; raise ProtocolError for damaged events."""
        queue = self._queues[source]
        queue.problem = ""
        if body:
            assert place is not None, "events have a place after them"
            queue.pieces.extend(_pieces(body, place))
        elif place is not None and not queue.pieces:
            self.places[source] = place  # after windows without anything that is wanted

    def fail(self, source: str, problem: str) -> None:
        """Note that a source cannot be read now: it is silent."""
        self._queues[source].problem = problem

    @property
    def empty(self) -> list[str]:
        """The sources of which nothing waits: they are to be read."""
        return [queue.source for queue in self._queues.values() if not queue.pieces]

    @property
    def open_source(self) -> str | None:
        """The source whose window is to be finished before anything else; None between windows."""
        return None if self._open is None else self._open.source

    def take(self, size_bytes: int, now_s: float) -> list[Run]:
        """Return what is next, of at least one window or part and about `size_bytes` at most."""
        runs: list[Run] = []
        taken = 0
        while taken < size_bytes and (queue := self._next(now_s)) is not None:
            piece = queue.pieces.popleft()
            queue.newest_ns = max(queue.newest_ns, piece.timestamp_ns)
            self._open = None if piece.is_end else queue
            if not queue.pieces:
                queue.empty_since_s = now_s
            taken += len(piece.body)
            self.places[queue.source] = piece.place
            if runs and runs[-1].source == queue.source:
                runs[-1] = Run(queue.source, runs[-1].body + piece.body, piece.place)
            else:
                runs.append(Run(queue.source, piece.body, piece.place))
        return runs

    def due_s(self, now_s: float) -> float | None:
        """Return in how many seconds it goes on without a source; None if none holds it back."""
        head = self._head()
        if self._open is not None or head is None:
            return None
        left = [queue.empty_since_s + self._wait_s - now_s for queue in self._holding(head, now_s)]
        return max(left) if left else None

    def status(self, now_s: float) -> list[SourceReading]:
        """Return how each source is doing."""
        head = self._head()
        holding = [] if head is None else self._holding(head, now_s)
        return [
            SourceReading(
                queue.source,
                any(one is queue for one in holding),
                None if queue.pieces else now_s - queue.empty_since_s,
                queue.problem,
                sum(len(piece.body) for piece in queue.pieces),
            )
            for queue in self._queues.values()
        ]

    def _next(self, now_s: float) -> _Queue | None:
        if self._open is not None:
            return self._open if self._open.pieces else None
        head = self._head()
        return None if head is None or self._holding(head, now_s) else head

    def _head(self) -> _Queue | None:
        """Return the queue with the oldest window; of equal ones the first of the settings."""
        waiting = [queue for queue in self._queues.values() if queue.pieces]
        return min(waiting, key=lambda queue: queue.pieces[0].timestamp_ns, default=None)

    def _holding(self, head: _Queue, now_s: float) -> list[_Queue]:
        """Return the queues that may have an older window than the head, and are waited for."""
        at_ns = head.pieces[0].timestamp_ns
        return [
            queue
            for queue in self._queues.values()
            if not queue.pieces
            and queue.newest_ns < at_ns
            and now_s - queue.empty_since_s < self._wait_s
        ]


def _pieces(body: bytes, place: Position) -> list[_Piece]:
    """Cut events into their windows; the last one may go on."""
    found: list[_Piece] = []
    at = begin = 0
    begin_ns = -1
    while at < len(body):
        if at + _EVENT.size > len(body):
            raise ProtocolError("an event is cut short", at)
        length, timestamp_ns, src_id, scn = _EVENT.unpack_from(body, at)
        if length < _EVENT.size or at + length > len(body):
            raise ProtocolError(f"event length {length} is impossible", at)
        begin_ns = timestamp_ns if at == begin else begin_ns
        if src_id == EOP_SRC_ID:
            found.append(_Piece(begin_ns, body[begin : at + length], (scn, WINDOW_DONE)))
            begin = at + length
        at += length
    if begin < len(body):
        found.append(_Piece(begin_ns, body[begin:], place))
    elif place[1] == WINDOW_DONE:
        # It may be after further windows, without anything that is wanted.
        found[-1] = found[-1]._replace(place=place)
    return found


class Answer(Protocol):
    """What is read of one source, as `StreamResponse` has it."""

    @property
    def body(self) -> bytes:
        """Whole events."""
        ...

    @property
    def resume(self) -> Position | None:
        """The place after them."""
        ...


class Readable(Protocol):
    """One source, as `Feed` reads it."""

    async def read(self, size_bytes: int, wait_s: float) -> Answer:
        """Return the next events, or those that come within so many seconds."""
        ...

    def disconnect(self) -> None:
        """End a wait."""


class MergedFeed:
    """Reads several feeds as one. On the loop; one reader at a time; `close` it.

    Each feed is read ahead of what is handed out: a reader that goes back makes new feeds.
    """

    def __init__(
        self,
        feeds: Mapping[str, Readable],
        merge_wait_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._feeds, self._clock = dict(feeds), clock
        self._merge = Merge(list(feeds), merge_wait_s, clock())
        self._reads: dict[str, asyncio.Task[Answer]] = {}
        self._retry_at_s: dict[str, float] = {}
        self._errors: dict[str, DatabusError] = {}

    @property
    def places(self) -> Mapping[str, Position]:
        """The places after what was handed out, by source; without those that are not known."""
        return self._merge.places

    def status(self) -> list[SourceReading]:
        """Return how each source is doing."""
        return self._merge.status(self._clock())

    async def read(self, size_bytes: int, wait_s: float) -> list[Run]:
        """Return what is next, in order; nothing if none comes in so many seconds.

        A source that cannot be read is silent, which `status` shows. Raises its error if no other
        source can be read either, or if its window is half handed out; and ScnNotFoundError always:
        windows of that source would be lost.
        """
        end_s = self._clock() + wait_s
        while True:
            now_s = self._clock()
            self._begin_reads(size_bytes, now_s)
            self._take_answers()
            runs = self._merge.take(size_bytes, now_s)
            if runs:
                return runs
            self._check_errors()
            if now_s >= end_s:
                return []
            due_s = self._merge.due_s(now_s)
            waits = [end_s - now_s, *([] if due_s is None else [due_s])]
            waits += [at_s - now_s for at_s in self._retry_at_s.values()]
            await _first_of(self._reads.values(), max(0.0, min(waits)))

    async def close(self) -> None:
        """End all reads."""
        reads, self._reads = list(self._reads.values()), {}
        for feed in self._feeds.values():
            feed.disconnect()
        for task in reads:
            task.cancel()
        await asyncio.gather(*reads, return_exceptions=True)

    def _begin_reads(self, size_bytes: int, now_s: float) -> None:
        for source in self._merge.empty:
            if source not in self._reads and self._retry_at_s.get(source, now_s) <= now_s:
                self._retry_at_s.pop(source, None)
                read = self._feeds[source].read(size_bytes, HOLD_S)
                self._reads[source] = asyncio.ensure_future(read)

    def _take_answers(self) -> None:
        for source, task in list(self._reads.items()):
            if not task.done():
                continue
            del self._reads[source]
            try:
                answer = task.result()
            except ScnNotFoundError:
                raise
            except DatabusError as error:
                self._errors[source] = error
                self._merge.fail(source, str(error))
                self._retry_at_s[source] = self._clock() + RETRY_S
            else:
                self._errors.pop(source, None)
                self._merge.add(source, answer.body, answer.resume)

    def _check_errors(self) -> None:
        """Raise the error without whose source nothing goes on."""
        needed = self._merge.open_source
        if needed in self._errors:
            raise self._errors[needed]
        if len(self._errors) == len(self._feeds):
            raise next(iter(self._errors.values()))


async def _first_of(tasks: Collection[asyncio.Task[Answer]], wait_s: float) -> None:
    if tasks:
        await asyncio.wait(tasks, timeout=wait_s, return_when=asyncio.FIRST_COMPLETED)
    else:
        await asyncio.sleep(wait_s)
