"""Events as versions of this project wrote them that gave them zlib's CRCs."""

from __future__ import annotations

import struct
from zlib import crc32

from databus.schemas.event import v1 as event_v1, v2 as event_v2
from databus.schemas.event.event import Event
from databus.schemas.event.layout import V1, V1_COVERED_AT, V2, V2_COVERED_AT


def former_v2(event: Event | bytes) -> bytes:
    """Return a version 2 event with zlib's CRCs."""
    data = bytearray(event_v2.encode(event) if isinstance(event, Event) else event)
    body_at = event_v2.header_length(data, 0)
    struct.pack_into(">I", data, V2.body_crc.offset, crc32(data[body_at:]))
    struct.pack_into(">I", data, V2.header_crc.offset, crc32(data[V2_COVERED_AT:body_at]))
    return bytes(data)


def former_v1(event: Event) -> bytes:
    """Return a version 1 event with zlib's CRCs."""
    data = bytearray(event_v1.encode(event))
    body_at = event_v1.header_length(data, 0)
    struct.pack_into(">I", data, V1.value_crc.offset, crc32(data[body_at:]))
    struct.pack_into(">I", data, V1.header_crc.offset, crc32(data[V1_COVERED_AT:body_at]))
    return bytes(data)


def former_run(events: bytes) -> bytes:
    """Return whole version 2 events one after another, each with zlib's CRCs."""
    pieces, at = [], 0
    while at < len(events):
        length = event_v2.peek(events, at).length
        pieces.append(former_v2(events[at : at + length]))
        at += length
    return b"".join(pieces)
