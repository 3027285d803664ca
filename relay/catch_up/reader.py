"""Reads a catch-up for requests, up to where that may be read.

The methods are those of the relay's own reader. A catch-up that is not open yet, or queued, looks
like one that has no windows yet: the request is held. Once it is dropped, every method raises.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from databus.relay.capture.notifier import Notifier
from databus.relay.catch_up.read_ahead import ReadAhead
from databus.relay.clock import Clock
from databus.relay.log.history import HistoryReader
from databus.relay.log.layout import UNKNOWN_SCN
from databus.relay.ring.event_selector import WINDOW_DONE, EventSelector, Position, SelectedEvents
from databus.relay.ring.row_count import Limits, RowCount
from databus.relay.ring.scn_index import Extent, IndexEntry
from databus.relay.span import NO_LIMITS, Spans
from databus.schemas.errors import (
    DamagedWindowsError,
    DatabusError,
    RelayLogError,
    ScnNotFoundError,
)

_TOLD_AFTER_S = 3.0  # a connection that is made anew is no trouble
_NOTHING = (UNKNOWN_SCN, 0)  # newest window and its end, where there is none


class CatchUpReader:
    """Reads one catch-up. On the loop's thread."""

    def __init__(
        self,
        name: str,
        limit: Callable[[], int | None],
        newest_held: Callable[[], int],
        read_ahead: ReadAhead,
        clock: Clock,
        spans: Spans = NO_LIMITS,
    ) -> None:
        """`limit` returns the first SCN that must not be read yet, or None.

        `newest_held` returns the newest SCN of the relay: what is asked for is never after that.
        `read_ahead` is told where readers are. `spans` are those of its sources, as they are for
        this reader.
        """
        self.spans = spans
        self._read_ahead, self._clock = read_ahead, clock
        self._name, self._limit, self._newest_held = name, limit, newest_held
        self._history: HistoryReader | None = None
        self._error: Exception | None = None
        self._end = _NOTHING
        self._trouble = ""
        self._trouble_since_s: float | None = None
        self._is_limited = False  # there is more, which must not be read yet
        self.notifier = Notifier()
        self.read_bytes = 0

    @property
    def is_open(self) -> bool:
        """Whether it has a history to read."""
        return self._history is not None

    def use(self, history: HistoryReader) -> None:
        """Read a history from now on, which is closed with this reader."""
        self._history = history

    def close(self, error: Exception) -> None:
        """Close the history; from now on every method raises `error`."""
        if self._history is not None:
            self._history.close()
            self._history = None
        self._error = error
        self.notifier.notify_all()

    def note_trouble(self, problem: str) -> None:
        """Note why there is nothing more to read for a while; "" = nothing is wrong."""
        if not problem:
            self._trouble_since_s = None
            return
        self._trouble = problem
        if self._trouble_since_s is None:
            self._trouble_since_s = self._clock.monotonic_s()
        if self._is_troubled:
            self.notifier.notify_all()  # held requests are told

    def rest(self) -> None:
        """Close files and forget readers that were not heard of; take note of a new end."""
        if self._history is None:
            return
        self._history.rest()
        self._read_ahead.forget(self._clock.monotonic_s())
        before = self._end
        with suppress(DatabusError):  # whoever reads it is told
            if self._refresh() != before:
                self.notifier.notify_all()
            after_scn = self._read_ahead.after_scn
            if self._read_ahead.slowest is None and self._history.newest()[0] >= after_scn:
                found = self._history.find(after_scn, WINDOW_DONE)
                if found is not None:
                    self._read_ahead.reached(found)

    @property
    def opening(self) -> int:
        """Changes when it is opened, or its log is; positions found before are then invalid."""
        history = self._checked()
        return 0 if history is None else 1 + history.opening

    @property
    def head(self) -> int:
        """Position of the oldest window."""
        return self.extent().head

    @property
    def min_scn(self) -> int:
        """SCN of the oldest window; -1 without one."""
        return self.extent().min_scn

    @property
    def prev_scn(self) -> int:
        """Newest SCN before the oldest window; -1 if unknown."""
        return self.extent().prev_scn

    @property
    def max_scn(self) -> int:
        """SCN of the relay's newest window, which this one leads to."""
        return self._newest_held()

    @property
    def latest_timestamp_ns(self) -> int:
        """Commit time of the newest window that may be read; 0 if unknown."""
        history = self._checked()
        found = None if history is None else history.window_at(self._refresh()[0])
        return 0 if found is None else found[1]

    def newest(self) -> tuple[int, int]:
        """Return SCN and end position of the newest window that may be read."""
        return _NOTHING if self._checked() is None else self._refresh()

    def extent(self) -> Extent:
        """Return the bounds of what it has."""
        history = self._checked()
        if history is None:
            return Extent(0, 0, UNKNOWN_SCN, UNKNOWN_SCN, 0, 0)
        return history.extent()

    def find(self, scn: int, window_offset: int) -> int | None:
        """Return the position of the first event after a place; None if it is not there yet."""
        history = self._checked()
        if history is None:
            return None
        newest, end = self._refresh()
        if scn > newest:
            self._check_trouble()
            return None
        try:
            found = history.find(scn, window_offset)
        except DamagedWindowsError:
            raise
        except ScnNotFoundError as error:
            raise RelayLogError(
                f"{self._name} no longer has what comes after scn {scn}; ask again"
            ) from error
        if found is None or found >= end:
            self._check_trouble()
        if found is None or found > end:
            return None
        # The rest of a window needs the whole window.
        self._read_ahead.asked(found, scn - (window_offset >= 0), self._clock.monotonic_s())
        self._note_wait()
        return found

    def has_after(self, scn: int, window_offset: int) -> bool:
        """Return whether there is something to read after a place."""
        found = self.find(scn, window_offset)
        return found is not None and found < self._end[1]

    def window_at(self, scn: int) -> tuple[int, int] | None:
        """Return SCN and timestamp of the newest window up to `scn`; None if it is not held."""
        history = self._checked()
        return None if history is None else history.window_at(scn)

    def read(self, position: int, max_bytes: int) -> bytes:
        """Return bytes from `position` on, up to where it may be read."""
        history, room = self._checked(), self._end[1] - position
        if history is None or room <= 0:
            return b""
        data = history.read(position, min(max_bytes, room))
        self.read_bytes += len(data)
        return data

    def select(
        self,
        position: int,
        max_bytes: int,
        selector: EventSelector,
        place: Position,
        room_bytes: int,
    ) -> SelectedEvents | None:
        """Return the events that pass in the next `max_bytes`; None where it ends."""
        history, room = self._checked(), self._end[1] - position
        if history is None or room <= 0:
            return None
        found = history.select(position, min(max_bytes, room), selector, place, room_bytes)
        if found is not None:
            self.read_bytes += found.position - position
            self._read_ahead.sent(position, found.position)
        return found

    def count(
        self, so_far: RowCount, max_bytes: int, tail: int, selector: EventSelector, limits: Limits
    ) -> RowCount:
        """Count the rows in the next `max_bytes`, but not beyond `tail`."""
        history = self._checked()
        if history is None:
            return so_far
        return history.count(so_far, max_bytes, min(tail, self._end[1]), selector, limits)

    def end_of_windows(self, position: int, max_bytes: int, slack_bytes: int = 0) -> int:
        """Return the end of the last window that fits, within `slack_bytes`, or `position`."""
        history, room = self._checked(), self._end[1] - position
        if history is None or room <= 0:
            return position
        end = history.end_of_windows(position, min(max_bytes, room), slack_bytes)
        self._read_ahead.sent(position, end)
        return end

    def has_optional(self, position: int, windows: bytes) -> bool:
        """Return whether whole windows contain a statement or a truncate."""
        history = self._checked()
        return history is not None and history.has_optional(position, windows)

    def remember_end(self, scn: int, position: int) -> None:
        """Remember the end position of a window that was just sent."""
        if self._history is not None:
            self._history.remember_end(scn, position)

    def block_before(self, timestamp_ns: int) -> IndexEntry | None:
        """Return a block that begins before a time, or the oldest one; None without one."""
        history = self._checked()
        return None if history is None else history.block_before(timestamp_ns)

    @property
    def _is_troubled(self) -> bool:
        since_s = self._trouble_since_s
        return since_s is not None and self._clock.monotonic_s() - since_s >= _TOLD_AFTER_S

    def _check_trouble(self) -> None:
        """Raise RelayLogError if what comes next cannot be read for a while."""
        if self._is_troubled:
            raise RelayLogError(f"{self._name} cannot go on: {self._trouble}; ask again later")

    def _checked(self) -> HistoryReader | None:
        if self._error is not None:
            raise self._error
        return self._history

    def _refresh(self) -> tuple[int, int]:
        """Find the end of what may be read; it never moves back."""
        history = self._history
        assert history is not None
        newest = history.newest()
        limit = self._limit()
        self._is_limited = limit is not None and newest[0] >= limit
        if limit is not None and self._is_limited:
            newest = self._before(history, limit)
        if newest[1] > self._end[1] or self._end is _NOTHING:
            self._end = newest
        self._note_wait()
        return self._end

    def _note_wait(self) -> None:
        slowest, end = self._read_ahead.slowest, self._end[1]
        is_at_end = slowest is not None and slowest >= end
        self._read_ahead.waits_for_proof = self._is_limited and is_at_end

    def _before(self, history: HistoryReader, limit: int) -> tuple[int, int]:
        """Return SCN and end position of the last window before an SCN."""
        try:
            end, last = history.find(limit - 1, WINDOW_DONE), history.window_at(limit - 1)
        except DamagedWindowsError:
            raise
        except ScnNotFoundError:
            return self._end  # deleted
        if end is None or last is None:
            extent = history.extent()
            return max(extent.prev_scn, UNKNOWN_SCN), extent.head
        return last[0], end
