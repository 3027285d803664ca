"""How many rows of a selection lie in a piece of a ring: whole windows, up to a limit.

Nothing is copied where `_core` was built, which goes ahead as it does for
`event_selector.sift`; what it cannot decide about is looked at here. An event that says
that a table was emptied is a row, as it is sent as one; control events (DDL
among them) are none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from databus.relay.ring.event_selector import NOTHING, Sieve, copy_events
from databus.schemas.errors import ProtocolError
from databus.schemas.event.layout import V2_BEGIN
from databus.schemas.event.v2 import SMALLEST_BYTES, peek
from databus.schemas.scn import MAX_SCN

if TYPE_CHECKING:
    from databus.relay.ring.layout import RingFile


class Limits(NamedTuple):
    """Where counting ends: with the last whole window that is within all of these.

    `until_scn` is the last window wanted, `before_ns` is after the commit times
    of all those wanted. The first window that has rows may have more than
    `rows` or `size_bytes`; windows without rows never do.
    """

    rows: int = MAX_SCN
    size_bytes: int = MAX_SCN
    until_scn: int = MAX_SCN
    before_ns: int = MAX_SCN


class RowCount(NamedTuple):
    """How far counting got, and what it found.

    `scn` and `timestamp_ns` are of the last whole window within the limits
    (NOTHING (-1): there is none yet), `rows` and `size_bytes` (of the rows'
    events) up to its end; what was counted of the window after it is apart.
    `is_over`: a limit was reached, there is nothing more to count.
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
    ring_file: RingFile, end: int, tail: int, sieve: Sieve, limits: Limits, so_far: RowCount
) -> RowCount:
    """Count the events that begin before `end`, at least one; none is beyond `tail`.

    Raises ProtocolError when something else than events lies there, and
    InvalidParameterError when a filter cannot be asked about a key.
    """
    if sieve.plan is not None and ring_file.core is not None:
        found = RowCount(*ring_file.core.count(end, tail, sieve.plan, limits, so_far))
        if found.position > so_far.position or found.is_over:
            return found
        end = so_far.position + 1
    found = so_far
    while found.position < end and not found.is_over:
        data = copy_events(ring_file, found.position, end, tail)
        found = _count_copy(data, sieve, limits, found)
    return found


def _count_copy(data: bytes, sieve: Sieve, limits: Limits, so_far: RowCount) -> RowCount:
    """Count the whole events of a copy of what lies at the position."""
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
        elif event.src_id >= 0 and sieve.passes(data, at, event):
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
