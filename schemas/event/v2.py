"""Version 2 events: what the ring stores and what clients ask for with `maxev=2`.

`layout.V2` has the fields of the header, `layout.PART` those of metadata and payload.

An *unstamped* event has SCN 0, timestamp 0 and header CRC 0, and everything
else as it will be: what a row's event is before its transaction has committed.

`decode` is written out in one function and not in small ones: it runs once per
event in every client, where a call costs as much as a field.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from databus.schemas.errors import ProtocolError
from databus.schemas.event import v1 as event_v1
from databus.schemas.event.crc import event_crc, wrong_crc
from databus.schemas.event.event import CRC32_BYTES, EOP_SRC_ID, MD5_BYTES, Event, Opcode, Part
from databus.schemas.event.layout import (
    BYTE_KEY,
    CRC32_DIGEST,
    CRC32_PART_BYTES,
    DIGEST_KIND_MASK,
    HAS_METADATA,
    HAS_PAYLOAD,
    LONG_KEY,
    MD5_DIGEST,
    MD5_PART_BYTES,
    OPCODE_MASK,
    PART,
    REPLICATED,
    TRACE,
    V2,
    V2_COVERED_AT,
    V2_LONG_KEY_BEGIN,
    V2_LONG_KEY_FIELDS,
    V2_LONG_KEY_HEADER_BYTES,
    V2_MAGIC,
    V2_SMALLEST_BYTES,
    V2_VERSION,
    VERSION_SHIFT,
    struct_of,
)

VERSION: Final = V2_VERSION
SMALLEST_BYTES: Final = V2_SMALLEST_BYTES

_BEGIN_FIELDS = (V2.version, V2.magic, V2.header_length)
_COVERED_FIELDS = (
    V2.body_crc,
    V2.length,
    V2.attributes,
    V2.timestamp_ns,
    V2.src_id,
    V2.partition_id,
    V2.scn,
)
_LONG_KEY_HEADER = struct_of(*V2_LONG_KEY_FIELDS)
_HEADER = struct_of(*_BEGIN_FIELDS, V2.header_crc, *_COVERED_FIELDS)
_CHECKED_LONG = struct_of(*_COVERED_FIELDS, V2.long_key, begin=V2_COVERED_AT)
_CHECKED_BYTE = struct_of(*_COVERED_FIELDS, V2.key_length, begin=V2_COVERED_AT)
_PREFIX = struct_of(*_BEGIN_FIELDS, V2.header_crc)
_MD5_PART = struct_of(PART.length, PART.attributes, PART.md5)
_CRC32_PART = struct_of(PART.length, PART.attributes, PART.crc32)
_PART = struct_of(PART.length, PART.attributes)
_U32 = struct_of(V2.header_crc, begin=V2.header_crc.offset)
_I64 = struct_of(V2.long_key, begin=V2.long_key.offset)
_ATTRIBUTE_BITS = struct_of(V2.attributes)
_PEEK = struct_of(*_COVERED_FIELDS[1:])
_LENGTHS = struct_of(*_BEGIN_FIELDS, V2.length)
PART_BYTES = {MD5_DIGEST: MD5_PART_BYTES, CRC32_DIGEST: CRC32_PART_BYTES}
_TIMESTAMP_AT, _SCN_AT, _HEADER_CRC_AT = V2.timestamp_ns.offset, V2.scn.offset, V2.header_crc.offset
_UNSTAMPED_FIELDS = (V2.header_crc, V2.timestamp_ns, V2.scn)

_pack_prefix = _PREFIX.pack
_pack_checked_long = _CHECKED_LONG.pack
_pack_checked_byte = _CHECKED_BYTE.pack
_pack_md5_part = _MD5_PART.pack
_pack_crc32_part = _CRC32_PART.pack
_unpack_long_key_header = _LONG_KEY_HEADER.unpack_from
_unpack_md5_part = _MD5_PART.unpack_from
_unpack_crc32_part = _CRC32_PART.unpack_from
_unpack_peek = _PEEK.unpack_from
_new = tuple.__new__

Buffer = bytes | bytearray | memoryview


class _Attributes(NamedTuple):
    opcode: Opcode
    has_long_key: bool
    is_replicated: bool
    is_traced: bool
    has_metadata: bool
    has_payload: bool


def _read_attributes(bits: int) -> _Attributes | None:
    if bits & OPCODE_MASK == OPCODE_MASK or bits & (LONG_KEY | BYTE_KEY) not in (
        LONG_KEY,
        BYTE_KEY,
    ):
        return None
    return _Attributes(
        Opcode(bits & OPCODE_MASK),
        bool(bits & LONG_KEY),
        bool(bits & REPLICATED),
        bool(bits & TRACE),
        bool(bits & HAS_METADATA),
        bool(bits & HAS_PAYLOAD),
    )


# What each value of the attributes means; those not in it are damage.
_ATTRIBUTES = {bits: read for bits in range(256) if (read := _read_attributes(bits)) is not None}
_LONG_KEY_ATTRIBUTES = {
    bits: (
        read.opcode is not Opcode.CONTROL,
        read.opcode,
        read.is_replicated,
        read.is_traced,
        read.has_metadata,
        read.has_payload,
    )
    for bits, read in _ATTRIBUTES.items()
    if read.has_long_key
}


def encode(event: Event) -> bytes:
    """Return the event's version 2 bytes.

    Raises ProtocolError when a field is out of the format's range.
    """
    # fmt: off
    (scn, timestamp_ns, src_id, partition_id, key, opcode,
     payload, metadata, replicated, traced) = event
    # fmt: on
    bits: int = opcode
    if replicated:
        bits |= REPLICATED
    if traced:
        bits |= TRACE
    try:
        body = b""
        if metadata is not None:
            body = encode_part(metadata)
            bits |= HAS_METADATA
        if payload is not None:
            body += encode_part(payload)
            bits |= HAS_PAYLOAD
        if isinstance(key, int):
            pack, key_field, key_bytes = _pack_checked_long, key, b""
            header_length = V2_LONG_KEY_HEADER_BYTES
            bits |= LONG_KEY
        else:
            pack, key_field, key_bytes = _pack_checked_byte, len(key), key
            header_length = V2_SMALLEST_BYTES + len(key)
            bits |= BYTE_KEY
        header = pack(
            event_crc(body),
            header_length + len(body),
            bits,
            timestamp_ns,
            src_id,
            partition_id,
            scn,
            key_field,
        )
        header += key_bytes
        return _pack_prefix(VERSION, V2_MAGIC, header_length, event_crc(header)) + header + body
    except struct.error as error:
        raise ProtocolError(f"event does not fit version 2: {error}") from error


def unstamped(event: bytes) -> bytes:
    """Return one event's bytes without SCN, timestamp and header CRC."""
    data = bytearray(event)
    for field in _UNSTAMPED_FIELDS:
        data[field.offset : field.end] = bytes(field.end - field.offset)
    return bytes(data)


def stamp(events: bytes, scn: int, timestamp_ns: int) -> bytes:
    """Return a run of unstamped events with the SCN, the timestamp and the header CRCs.

    Bodies are neither read nor changed. Raises ProtocolError when something
    else than whole version 2 events is among them.
    """
    data = bytearray(events)
    at, end = 0, len(data)
    try:
        while at < end:
            version, magic, header_length, length = _LENGTHS.unpack_from(data, at)
            if version != VERSION or magic != V2_MAGIC:
                raise ProtocolError("no version 2 event begins here", at)
            if not SMALLEST_BYTES <= header_length <= length <= end - at:
                raise ProtocolError("version 2 event is cut short", at)
            _I64.pack_into(data, at + _TIMESTAMP_AT, timestamp_ns)
            _I64.pack_into(data, at + _SCN_AT, scn)
            checked = event_crc(data[at + V2_COVERED_AT : at + header_length])
            _U32.pack_into(data, at + _HEADER_CRC_AT, checked)
            at += length
    except struct.error as error:
        raise ProtocolError(f"events cannot be stamped: {error}", at) from error
    return bytes(data)


def encode_part(part: Part) -> bytes:
    """Return a part's bytes: how long it is, which schema wrote it, the data.

    Raises ProtocolError when the digest is neither an MD5 nor a CRC32.
    """
    data, digest, schema_version = part
    if len(digest) == MD5_BYTES:
        return _pack_md5_part(len(data), schema_version << VERSION_SHIFT, digest) + data
    if len(digest) == CRC32_BYTES:
        return (
            _pack_crc32_part(len(data), schema_version << VERSION_SHIFT | CRC32_DIGEST, digest)
            + data
        )
    raise ProtocolError(f"a schema digest has 16 or 4 bytes, not {len(digest)}")


def decode(buffer: Buffer, offset: int = 0) -> tuple[Event, int]:
    """Return the event at `offset`, both CRCs checked, and where it ends.

    Raises ProtocolError for anything that is not a whole version 2 event.
    """
    try:
        # fmt: off
        (begin, header_crc, body_crc, length, bits, timestamp_ns, src_id, partition_id, scn,
         key) = _unpack_long_key_header(buffer, offset)
        # fmt: on
        is_row, opcode, replicated, traced, has_metadata, has_payload = _LONG_KEY_ATTRIBUTES[bits]
    except (struct.error, KeyError):
        return _decode_any(buffer, offset)
    end = offset + length
    # Whatever is not the plainest event goes the slow way, which tells damage
    # from the less usual. There, too, no CRC is believed before the lengths.
    if (
        begin != V2_LONG_KEY_BEGIN
        or end > len(buffer)
        or (src_id >= 0) is not is_row
        or offset < 0
        or event_crc(buffer[offset + V2_COVERED_AT : offset + V2_LONG_KEY_HEADER_BYTES])
        != header_crc
    ):
        return _decode_any(buffer, offset)
    body = buffer[offset + V2_LONG_KEY_HEADER_BYTES : end]
    if type(body) is not bytes:
        body = bytes(body)
    if event_crc(body) != body_crc:
        return _decode_any(buffer, offset)
    metadata = payload = None
    place = strange = 0
    try:
        if has_metadata:
            data_length, bits, digest = _unpack_crc32_part(body)
            place = CRC32_PART_BYTES + data_length
            strange = bits & DIGEST_KIND_MASK ^ CRC32_DIGEST
            metadata = _new(Part, (body[CRC32_PART_BYTES:place], digest, bits >> VERSION_SHIFT))
        if has_payload:
            data_length, bits, digest = _unpack_md5_part(body, place)
            strange |= bits & DIGEST_KIND_MASK  # MD5 is 0
            payload = _new(Part, (body[place + MD5_PART_BYTES :], digest, bits >> VERSION_SHIFT))
            place += MD5_PART_BYTES + data_length
    except struct.error:
        return _decode_any(buffer, offset)
    if strange or place != length - V2_LONG_KEY_HEADER_BYTES:
        return _decode_any(buffer, offset)
    # fmt: off
    return _new(Event, (scn, timestamp_ns, src_id, partition_id, key, opcode,
                        payload, metadata, replicated, traced)), end
    # fmt: on


def header_length(buffer: Buffer, offset: int) -> int:
    """Return how long the header is of the event at `offset`, of which the fixed part is here.

    Two of its fields say it; where they contradict each other one of them is
    damaged. Raises ProtocolError.
    """
    version, magic, length, *_ = _HEADER.unpack_from(buffer, offset)
    (bits,) = _ATTRIBUTE_BITS.unpack_from(buffer, offset)
    if version != VERSION or magic != V2_MAGIC:
        raise ProtocolError("no version 2 event begins here", offset)
    attributes = _ATTRIBUTES.get(bits)
    if attributes is None:
        raise ProtocolError(f"attributes {bits:#06x} are impossible", offset + V2.attributes.offset)
    (key_length,) = _U32.unpack_from(buffer, offset + V2.key_length.offset)
    if length != (
        V2_LONG_KEY_HEADER_BYTES if attributes.has_long_key else SMALLEST_BYTES + key_length
    ):
        raise ProtocolError(
            f"header length {length} does not fit the key", offset + V2.header_length.offset
        )
    return int(length)


def checked_length(buffer: Buffer, offset: int) -> int:
    """Return how long the event at `offset` is, whose header is here, as its CRC confirms it.

    Raises ProtocolError.
    """
    _, _, header_bytes, header_crc, _, length, *_ = _HEADER.unpack_from(buffer, offset)
    checked = buffer[offset + V2_COVERED_AT : offset + header_bytes]
    if event_crc(checked) != header_crc:
        raise wrong_crc("header", checked, header_crc, offset + V2.header_crc.offset)
    if length < header_bytes:
        raise ProtocolError(f"event length {length} is impossible", offset + V2.length.offset)
    return int(length)


def _decode_any(buffer: Buffer, offset: int) -> tuple[Event, int]:
    """Decode an event with either kind of key, naming exactly what is wrong with it."""
    if offset < 0 or len(buffer) - offset < SMALLEST_BYTES:
        raise ProtocolError("version 2 event is cut short", offset)
    fixed = _HEADER.unpack_from(buffer, offset)
    attributes = _check_header(fixed, len(buffer) - offset, offset)
    header_length, header_crc, body_crc, length = fixed[2:6]
    timestamp_ns, src_id, partition_id, scn = fixed[7:]
    header_end, end = offset + header_length, offset + length
    checked = buffer[offset + V2_COVERED_AT : header_end]
    if event_crc(checked) != header_crc:
        raise wrong_crc("header", checked, header_crc, offset + V2.header_crc.offset)
    body = bytes(buffer[header_end:end])
    if event_crc(body) != body_crc:
        raise wrong_crc("body", body, body_crc, offset + V2.body_crc.offset)
    if (src_id < 0) is not (attributes.opcode is Opcode.CONTROL):
        raise ProtocolError(
            f"opcode {attributes.opcode} with src_id {src_id}", offset + V2.attributes.offset
        )
    key = _read_key(buffer, offset, header_end, attributes.has_long_key)
    metadata, payload = _split_body(body, attributes, header_end)
    event = Event(
        scn,
        timestamp_ns,
        src_id,
        partition_id,
        key,
        attributes.opcode,
        payload,
        metadata,
        attributes.is_replicated,
        attributes.is_traced,
    )
    return event, end


def _check_header(fixed: tuple[int, ...], room: int, offset: int) -> _Attributes:
    """Check what the lengths and CRCs will be read from; return the attributes."""
    version, magic, header_length, _, _, length, bits, *_ = fixed
    if version != VERSION:
        raise ProtocolError(f"event version byte is {version}, not {VERSION}", offset)
    if magic != V2_MAGIC:
        raise ProtocolError(
            f"magic is {magic:#010x}, not {V2_MAGIC:#010x}", offset + V2.magic.offset
        )
    if not SMALLEST_BYTES <= header_length <= length:
        raise ProtocolError(
            f"header length {header_length} is impossible", offset + V2.header_length.offset
        )
    if length > room:
        raise ProtocolError(
            f"event length {length} is beyond the {room} bytes here", offset + V2.length.offset
        )
    attributes = _ATTRIBUTES.get(bits)
    if attributes is None:
        raise ProtocolError(f"attributes {bits:#06x} are impossible", offset + V2.attributes.offset)
    return attributes


def _read_key(buffer: Buffer, offset: int, header_end: int, has_long_key: bool) -> int | bytes:
    start = offset + V2.long_key.offset
    if has_long_key:
        if header_end - start != _I64.size:
            raise ProtocolError(
                "header length does not fit a long key", offset + V2.header_length.offset
            )
        key: int = _I64.unpack_from(buffer, start)[0]
        return key
    (key_length,) = _U32.unpack_from(buffer, start)
    if header_end - start - _U32.size != key_length:
        raise ProtocolError(f"key length {key_length} does not fit the header", start)
    return bytes(buffer[start + _U32.size : header_end])


def _split_body(body: bytes, attributes: _Attributes, at: int) -> tuple[Part | None, Part | None]:
    metadata = payload = None
    place = 0
    if attributes.has_metadata:
        metadata, place = _read_part(body, 0, at)
    if attributes.has_payload:
        payload, place = _read_part(body, place, at)
    if place != len(body):
        raise ProtocolError(f"{len(body) - place} bytes after the last part", at + place)
    return metadata, payload


def _read_part(body: bytes, place: int, at: int) -> tuple[Part, int]:
    """Return the part at `place` of a body that stands at `at`, and where it ends."""
    try:
        length, bits = _PART.unpack_from(body, place)
    except struct.error:
        raise ProtocolError("part is cut short", at + place) from None
    digest_type = bits & DIGEST_KIND_MASK
    if digest_type not in PART_BYTES:
        where = at + place + PART.attributes.offset
        raise ProtocolError(f"digest type {digest_type} is unknown", where)
    digest_end = place + PART_BYTES[digest_type]
    end = digest_end + length
    if end > len(body):
        raise ProtocolError(f"part length {length} is impossible", at + place)
    digest = body[place + PART.md5.offset : digest_end]
    return Part(body[digest_end:end], digest, bits >> VERSION_SHIFT), end


class Peek(NamedTuple):
    """The fixed fields of an event, read but not checked."""

    length: int
    attributes: int
    timestamp_ns: int
    src_id: int
    partition_id: int
    scn: int

    @property
    def is_eop(self) -> bool:
        """Whether it ends a window."""
        return self.src_id == EOP_SRC_ID

    @property
    def is_control(self) -> bool:
        """Whether it is about the stream, not about a row."""
        return self.src_id < 0

    @property
    def has_long_key(self) -> bool:
        """Whether the key is a long; otherwise it is a byte string."""
        return bool(self.attributes & LONG_KEY)


def peek(buffer: Buffer, offset: int = 0) -> Peek:
    """Read an event's fixed fields; no CRC is checked and no part is read.

    For bytes that were checked when they were written (the ring's). Raises
    ProtocolError when the fixed part is cut short.
    """
    try:
        return _new(Peek, _unpack_peek(buffer, offset))
    except struct.error:
        raise ProtocolError("version 2 event is cut short", offset) from None


def peek_key(buffer: Buffer, offset: int, peeked: Peek) -> int | bytes:
    """Read the key of the event that `peeked` was read from."""
    start = offset + V2.long_key.offset
    try:
        if peeked.attributes & LONG_KEY:
            key: int = _I64.unpack_from(buffer, start)[0]
            return key
        (length,) = _U32.unpack_from(buffer, start)
    except struct.error:
        raise ProtocolError("version 2 event is cut short", offset) from None
    return bytes(buffer[start + _U32.size : start + _U32.size + length])


def to_v1(event: Event | Buffer) -> bytes:
    """Return the version 1 bytes of a version 2 event, given decoded or as bytes.

    The metadata and the schema version are left out: version 1 has no room.
    """
    if not isinstance(event, Event):
        event, _ = decode(event)
    return event_v1.encode(event)
