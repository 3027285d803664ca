"""Protobuf's encoding of fields, for the few messages that the front doors speak. Pure.

A message is a sequence of fields, each a tag (number << 3 | kind) and a value. Writing returns
the bytes of one field; a message is their concatenation. Reading refuses what is malformed.
"""

from __future__ import annotations

from collections.abc import Iterator

from databus.schemas.errors import ProtocolError

VARINT, FIXED64, LENGTH, FIXED32 = 0, 1, 2, 5
_WIDTHS = {FIXED64: 8, FIXED32: 4}
_U64 = (1 << 64) - 1
_MOST_VARINT_BYTES = 10
_SMALL = [bytes([number]) for number in range(0x80)]

Value = int | bytes


def varint(number: int) -> bytes:
    """Return a number as a varint; a negative one takes ten bytes, as int32 and int64 do."""
    if 0 <= number <= 0x7F:
        return _SMALL[number]
    number &= _U64
    written = bytearray()
    while number > 0x7F:
        written.append(number & 0x7F | 0x80)
        number >>= 7
    written.append(number)
    return bytes(written)


def number_field(field: int, number: int) -> bytes:
    """Return a field of an integer, a boolean or an enum."""
    return varint(field << 3 | VARINT) + varint(number)


def bytes_field(field: int, data: bytes) -> bytes:
    """Return a field of bytes, or of a message's bytes."""
    return varint(field << 3 | LENGTH) + varint(len(data)) + data


def text_field(field: int, text: str) -> bytes:
    """Return a field of text. Half of a surrogate pair becomes a question mark, as in Java."""
    return bytes_field(field, text.encode("utf-8", "replace"))


def read_fields(data: bytes) -> Iterator[tuple[int, Value]]:
    """Yield the number and value of each field: an integer without sign, or bytes.

    Raises ProtocolError for what is no message, with the place of the error.
    """
    at, end = 0, len(data)
    while at < end:
        begin = at
        tag, at = _read_varint(data, at)
        field, kind = tag >> 3, tag & 7
        if not 0 < field < 1 << 29:
            raise ProtocolError(f"no protobuf field has the number {field}", begin)
        value: Value
        if kind == VARINT:
            value, at = _read_varint(data, at)
        else:
            if kind == LENGTH:
                size, at = _read_varint(data, at)
            elif kind in _WIDTHS:
                size = _WIDTHS[kind]
            else:
                raise ProtocolError(f"protobuf field {field} is of the unknown kind {kind}", begin)
            if size > end - at:
                raise ProtocolError(f"protobuf field {field} is cut short", begin)
            value = data[at : at + size]
            at += size
        yield field, value


def signed(number: int, bits: int = 64) -> int:
    """Return a number that was read as an int64, or as an int32 of its lowest 32 bits."""
    number &= (1 << bits) - 1
    return number - (1 << bits) if number >> (bits - 1) else number


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    begin, number = at, 0
    for byte in data[at : at + _MOST_VARINT_BYTES]:
        number |= (byte & 0x7F) << 7 * (at - begin)
        at += 1
        if byte <= 0x7F:
            return number & _U64, at
    raise ProtocolError("a protobuf number does not end", begin)
