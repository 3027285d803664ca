"""One run of a sink over one physical source: reads windows, gives them to lanes, stores positions.

A session ends when the sink ends, when `until` is reached, or when the target turns out to be at an
earlier position: then the next session begins there.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from databus.client.dispatcher.data_window import DataWindow, read_of
from databus.client.events.data_event import StatementEvent
from databus.client.sinks.contract import Change, Opening, Position, Sink
from databus.client.sinks.rules.beginnings import beginning, is_new
from databus.client.sinks.rules.changes import changes_of, place_last
from databus.client.sinks.rules.ending import Ending
from databus.client.sinks.rules.failures import Then
from databus.client.sinks.rules.orders import Scheduler
from databus.client.sinks.running.lane import Clock, Lane, Piece, Trouble
from databus.client.sinks.running.plan import SinkPlan
from databus.client.sinks.running.schema_history import SchemaHistory
from databus.client.sinks.running.shared_ring import RingClosedError, SharedRing
from databus.client.sinks.running.stream import SinkStream
from databus.schemas.errors import CheckpointError, SettingsError

log = logging.getLogger(__name__)

_JOIN_S = 10.0


class Ended(Enum):
    """Why a session ended."""

    STOPPED = "stopped"
    DONE = "done"  # `until` is reached, and everything before it is durable
    AGAIN = "again"  # the target is at an earlier position


@dataclass(frozen=True, slots=True)
class Place:
    """A position, and what commits the window that it is behind."""

    position: Position
    commit: Callable[[], None]
    committed_ns: int  # of the window, 0 = not known


class Watch(Protocol):
    """Who is told what happens. Called on any thread."""

    def is_held(self) -> bool:
        """Whether the sink is paused."""
        ...

    def wait_while_held(self) -> None:
        """Return when the sink is not paused."""

    def coming(self, changes: Sequence[Change]) -> None:
        """Take note of changes that are written next; may raise."""

    def wrote(self, changes: Sequence[Change]) -> None:
        """Take note of changes that are durable."""

    def failing(self, trouble: Trouble) -> None:
        """Take note of a failure."""

    def recovered(self, lane: int) -> None:
        """Take note of a success after failures."""

    def set_aside(self, change: Change, trouble: Trouble, then: Then) -> None:
        """Skip a row, or keep it as a dead letter; may raise."""

    def passes(self, window: DataWindow) -> None:
        """Take note of a window that lanes are given now."""

    def cannot_store(self, problem: str) -> None:
        """Take note of why a position is not stored; "" = it is."""


class Session:
    """Runs on the thread that calls `run`, and those of its lanes."""

    def __init__(self, plan: SinkPlan, stream: SinkStream, clock: Clock, watch: Watch) -> None:
        settings = plan.settings
        self._plan, self._stream, self._clock, self._watch = plan, stream, clock, watch
        self._ring: SharedRing[Place] = SharedRing(
            settings.capacity, most_bytes=settings.capacity_bytes
        )
        self._scheduler = Scheduler(
            settings.order, settings.lanes, settings.unique, self._unique_keys_of
        )
        self._history = SchemaHistory(plan.rule_of)
        self._is_new = is_new(None)
        self._unique_keys: Mapping[str, Sequence[Sequence[str]]] = {}
        self.lanes = [Lane(n, plan, self, clock) for n in range(self._scheduler.lanes)]
        self._ending = Ending(settings.until)
        self._why = Ended.STOPPED
        self._is_over = self._has_begun = False
        self._giving = threading.Lock()  # one thread gives changes to lanes
        self._has_finished = threading.Event()  # everything that can be stored is stored
        self._storing = threading.Lock()
        self._stored: Position | None = None
        self._waiting: Place | None = None  # to be stored
        self._stored_s = -settings.positions_every_s + clock()

    def run(self) -> Ended:
        """Read until the end; raise what ends reading, and SettingsError."""
        try:
            self._stored = self._stream.load()
            for lane in self.lanes:
                lane.start()
            own = self.lanes[0].wait_until_open()
            if self._is_over:
                return self._why
            self._begin(own)
            self._check_sources()
            self._read()
        except RingClosedError:
            pass
        finally:
            self.stop()
            for lane in self.lanes:
                lane.join()  # no other may write before it has ended
        return self._why

    def stop(self, timeout_s: float = _JOIN_S) -> None:
        """End: lanes make a last attempt to write what they hold. Thread-safe, idempotent."""
        if not self._is_over:
            self._is_over = True
            for lane in self.lanes:
                lane.stop()
            end_s = time.monotonic() + timeout_s
            for lane in self.lanes:
                if not lane.join(max(0.0, end_s - time.monotonic())):
                    lane.abort()
            self._store(must_store=True)
            self._has_finished.set()
        self._ring.close()
        self._stream.end()

    def tick(self) -> None:
        """Store a position that is due, and see whether the end is reached; called often."""
        if self._is_over:
            return
        is_reached = self._ending.is_reached(self._stream.scn)
        self._store(must_store=is_reached)
        if is_reached:
            self._flush_soon()
            if self._ring.is_empty and self._waiting is None:
                self._why = Ended.DONE
                self._stream.end()

    @property
    def held_rows(self) -> int:
        """The rows that are read and not durable yet."""
        return self._ring.held

    @property
    def held_windows(self) -> tuple[int, int]:
        """How many windows are read and not durable, and when the oldest was committed; 0 = ?."""
        count, oldest = self._ring.oldest
        return count, 0 if oldest is None else oldest.committed_ns

    def _begin(self, own: Position | None) -> None:
        begin = beginning(self._stored, own if len(self.lanes) == 1 else None)
        if begin is not None and begin != self._stored:
            self._stream.begin_at(begin)
            self._stored = begin
        self._is_new = is_new(begin)

    def _check_sources(self) -> None:
        """Raise SettingsError for unique keys of the target that the settings would violate."""
        for source in self._stream.sources:
            self._scheduler.check(source)
            if self._plan.settings.flush.compact and self._unique_keys_of(source):
                raise SettingsError(
                    f"flush.compact: the target of {source} has another unique key, and rows would "
                    "be written in another order: set compact = false"
                )

    def _read(self) -> None:
        self._has_begun = True
        with closing(self._stream.windows()) as windows:  # type: ignore[type-var]
            for window in windows:
                self._watch.wait_while_held()
                if self._is_over:
                    self._has_finished.wait(2 * _JOIN_S)  # nothing is committed after the last one
                    return
                self._ending.check_page(window, time.time_ns())
                is_past = self._ending.is_past(window)
                if not is_past:
                    with self._giving:
                        self._distribute(window)
                if is_past or self._ending.is_last(window):
                    self._drain()
                    # While the windows are still iterated: afterwards nothing can be committed.
                    self._store(must_store=True)
                    self._why = Ended.DONE
                    return

    def _distribute(self, window: DataWindow) -> None:
        settings = self._plan.settings
        rule_of = self._plan.rule_of
        self._history.take(window)
        changes = list(
            filter(self._is_new, changes_of(window, rule_of, with_statements=settings.ddl))
        )
        if not settings.ddl and window.statements:
            self._warn_of_unlogged_rows(window)
        position = Position(self._stream.source, read_of(window).checkpoint())
        place = Place(position, window.committer(), window.timestamp_ns)
        if len(self.lanes) == 1:
            place_last(changes, position)
        self._watch.passes(window)
        if self._give(changes, place, read_of(window).size_bytes) is None:
            self.done([self._take_room(place, 0, 0)])

    def _give(self, changes: Sequence[Change], place: Place | None, size_bytes: int) -> int | None:
        """Give changes to lanes; return the number of the last entry, None without any."""
        parts = [
            (step.is_barrier and at == 0, part)
            for step in self._scheduler.lanes_of(changes)
            for at, part in enumerate(step.parts)
        ]
        number = None
        for at, (is_barrier, part) in enumerate(parts, 1):
            if is_barrier:
                self._drain()
            rows = len(part.changes)
            own_bytes = size_bytes * rows // len(changes)
            number = self._take_room(place if at == len(parts) else None, rows, own_bytes)
            self.lanes[part.lane].put(Piece(number, part.changes, part.changes[-1].position))
        return number

    def _take_room(self, place: Place | None, rows: int, size_bytes: int) -> int:
        """Begin an entry of the ring, as soon as there is room for it."""
        size = max(rows, 1)  # also what has no rows takes memory
        if not self._ring.has_room(size, size_bytes):
            self._flush_soon()  # what lanes collect would be waited for
        return self._ring.begin(place, size, size_bytes)

    def _flush_soon(self) -> None:
        for lane in self.lanes:
            lane.flush_soon()

    def _drain(self) -> None:
        """Wait until everything that was given to lanes is durable."""
        self._flush_soon()
        self._ring.wait_until_empty()

    def _warn_of_unlogged_rows(self, window: DataWindow) -> None:
        for told in window.statements:
            if isinstance(told, StatementEvent):
                log.warning(
                    "%s: SCN %d: a statement changed rows of %s, and the source has not logged "
                    "them: the target lacks the change: %s",
                    self._plan.name,
                    told.scn,
                    ", ".join(told.sources),
                    told.statement,
                )

    def _unique_keys_of(self, source: str) -> Sequence[Sequence[str]]:
        return self._unique_keys.get(source, ())

    # As the target of a reload

    @property
    def passed_scn(self) -> int:
        """The SCN up to which lanes were given everything; -1 = nothing."""
        return self._stream.scn

    @property
    def is_reading(self) -> bool:
        """Whether it has begun, and has not ended."""
        return self._has_begun and not self._is_over

    def write_beside(self, make: Callable[[], Sequence[Change]], size_bytes: int) -> int | None:
        """Give lanes changes that move no position; return their number, None if it has ended.

        `make` is called while no window is given to lanes. `size_bytes`: as they were sent.
        """
        self._watch.wait_while_held()
        try:
            with self._giving:
                number = self._give(make(), None, size_bytes) if self.is_reading else None
                return -1 if number is None and self.is_reading else number
        except RingClosedError:
            return None

    def is_written(self, number: int) -> bool:
        """Whether everything up to a number is durable."""
        return self._ring.is_passed(number)

    # As the owner of its lanes

    def is_held(self) -> bool:
        """Whether the sink is paused."""
        return self._watch.is_held()

    @property
    def stored(self) -> Position | None:
        """The position that is stored."""
        return self._stored

    def opening(self) -> Opening:
        """Return what a lane opens its sink for."""
        source, versions = self._stream.source, self._history.of
        return Opening(self._plan.name, source, self._stored, versions=versions)

    def opened(self, sink: Sink) -> None:
        """Take note of what the sink says of itself; raise SettingsError for too many lanes."""
        settings = self._plan.settings
        # Of others it was known before: by their options, or their class.
        if self._plan.isolated is not None and getattr(sink, "keeps_position", False):
            self._plan.check_lanes()
        self._scheduler.follows_schemas = bool(getattr(sink, "follows_schemas", False))
        if settings.order == "row" or settings.flush.compact:
            names = self._stream.sources
            self._unique_keys = {name: self._plan.unique_keys(sink, name) for name in names}

    def coming(self, changes: Sequence[Change]) -> None:
        """Take note of changes that are written next; may raise."""
        self._watch.coming(changes)

    def wrote(self, changes: Sequence[Change]) -> None:
        """Take note of changes that are durable."""
        self._watch.wrote(changes)

    def done(self, numbers: Sequence[int]) -> None:
        """Take note that entries are durable, and store what may be stored."""
        with self._storing:  # in the order in which positions are given
            self._store_locked(self._ring.done(numbers), must_store=False)

    def failing(self, trouble: Trouble) -> None:
        """Take note of a failure."""
        self._watch.failing(trouble)

    def recovered(self, lane: int) -> None:
        """Take note of a success after failures."""
        self._watch.recovered(lane)

    def set_aside(self, change: Change, trouble: Trouble, then: Then) -> None:
        """Skip a row, or keep it as a dead letter."""
        self._watch.set_aside(change, trouble, then)

    def go_back(self, position: Position) -> None:
        """End, so that the next session begins where the target is."""
        log.warning(
            "%s: the target is at SCN %d, and not where it was: reading again from there",
            self._plan.name,
            position.scn,
        )
        self._why = Ended.AGAIN
        self._is_over = True
        self._has_finished.set()
        self._ring.close()
        self._stream.end()

    # Positions

    def _store(self, *, must_store: bool) -> None:
        with self._storing:
            self._store_locked(self._ring.take(), must_store=must_store)

    def _store_locked(self, place: Place | None, *, must_store: bool) -> None:
        self._waiting = place or self._waiting
        if self._waiting is None:
            return
        now_s = self._clock()
        if not must_store and now_s < self._stored_s + self._plan.settings.positions_every_s:
            return
        try:
            self._waiting.commit()
        except CheckpointError as error:
            if not self._is_over:  # then it is read again from the position before
                self._watch.cannot_store(str(error))
            return
        self._stored, self._waiting, self._stored_s = self._waiting.position, None, now_s
        self._watch.cannot_store("")
