"""Version 1 events: what a client gets that does not ask for more.

`layout.V1` has the fields of the header. There is no room for metadata, for a
schema version or for a CRC32 digest. The one partition id of an event stands in
both fields; the logical one is read.
"""

from __future__ import annotations

import struct
from typing import Any, Final

from databus.schemas.errors import ProtocolError
from databus.schemas.event.crc import event_crc, wrong_crc
from databus.schemas.event.event import NO_SCHEMA_ID, Event, Opcode, Part
from databus.schemas.event.layout import (
    V1,
    V1_COVERED_AT,
    V1_LONG_KEY_HEADER_BYTES,
    V1_SMALLEST_BYTES,
    V1_VERSION,
    V1Attributes,
    struct_of,
)

VERSION: Final = V1_VERSION
SMALLEST_BYTES: Final = V1_SMALLEST_BYTES

_UPSERT, _DELETE, _TRACE = V1Attributes.UPSERT, V1Attributes.DELETE, V1Attributes.TRACE
_BYTE_KEY, _REPLICATED = V1Attributes.BYTE_KEY, V1Attributes.REPLICATED
_KNOWN_BITS = _UPSERT | _DELETE | _TRACE | _BYTE_KEY | _REPLICATED
_OPCODE_BITS = {Opcode.CONTROL: 0, Opcode.UPSERT: _UPSERT, Opcode.DELETE: _DELETE}

_FIXED_FIELDS = V1[:-2]  # without either kind of key
_FIXED = struct_of(*_FIXED_FIELDS)
_CHECKED = struct_of(*_FIXED_FIELDS[2:], begin=V1_COVERED_AT)
_HEADER_CRC = struct_of(V1.version, V1.header_crc)
_LONG_KEY = struct_of(V1.long_key, begin=V1.long_key.offset)
_KEY_LENGTH = struct_of(V1.key_length, begin=V1.key_length.offset)
_ATTRIBUTE_BITS = struct_of(V1.attributes)

Buffer = bytes | bytearray | memoryview


def encode(event: Event) -> bytes:
    """Return the event's version 1 bytes, without its metadata.

    Raises ProtocolError when a field is out of the format's range.
    """
    value = event.value
    bits = _OPCODE_BITS[event.opcode]
    bits |= (_TRACE if event.is_traced else 0) | (_REPLICATED if event.is_replicated else 0)
    try:
        if isinstance(event.key, int):
            key_field, key_bytes = _LONG_KEY.pack(event.key), b""
        else:
            key_field, key_bytes = _KEY_LENGTH.pack(len(event.key)), event.key
            bits |= _BYTE_KEY
        checked = key_bytes + value
        header = (
            _CHECKED.pack(
                _FIXED.size + len(key_field) + len(checked),
                bits,
                event.scn,
                event.partition_id,
                event.partition_id,
                event.timestamp_ns,
                event.src_id,
                event.schema_id,
                event_crc(checked),
            )
            + key_field
        )
    except struct.error as error:
        raise ProtocolError(f"event does not fit version 1: {error}") from error
    return _HEADER_CRC.pack(VERSION, event_crc(header)) + header + checked


def decode(buffer: Buffer, offset: int = 0) -> tuple[Event, int]:
    """Return the event at `offset`, both CRCs checked, and where it ends.

    Raises ProtocolError for anything that is not a whole version 1 event.
    """
    if offset < 0 or len(buffer) - offset < SMALLEST_BYTES:
        raise ProtocolError("version 1 event is cut short", offset)
    fixed = _FIXED.unpack_from(buffer, offset)
    version, header_crc, length, bits, *_rest, value_crc = fixed
    if version != VERSION:
        raise ProtocolError(f"event version byte is {version}, not {VERSION}", offset)
    if length < SMALLEST_BYTES or length > len(buffer) - offset:
        raise ProtocolError(
            f"version 1 event length {length} is impossible", offset + V1.length.offset
        )
    has_byte_key = bool(bits & _BYTE_KEY)
    header_end = offset + (SMALLEST_BYTES if has_byte_key else V1_LONG_KEY_HEADER_BYTES)
    end = offset + length
    if header_end > end:
        raise ProtocolError(
            f"version 1 event length {length} is impossible", offset + V1.length.offset
        )
    header = bytes(buffer[offset + V1_COVERED_AT : header_end])
    if event_crc(header) != header_crc:
        raise wrong_crc("header", header, header_crc, offset + V1.header_crc.offset)
    checked = bytes(buffer[header_end:end])
    if event_crc(checked) != value_crc:
        raise wrong_crc("value", checked, value_crc, offset + V1.value_crc.offset)
    key, value = _split_key(buffer, header_end, checked, has_byte_key)
    return _event(fixed, key, value, offset), end


def header_length(buffer: Buffer, offset: int) -> int:
    """Return how long the checked part is of the event at `offset`, but for the value."""
    (bits,) = _ATTRIBUTE_BITS.unpack_from(buffer, offset)
    return SMALLEST_BYTES if bits & _BYTE_KEY else V1_LONG_KEY_HEADER_BYTES


def checked_length(buffer: Buffer, offset: int) -> int:
    """Return how long the event at `offset` is, whose header is here, as its CRC confirms it.

    Raises ProtocolError.
    """
    _, header_crc, length, *_ = _FIXED.unpack_from(buffer, offset)
    header_bytes = header_length(buffer, offset)
    checked = buffer[offset + V1_COVERED_AT : offset + header_bytes]
    if event_crc(checked) != header_crc:
        raise wrong_crc("header", checked, header_crc, offset + V1.header_crc.offset)
    if length < header_bytes:
        raise ProtocolError(
            f"version 1 event length {length} is impossible", offset + V1.length.offset
        )
    return int(length)


def _split_key(
    buffer: Buffer, header_end: int, checked: bytes, has_byte_key: bool
) -> tuple[int | bytes, bytes]:
    if not has_byte_key:
        key: int = _LONG_KEY.unpack_from(buffer, header_end - _LONG_KEY.size)[0]
        return key, checked
    key_length: int = _KEY_LENGTH.unpack_from(buffer, header_end - _KEY_LENGTH.size)[0]
    if key_length > len(checked):
        raise ProtocolError(f"key length {key_length} is impossible", header_end - _KEY_LENGTH.size)
    return checked[:key_length], checked[key_length:]


def _event(fixed: tuple[Any, ...], key: int | bytes, value: bytes, offset: int) -> Event:
    _, _, _, bits, scn, _, partition_id, timestamp_ns, src_id, schema_id, _ = fixed
    has_payload = bool(value) or schema_id != NO_SCHEMA_ID
    return Event(
        scn,
        timestamp_ns,
        src_id,
        partition_id,
        key,
        _opcode(bits, src_id, offset),
        Part(value, schema_id, 0) if has_payload else None,
        None,
        bool(bits & _REPLICATED),
        bool(bits & _TRACE),
    )


def _opcode(bits: int, src_id: int, offset: int) -> Opcode:
    operation = bits & (_UPSERT | _DELETE)
    if bits & ~_KNOWN_BITS or operation == _UPSERT | _DELETE:
        raise ProtocolError(f"attributes {bits:#06x} are impossible", offset + V1.attributes.offset)
    if src_id < 0:
        return Opcode.CONTROL  # stock relays differ in the bits they set on these
    if not operation:
        raise ProtocolError(
            "event is neither an upsert nor a delete", offset + V1.attributes.offset
        )
    return Opcode.UPSERT if operation == _UPSERT else Opcode.DELETE
