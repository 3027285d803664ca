"""One client's reading: from its subscription on, as much at a time as it asks for.

Nothing is read ahead of a fetch but the rest of the last read, which is bounded: a client that
does not ask costs no more than that.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterator
from typing import NamedTuple

from databus.daemon.fair_queue import FairQueue
from databus.relay.clock import Clock
from databus.relay.serving.ptubes import packets
from databus.relay.serving.ptubes.places import Mode, Place
from databus.relay.serving.ptubes.requests import Fetch, Subscription
from databus.relay.serving.ptubes.rows.row_events import EVERY, PtubesEvent, RowEvents
from databus.relay.serving.reading.feed import Feed
from databus.schemas.errors import DatabusError, ProtocolError, ScnAheadError

MOST_EVENT_BYTES = 96 << 20  # the stock client accepts answers of 100 MiB
_LEAST_READ_BYTES = 64 << 10
_STEP_S = 0.004  # of work between two turns of the loop
_AHEAD_ADVICE = (
    ". If the relay is behind, wait for it. If the database's log was begun anew, the checkpoint "
    "is of another log and will not be used: set the task's checkpoint to EARLIEST, or read its "
    "tables anew"
)


class SessionLimits(NamedTuple):
    """What the settings allow."""

    read_bytes: int
    response_bytes: int
    wait_s: float
    heartbeat_s: float


class Batch:
    """The events of one answer, by partition."""

    def __init__(self, most: Fetch, owned: frozenset[int]) -> None:
        self.by_partition: dict[int, list[bytes]] = {}
        self.count = self.size_bytes = 0
        self.latest: bytes | None = None
        self._most, self._owned = most, sorted(owned)

    @property
    def is_full(self) -> bool:
        """Whether nothing more goes into it."""
        return self.count >= self._most.events or self.size_bytes >= self._most.size_bytes

    def add(self, event: PtubesEvent) -> None:
        """Put an event in: one of every partition into each that the client has."""
        partitions = self._owned if event.partition == EVERY else (event.partition,)
        for partition in partitions:
            self.by_partition.setdefault(partition, []).append(event.data)
        self.count += len(partitions)
        self.size_bytes += len(event.data) * len(partitions)
        if partitions:
            self.latest = event.checkpoint

    def to_bytes(self) -> bytes:
        """Return the answer."""
        return packets.envelope(self.by_partition, self.latest)


class Session:
    """Reads on for one subscription. One fetch at a time, on the loop's thread."""

    def __init__(
        self,
        wanted: Subscription,
        feed: Feed,
        events: RowEvents,
        queue: FairQueue,
        limits: SessionLimits,
        clock: Clock,
        commit_ms: Callable[[int], Awaitable[int | None]],
        newest_scn: Callable[[], int],
    ) -> None:
        """`commit_ms` looks for the commit time of a window, if it is held."""
        self.wanted = wanted
        self.events_sent = self.bytes_sent = 0
        self._feed, self._events, self._queue = feed, events, queue
        self._limits, self._clock = limits, clock
        self._commit_ms, self._newest_scn = commit_ms, newest_scn
        self._rest: Iterator[PtubesEvent] = iter(())
        self._is_rest_over = True
        self._failure: Exception | None = None  # nothing is skipped: it never goes on after one
        self._held_bytes = 0
        self._is_disconnected = False
        self._next_beat_s = clock.monotonic_s() + limits.heartbeat_s
        self._is_dated = False  # `last_ms` was looked up
        start = wanted.checkpoint
        self.last_ms = start.timestamp_ms if start.mode is Mode.NORMAL else -1

    @property
    def held_bytes(self) -> int:
        """The bytes of windows that it holds."""
        return self._held_bytes

    @property
    def scn(self) -> int:
        """SCN of the last window that was read; -1 before the first."""
        return self._feed.selection.checkpoint.window_scn

    def disconnect(self) -> None:
        """End a wait for windows."""
        self._is_disconnected = True
        self._feed.disconnect()

    async def begin(self) -> None:
        """Go to where the client begins; raise the error of a place that cannot be read."""
        response = await self._feed.read(self._limits.read_bytes, 0.0)
        if response.is_ahead:
            raise ScnAheadError(f"scn {self.scn}", self._newest_scn(), _AHEAD_ADVICE)
        self._take(response.body)

    async def fetch(self, asked: Fetch) -> bytes:
        """Return the answer to a fetch; raises the error of what cannot be read."""
        if self._failure is not None:
            raise self._failure
        size_bytes = min(asked.size_bytes, self._limits.response_bytes)
        batch = Batch(asked._replace(size_bytes=size_bytes), self.wanted.owned)
        end_s = self._clock.monotonic_s() + min(asked.wait_ms / 1000, self._limits.wait_s)
        while True:
            await self._fill(batch)
            if batch.is_full or not self._is_rest_over:
                break
            now_s = self._clock.monotonic_s()
            if await self._beat(batch, now_s):
                break
            wait_s = 0.0 if batch.count else max(0.0, min(end_s, self._next_beat_s) - now_s)
            is_new = await self._read(max(size_bytes, _LEAST_READ_BYTES), wait_s)
            if not is_new and (batch.count or self._clock.monotonic_s() >= end_s):
                await self._beat(batch, self._clock.monotonic_s())
                break
            if self._is_disconnected:
                break
        self.events_sent += batch.count
        answer = batch.to_bytes()
        self.bytes_sent += len(answer)
        return answer

    async def _read(self, size_bytes: int, wait_s: float) -> bool:
        """Read the next windows; return whether there are any."""
        response = await self._feed.read(min(size_bytes, self._limits.read_bytes), wait_s)
        self._take(response.body)
        return bool(response.body)

    def _take(self, body: bytes) -> None:
        if body:
            self._rest, self._is_rest_over = self._events.read(body), False
            self._held_bytes = len(body)

    async def _fill(self, batch: Batch) -> None:
        """Take events of what was read until the batch is full, or none is left."""
        while not self._is_rest_over and not batch.is_full:
            await self._queue.take()
            began_s = time.perf_counter()
            while not batch.is_full and time.perf_counter() - began_s < _STEP_S:
                event = self._next()
                if event is None:
                    self._is_rest_over, self._held_bytes = True, 0
                    break
                batch.add(event)
            self._queue.spent(time.perf_counter() - began_s)

    def _next(self) -> PtubesEvent | None:
        try:
            event = next(self._rest, None)
            if event is not None and len(event.data) > MOST_EVENT_BYTES:
                raise ProtocolError(
                    f"a row after scn {self.scn} has {len(event.data)} bytes, and Ptubes' clients "
                    f"take {MOST_EVENT_BYTES} at most: read this table with another client"
                )
        except DatabusError as error:
            self._failure = error
            raise
        return event

    async def _beat(self, batch: Batch, now_s: float) -> bool:
        """Tell all partitions how far the client is, where that is due; return whether it is.

        A partition without rows would keep its first checkpoint for ever, and a restart of the
        client begin there.
        """
        if now_s < self._next_beat_s or not self._is_rest_over:
            return False
        self._next_beat_s = now_s + self._limits.heartbeat_s
        place = await self._place()
        if place is None or not self.wanted.owned:
            return False
        checkpoint = packets.checkpoint_message(place)
        now_ms = self._clock.wall_ns() // 1_000_000
        batch.add(PtubesEvent(EVERY, packets.heartbeat_event(checkpoint, now_ms), checkpoint))
        return True

    async def _place(self) -> Place | None:
        """Return the place of all that was read; None inside a window, or before the first one.

        Its time is never that of the clock: what is committed now may be read later.
        """
        at = self._feed.selection.checkpoint
        if at.window_scn < 0 or at.window_offset >= 0:
            return None
        if self._events.last_ms > 0:
            self.last_ms = self._events.last_ms
        elif not self._is_dated:
            self.last_ms = await self._commit_ms(at.window_scn) or self.last_ms
            self._is_dated = True
        if self.last_ms <= 0:
            return None
        return self._events.place_after(at.window_scn, self.last_ms)
