"""The texts of values, as Canal's and Ptubes' messages have them. Pure."""

from __future__ import annotations

import json
import struct
from datetime import UTC, date, datetime, time, tzinfo
from decimal import Decimal
from typing import Any

from databus.relay.serving.columns.column_plan import AS_NEEDED, Kind, PlannedColumn

_FLOAT_DIGITS = 9  # more than any single-precision number needs
_PLAIN_FROM, _PLAIN_BELOW = 1e-3, 1e7


def value_text(column: PlannedColumn, value: Any, zone: tzinfo) -> str:
    """Return the text of a value that is not null, in Canal's form."""
    if column.kind is Kind.TIME:
        return time_text(value, column.digits)
    if column.kind is Kind.YEAR:
        return f"{value:04}"
    if column.kind is Kind.BIT:
        return str(int.from_bytes(value, "big"))
    if column.kind is Kind.ENUM:
        return str(enum_place(column.members, value))
    if column.kind is Kind.SET:
        return str(set_bits(column.members, value))
    return _plain_text(column, value, zone)


def _plain_text(column: PlannedColumn, value: Any, zone: tzinfo) -> str:
    if isinstance(value, bool):
        return "1" if value else "0"
    if isinstance(value, float):
        return java_float(value) if "float" in column.branches else java_double(value)
    if isinstance(value, Decimal):
        return f"{value:f}"
    if isinstance(value, bytes):
        return (value.rstrip(b"\0") if column.kind is Kind.BINARY else value).decode("latin-1")
    if isinstance(value, datetime):
        return datetime_text(value if value.tzinfo is None else in_zone(value, zone), column.digits)
    if isinstance(value, date | time):
        return value.isoformat()
    if isinstance(value, list | dict):
        return json.dumps(value, ensure_ascii=False, default=str)
    return str(value)


def in_zone(value: datetime, zone: tzinfo) -> datetime:
    """Return a moment's date and time in a zone."""
    return value if zone is UTC else value.astimezone(zone)


def datetime_text(value: datetime, digits: int) -> str:
    """Return a date and time, as MySQL writes it with so many digits of a fraction."""
    day = f"{value.year:04}-{value.month:02}-{value.day:02}"
    clock = f"{value.hour:02}:{value.minute:02}:{value.second:02}"
    return f"{day} {clock}{_fraction(value.microsecond, digits)}"


def time_text(micros: int, digits: int) -> str:
    """Return a TIME of so many microseconds, which may be negative or beyond a day."""
    sign, micros = ("-", -micros) if micros < 0 else ("", micros)
    seconds, micros = divmod(micros, 1_000_000)
    clock = f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
    return f"{sign}{clock}{_fraction(micros, digits)}"


def _fraction(micros: int, digits: int) -> str:
    if digits == AS_NEEDED:
        digits = 6 if micros else 0
    return f".{micros:06}"[: digits + 1] if digits else ""


def enum_place(members: tuple[str, ...], value: str) -> int:
    """Return the place of a member, from 1; 0 is the server's word for what is none."""
    return members.index(value) + 1 if value in members else 0


def set_bits(members: tuple[str, ...], value: str) -> int:
    """Return the bits of members, the first one's lowest."""
    chosen = value.split(",") if value else []
    return sum(1 << members.index(one) for one in chosen if one in members)


def java_double(value: float) -> str:
    """Return what Java's `Double.toString` does, as of Java 19."""
    two = f"{value:.1e}"  # Java prefers the nearest of two digits to the shortest of one
    return _java_number(two if float(two) == value else repr(value), value)


def java_float(value: float) -> str:
    """Return what Java's `Float.toString` does, as of Java 19."""
    for digits in range(2, _FLOAT_DIGITS):
        text = f"{value:.{digits - 1}e}"
        if _single(float(text)) == value:
            return _java_number(text, value)
    return _java_number(f"{value:.{_FLOAT_DIGITS - 1}e}", value)


def _single(value: float) -> float:
    try:
        return float(struct.unpack("<f", struct.pack("<f", value))[0])
    except OverflowError:
        return float("inf")


def _java_number(shortest: str, value: float) -> str:
    if value != value:
        return "NaN"
    if value in (float("inf"), float("-inf")):
        return "Infinity" if value > 0 else "-Infinity"
    sign, digits, exponent = Decimal(shortest).as_tuple()
    assert isinstance(exponent, int)
    text = "".join(map(str, digits)).rstrip("0") or "0"
    minus = "-" if sign else ""
    if value == 0:
        return f"{minus}0.0"
    power = len(digits) + exponent - 1  # of the first digit
    if _PLAIN_FROM <= abs(value) < _PLAIN_BELOW:
        if power < 0:
            return f"{minus}0.{'0' * (-power - 1)}{text}"
        text = text.ljust(power + 1, "0")
        return f"{minus}{text[: power + 1]}.{text[power + 1 :] or '0'}"
    return f"{minus}{text[0]}.{text[1:] or '0'}E{power}"
