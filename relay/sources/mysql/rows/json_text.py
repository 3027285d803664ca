"""Converts MySQL's binary JSON to JSON text. Pure; raises ValueError on damage.

    value    type (1), then by type:
    object   count, size, count * (key offset, key length 2), count * entry, keys, values
    array    count, size, count * entry, values
    entry    type (1), then the value itself when it fits, else its offset
    string   length in groups of 7 bits, lowest first, then UTF-8
    opaque   column type (1), length as for a string, bytes

Counts, sizes and offsets have 2 bytes in the small kinds and 4 in the large;
offsets count from the container's first byte. Text is laid out as the server
lays it out (`{"a": 1, "b": [2, 3]}`): a DOUBLE keeps its `.0`, and has an
exponent (`1e20`, `1.5e-16`) where it would take over 14 zeros to fill it up.
"""

from __future__ import annotations

import base64
import json
import math
import struct
from decimal import Decimal

from pymysqlreplication.constants import FIELD_TYPE

from databus.relay.sources.mysql.rows.decimals import decimal_text

_SMALL_OBJECT, _LARGE_OBJECT, _SMALL_ARRAY, _LARGE_ARRAY, _LITERAL = range(5)
_INT16, _UINT16, _INT32, _UINT32, _INT64, _UINT64, _DOUBLE, _STRING = range(5, 13)
_OPAQUE = 15
_LITERALS = {0: "null", 1: "true", 2: "false"}
_INTS = {
    _INT16: struct.Struct("<h"),
    _UINT16: struct.Struct("<H"),
    _INT32: struct.Struct("<i"),
    _UINT32: struct.Struct("<I"),
    _INT64: struct.Struct("<q"),
    _UINT64: struct.Struct("<Q"),
}
_INLINE_SMALL = frozenset({_LITERAL, _INT16, _UINT16})
_INLINE_LARGE = _INLINE_SMALL | {_INT32, _UINT32}


def json_text(data: bytes) -> str:
    """Return the text of a stored document; empty bytes are JSON null, as in the server."""
    if not data:
        return "null"
    try:
        return _value(data[0], data, 1)
    except (LookupError, struct.error, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"not a JSON document: {error}") from error


def _value(kind: int, data: bytes, at: int) -> str:
    if kind in _INTS:
        return str(_INTS[kind].unpack_from(data, at)[0])
    if kind == _LITERAL:
        return _LITERALS[data[at]]
    if kind == _DOUBLE:
        return _double_text(struct.unpack_from("<d", data, at)[0])
    if kind == _STRING:
        return json.dumps(_bytes_at(data, at).decode("utf-8"), ensure_ascii=False)
    if kind == _OPAQUE:
        return _opaque(data[at], _bytes_at(data, at + 1))
    if kind <= _LARGE_ARRAY:
        return _container(kind, data, at)
    raise ValueError(f"unknown JSON type {kind}")


def _container(kind: int, data: bytes, start: int) -> str:
    is_large = kind in (_LARGE_OBJECT, _LARGE_ARRAY)
    width = 4 if is_large else 2
    number = struct.Struct("<I" if is_large else "<H")
    inline = _INLINE_LARGE if is_large else _INLINE_SMALL
    count = number.unpack_from(data, start)[0]
    keys = start + 2 * width
    is_object = kind in (_SMALL_OBJECT, _LARGE_OBJECT)
    entries = keys + (count * (width + 2) if is_object else 0)
    parts = []
    for index in range(count):
        entry = entries + index * (width + 1)
        inner = data[entry]
        here = entry + 1
        at = here if inner in inline else start + number.unpack_from(data, here)[0]
        text = _value(inner, data, at)
        if is_object:
            text = f"{_key(data, start, keys + index * (width + 2), number)}: {text}"
        parts.append(text)
    return ("{%s}" if is_object else "[%s]") % ", ".join(parts)


def _key(data: bytes, start: int, at: int, number: struct.Struct) -> str:
    offset = start + number.unpack_from(data, at)[0]
    length = struct.unpack_from("<H", data, at + number.size)[0]
    return json.dumps(data[offset : offset + length].decode("utf-8"), ensure_ascii=False)


def _double_text(value: float) -> str:
    if not math.isfinite(value):
        raise ValueError(f"{value} is not a number of JSON")
    text = repr(value)
    if "e" not in text and abs(value) < 1e15:
        return text
    number = Decimal(text).normalize()
    sign, digits, exponent = number.as_tuple()
    assert isinstance(exponent, int)
    # The position of the decimal point in the digits: the server's limits are in these terms.
    point = len(digits) + exponent
    if point >= -14 and (point <= 15 or exponent < 0):
        return format(number, "f")
    first, *rest = map(str, digits)
    mantissa = f"{first}.{''.join(rest)}" if rest else first
    return f"{'-' if sign else ''}{mantissa}e{point - 1}"


def _bytes_at(data: bytes, at: int) -> bytes:
    length = shift = 0
    while True:
        byte = data[at]
        at += 1
        length |= (byte & 0x7F) << shift
        if not byte & 0x80:
            break
        shift += 7
    if at + length > len(data):
        raise ValueError("a string runs past the end")
    return data[at : at + length]


def _opaque(column_type: int, data: bytes) -> str:
    if column_type in (FIELD_TYPE.NEWDECIMAL, FIELD_TYPE.DECIMAL):
        return decimal_text(data[2:], data[0], data[1])
    if column_type in (FIELD_TYPE.TIME, FIELD_TYPE.TIME2):
        return f'"{_time_text(data)}"'
    if column_type in (
        FIELD_TYPE.DATE,
        FIELD_TYPE.DATETIME,
        FIELD_TYPE.DATETIME2,
        FIELD_TYPE.TIMESTAMP,
        FIELD_TYPE.TIMESTAMP2,
    ):
        return f'"{_datetime_text(data, is_date=column_type == FIELD_TYPE.DATE)}"'
    # As the server shows it: base64 with the column type in front.
    return f'"base64:type{column_type}:{base64.b64encode(data).decode("ascii")}"'


def _time_text(data: bytes) -> str:
    # Microseconds 24, seconds 6, minutes 6, hours 10 bits; negative as a whole.
    packed = struct.unpack("<q", data[:8])[0]
    sign, packed = ("-", -packed) if packed < 0 else ("", packed)
    whole, micros = packed >> 24, packed & 0xFFFFFF
    hours, minutes, seconds = whole >> 12 & 0x3FF, whole >> 6 & 0x3F, whole & 0x3F
    return f"{sign}{hours:02}:{minutes:02}:{seconds:02}.{micros:06}"


def _datetime_text(data: bytes, *, is_date: bool) -> str:
    # Microseconds 24, seconds 6, minutes 6, hours 5, day 5 bits, then year * 13 + month.
    packed = struct.unpack("<q", data[:8])[0]
    whole, micros = packed >> 24, packed & 0xFFFFFF
    days, clock = whole >> 17, whole & 0x1FFFF
    months = days >> 5
    date = f"{months // 13:04}-{months % 13:02}-{days & 0x1F:02}"
    if is_date:
        return date
    return f"{date} {clock >> 12:02}:{clock >> 6 & 0x3F:02}:{clock & 0x3F:02}.{micros:06}"
