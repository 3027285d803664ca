"""Which events of a ring a reader gets, and those of them that lie in one piece of it.

A `Sieve` is made from a request's selection: sources, filters, whether DDL is
wanted. Control events always pass, but for DDL; an event that says that a
table was emptied passes every filter of its source, as it is about every key.

`sift` looks at a bounded piece. Where `_core` was built it goes ahead,
in the mapping and without a Python object per event, and what it cannot decide
about (keys that are not ASCII, keys across the end of the file) is looked at
here. Rendered events are made here too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from databus.schemas.errors import ProtocolError
from databus.schemas.event.event import DDL_SRC_ID, Opcode
from databus.schemas.event.layout import BYTE_KEY, HAS_PAYLOAD, OPCODE_MASK, V2_BEGIN
from databus.schemas.event.v2 import SMALLEST_BYTES, Peek, peek, peek_key
from databus.schemas.filters import AnyOf, EventFilter, ModFilter, NoFilter, RangeFilter

if TYPE_CHECKING:
    from databus.relay.ring.layout import RingFile
    from databus.relay.ring.selection import Selection
    from databus.schemas.rendering import Render

try:
    from databus.relay.ring import _core as ring_core
except ImportError:  # not built: every event is looked at here
    Plan = None
    find_ddl = None
else:
    Plan = ring_core.Plan
    find_ddl = ring_core.find_ddl

WINDOW_DONE = -1
NOTHING = -1

_DDL_SRC_ID_BYTES = DDL_SRC_ID.to_bytes(4, "big", signed=True)
_EMPTIED_BITS = BYTE_KEY | Opcode.DELETE

Position = tuple[int, int]  # windowScn, windowOffset


class Sifted(NamedTuple):
    """What came of a look: how far it got, and the bytes of the events that pass.

    `scn` and `offset` are where one goes on, `position` where that is. Of
    `data` the first `whole_bytes` are up to the end of a window, `whole_scn`.
    `overflow_bytes` is the size of an event that had no room. NOTHING (-1) in
    any of these says that there was no such thing.
    """

    position: int
    scn: int
    offset: int
    data: bytes
    whole_bytes: int
    whole_scn: int
    overflow_bytes: int


class Sieve:
    """What passes, and as what: `render` is None when events are sent as the ring has them."""

    def __init__(self, selection: Selection, render: Render | None) -> None:
        self._src_ids = selection.src_ids
        self._filters = selection.filters
        self.wants_ddl = selection.wants_ddl
        self.render = render
        self.takes_all_rows = self._src_ids is None and not self._filters
        self.plan = None if render is not None else _plan(selection)

    def passes(self, data: bytes, at: int, event: Peek) -> bool:
        """Say whether the event at `at` is wanted, of which `event` was read."""
        if event.src_id < 0:
            return event.src_id != DDL_SRC_ID or self.wants_ddl
        if self._src_ids is not None and event.src_id not in self._src_ids:
            return False
        wanted = self._filters.get(event.src_id)
        if wanted is None:
            return True
        key = peek_key(data, at, event)
        return (key == b"" and _is_about_all_rows(event)) or wanted.matches(key)


def may_have_ddl(windows: bytes) -> bool:
    """Say whether there may be a DDL event in whole windows; no is certain."""
    if find_ddl is None:
        return _DDL_SRC_ID_BYTES in windows
    return find_ddl(windows) >= 0


def sift(
    ring_file: RingFile,
    position: int,
    end: int,
    tail: int,
    sieve: Sieve,
    place: Position,
    room_bytes: int,
) -> Sifted:
    """Look at the events from `position` to `end`, at least at one; none is beyond `tail`.

    `place` is the window of the last event looked at and how many of its were.
    Raises ProtocolError when something else than events lies there, and
    InvalidParameterError when a filter cannot be asked about a key.
    """
    if sieve.plan is not None and ring_file.core is not None:
        found = ring_file.core.sift(position, end, tail, sieve.plan, *place, room_bytes)
        if found[0] > position or found[-1] >= 0:
            return Sifted(*found)
    return _sift_copy(ring_file, position, end, tail, sieve, place, room_bytes)


def _sift_copy(
    ring_file: RingFile,
    position: int,
    end: int,
    tail: int,
    sieve: Sieve,
    place: Position,
    room_bytes: int,
) -> Sifted:
    data = copy_events(ring_file, position, end, tail)
    (scn, offset), pieces, used_bytes = place, [], 0
    whole_bytes = whole_scn = overflow_bytes = NOTHING
    at, last = 0, len(data) - SMALLEST_BYTES
    while at <= last:
        event = peek(data, at)
        if not data.startswith(V2_BEGIN, at) or event.length < SMALLEST_BYTES:
            raise ProtocolError("no event begins here", position + at)
        stop = at + event.length
        if stop > len(data):
            break
        if event.scn != scn:
            scn, offset = event.scn, 0
        if sieve.passes(data, at, event):
            piece = data[at:stop] if sieve.render is None else sieve.render(data[at:stop])
            if used_bytes + len(piece) > room_bytes:
                overflow_bytes = len(piece)
                break
            pieces.append(piece)
            used_bytes += len(piece)
        if event.is_eop:
            offset, whole_bytes, whole_scn = WINDOW_DONE, used_bytes, scn
        else:
            offset += 1
        at = stop
    body = b"".join(pieces)
    return Sifted(position + at, scn, offset, body, whole_bytes, whole_scn, overflow_bytes)


def copy_events(ring_file: RingFile, position: int, end: int, tail: int) -> bytes:
    """Copy bytes that have at least one whole event."""
    data = ring_file.copy_out(position, min(end, tail) - position)
    if len(data) < SMALLEST_BYTES and end < tail:
        data = ring_file.copy_out(position, min(SMALLEST_BYTES, tail - position))
    if len(data) < SMALLEST_BYTES:
        raise ProtocolError("an event is cut", position)
    length = peek(data).length
    if not data.startswith(V2_BEGIN) or length < SMALLEST_BYTES:
        raise ProtocolError("no event begins here", position)
    if length > tail - position or length > ring_file.capacity_bytes:
        raise ProtocolError("an event is cut", position)
    return data if length <= len(data) else ring_file.copy_out(position, length)


def _is_about_all_rows(event: Peek) -> bool:
    return event.attributes & (BYTE_KEY | HAS_PAYLOAD | OPCODE_MASK) == _EMPTIED_BITS


def _plan(selection: Selection) -> ring_core.Plan | None:
    """Return the selection in numbers; None when a filter is of another kind, or not built."""
    if Plan is None:
        return None
    rules = {}
    for src_id, wanted in selection.filters.items():
        if isinstance(wanted, NoFilter):
            continue
        those = wanted.filters if isinstance(wanted, AnyOf) else (wanted,)
        rules[src_id] = [rule for one in those if (rule := _rule(one)) is not None]
        if len(rules[src_id]) < len(those):
            return None
    return Plan(selection.src_ids, rules, selection.wants_ddl)


def _rule(wanted: EventFilter) -> tuple[int, int, int] | None:
    if isinstance(wanted, ModFilter):
        return wanted.num_buckets, wanted.start, wanted.end
    return (0, wanted.start, wanted.end) if isinstance(wanted, RangeFilter) else None
