"""Version 1 events: what a client gets that does not ask for more.

Big-endian:

     0  B    version = 0
     1  I    header CRC32: from offset 5 through the key, or through the key length
     5  I    length of the whole event
     9  H    attributes
    11  q    SCN of the window
    19  h    physical partition id
    21  h    logical partition id
    23  q    timestamp, ns
    31  h    src_id
    33  16s  schema id
    49  I    value CRC32: the value, for a byte key with the key bytes before it
    53  q    long key; the value starts at 61
    53  I    or: key length, key bytes; the value starts at 57 + length

There is no room for metadata, for a schema version or for a CRC32 digest. The
one partition id of an event stands in both fields; the logical one is read.
"""

from __future__ import annotations

import struct
from typing import Any
from zlib import crc32

from databus.schemas.errors import ProtocolError
from databus.schemas.event.event import NO_SCHEMA_ID, Event, Opcode, Part

VERSION = 0
SMALLEST_BYTES = 57

_UPSERT, _DELETE, _TRACE, _BYTE_KEY, _REPLICATED = 0x0001, 0x0002, 0x0004, 0x0008, 0x0100
_KNOWN_BITS = _UPSERT | _DELETE | _TRACE | _BYTE_KEY | _REPLICATED
_OPCODE_BITS = {Opcode.CONTROL: 0, Opcode.UPSERT: _UPSERT, Opcode.DELETE: _DELETE}

_FIXED = struct.Struct(">BIIHqhhqh16sI")
_CHECKED = struct.Struct(">IHqhhqh16sI")  # the fixed part without version and header CRC
_HEADER_CRC = struct.Struct(">BI")
_LONG_KEY = struct.Struct(">q")
_KEY_LENGTH = struct.Struct(">I")
_ATTRIBUTE_BITS = struct.Struct(">9xH")

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
                crc32(checked),
            )
            + key_field
        )
    except struct.error as error:
        raise ProtocolError(f"event does not fit version 1: {error}") from error
    return _HEADER_CRC.pack(VERSION, crc32(header)) + header + checked


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
        raise ProtocolError(f"version 1 event length {length} is impossible", offset + 5)
    has_byte_key = bool(bits & _BYTE_KEY)
    header_end = offset + _FIXED.size + (4 if has_byte_key else 8)
    end = offset + length
    if header_end > end:
        raise ProtocolError(f"version 1 event length {length} is impossible", offset + 5)
    if crc32(bytes(buffer[offset + 5 : header_end])) != header_crc:
        raise ProtocolError("header CRC does not match", offset + 1)
    checked = bytes(buffer[header_end:end])
    if crc32(checked) != value_crc:
        raise ProtocolError("value CRC does not match", offset + 49)
    key, value = _split_key(buffer, header_end, checked, has_byte_key)
    return _event(fixed, key, value, offset), end


def header_length(buffer: Buffer, offset: int) -> int:
    """Return how long the checked part is of the event at `offset`, but for the value."""
    (bits,) = _ATTRIBUTE_BITS.unpack_from(buffer, offset)
    return _FIXED.size + (4 if bits & _BYTE_KEY else 8)


def checked_length(buffer: Buffer, offset: int) -> int:
    """Return how long the event at `offset` is, whose header is here, as its CRC confirms it.

    Raises ProtocolError.
    """
    _, header_crc, length, *_ = _FIXED.unpack_from(buffer, offset)
    header_bytes = header_length(buffer, offset)
    if crc32(buffer[offset + 5 : offset + header_bytes]) != header_crc:
        raise ProtocolError("header CRC does not match", offset + 1)
    if length < header_bytes:
        raise ProtocolError(f"version 1 event length {length} is impossible", offset + 5)
    return int(length)


def _split_key(
    buffer: Buffer, header_end: int, checked: bytes, has_byte_key: bool
) -> tuple[int | bytes, bytes]:
    if not has_byte_key:
        key: int = _LONG_KEY.unpack_from(buffer, header_end - 8)[0]
        return key, checked
    key_length: int = _KEY_LENGTH.unpack_from(buffer, header_end - 4)[0]
    if key_length > len(checked):
        raise ProtocolError(f"key length {key_length} is impossible", header_end - 4)
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
        raise ProtocolError(f"attributes {bits:#06x} are impossible", offset + 9)
    if src_id < 0:
        return Opcode.CONTROL  # stock relays differ in the bits they set on these
    if not operation:
        raise ProtocolError("event is neither an upsert nor a delete", offset + 9)
    return Opcode.UPSERT if operation == _UPSERT else Opcode.DELETE
