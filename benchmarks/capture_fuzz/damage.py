"""Damages binlogs so that not only the checksums notice it, but every parser. Pure.

A stretch of a recording is cut out so that it reads as a stream of its own:
ROTATE and FORMAT_DESCRIPTION as a server makes them up, then a few
transactions. Damage goes into an event, or into what is compressed in it, or
between events; then sizes and checksums are mostly made right again.
"""

from __future__ import annotations

import random
import struct
import zlib
from collections.abc import Sequence

import zstandard
from pymysqlreplication.constants import BINLOG as B

from databus.relay.sources.mysql.binlog.events import HEADER, HEADER_SIZE, TRANSACTION_PAYLOAD
from databus.schemas.event.crc import event_crc

_TYPE_AT, _SIZE_AT, _END_AT = 4, 9, 13
_CHECKSUM = 4
_COMPRESSED = range(165, 172)
_ZLIB, _ZSTD = b"\x78", b"\x28\xb5\x2f\xfd"
_END_OF_STREAM = b"\xfe\0\0\x02\0"
_EXTREMES = (b"\xff" * 8, b"\0" * 8, b"\xff\xff\xff\x7f", b"\0\0\0\x80", b"\xfd", b"\xfc")
_CONTINUED = 0xFFFFFF
_HEAD = 2  # ROTATE and FORMAT_DESCRIPTION

# Of a version 2 event: where the header's CRC is and what it covers, the body's, the length.
_V2_HEADER_CRC, _V2_BODY_CRC, _V2_LENGTH, _V2_BODY = 9, 13, 17, 53


def stretch(
    events: Sequence[bytes], beginnings: Sequence[int], first: int, count: int
) -> list[bytes]:
    """Return a number of transactions of a log, as a stream that begins with them."""
    begin = beginnings[first]
    end = beginnings[first + count] if first + count < len(beginnings) else len(events)
    start_offset = HEADER.unpack_from(events[begin])[4] - len(events[begin])
    rotate = bytearray(events[0])
    struct.pack_into("<Q", rotate, HEADER_SIZE, start_offset)
    described = bytearray(next(e for e in events if e[_TYPE_AT] == B.FORMAT_DESCRIPTION_EVENT))
    struct.pack_into("<I", described, _END_AT, 0)
    head = [with_checksum(bytes(rotate)), with_checksum(bytes(described))]
    return [*head, *events[begin:end]]


def with_checksum(event: bytes) -> bytes:
    """Return the event with its correct checksum."""
    return event[:-_CHECKSUM] + struct.pack("<I", zlib.crc32(event[:-_CHECKSUM]))


def damage_events(draw: random.Random, events: Sequence[bytes]) -> list[bytes]:
    """Return the events with one to three kinds of damage."""
    found = list(events)
    sizes = [len(event) for event in found]
    is_repaired = draw.random() < 0.9
    for _ in range(draw.choice((1, 1, 1, 2, 3))):
        _damage_one(draw, found)
    if is_repaired:
        was_moved = [len(event) for event in found] != sizes
        return [_repaired(event, was_moved) for event in found]
    return found


def _damage_one(draw: random.Random, events: list[bytes]) -> None:
    first = 0 if draw.random() < 0.05 else min(_HEAD, len(events) - 1)
    at = draw.randrange(first, len(events))
    kind = draw.random()
    if kind < 0.04:
        events.insert(at, events[draw.randrange(len(events))])
    elif kind < 0.08 and len(events) > 1:
        del events[at]
    elif kind < 0.1:
        other = draw.randrange(first, len(events))
        events[at], events[other] = events[other], events[at]
    else:
        events[at] = damage_event(draw, events[at])


def damage_event(draw: random.Random, event: bytes) -> bytes:
    """Return an event with damage in it, or in its compressed content."""
    kind = event[_TYPE_AT] if len(event) > _TYPE_AT else 0
    if kind in _COMPRESSED and draw.random() < 0.6:
        return _inside_zlib(draw, event)
    if kind == TRANSACTION_PAYLOAD and draw.random() < 0.8:
        return _inside_zstd(draw, event)
    head = 0 if draw.random() < 0.1 else min(HEADER_SIZE, len(event))
    return event[:head] + damage_bytes(draw, event[head:-_CHECKSUM]) + event[-_CHECKSUM:]


def damage_bytes(draw: random.Random, data: bytes) -> bytes:
    """Return bytes with some of them changed, removed or added."""
    changed = bytearray(data)
    at = draw.randrange(len(changed) + 1)
    kind = draw.random()
    if kind < 0.45 and at < len(changed):
        changed[at] ^= 1 << draw.randrange(8)
    elif kind < 0.65 and at < len(changed):
        changed[at] = draw.randrange(256)
    elif kind < 0.8:
        extreme = draw.choice(_EXTREMES)
        changed[at : at + len(extreme)] = extreme
    elif kind < 0.9:
        del changed[at : at + draw.choice((1, 1, 2, 8, 100, len(changed)))]
    elif kind < 0.95:
        changed[at:at] = draw.randbytes(draw.choice((1, 2, 8)))
    else:
        other = draw.randrange(len(changed) + 1)
        changed[at : at + 8] = changed[other : other + 8]
    return bytes(changed)


def _inside_zlib(draw: random.Random, event: bytes) -> bytes:
    at = event.find(_ZLIB, HEADER_SIZE)
    try:
        plain = zlib.decompress(event[at:-_CHECKSUM])
    except zlib.error:
        return event
    return event[:at] + zlib.compress(damage_bytes(draw, plain)) + event[-_CHECKSUM:]


def _inside_zstd(draw: random.Random, event: bytes) -> bytes:
    at = event.find(_ZSTD)
    try:
        unpacked = zstandard.ZstdDecompressor().decompressobj().decompress(event[at:-_CHECKSUM])
    except zstandard.ZstdError:
        return event  # damaged already
    if len(unpacked) < HEADER_SIZE:
        return event
    plain = _damage_inner(draw, unpacked)
    packed = zstandard.ZstdCompressor().compress(plain)
    fields = b"\x02\x01\x00\x03\x09" + _number(len(plain)) + b"\x01\x09" + _number(len(packed))
    return event[:HEADER_SIZE] + fields + b"\0" + packed + event[-_CHECKSUM:]


def _damage_inner(draw: random.Random, plain: bytes) -> bytes:
    """Damage one event of a payload; correct its size. Such events have no checksums."""
    places, at = [], 0
    while at + HEADER_SIZE <= len(plain):
        size = int.from_bytes(plain[at + _SIZE_AT : at + _SIZE_AT + 4], "little")
        places.append((at, at + size))
        at += max(size, HEADER_SIZE)
    begin, end = draw.choice(places)
    body = damage_bytes(draw, plain[begin + HEADER_SIZE : end])
    head = bytearray(plain[begin : begin + HEADER_SIZE])
    struct.pack_into("<I", head, _SIZE_AT, HEADER_SIZE + len(body))
    return plain[:begin] + bytes(head) + body + plain[end:]


def _number(value: int) -> bytes:
    """Return a length-encoded number in its longest form."""
    return b"\xfe" + value.to_bytes(8, "little")


def _repaired(event: bytes, was_moved: bool) -> bytes:
    """Return an event with its size and checksum right, its end unsaid where things moved."""
    if len(event) < HEADER_SIZE + _CHECKSUM:
        return event
    changed = bytearray(event)
    struct.pack_into("<I", changed, _SIZE_AT, len(event))
    if was_moved:
        struct.pack_into("<I", changed, _END_AT, 0)
    return with_checksum(bytes(changed))


def framed(events: Sequence[bytes]) -> bytes:
    """Return the packets in which a server sends these events, and then the end."""
    packets = []
    payloads = [*(b"\0" + event for event in events), _END_OF_STREAM]
    for number, payload in enumerate(payloads, 1):  # the request has 0
        assert len(payload) < _CONTINUED
        packets += [len(payload).to_bytes(3, "little"), bytes([number & 0xFF]), payload]
    return b"".join(packets)


def cut(draw: random.Random, data: bytes) -> list[bytes]:
    """Return the bytes in pieces of random sizes."""
    kind = draw.random()
    if kind < 0.4:
        return [data]
    most = 64 if kind < 0.6 else max(2, len(data))
    found, at = [], 0
    while at < len(data):
        end = at + draw.randrange(1, most)
        found.append(data[at:end])
        at = end
    return found


def damage_window(draw: random.Random, data: bytes) -> bytes:
    """Return version 2 events with damage in one of them, whose CRCs are mostly correct."""
    places, at = [], 0
    while at < len(data):
        length = int.from_bytes(data[at + _V2_LENGTH : at + _V2_LENGTH + 4], "big")
        places.append((at, at + length))
        at += length
    begin, end = draw.choice(places)
    event = damage_bytes(draw, data[begin:end])
    if draw.random() < 0.8 and len(event) >= _V2_BODY:
        event = _with_crcs(event)
    return data[:begin] + event + data[end:]


def _with_crcs(event: bytes) -> bytes:
    changed = bytearray(event)
    if len(event) != int.from_bytes(event[_V2_LENGTH : _V2_LENGTH + 4], "big"):
        struct.pack_into(">I", changed, _V2_LENGTH, len(event))
    body = event_crc(changed[_V2_BODY:]) if len(event) > _V2_BODY else 0
    struct.pack_into(">I", changed, _V2_BODY_CRC, body)
    struct.pack_into(">I", changed, _V2_HEADER_CRC, event_crc(changed[_V2_BODY_CRC:_V2_BODY]))
    return bytes(changed)
