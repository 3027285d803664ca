"""Reads column values from row images, as defined by `schemas/table_schema.py`. Pure.

A reader takes the event's bytes and a position and returns the value and the
position after it. The value is what the server stored: CHAR and BINARY trimmed or padded
as SELECT shows them, a negative TIME with its fraction, a BIT as big-endian bytes, an
empty SET as an empty string and not as NULL. A value that the schema cannot represent
raises ValueError; nothing is guessed. An invalid date (0000-00-00, 2020-00-15,
2020-02-30) raises too, or becomes a ZeroDate.
"""

from __future__ import annotations

import ipaddress
import struct
import uuid
import zlib
from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

from pymysqlreplication.constants import FIELD_TYPE as T

from databus.relay.sources.mysql.rows.charsets import Decoder
from databus.relay.sources.mysql.rows.columns import (
    COMPRESSED_BLOB,
    COMPRESSED_VARCHAR,
    VECTOR,
    LoggedColumn,
    SqlType,
)
from databus.relay.sources.mysql.rows.decimals import decimal_of, decimal_size
from databus.relay.sources.mysql.rows.json_text import json_text

Reader = Callable[[bytes, int], tuple[Any, int]]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FLOAT_FORMATS = {4: "<f", 8: "<d"}
_INT_FORMATS = {T.TINY: "b", T.SHORT: "h", T.LONG: "i", T.LONGLONG: "q"}


class ZeroDateError(ValueError):
    """A value such as 0000-00-00 or 2020-00-15 is not a valid date."""


ZERO_DATE_HINT = ' is not a valid date; to get null instead, set zero_dates = "null"'


class ZeroDate(str):
    """The server's text of an invalid date."""

    __slots__ = ()


# Handles the text of an invalid date: raises, or returns it as a ZeroDate.
OnZero = Callable[[str], ZeroDate]


def reader_for(
    column: LoggedColumn, sql: SqlType, decode: Decoder | None, *, zero_dates_are_null: bool
) -> Reader:
    """Return the reader of a column; raises ValueError when there is none for its type.

    `decode` is None for a column of bytes.
    """
    code, length = column.type_code, column.length
    if code in _INT_FORMATS or code == T.INT24:
        return _int_reader(code, sql)
    on_zero = ZeroDate if zero_dates_are_null else _refuse
    if code in _OLD and sql.arguments and sql.arguments[0]:
        return _OLD[code](sql.arguments[0], on_zero)
    if code in _DATES:
        return _DATES[code](length, on_zero)
    if code in (T.ENUM, T.SET):
        return (_enum_reader if code == T.ENUM else _set_reader)(length, sql.members)
    if code in (T.STRING, T.VAR_STRING):
        return _fixed_reader(length, sql, decode)
    if code in (T.VARCHAR, T.BLOB, COMPRESSED_VARCHAR, COMPRESSED_BLOB):
        return _variable_reader(code, length, decode)
    if code in _PLAIN:
        return _PLAIN[code](length)
    raise ValueError(f"column type {code} is not supported")


def _refuse(text: str) -> ZeroDate:
    raise ZeroDateError(text)


def _int_reader(code: int, sql: SqlType) -> Reader:
    if code == T.INT24:
        return _uint24 if sql.is_unsigned else _int24
    letter = _INT_FORMATS[code]
    number = struct.Struct("<" + (letter.upper() if sql.is_unsigned else letter))
    unpack, size = number.unpack_from, number.size
    if code == T.LONGLONG and sql.is_unsigned:
        return lambda data, at: (Decimal(unpack(data, at)[0]), at + size)
    return lambda data, at: (unpack(data, at)[0], at + size)


def _uint24(data: bytes, at: int) -> tuple[int, int]:
    return int.from_bytes(data[at : at + 3], "little"), at + 3


def _int24(data: bytes, at: int) -> tuple[int, int]:
    return int.from_bytes(data[at : at + 3], "little", signed=True), at + 3


def _float_reader(length: int) -> Reader:
    if length not in _FLOAT_FORMATS:
        raise ValueError(f"a floating-point number of {length} bytes")
    number = struct.Struct(_FLOAT_FORMATS[length])
    unpack, size = number.unpack_from, number.size
    return lambda data, at: (unpack(data, at)[0], at + size)


def _decimal_reader(length: int) -> Reader:
    precision, scale = length >> 8, length & 0xFF
    size = decimal_size(precision, scale)
    return lambda data, at: (decimal_of(data[at : at + size], precision, scale), at + size)


def _year_reader(_length: int) -> Reader:
    # A byte counts from 1900, so 1900 is not a YEAR: 0 is the year 0000.
    return lambda data, at: (data[at] + 1900 if data[at] else 0, at + 1)


def _bit_reader(length: int) -> Reader:
    # Big-endian already, as the schema has it.
    size = (length + 7) // 8
    return lambda data, at: (data[at : at + size], at + size)


def _date_reader(_length: int, on_zero: OnZero) -> Reader:
    # Little-endian: year 15, month 4, day 5 bits.
    def read(data: bytes, at: int) -> tuple[date | ZeroDate, int]:
        packed = int.from_bytes(data[at : at + 3], "little")
        year, month, day = packed >> 9, packed >> 5 & 0xF, packed & 0x1F
        try:
            return date(year, month, day), at + 3
        except ValueError:
            return on_zero(_day_text(year, month, day)), at + 3

    return read


def _time_reader(digits: int) -> Reader:
    # One big-endian number, biased so that its bytes sort: hours 10, minutes 6, seconds 6 bits,
    # then the fraction. A negative time is negated as a whole, fraction included.
    width, unit = _fraction(digits)
    size, bias = 3 + width, 0x800000 << 8 * width

    def read(data: bytes, at: int) -> tuple[int, int]:
        number = int.from_bytes(data[at : at + size], "big") - bias
        sign, number = (-1, -number) if number < 0 else (1, number)
        whole, part = number >> 8 * width, number & (1 << 8 * width) - 1
        seconds = (whole >> 12 & 0x3FF) * 3600 + (whole >> 6 & 0x3F) * 60 + (whole & 0x3F)
        return sign * (seconds * 1_000_000 + part * unit), at + size

    return read


def _datetime_reader(digits: int, on_zero: OnZero) -> Reader:
    # Big-endian: a sign bit, which is not used, then year * 13 + month 17, day 5, hour 5,
    # minute 6, second 6 bits, and the fraction.
    width, unit = _fraction(digits)
    size = 5 + width

    def read(data: bytes, at: int) -> tuple[datetime | ZeroDate, int]:
        packed = int.from_bytes(data[at : at + 5], "big") & 0x7FFFFFFFFF
        months, day = packed >> 22, packed >> 17 & 0x1F
        year, month = divmod(months, 13)
        micros = int.from_bytes(data[at + 5 : at + size], "big") * unit
        clock = packed >> 12 & 0x1F, packed >> 6 & 0x3F, packed & 0x3F
        try:
            return datetime(year, month, day, *clock, micros), at + size
        except ValueError:
            text = f"{_day_text(year, month, day)} {_clock_text(*clock, micros, digits)}"
            return on_zero(text), at + size

    return read


def _day_text(year: int, month: int, day: int) -> str:
    if year > 9999 or month > 12:
        raise ValueError("a damaged date")
    return f"{year:04}-{month:02}-{day:02}"


def _clock_text(hour: int, minute: int, second: int, micros: int, digits: int) -> str:
    return time(hour, minute, second, micros).strftime("%H:%M:%S") + _fraction_text(micros, digits)


def _fraction_text(micros: int, digits: int) -> str:
    return f".{micros:06}"[: digits + 1] if digits else ""


def _timestamp_reader(digits: int, on_zero: OnZero) -> Reader:
    width, unit = _fraction(digits)
    size = 4 + width

    def read(data: bytes, at: int) -> tuple[datetime | ZeroDate, int]:
        seconds = int.from_bytes(data[at : at + 4], "big")
        micros = int.from_bytes(data[at + 4 : at + size], "big") * unit
        return _moment(seconds, micros, digits, on_zero), at + size

    return read


def _moment(seconds: int, micros: int, digits: int, on_zero: OnZero) -> datetime | ZeroDate:
    # The server stores 0000-00-00 as the epoch itself, which is not a valid TIMESTAMP.
    if seconds == 0 and micros == 0:
        return on_zero("0000-00-00 00:00:00" + _fraction_text(0, digits))
    return _EPOCH + timedelta(0, seconds, micros)


def _fraction(digits: int) -> tuple[int, int]:
    """Return the bytes of a fraction and the microseconds of its unit.

    An odd number of digits is stored as the next even one. Raises ValueError for
    more digits than there are.
    """
    if digits > 6:
        raise ValueError(f"a fraction of a second with {digits} digits")
    width = (digits + 1) // 2
    return width, 10 ** (6 - 2 * width)


def _old_time_reader(_length: int) -> Reader:
    # Before MySQL 5.6: the decimal digits HHMMSS as one number.
    def read(data: bytes, at: int) -> tuple[int, int]:
        number = int.from_bytes(data[at : at + 3], "little", signed=True)
        sign, number = (-1, -number) if number < 0 else (1, number)
        seconds = number // 10000 * 3600 + number // 100 % 100 * 60 + number % 100
        return sign * seconds * 1_000_000, at + 3

    return read


def _old_datetime_reader(_length: int, on_zero: OnZero) -> Reader:
    # Before MySQL 5.6: the decimal digits YYYYMMDDHHMMSS as one number.
    def read(data: bytes, at: int) -> tuple[datetime | ZeroDate, int]:
        number = int.from_bytes(data[at : at + 8], "little")
        days, clock = divmod(number, 1_000_000)
        year, month, day = days // 10000, days // 100 % 100, days % 100
        hms = clock // 10000, clock // 100 % 100, clock % 100
        try:
            return datetime(year, month, day, *hms), at + 8
        except ValueError:
            text = f"{_day_text(year, month, day)} {_clock_text(*hms, 0, 0)}"
            return on_zero(text), at + 8

    return read


def _old_timestamp_reader(_length: int, on_zero: OnZero) -> Reader:
    def read(data: bytes, at: int) -> tuple[datetime | ZeroDate, int]:
        return _moment(int.from_bytes(data[at : at + 4], "little"), 0, 0, on_zero), at + 4

    return read


# MariaDB's formats from before it took MySQL 5.6's (mysql56_temporal_format=OFF), with a
# fraction: big-endian, in units of its last digit. Sizes by digits.
_OLD_TIME_SIZES = (3, 4, 4, 5, 5, 5, 6)
_OLD_DATETIME_SIZES = (5, 6, 6, 7, 7, 7, 8)
_OLD_FRACTION_SIZES = (0, 1, 1, 2, 2, 3, 3)
_LONGEST_TIME_S = 838 * 3600 + 59 * 60 + 59


def _old_fine_time_reader(digits: int, _on_zero: OnZero) -> Reader:
    size, unit = _OLD_TIME_SIZES[digits], 10 ** (6 - digits)
    zero = (_LONGEST_TIME_S + 1) * 10**digits

    def read(data: bytes, at: int) -> tuple[int, int]:
        return (int.from_bytes(data[at : at + size], "big") - zero) * unit, at + size

    return read


def _old_fine_datetime_reader(digits: int, on_zero: OnZero) -> Reader:
    # One big-endian number in mixed radix: ((year * 13 + month) * 32 + day) * 24 + hour, and so on.
    size, unit = _OLD_DATETIME_SIZES[digits], 10 ** (6 - digits)

    def read(data: bytes, at: int) -> tuple[datetime | ZeroDate, int]:
        rest, micros = divmod(int.from_bytes(data[at : at + size], "big") * unit, 1_000_000)
        rest, second = divmod(rest, 60)
        rest, minute = divmod(rest, 60)
        rest, hour = divmod(rest, 24)
        rest, day = divmod(rest, 32)
        year, month = divmod(rest, 13)
        try:
            return datetime(year, month, day, hour, minute, second, micros), at + size
        except ValueError:
            clock = _clock_text(hour, minute, second, micros, digits)
            return on_zero(f"{_day_text(year, month, day)} {clock}"), at + size

    return read


def _old_fine_timestamp_reader(digits: int, on_zero: OnZero) -> Reader:
    size, unit = 4 + _OLD_FRACTION_SIZES[digits], 10 ** (6 - digits)

    def read(data: bytes, at: int) -> tuple[datetime | ZeroDate, int]:
        seconds = int.from_bytes(data[at : at + 4], "big")
        micros = int.from_bytes(data[at + 4 : at + size], "big") * unit
        return _moment(seconds, micros, digits, on_zero), at + size

    return read


def _enum_reader(size: int, members: tuple[str, ...]) -> Reader:
    # The server stores ordinal 0 for a value that is not a member.
    texts = ("", *members)

    def read(data: bytes, at: int) -> tuple[str, int]:
        ordinal = int.from_bytes(data[at : at + size], "little")
        if ordinal >= len(texts):
            raise ValueError(f"member {ordinal} of an enum of {len(members)}")
        return texts[ordinal], at + size

    return read


def _set_reader(size: int, members: tuple[str, ...]) -> Reader:
    # Bit i stands for member i.
    def read(data: bytes, at: int) -> tuple[str, int]:
        bits = int.from_bytes(data[at : at + size], "little")
        if bits >> len(members):
            raise ValueError(f"bits {bits:b} of a set of {len(members)}")
        return ",".join(m for i, m in enumerate(members) if bits >> i & 1), at + size

    return read


def _fixed_reader(length: int, sql: SqlType, decode: Decoder | None) -> Reader:
    # The length before the value has one byte if the column's longest value allows it.
    width = 2 if length > 255 else 1
    if decode is not None:
        return _text_reader(width, decode)
    finish = _FIXED_BYTES.get(sql.name, bytes)

    def read(data: bytes, at: int) -> tuple[Any, int]:
        start = at + width
        end = start + int.from_bytes(data[at:start], "little")
        # Trailing zero bytes are not logged.
        return finish(data[start:end].ljust(length, b"\0")), end

    return read


def _uuid_text(data: bytes) -> str:
    return str(uuid.UUID(bytes=data))


def _inet4_text(data: bytes) -> str:
    return str(ipaddress.IPv4Address(data))


def _inet6_text(data: bytes) -> str:
    address = ipaddress.IPv6Address(data)
    # The server writes ::ffff:1.2.3.4 and ::1.2.3.4, as RFC 5952 advises.
    high, low = data[:12], ipaddress.IPv4Address(data[12:])
    if address.ipv4_mapped is not None:
        return f"::ffff:{low}"
    if not any(high) and any(data[12:14]):
        return f"::{low}"
    return str(address)


_FIXED_BYTES: dict[str, Callable[[bytes], Any]] = {
    "uuid": _uuid_text,
    "inet4": _inet4_text,
    "inet6": _inet6_text,
}


def _variable_reader(code: int, length: int, decode: Decoder | None) -> Reader:
    is_varchar = code in (T.VARCHAR, COMPRESSED_VARCHAR)
    width = (2 if length > 255 else 1) if is_varchar else length
    if code in (COMPRESSED_VARCHAR, COMPRESSED_BLOB):
        text = decode or bytes
        return _text_reader(width, lambda data: text(_inflate(data)))
    return _bytes_reader(width) if decode is None else _text_reader(width, decode)


def _text_reader(width: int, decode: Callable[[bytes], Any]) -> Reader:
    if width == 1:

        def read_short(data: bytes, at: int) -> tuple[Any, int]:
            start = at + 1
            end = start + data[at]
            return decode(data[start:end]), end

        return read_short

    def read(data: bytes, at: int) -> tuple[Any, int]:
        start = at + width
        end = start + int.from_bytes(data[at:start], "little")
        return decode(data[start:end]), end

    return read


def _bytes_reader(width: int) -> Reader:
    return _text_reader(width, bytes)


def _inflate(data: bytes) -> bytes:
    """Unpack a COMPRESSED column: 0x80 + n (+ 8 for raw deflate), n bytes of length, deflate."""
    if not data or data[0] == 0:
        return data[1:]
    head, size_bytes = data[0], data[0] & 0x7
    if head & 0xF0 != 0x80:
        raise ValueError(f"a compressed column begins with {head:#x}")
    size = int.from_bytes(data[1 : 1 + size_bytes], "big")
    try:
        plain = zlib.decompress(data[1 + size_bytes :], -15 if head & 8 else 15)
    except zlib.error as error:
        raise ValueError(f"a compressed column: {error}") from error
    if len(plain) != size:
        raise ValueError(f"a compressed column of {len(plain)} bytes says {size}")
    return plain


def _json_reader(width: int) -> Reader:
    return _text_reader(width, json_text)


_DATES: dict[int, Callable[[int, OnZero], Reader]] = {
    T.DATE: _date_reader,
    T.NEWDATE: _date_reader,
    T.DATETIME: _old_datetime_reader,
    T.DATETIME2: _datetime_reader,
    T.TIMESTAMP: _old_timestamp_reader,
    T.TIMESTAMP2: _timestamp_reader,
}
_OLD: dict[int, Callable[[int, OnZero], Reader]] = {
    T.TIME: _old_fine_time_reader,
    T.DATETIME: _old_fine_datetime_reader,
    T.TIMESTAMP: _old_fine_timestamp_reader,
}
# The types whose value may be an invalid date.
DATE_CODES = frozenset(_DATES)
_PLAIN: dict[int, Callable[[int], Reader]] = {
    T.BIT: _bit_reader,
    T.DOUBLE: _float_reader,
    T.FLOAT: _float_reader,
    T.GEOMETRY: _bytes_reader,
    T.JSON: _json_reader,
    T.NEWDECIMAL: _decimal_reader,
    T.TIME: _old_time_reader,
    T.TIME2: _time_reader,
    T.YEAR: _year_reader,
    VECTOR: _bytes_reader,
}
