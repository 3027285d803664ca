"""Count the rows of a selection in a ring: whole windows, up to a limit.

If `_core` was built, it counts in the mapping without copying, and the Python code here
decides what the compiled code leaves undecided, as in `event_selector.select_events`. An event
that reports an emptied table counts as a row, because it is sent as one. Control events,
DDL among them, do not count.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from databus.relay.ring.event_selector import NOTHING, EventSelector, copy_events
from databus.schemas.errors import ProtocolError
from databus.schemas.event.layout import V2_BEGIN
from databus.schemas.event.v2 import SMALLEST_BYTES, peek
from databus.schemas.scn import MAX_SCN

if TYPE_CHECKING:
    from databus.relay.ring.layout import EventBytes


class Limits(NamedTuple):
    """Limits on what is counted; counting ends with the last whole window within all of them.

    `until_scn` is the last window wanted. Windows committed at `before_ns` or later are not
    counted. The first window with rows may exceed `rows` or `size_bytes`.
    """

    rows: int = MAX_SCN
    size_bytes: int = MAX_SCN
    until_scn: int = MAX_SCN
    before_ns: int = MAX_SCN


class RowCount(NamedTuple):
    """The position that counting has reached, and the totals so far.

    `scn` and `timestamp_ns` belong to the last whole window within the limits; `scn` is
    NOTHING (-1) before the first one. `rows` and `size_bytes` (the size of the rows' events)
    are totals up to the end of that window. `window_rows` and `window_bytes` count the
    window after it. `is_over` is true once a limit is reached.
    """

    position: int
    scn: int = NOTHING
    timestamp_ns: int = 0
    rows: int = 0
    size_bytes: int = 0
    window_rows: int = 0
    window_bytes: int = 0
    is_over: bool = False


def count_rows(
    ring_file: EventBytes,
    end: int,
    tail: int,
    selector: EventSelector,
    limits: Limits,
    so_far: RowCount,
) -> RowCount:
    """Count the events that begin before `end`; read at least one, none after `tail`.

    Raises ProtocolError if the bytes are not events, and InvalidParameterError if a filter
    does not apply to a key.
    """
    while selector.plan is not None and ring_file.core is not None:
        found = RowCount(*ring_file.core.count(end, tail, selector.plan, limits, so_far))
        if found.position > so_far.position or found.is_over:
            return found
        end = so_far.position + 1
        if not selector.hashes_rows or not selector.learn(
            copy_events(ring_file, so_far.position, end, tail)
        ):
            break
    found = so_far
    while found.position < end and not found.is_over:
        data = copy_events(ring_file, found.position, end, tail)
        found = _count_copy(data, selector, limits, found)
    return found


def _count_copy(data: bytes, selector: EventSelector, limits: Limits, so_far: RowCount) -> RowCount:
    """Count the whole events in `data`, a copy of the bytes at the position of `so_far`."""
    position, scn, timestamp_ns, rows, size_bytes, window_rows, window_bytes, _ = so_far
    at, is_over = 0, False
    while at <= len(data) - SMALLEST_BYTES:
        event = peek(data, at)
        if not data.startswith(V2_BEGIN, at) or event.length < SMALLEST_BYTES:
            raise ProtocolError("no event begins here", position + at)
        if at + event.length > len(data):
            break
        if event.scn > limits.until_scn:
            is_over = True
            break
        if event.is_eop:
            if event.timestamp_ns >= limits.before_ns:
                is_over = True
                break
            scn, timestamp_ns = event.scn, event.timestamp_ns
            rows, size_bytes = rows + window_rows, size_bytes + window_bytes
            window_rows = window_bytes = 0
        elif event.src_id >= 0 and selector.passes(data, at, event):
            window_rows += 1
            window_bytes += event.length
            if rows and (
                rows + window_rows > limits.rows or size_bytes + window_bytes > limits.size_bytes
            ):
                is_over = True
                break
        at += event.length
    return RowCount(
        position + at, scn, timestamp_ns, rows, size_bytes, window_rows, window_bytes, is_over
    )
