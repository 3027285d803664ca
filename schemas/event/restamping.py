"""Events as earlier versions of this project stored them, brought up to date.

Their CRCs were zlib's, and schemas had other ids. A ring and a bootstrap store that are opened
for the first time by this version take their events through here.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Mapping

from databus.schemas.errors import ProtocolError
from databus.schemas.event.crc import event_crc, former_crc
from databus.schemas.event.event import STATEMENT_SRC_IDS
from databus.schemas.event.layout import (
    DIGEST_KIND_MASK,
    HAS_METADATA,
    HAS_PAYLOAD,
    PART,
    V2,
    V2_COVERED_AT,
    V2_SMALLEST_BYTES,
    struct_of,
)
from databus.schemas.event.v2 import PART_BYTES, Buffer, header_length

_CRCS = struct_of(V2.header_crc, V2.body_crc, V2.length, V2.attributes, V2.src_id)
_HEADER_CRC = struct_of(V2.header_crc, begin=V2.header_crc.offset)
_BODY_CRC = struct_of(V2.body_crc, begin=V2.body_crc.offset)
_PART = struct_of(PART.length, PART.attributes)
_ID = re.compile(rb'"([0-9a-f]{32})"')  # in the text of a statement


def restamped(event: Buffer, ids: Mapping[bytes, bytes]) -> bytes:
    """Return a version 2 event with today's CRCs, and with the ids that `ids` has for its own.

    `ids` maps former schema ids to today's; one that it does not have stays. All other bytes
    are as they were. Raises ProtocolError if the bytes are not one whole event with the CRCs
    of earlier versions.
    """
    if len(event) < V2_SMALLEST_BYTES:
        raise ProtocolError("version 2 event is cut short")
    stated_header, stated_body, length, bits, src_id = _CRCS.unpack_from(event)
    body_at = header_length(event, 0)
    if not body_at <= length == len(event):
        raise ProtocolError(f"event length {length} is impossible", V2.length.offset)
    if former_crc(event[V2_COVERED_AT:body_at]) != stated_header:
        raise ProtocolError("header CRC does not match", V2.header_crc.offset)
    if former_crc(event[body_at:]) != stated_body:
        raise ProtocolError("body CRC does not match", V2.body_crc.offset)
    data = bytearray(event)
    if bits & HAS_PAYLOAD:
        data[body_at:] = _with_ids(bytes(event[body_at:]), bits, src_id, ids)
    # The body's first: the header's CRC covers it.
    _BODY_CRC.pack_into(data, V2.body_crc.offset, event_crc(data[body_at:]))
    checked = event_crc(data[V2_COVERED_AT:body_at])
    _HEADER_CRC.pack_into(data, V2.header_crc.offset, checked)
    return bytes(data)


def restamped_run(events: Buffer, ids: Mapping[bytes, bytes]) -> bytes:
    """Return whole events one after another, each `restamped`; raises as that."""
    return b"".join(restamped(event, ids) for event in _cut(events))


def _cut(events: Buffer) -> Iterator[Buffer]:
    at = 0
    while at < len(events):
        length = int.from_bytes(events[at + V2.length.offset : at + V2.length.end], "big")
        # A length of 0 would not end; what is too short is refused by its reader.
        yield events[at : at + max(length, V2_SMALLEST_BYTES)]
        at += max(length, V2_SMALLEST_BYTES)


def _with_ids(body: bytes, bits: int, src_id: int, ids: Mapping[bytes, bytes]) -> bytes:
    """Return the body with today's schema ids: its payload's, and those in a statement's text."""
    at = _data_of(body, 0)[1] if bits & HAS_METADATA else 0
    digest_at = at + PART.md5.offset
    data_at, end = _data_of(body, at)
    if end != len(body):
        raise ProtocolError(f"{len(body) - end} bytes after the last part", end)
    if src_id in STATEMENT_SRC_IDS:
        text = _ID.sub(lambda found: b'"%s"' % _now(found[1], ids), body[data_at:])
        return body[:data_at] + text
    digest = body[digest_at:data_at]
    return body[:digest_at] + ids.get(digest, digest) + body[data_at:]


def _now(former_hex: bytes, ids: Mapping[bytes, bytes]) -> bytes:
    former = bytes.fromhex(former_hex.decode())
    return ids.get(former, former).hex().encode()


def _data_of(body: bytes, at: int) -> tuple[int, int]:
    """Return where the data begin of the part at `at`, and where they end."""
    try:
        length, bits = _PART.unpack_from(body, at)
        begin = at + PART_BYTES[bits & DIGEST_KIND_MASK]
    except (struct.error, KeyError):
        raise ProtocolError("a part does not read", at) from None
    return begin, begin + length
