"""Events as a stock client reads them: cut out of a stream, checked and taken apart.

version 1            version 2
0   B  version 0     0   B  version 2
1   I  header CRC    1   I  magic
5   I  length        5   I  header length, with the key
9   H  attributes    9   I  header CRC, from 13 to the header's end
11  q  SCN           13  I  body CRC, from the header's end to the event's
19  h  physical      17  I  length
21  h  logical       21  H  attributes
23  q  timestamp     23  q  timestamp
31  h  source id     31  i  source id
33 16s schema id     35  h  partition
49  I  value CRC     37  q  SCN
53     key           45     key
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass

MAGIC = 0xCAFEDEED
END_OF_PERIOD = -2
CHECKPOINT = -3

_V1 = struct.Struct(">BIIHqhhqh16sI")
_V2 = struct.Struct(">BIIIIIHqihq")
_PART = struct.Struct(">IH")
_V1_KEY, _V2_KEY = 53, 45


class StockRefusalError(Exception):
    """A stock client does not take this: it fails, or asks for ever for what it cannot read."""


@dataclass(frozen=True, slots=True)
class Part:
    """Metadata or payload of an event of version 2: an Avro record and its schema's digest."""

    digest: bytes  # 16 bytes: MD5, 4 bytes: CRC-32
    version: int
    data: bytes


@dataclass(frozen=True, slots=True)
class StockEvent:
    """One event."""

    version: int  # 1 or 2
    scn: int
    src_id: int
    key: int | bytes
    is_delete: bool
    timestamp_ns: int
    schema_id: bytes
    value: bytes
    has_payload: bool
    metadata: Part | None = None

    @property
    def is_control(self) -> bool:
        """Whether the event says something about the stream, and is no row."""
        return self.src_id < 0

    @property
    def is_end_of_period(self) -> bool:
        """Whether the event ends a window."""
        return self.src_id == END_OF_PERIOD


def crc(data: bytes) -> int:
    """Return the CRC of events: reflected 0xEDB88320, initial value 0, no final xor."""
    return zlib.crc32(data, 0xFFFFFFFF) ^ 0xFFFFFFFF


def cut_events(stream: bytes) -> Iterator[tuple[StockEvent, bytes]]:
    """Yield each event and its bytes; raises StockRefusalError for bytes that are no event."""
    at = 0
    while at < len(stream):
        version = stream[at]
        if version not in (0, 2):
            raise StockRefusalError(f"an event of version byte {version} at offset {at}")
        length_at, least = (5, 57) if version == 0 else (17, 49)
        if len(stream) - at < least:
            raise StockRefusalError(f"half an event at the end, at offset {at}")
        (length,) = struct.unpack_from(">I", stream, at + length_at)
        if length < least or at + length > len(stream):
            raise StockRefusalError(f"an event of {length} bytes at offset {at} of {len(stream)}")
        event = stream[at : at + length]
        yield (_read_v1 if version == 0 else _read_v2)(event), event
        at += length


def _check(what: str, said: int, data: bytes) -> None:
    if crc(data) != said:
        raise StockRefusalError(f"{what} CRC {said:08x}, but the bytes have {crc(data):08x}")


def _read_v1(event: bytes) -> StockEvent:
    (_, header_crc, _, attributes, scn, _, _, ts_ns, src_id, schema_id, value_crc) = (
        _V1.unpack_from(event)
    )
    if attributes & 0x0008:
        (size,) = struct.unpack_from(">I", event, _V1_KEY)
        header_end, value_at = _V1_KEY + 4, _V1_KEY + 4 + size
        key: int | bytes = event[header_end:value_at]
    else:
        header_end = value_at = _V1_KEY + 8
        (key,) = struct.unpack_from(">q", event, _V1_KEY)
    _check("header", header_crc, event[5:header_end])
    _check("value", value_crc, event[header_end:])
    value = event[value_at:]
    is_delete = bool(attributes & 0x0002)
    return StockEvent(
        1, scn, src_id, key, is_delete, ts_ns, schema_id, value, bool(value) or src_id < 0
    )


def _read_v2(event: bytes) -> StockEvent:
    (_, magic, header_end, header_crc, body_crc, _, attributes, ts_ns, src_id, _, scn) = (
        _V2.unpack_from(event)
    )
    if magic != MAGIC:
        raise StockRefusalError(f"magic {magic:08x}")
    _check("header", header_crc, event[13:header_end])
    _check("body", body_crc, event[header_end:])
    if attributes >> 2 & 3 == 2:
        (size,) = struct.unpack_from(">I", event, _V2_KEY)
        key_end = _V2_KEY + 4 + size
        key: int | bytes = event[_V2_KEY + 4 : key_end]
    else:
        key_end = _V2_KEY + 8
        (key,) = struct.unpack_from(">q", event, _V2_KEY)
    if key_end != header_end:
        raise StockRefusalError(f"a header of {header_end} bytes whose key ends at {key_end}")
    metadata, payload = None, None
    at = header_end
    if attributes & 0x40:
        metadata, at = _read_part(event, at)
    if attributes & 0x80:
        payload, at = _read_part(event, at)
    if at != len(event):
        raise StockRefusalError(f"an event of {len(event)} bytes whose parts end at {at}")
    if src_id >= 0 and attributes & 3 not in (1, 2):
        raise StockRefusalError(f"a row's event with opcode {attributes & 3}")
    schema_id, value = (b"", b"") if payload is None else (payload.digest, payload.data)
    is_delete = attributes & 3 == 2
    has_payload = payload is not None
    return StockEvent(
        2, scn, src_id, key, is_delete, ts_ns, schema_id, value, has_payload, metadata
    )


def _read_part(event: bytes, at: int) -> tuple[Part, int]:
    size, attributes = _PART.unpack_from(event, at)
    at += _PART.size
    digest_bytes = 16 if attributes & 3 == 0 else 4
    digest, at = event[at : at + digest_bytes], at + digest_bytes
    data = event[at : at + size]
    if len(data) != size:
        raise StockRefusalError(f"a part of {size} bytes, of which {len(data)} are there")
    return Part(digest, attributes >> 2, data), at + size
