"""Values in ClickHouse's format RowBinary. Pure.

The format has no texts to be read again, so nothing is rounded, wrapped or clamped on the way: what
a type does not have is refused here, with the row at hand.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Context, Decimal, Inexact, InvalidOperation
from struct import error, pack
from typing import Any

from databus.client.sinks.formats.sql_texts import time_text
from databus.client.sinks.ready.clickhouse.types import INTEGERS, HeldType
from databus.schemas.columns.any_text import any_text
from databus.schemas.columns.avro_columns import Kind

Encode = Callable[[Any], bytes]  # raises ValueError

NULL = b"\1"
_NOT_NULL = b"\0"
_DAY_0 = date(1970, 1, 1)
_MOMENT_0 = datetime(1970, 1, 1)
_MICROSECOND = timedelta(microseconds=1)
# Servers show other days, but silently as the nearest of these.
_DAYS = {
    "Date": (date(1970, 1, 1), date(2149, 6, 6)),
    "Date32": (date(1900, 1, 1), date(2299, 12, 31)),
}
_MOMENTS = (datetime(1900, 1, 1), datetime(2299, 12, 31, 23, 59, 59, 999_999))
_ALL_DIGITS = Context(prec=200, traps=[Inexact, InvalidOperation])


def encoder(held: HeldType, kind: Kind) -> Encode:
    """Return what writes values of a kind in a column of a type that fits it."""
    write = _writer(held, kind)
    prefix = _NOT_NULL if held.is_nullable else b""

    def encode(value: Any) -> bytes:
        if value is None:
            if held.is_nullable:
                return NULL
            raise ValueError(f"it is NULL, and the column is {held.text}: make it Nullable")
        try:
            return prefix + write(value)
        except (TypeError, AttributeError, OverflowError, error) as failure:
            # A value of another kind: the source's column has another type, which was ignored.
            raise ValueError(f"{value!r:.100} is no {held.text}") from failure

    return encode


def nothing(held: HeldType) -> bytes:
    """Return what stands for a value that nobody reads: NULL, or 0, or an empty text."""
    if held.is_nullable:
        return NULL
    width = {"Bool": 1, "Float32": 4, "Float64": 8, "Date": 2, "Date32": 4, "DateTime64": 8}
    if held.name == "Decimal":
        return bytes(_decimal_bytes(held))
    if held.name in INTEGERS:
        return bytes(_integer_bytes(held.name))
    return bytes(width.get(held.name, 1))


def text_bytes(data: bytes) -> bytes:
    """Return a String: its length, seven bits in each byte, and its bytes."""
    length, head = len(data), bytearray()
    while length > 127:
        head.append(length & 127 | 128)
        length >>= 7
    return bytes((*head, length)) + data


def _writer(held: HeldType, kind: Kind) -> Encode:
    match held.name:
        case "String":
            return _any_text if kind is Kind.ANY else _text
        case "Bool":
            return lambda value: b"\1" if value else b"\0"
        case "Float32":
            return lambda value: pack("<f", value)
        case "Float64":
            return lambda value: pack("<d", value)
        case "Decimal":
            return _decimal_writer(held)
        case "Date" | "Date32":
            return _day_writer(held.name)
        case "DateTime64":
            return _moment_writer(held)
    return _integer_writer(held.name)


def _text(value: Any) -> bytes:
    if isinstance(value, str):
        return text_bytes(value.encode())
    if isinstance(value, bytes | bytearray | memoryview):
        return text_bytes(bytes(value))
    if isinstance(value, date | timedelta):  # a datetime is a date, too
        return text_bytes(time_text(value).encode())
    return text_bytes((f"{value:f}" if isinstance(value, Decimal) else str(value)).encode())


def _any_text(value: Any) -> bytes:
    return text_bytes((any_text(value) or "").encode())


def _integer_writer(name: str) -> Encode:
    size, is_signed = _integer_bytes(name), not name.startswith("U")
    low, high = INTEGERS[name]

    def write(value: Any) -> bytes:
        number = int(value)
        if number != value or not low <= number <= high:
            raise ValueError(f"{value} is no {name}")
        return number.to_bytes(size, "little", signed=is_signed)

    return write


def _decimal_writer(held: HeldType) -> Encode:
    precision, scale = held.digits
    size, limit = _decimal_bytes(held), 10**precision
    unit = Decimal(1).scaleb(-scale)

    def write(value: Any) -> bytes:
        try:
            exact = Decimal(value).quantize(unit, context=_ALL_DIGITS)
            number = int(exact.scaleb(scale, _ALL_DIGITS))
        except (Inexact, InvalidOperation) as failure:
            raise ValueError(f"{value} has more digits than {held.text}") from failure
        if abs(number) >= limit:
            raise ValueError(f"{value} has more digits than {held.text}")
        return number.to_bytes(size, "little", signed=True)

    return write


def _day_writer(name: str) -> Encode:
    first, last = _DAYS[name]
    form = "<H" if name == "Date" else "<i"

    def write(value: Any) -> bytes:
        if not first <= value <= last:
            raise ValueError(_out_of_range(value, name, first, last))
        return pack(form, (value - _DAY_0).days)

    return write


def _moment_writer(held: HeldType) -> Encode:
    first, last = _MOMENTS
    ticks = 10 ** (int(held.arguments[0]) - 6)

    def write(value: Any) -> bytes:
        plain = value if value.tzinfo is None else value.astimezone(UTC).replace(tzinfo=None)
        if not first <= plain <= last:
            raise ValueError(_out_of_range(plain, held.name, first, last))
        number = (plain - _MOMENT_0) // _MICROSECOND * ticks
        if abs(number) >> 63:
            raise ValueError(f"{plain} does not fit in {held.text}")
        return pack("<q", number)

    return write


def _out_of_range(value: Any, name: str, first: Any, last: Any) -> str:
    return (
        f"{value} is not in the range of {name}, {first} to {last}: a column of type String takes "
        "every date"
    )


def _integer_bytes(name: str) -> int:
    return int(name.partition("Int")[2]) // 8


def _decimal_bytes(held: HeldType) -> int:
    precision = held.digits[0]
    return next(size for size, most in ((4, 9), (8, 18), (16, 38), (32, 76)) if precision <= most)
