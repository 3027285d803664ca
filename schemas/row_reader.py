"""A response's bytes to windows of rows: the client's reader, and its hottest path.

The same as `wire.StreamReader`, whose rules and whose slow way it uses, but
each row's event is one plain tuple, checked and taken apart in line: no call
and no object more per event than there must be. A plain tuple of numbers and
bytes also leaves the garbage collector alone: it forgets such tuples at the
first look, while it looks at each `Event` in a full buffer again and again.
`benchmarks.callback` shows what that is worth.

The schema ids of a window are collected on the way, so that nobody has to look
at all of its events again before it is let on.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple
from zlib import crc32

from databus.schemas import event_v2
from databus.schemas.errors import ProtocolError
from databus.schemas.event import Event, Opcode
from databus.schemas.wire import ControlEvent, StreamReader, decode_event

# One row's event: SCN, timestamp (ns), src_id, partition id, key, opcode, the
# row's Avro bytes, the digest of their schema, the metadata and the digest of
# theirs (both None when there is none). The first six are where `Event` has them.
RowEvent = tuple[int, int, int, int, int | bytes, int, bytes, bytes, bytes | None, bytes | None]
SCN: Final = 0
TIMESTAMP_NS: Final = 1
SRC_ID: Final = 2
PARTITION_ID: Final = 3
KEY: Final = 4
OPCODE: Final = 5
ROW: Final = 6
ROW_DIGEST: Final = 7
METADATA: Final = 8
METADATA_DIGEST: Final = 9
NO_ROW_DIGEST = b""  # of an event without a row, which no schema has

_HEADER_BYTES = 53
_unpack_header = struct.Struct(">9sIIIHqihqq").unpack_from
_unpack_crc32_part = struct.Struct(">IH4s").unpack_from
_unpack_md5_part = struct.Struct(">IH16s").unpack_from
_BEGIN = struct.pack(">BII", event_v2.VERSION, event_v2.MAGIC, _HEADER_BYTES)
_PLAIN = {
    opcode | event_v2.LONG_KEY | event_v2.HAS_PAYLOAD | metadata | flags: (opcode, bool(metadata))
    for opcode in (Opcode.UPSERT, Opcode.DELETE)
    for metadata in (0, event_v2.HAS_METADATA)
    for flags in (
        0,
        event_v2.REPLICATED,
        event_v2.TRACE,
        event_v2.REPLICATED | event_v2.TRACE,
    )
}


class RowWindow(NamedTuple):
    """All rows of one transaction that were sent, and the (src_id, digest) they have."""

    scn: int
    timestamp_ns: int
    events: tuple[RowEvent, ...]
    size_bytes: int  # on the wire, the end-of-period event included
    schemas: frozenset[tuple[int, bytes]]


class RowReader(StreamReader):
    """Cuts a byte stream into windows of rows; otherwise as `StreamReader`."""

    _events: list[RowEvent]  # type: ignore[assignment]
    _schemas: set[tuple[int, bytes]]

    def receive(self, chunk: bytes) -> list[RowWindow | ControlEvent]:  # type: ignore[override]
        """Take the next bytes; return what they complete.

        Raises ProtocolError for damage, for events of different SCNs in one
        window; WindowTooLargeError for one larger than `max_window_bytes`.
        """
        return super().receive(chunk)  # type: ignore[return-value]

    def _cut(self, data: bytes) -> tuple[list[RowWindow | ControlEvent], int]:  # type: ignore[override]
        """Return what is complete in `data`, and where the first event that is not begins."""
        ready: list[RowWindow | ControlEvent] = []
        events, schemas, scn = self._events, self._schemas, self._scn
        begin, offset, end = 0, 0, len(data)
        last_src_id, last_digest = -1, NO_ROW_DIGEST
        while offset < end:
            # Whatever is not the plainest event goes the slow way, which tells damage from
            # the less usual: other versions and keys, control events, the chunk's last, cut one.
            try:
                # fmt: off
                (start, header_crc, body_crc, length, bits, timestamp_ns, src_id, partition_id,
                 event_scn, key) = _unpack_header(data, offset)
                # fmt: on
                opcode, has_metadata = _PLAIN[bits]
                body = data[offset + 53 : offset + length]
                metadata = metadata_digest = None
                place = strange = 0
                if has_metadata:
                    place, part_bits, metadata_digest = _unpack_crc32_part(body)
                    place += 10
                    metadata = body[10:place]
                    strange = part_bits & 3 ^ 1
                row_length, part_bits, digest = _unpack_md5_part(body, place)
                if (
                    start != _BEGIN
                    or len(body) != length - 53
                    or len(body) != place + 22 + row_length
                    or strange | part_bits & 3
                    or src_id < 0
                    or crc32(data[offset + 13 : offset + 53]) != header_crc
                    or crc32(body) != body_crc
                ):
                    raise KeyError(bits)
                # fmt: off
                event: RowEvent = (event_scn, timestamp_ns, src_id, partition_id, key, opcode,
                                   body[place + 22 :], digest, metadata, metadata_digest)
                # fmt: on
                offset += length
            except (struct.error, KeyError):
                decoded, next_offset = self._decode_other(data, offset, begin)
                if decoded is None:
                    break
                offset = next_offset
                if decoded.src_id < 0:
                    self._take(offset - begin, offset)
                    ready.append(self._end(decoded, offset))
                    events, schemas, scn, begin = self._events, self._schemas, self._scn, offset
                    last_src_id = -1
                    continue
                event = row_event(decoded)
                event_scn, src_id, digest = event[SCN], event[SRC_ID], event[ROW_DIGEST]
            if event_scn != scn:
                self._is_mixed = bool(events)
                self._scn = scn = event_scn
            if digest != last_digest or src_id != last_src_id:
                last_src_id, last_digest = src_id, digest
                schemas.add((src_id, digest))
            events.append(event)
        else:
            self._take(offset - begin, offset)
        return ready, offset

    def _decode_other(self, data: bytes, offset: int, begin: int) -> tuple[Event | None, int]:
        """Decode an event of any kind; None when it is cut short. Raises ProtocolError."""
        try:
            return decode_event(data, offset)
        except ProtocolError:
            self._take(offset - begin, offset)
            self._needed_bytes = self._needed(data, offset)
            if self._needed_bytes <= len(data) - offset:
                raise
            return None, offset

    def _end(self, event: Event, offset: int) -> RowWindow | ControlEvent:  # type: ignore[override]
        schemas = frozenset(self._schemas)
        ended = super()._end(event, offset)
        if isinstance(ended, ControlEvent):
            return ended
        scn, timestamp_ns, events, size_bytes = ended
        return RowWindow(scn, timestamp_ns, events, size_bytes, schemas)  # type: ignore[arg-type]

    def _begin_window(self) -> None:
        super()._begin_window()
        self._schemas = set()


def row_event(event: Event) -> RowEvent:
    """Return a decoded event as the plain tuple."""
    row, metadata = event.payload, event.metadata
    return (
        *event[:6],
        b"" if row is None else row.data,
        NO_ROW_DIGEST if row is None else row.digest,
        None if metadata is None else metadata.data,
        None if metadata is None else metadata.digest,
    )
