"""Select the events of a ring that a request wants, a bounded range at a time.

An `EventSelector` is made from a request's selection: sources, filters, and whether the
optional events are wanted: those of DDL, and truncates, which are row events without a payload.
Other control events always pass. A truncate passes every filter of its source, because it
concerns every key.

If `_core` was built, it reads the events in the mapping, without a Python object per event.
The Python code here decides what the compiled code leaves undecided (keys that are not
ASCII, keys that wrap around the end of the file, rows partitioned by a column of type DOUBLE),
and renders events. A partition filter by columns reads rows, and learns their schemas when it
meets them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from databus.schemas.errors import InvalidParameterError, ProtocolError
from databus.schemas.event.control import statement_of
from databus.schemas.event.event import NO_SCHEMA_ID, STATEMENT_SRC_IDS, Opcode
from databus.schemas.event.layout import BYTE_KEY, HAS_PAYLOAD, OPCODE_MASK, V2_BEGIN
from databus.schemas.event.metadata import METADATA_DIGEST
from databus.schemas.event.v2 import SMALLEST_BYTES, Peek, decode, peek, peek_key
from databus.schemas.filters import (
    AnyOf,
    EventFilter,
    ModFilter,
    NoFilter,
    PartitionFilter,
    RangeFilter,
)
from databus.schemas.partitions.key_layout import key_layout
from databus.schemas.partitions.row_hashes import RowHasher
from databus.schemas.protocol import Parameter

if TYPE_CHECKING:
    from databus.relay.ring.layout import EventBytes
    from databus.relay.ring.selection import Selection
    from databus.schemas.rendering import Render, SchemaText

try:
    from databus.relay.ring import _core as ring_core
except ImportError:  # not built: Python reads every event
    Plan = None
    find_optional = None
else:
    Plan = ring_core.Plan
    find_optional = ring_core.find_optional

WINDOW_DONE = -1
NOTHING = -1

# Where compiled code stops at a row that Python must hash, more such rows may follow.
_HASHED_STEP_BYTES = 64 << 10

_EMPTIED_BITS = BYTE_KEY | Opcode.DELETE

Position = tuple[int, int]  # windowScn, windowOffset


class SelectedEvents(NamedTuple):
    """The bytes of the events that pass, and the position to continue from.

    `position` is that position in the ring; `scn` and `offset` are the same place as a
    window and a number of its events. The first `whole_bytes` of `data` end with window
    `whole_scn`. `overflow_bytes` is the size of an event that did not fit. NOTHING (-1)
    means that there is no such window or event.
    """

    position: int
    scn: int
    offset: int
    data: bytes
    whole_bytes: int
    whole_scn: int
    overflow_bytes: int


class EventSelector:
    """Decides which events pass; `render` is None if they are sent as they are stored.

    Raises InvalidParameterError for a partition filter by columns without `schema_text`.
    """

    def __init__(
        self, selection: Selection, render: Render | None, schema_text: SchemaText | None = None
    ) -> None:
        self._src_ids = selection.src_ids
        self._filters = selection.filters
        self._wants_ddl = selection.wants_ddl
        self._wants_truncates = selection.wants_truncates
        self._readable = selection.readable
        self.wants_optional = selection.wants_ddl and selection.wants_truncates
        self.render = render
        self.takes_all_rows = self._src_ids is None and not self._filters
        self._hashers = _hashers(selection, schema_text)
        self._partition_rules: dict[int, ring_core.PartitionRule] = {}
        self.plan = None if render is not None else self._compile(selection)

    def passes(self, data: bytes, at: int, event: Peek) -> bool:
        """Return whether the event at `at` is wanted; `event` holds its fixed fields."""
        if event.src_id < 0:
            is_statement = event.src_id in STATEMENT_SRC_IDS
            return not is_statement or (self._wants_ddl and self._may_read(data, at))
        if not self._wants_truncates and _is_truncate(event):
            return False
        if self._src_ids is not None and event.src_id not in self._src_ids:
            return False
        wanted = self._filters.get(event.src_id)
        if wanted is None:
            return True
        key = peek_key(data, at, event)
        if key == b"" and _is_about_all_rows(event):
            return True
        if event.src_id not in self._hashers:
            return wanted.matches(key)
        assert isinstance(wanted, PartitionFilter)
        hashes = self._hashers[event.src_id].hashes(decode(data, at)[0])
        return any(wanted.wants(row_hash) for row_hash in hashes.each)

    def _may_read(self, data: bytes, at: int) -> bool:
        """Return whether all sources of a statement may be read."""
        if self._readable is None:
            return True
        return all(map(self._readable.match, statement_of(decode(data, at)[0]).sources))

    @property
    def hashes_rows(self) -> bool:
        """Whether it hashes columns of rows, and not only keys."""
        return bool(self._hashers)

    def learn(self, data: bytes) -> bool:
        """Teach the compiled code the schema of the row that `data` begins with.

        Return whether that is new to it.
        """
        event = peek(data)
        hasher, rule = self._hashers.get(event.src_id), self._partition_rules.get(event.src_id)
        if hasher is None or rule is None:
            return False
        schema_id = decode(data)[0].schema_id
        if schema_id == NO_SCHEMA_ID or rule.knows(schema_id):
            return False
        layout = key_layout(hasher.schema_text(schema_id), hasher.by)
        if layout is not None:
            rule.learn(schema_id, layout)
        return layout is not None

    def _compile(self, selection: Selection) -> ring_core.Plan | None:
        """Return the compiled selection; None without `_core`, or if it does not know a filter."""
        # Python reads the sources of statements.
        if Plan is None or (selection.wants_ddl and selection.readable is not None):
            return None
        rules: dict[int, list[tuple[int, int, int]] | ring_core.PartitionRule] = {}
        for src_id, wanted in selection.filters.items():
            if isinstance(wanted, NoFilter):
                continue
            if isinstance(wanted, PartitionFilter):
                rules[src_id] = self._partition_rules[src_id] = ring_core.PartitionRule(
                    wanted.partitions, wanted.wanted, len(wanted.by), METADATA_DIGEST
                )
                continue
            those = wanted.filters if isinstance(wanted, AnyOf) else (wanted,)
            found = [rule for one in those if (rule := _rule(one)) is not None]
            if len(found) < len(those):
                return None
            rules[src_id] = found
        return Plan(selection.src_ids, rules, selection.wants_ddl, selection.wants_truncates)


def has_optional(windows: bytes) -> bool:
    """Return whether whole windows contain a statement or a truncate."""
    if find_optional is not None:
        return find_optional(windows) >= 0
    at, end = 0, len(windows) - SMALLEST_BYTES
    while at <= end:
        event = peek(windows, at)
        if event.src_id in STATEMENT_SRC_IDS or (event.src_id >= 0 and _is_truncate(event)):
            return True
        if event.length < SMALLEST_BYTES:
            raise ProtocolError("no event begins here", at)
        at += event.length
    return False


def select_events(
    ring_file: EventBytes,
    position: int,
    end: int,
    tail: int,
    selector: EventSelector,
    place: Position,
    room_bytes: int,
) -> SelectedEvents:
    """Select from the events between `position` and `end`; read at least one, none after `tail`.

    `place` is the window of the last event read before, and the number of its events read.
    Raises ProtocolError if the bytes are not events, and InvalidParameterError if a filter
    does not apply to a key.
    """
    while selector.plan is not None and ring_file.core is not None:
        found = ring_file.core.select(position, end, tail, selector.plan, *place, room_bytes)
        # The compiled code stops before an event that it does not know. If that is the first
        # one, Python reads it.
        if found[0] > position or found[-1] >= 0:
            return SelectedEvents(*found)
        if not selector.hashes_rows:
            break
        if not selector.learn(copy_events(ring_file, position, position + 1, tail)):
            end = min(end, position + _HASHED_STEP_BYTES)
            break
    return _select_copy(ring_file, position, end, tail, selector, place, room_bytes)


def _select_copy(
    ring_file: EventBytes,
    position: int,
    end: int,
    tail: int,
    selector: EventSelector,
    place: Position,
    room_bytes: int,
) -> SelectedEvents:
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
        if selector.passes(data, at, event):
            piece = data[at:stop] if selector.render is None else selector.render(data[at:stop])
            # The caller may answer that one event needs more room than the client has.
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
    return SelectedEvents(position + at, scn, offset, body, whole_bytes, whole_scn, overflow_bytes)


def copy_events(ring_file: EventBytes, position: int, end: int, tail: int) -> bytes:
    """Copy bytes from `position` on, at least one whole event."""
    data = ring_file.copy_out(position, min(end, tail) - position)
    # `end` may lie inside the first event: read its header, and then all of it.
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


def _is_truncate(event: Peek) -> bool:
    return not event.attributes & HAS_PAYLOAD


def _is_about_all_rows(event: Peek) -> bool:
    return event.attributes & (BYTE_KEY | HAS_PAYLOAD | OPCODE_MASK) == _EMPTIED_BITS


def _hashers(selection: Selection, schema_text: SchemaText | None) -> dict[int, RowHasher]:
    """Return what computes the hashes of rows, by source; for partition filters by columns."""
    found = {}
    for src_id, wanted in selection.filters.items():
        if isinstance(wanted, PartitionFilter) and wanted.by:
            if schema_text is None:
                rule = "columns cannot be looked up here: partition by the primary key"
                raise InvalidParameterError(Parameter.FILTERS, ",".join(wanted.by), rule)
            found[src_id] = RowHasher(wanted.by, schema_text)
    return found


def _rule(wanted: EventFilter) -> tuple[int, int, int] | None:
    if isinstance(wanted, ModFilter):
        return wanted.num_buckets, wanted.start, wanted.end
    return (0, wanted.start, wanted.end) if isinstance(wanted, RangeFilter) else None
