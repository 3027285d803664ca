"""Decompresses binlog events. Pure; raises ValueError on damage.

MariaDB (`log_bin_compress`), in a QUERY in place of the statement, in a rows
event in place of the images:

    0x80 | algorithm << 4 | n, plain size (n bytes, big-endian), a zlib stream

MySQL (`binlog_transaction_compression`), TRANSACTION_PAYLOAD: fields of tag,
length and value, all length-encoded numbers, then the payload, a zstd stream
of events that have no checksum and no position of their own:

    0 end   1 payload's size   2 compression: 0 zstd, 255 none   3 plain size

A payload is unpacked event by event, so that only one is in memory at a time.
No more is unpacked than the event says it holds, nor than a server could write.
"""

from __future__ import annotations

import io
import zlib
from collections.abc import Iterator

import zstandard
from pymysqlreplication.constants import BINLOG as B

from databus.relay.sources.mysql.binlog import events
from databus.relay.sources.mysql.binlog.events import Event, event_name
from databus.relay.sources.mysql.rows.columns import ByteReader

# The largest `max_allowed_packet`, which bounds every event.
LARGEST_EVENT_BYTES = 1 << 30
# The zstd window, as large as the highest of the server's compression levels needs.
_WINDOW_BYTES = 128 << 20

_ROWS = {
    166: B.WRITE_ROWS_EVENT_V1,
    167: B.UPDATE_ROWS_EVENT_V1,
    168: B.DELETE_ROWS_EVENT_V1,
    169: B.WRITE_ROWS_EVENT_V2,
    170: B.UPDATE_ROWS_EVENT_V2,
    171: B.DELETE_ROWS_EVENT_V2,
}
COMPRESSED_ROWS = frozenset(_ROWS)
_UPDATES = frozenset({167, 170})

_END, _PAYLOAD_SIZE, _COMPRESSION, _PLAIN_SIZE = range(4)
_ZSTD, _NONE = 0, 255
# A payload holds one transaction: events that begin one or belong to the file are outside.
_NEVER_INSIDE = frozenset(
    {
        B.FORMAT_DESCRIPTION_EVENT,
        B.ROTATE_EVENT,
        B.STOP_EVENT,
        B.GTID_LOG_EVENT,
        B.ANONYMOUS_GTID_LOG_EVENT,
        events.GTID_TAGGED,
        events.TRANSACTION_PAYLOAD,
    }
)


def plain_query(event: Event) -> Event:
    """Return a compressed QUERY event as a plain one."""
    body = event.body
    if len(body) < 13:
        raise ValueError("the QUERY event ends too early")
    start = 13 + int.from_bytes(body[11:13], "little") + body[8] + 1
    return event._replace(type_code=B.QUERY_EVENT, body=body[:start] + inflate(body[start:]))


def plain_rows(event: Event) -> Event:
    """Return a compressed rows event as a plain one."""
    type_code = _ROWS[event.type_code]
    reader = ByteReader(event.body, 8)
    if event.type_code >= 169:
        reader.take(reader.number(2) - 2)
    columns = reader.packed()
    reader.take((columns + 7) // 8 * (2 if event.type_code in _UPDATES else 1))
    start = reader.position
    return event._replace(
        type_code=type_code, body=event.body[:start] + inflate(event.body[start:])
    )


def inflate(data: bytes) -> bytes:
    """Decompress data in MariaDB's format."""
    reader = ByteReader(data)
    head = reader.number(1)
    if head & 0xF0 != 0x80:
        raise ValueError(f"a compressed event begins with {head:#x}, which is not known")
    size = int.from_bytes(reader.take(head & 0x07), "big")
    if size > LARGEST_EVENT_BYTES:
        raise ValueError(f"a compressed event says {size} bytes, more than an event can have")
    unpacking = zlib.decompressobj()
    try:
        plain = unpacking.decompress(data[reader.position :], size + 1)
    except zlib.error as error:
        raise ValueError(f"a compressed event: {error}") from error
    if len(plain) != size or not unpacking.eof:
        raise ValueError(f"a compressed event does not hold the {size} bytes that it says")
    return plain


def events_inside(event: Event) -> Iterator[Event]:
    """Yield the events of a TRANSACTION_PAYLOAD, each at the payload's place in the file."""
    reader = ByteReader(event.body)
    fields = _payload_fields(reader)
    payload = event.body[reader.position :]
    if fields.get(_PAYLOAD_SIZE) != len(payload):
        raise ValueError(
            f"a payload of {len(payload)} bytes says {fields.get(_PAYLOAD_SIZE, 'nothing')}"
        )
    compression = fields.get(_COMPRESSION, _NONE)
    if compression == _NONE:
        yield from _cut(io.BytesIO(payload), len(payload), event)
    elif compression == _ZSTD:
        yield from _unpacked(payload, fields.get(_PLAIN_SIZE, 0), event)
    else:
        raise ValueError(f"a transaction in compression {compression}, which is not known")


def _payload_fields(reader: ByteReader) -> dict[int, int]:
    found: dict[int, int] = {}
    while (tag := reader.packed()) != _END:
        value = ByteReader(reader.take(reader.packed()))
        # Unknown fields are skipped by their length.
        if tag <= _PLAIN_SIZE:
            found[tag] = value.packed()
    return found


def _unpacked(payload: bytes, size: int, outer: Event) -> Iterator[Event]:
    unpacking = zstandard.ZstdDecompressor(max_window_size=_WINDOW_BYTES)
    try:
        with unpacking.stream_reader(payload, read_across_frames=True) as stream:
            yield from _cut(stream, size, outer)
    except zstandard.ZstdError as error:
        raise ValueError(f"a compressed transaction: {error}") from error


def _cut(
    stream: io.BytesIO | zstandard.ZstdDecompressionReader, left: int, outer: Event
) -> Iterator[Event]:
    while left:
        head = _take(stream, events.HEADER_SIZE)
        header = events.HEADER.unpack(head)
        type_code, size = header[1], header[3]
        if not events.HEADER_SIZE <= size <= min(left, LARGEST_EVENT_BYTES):
            raise ValueError(f"{event_name(type_code)} of {size} bytes inside {left}")
        if type_code in _NEVER_INSIDE:
            raise ValueError(f"{event_name(type_code)} inside a transaction's payload")
        body = _take(stream, size - events.HEADER_SIZE)
        left -= size
        yield Event._make((*header, body))._replace(size=outer.size, end_offset=outer.end_offset)
    if stream.read(1):
        raise ValueError("a compressed transaction holds more than it says")


def _take(stream: io.BytesIO | zstandard.ZstdDecompressionReader, size: int) -> bytes:
    parts = []
    while size:
        part = stream.read(size)
        if not part:
            raise ValueError("a compressed transaction ends too early")
        parts.append(part)
        size -= len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)
