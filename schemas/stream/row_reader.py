"""Reads windows of rows from a response's bytes: the client's reader, and its hottest path.

The rules and windows are those of `stream_reader.StreamReader`, but each row's event is one plain
tuple, checked and parsed inline, without extra calls and objects per event. If the compiled
`_row_cutter` is built, it reads the common events, and only the event at which it stops is read
here. It checks them and leaves most of them packed, in the response's bytes, until somebody looks
at them: then one is in the processor's cache while it is needed, and not all of a window at once.
Plain tuples of numbers and bytes also cost the garbage collector less: it untracks them at
its first pass, while it would traverse each `Event` in a full buffer at every pass.
`benchmarks.callback` measures this.

Unknown schemas are collected while reading, so that no second pass over the events is needed
before a window is delivered.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from databus.schemas.errors import ProtocolError
from databus.schemas.event.control import LoggedStatement, statement_of
from databus.schemas.event.crc import event_crc
from databus.schemas.event.event import (
    EOP_SRC_ID,
    Event,
)
from databus.schemas.event.layout import (
    CRC32_DIGEST,
    CRC32_PART_BYTES,
    DIGEST_KIND_MASK,
    LONG_KEY,
    MD5_PART_BYTES,
    OPCODE_MASK,
    PART,
    PLAIN_DELETE,
    PLAIN_UPSERT,
    V2_COVERED_AT,
    V2_LONG_KEY_BEGIN,
    V2_LONG_KEY_FIELDS,
    V2_LONG_KEY_HEADER_BYTES as HEADER_BYTES,
    struct_of,
)
from databus.schemas.stream.event_framer import EventFramer
from databus.schemas.stream.row_event import (
    NO_ROW_DIGEST,
    ROW_DIGEST,
    SCN,
    SRC_ID,
    RowEvent,
    row_event,
    sealed,
)
from databus.schemas.stream.stream_reader import ControlEvent, decode_event

try:
    from databus.schemas.stream import _row_cutter as row_cutter
except ImportError:  # not built: the loop below reads every event itself
    take_rows = None
else:
    take_rows = row_cutter.take_rows
    take_windows = row_cutter.take_windows

# The header, and the beginning of the metadata's part, which follows it if there is metadata.
_unpack_event = struct_of(
    *V2_LONG_KEY_FIELDS,
    *(field.moved(HEADER_BYTES) for field in (PART.length, PART.attributes, PART.crc32)),
).unpack_from
_unpack_md5_part = struct_of(PART.length, PART.attributes, PART.md5).unpack_from
_EOP_BITS = LONG_KEY  # a control event with a long key, no metadata, no payload
_NO_BODY = (HEADER_BYTES, 0)  # the event's length and its body's CRC


class RowWindow(NamedTuple):
    """The sent rows of one transaction.

    `statements` are each with the number of `events` before it. `unknown` has the (src_id, schema
    digest) pairs that are not in the reader's `known`.
    """

    scn: int
    timestamp_ns: int
    events: Sequence[RowEvent]  # a tuple, or PackedRows
    size_bytes: int  # on the wire, the end-of-period event included
    unknown: frozenset[tuple[int, bytes]] = frozenset()
    statements: tuple[tuple[int, LoggedStatement], ...] = ()


Ended = TypeVar("Ended")
_Ended_co = TypeVar("_Ended_co", covariant=True)


class EndRules(Protocol[_Ended_co]):
    """A reader's rules for events without a row, which end the collected rows.

    `has_windows`: `end_window` returns the rows as a `RowWindow`.
    """

    has_windows: bool

    def end_window(self, scn: int, timestamp_ns: int, offset: int) -> _Ended_co:
        """Return the result of an end-of-period event."""
        ...

    def end(self, event: Event, offset: int) -> _Ended_co:
        """Return the result of another control event."""
        ...

    def take_statement(self, event: Event, offset: int) -> None:
        """Take a statement between rows."""
        ...


class RowCollector(Generic[Ended]):
    """Collects the row events of chunks; a reader's rules decide what ends them.

    `known` are the (src_id, digest) pairs that rows may have. The public attributes are the
    collected rows: rules read them, and then call `begin`.
    """

    def __init__(self, max_window_bytes: int, rules: EndRules[Ended]) -> None:
        self.known: frozenset[tuple[int, bytes]] = frozenset()
        self._rules = rules
        self.framer = EventFramer(max_window_bytes)
        self.before_damage: list[Ended] = []  # what `receive` had when it raised
        self.begin()

    def reset(self) -> None:
        """Drop the incomplete event and the collected rows."""
        self.framer.reset()
        self.before_damage = []
        self.begin()

    def receive(self, chunk: bytes) -> list[Ended]:
        """Take the next bytes; return the results of the rules for the events in them."""
        data = self.framer.join(chunk)
        if data is None:
            return []
        ready: list[Ended] = []
        try:
            rest = self._cut(data, ready)
        except ProtocolError:
            self.before_damage = ready
            raise
        self.framer.keep(data, rest)
        return ready

    def close(self) -> None:
        """End the response; raises ProtocolError inside an event."""
        self.framer.close()

    @property
    def pending_events(self) -> int:
        """Number of collected events, including statements."""
        return self._rows + len(self.statements)

    @property
    def pending_scn(self) -> int | None:
        """SCN of the last collected event, or None."""
        return self.scn if self.events or self.statements else None

    def add_statement(self, event: Event) -> None:
        """Add a statement at its place between the rows."""
        if event.scn != self.scn:
            self._begin_scn(event.scn)
        self.statements.append((self._rows, statement_of(event)))

    @property
    def _rows(self) -> int:
        """Number of collected row events."""
        return sum([1 if isinstance(run, tuple) else run.count for run in self.events])

    def begin(self) -> None:
        """Forget the collected rows, after the rules have returned them."""
        # `RowEvent`s, and the `PackedRun`s of the compiled reader.
        self.events: list[Any] = []
        self.statements: list[tuple[int, LoggedStatement]] = []
        self.unknown: frozenset[tuple[int, bytes]] = frozenset()
        self.scn = -1  # of the last event
        self.is_mixed = False  # with events of several SCNs
        self.is_ordered = True  # no SCN is smaller than the one before it
        self.framer.window_bytes = 0

    def _cut(self, data: bytes, ready: list[Ended]) -> int:
        """Add the results for `data`; return the begin of its incomplete event."""
        begin, offset, end = 0, 0, len(data)
        last_src_id, last_digest = -1, NO_ROW_DIGEST
        while offset < end:
            if take_rows is not None and self._has_plain_windows:
                first = offset
                offset, begin = self._take_windows(data, offset, begin, ready)
                if offset > first:
                    last_src_id = -1
                if offset == end:
                    continue
            elif take_rows is not None and last_src_id >= 0:
                scn = self.scn if self.events else -1
                offset = take_rows(data, offset, scn, last_src_id, last_digest, self.events)
                if scn < 0 and self.events:
                    first = self.events[0]
                    self.scn = first[SCN] if isinstance(first, tuple) else first.scn
                    self._note_schema(last_src_id, last_digest)
                if offset == end:
                    continue
            try:
                # fmt: off
                (start, header_crc, body_crc, length, bits, timestamp_ns, src_id, partition_id,
                 scn, key, place, metadata_bits, metadata_digest) = _unpack_event(data, offset)
                # fmt: on
                checked = data[offset + V2_COVERED_AT : offset + HEADER_BYTES]
                if start != V2_LONG_KEY_BEGIN or event_crc(checked) != header_crc:
                    raise _NotPlainError
                if bits == _EOP_BITS and src_id == EOP_SRC_ID and (length, body_crc) == _NO_BODY:
                    offset += HEADER_BYTES
                    self.framer.count(offset - begin, offset)
                    ready.append(self._rules.end_window(scn, timestamp_ns, offset))
                    begin = offset
                    continue
                wire = data[offset : offset + length]
                place += HEADER_BYTES + CRC32_PART_BYTES
                row_length, row_bits, digest = _unpack_md5_part(wire, place)
                if (
                    event_crc(memoryview(wire)[HEADER_BYTES:]) != body_crc
                    or row_length != length - place - MD5_PART_BYTES
                    or len(wire) != length
                    or (bits != PLAIN_UPSERT and bits != PLAIN_DELETE)
                    or metadata_bits & DIGEST_KIND_MASK != CRC32_DIGEST
                    or row_bits & DIGEST_KIND_MASK
                    or src_id < 0
                ):
                    raise _NotPlainError
            except (struct.error, _NotPlainError):
                next_offset = self._take_other(data, offset, begin, ready)
                if next_offset is None:
                    break
                begin = begin if self.events or self.statements else next_offset
                offset, last_src_id = next_offset, -1
                continue
            if scn != self.scn or digest != last_digest or src_id != last_src_id:
                self._track(scn, src_id, digest)
                last_src_id, last_digest = src_id, digest
            # `last_digest` equals `digest`, and is one object for all rows: less memory.
            # fmt: off
            self.events.append((scn, timestamp_ns, src_id, partition_id, key, bits & OPCODE_MASK,
                                 last_digest, metadata_digest, wire, place, False))
            # fmt: on
            offset += length
        else:
            self.framer.count(offset - begin, offset)
        return offset

    @property
    def _has_plain_windows(self) -> bool:
        """Whether the open window, if it ends now, is of rows of known schemas only."""
        return self._rules.has_windows and not (self.statements or self.unknown or self.is_mixed)

    def _take_windows(
        self, data: bytes, offset: int, begin: int, ready: list[Any]
    ) -> tuple[int, int]:
        """Take plain windows; return where compiled code stops, and where that window begins."""
        framer, count = self.framer, len(ready)
        offset, begin, self.scn = take_windows(
            data,
            offset,
            begin,
            framer.window_bytes,
            framer.max_window_bytes,
            self.scn,
            self.events,
            self.known,
            ready,
            RowWindow,
        )
        if len(ready) > count:
            framer.window_bytes = 0
        return offset, begin

    def _take_other(self, data: bytes, offset: int, begin: int, ready: list[Ended]) -> int | None:
        """Take an event that is not the common kind; raise ProtocolError for damage.

        These are other versions and keys, events without metadata, control events, and the
        incomplete event at a chunk's end. Returns the begin of the next event, None if this one
        is incomplete.
        """
        start = offset
        try:
            event, offset = decode_event(data, offset)
        except ProtocolError:
            self.framer.count(offset - begin, offset)
            if not self.framer.is_cut(data, offset):
                raise
            return None
        if event.is_statement:
            self._rules.take_statement(event, offset)
        elif event.is_eop:
            self.framer.count(offset - begin, offset)
            ready.append(self._rules.end_window(event.scn, event.timestamp_ns, offset))
        elif event.src_id < 0:
            self.framer.count(offset - begin, offset)
            ready.append(self._rules.end(event, offset))
        else:
            row = row_event(event, data[start:offset])
            self._track(row[SCN], row[SRC_ID], row[ROW_DIGEST])
            self.events.append(row)
        return offset

    def _track(self, scn: int, src_id: int, digest: bytes) -> None:
        """Track the SCN and the schema of an event that is about to be added."""
        if scn != self.scn:
            self.is_ordered &= scn > self.scn or not self.events
            self._begin_scn(scn)
        self._note_schema(src_id, digest)

    def _begin_scn(self, scn: int) -> None:
        self.is_mixed = self.pending_events > 0
        self.scn = scn

    def _note_schema(self, src_id: int, digest: bytes) -> None:
        if (src_id, digest) not in self.known:
            self.unknown |= {(src_id, digest)}


class RowReader:
    """Reads a byte stream and returns windows of rows; otherwise like `StreamReader`."""

    has_windows = True

    def __init__(self, max_window_bytes: int) -> None:
        self._rows: RowCollector[RowWindow | ControlEvent] = RowCollector(max_window_bytes, self)

    @property
    def known(self) -> frozenset[tuple[int, bytes]]:
        """The (src_id, digest) pairs that rows may have."""
        return self._rows.known

    @known.setter
    def known(self, known: frozenset[tuple[int, bytes]]) -> None:
        self._rows.known = known

    @property
    def pending_events(self) -> int:
        """Number of events of the incomplete window, including statements."""
        return self._rows.pending_events

    @property
    def pending_scn(self) -> int | None:
        """SCN of the incomplete window, or None."""
        return self._rows.pending_scn

    @property
    def before_damage(self) -> list[RowWindow | ControlEvent]:
        """What was complete when `receive` raised."""
        return self._rows.before_damage

    def receive(self, chunk: bytes) -> list[RowWindow | ControlEvent]:
        """Take the next bytes; return the windows and control events that they complete.

        Raises ProtocolError for damage and for events of different SCNs in one window;
        WindowTooLargeError for a window larger than `max_window_bytes`.
        """
        return self._rows.receive(chunk)

    def reset(self) -> None:
        """Drop the incomplete event and the collected rows."""
        self._rows.reset()

    def close(self) -> None:
        """End the response; raises ProtocolError inside an event."""
        self._rows.close()

    def end_window(self, scn: int, timestamp_ns: int, offset: int) -> RowWindow:
        """Return the window; raises ProtocolError if it has events of another one."""
        rows = self._rows
        if (rows.events or rows.statements) and (rows.is_mixed or scn != rows.scn):
            raise ProtocolError(f"events of other windows in window {scn}", offset)
        events, size_bytes = sealed(rows.events), rows.framer.window_bytes
        ended = RowWindow(
            scn, timestamp_ns, events, size_bytes, rows.unknown, tuple(rows.statements)
        )
        rows.begin()
        return ended

    def end(self, event: Event, offset: int) -> ControlEvent:  # noqa: ARG002 - see EndRules
        """Return the control event, with the rows before it."""
        rows = self._rows
        ended = ControlEvent(event, sealed(rows.events), rows.framer.window_bytes)
        rows.begin()
        return ended

    def take_statement(self, event: Event, offset: int) -> None:  # noqa: ARG002 - see EndRules
        """Add a statement at its place between the rows."""
        self._rows.add_statement(event)


class _NotPlainError(Exception):
    """An event is not of the common kind. Never leaves this file."""
