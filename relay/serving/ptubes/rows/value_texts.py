"""Values as Ptubes' clients get them: texts as Java writes them, times as milliseconds. Pure.

Times of day and dates are instants in a zone, as Ptubes' reader makes them in its own: a client in
the same zone gets the same date and time back.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta, tzinfo
from decimal import Decimal
from typing import Any, NamedTuple

from databus.relay.serving.columns.texts import java_double

_US = 1_000_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_GEOMETRIES = (
    "",
    "POINT",
    "LINESTRING",
    "POLYGON",
    "MULTIPOINT",
    "MULTILINESTRING",
    "MULTIPOLYGON",
    "GEOMETRYCOLLECTION",
)
_MOST_DEPTH = 32


class Instant(NamedTuple):
    """A time in milliseconds, and nanoseconds in its second; None for a date."""

    ms: int
    nanos: int | None = None


def date_instant(value: date, zone: tzinfo | None) -> Instant:
    """Return the midnight with which a day begins in a zone, None for the machine's."""
    return Instant(_us_of(datetime(value.year, value.month, value.day), zone) // _US * 1000)


def datetime_instant(value: datetime, zone: tzinfo | None) -> Instant:
    """Return the instant of a date and time in a zone, or of one that has a zone."""
    us = _us_of(value, zone)
    return Instant(us // 1000, us % _US * 1000)


def time_instant(us: int, zone: tzinfo | None) -> Instant:
    """Return a time of the day on 1970-01-01 in a zone; it may be negative or beyond a day."""
    us += _us_of(datetime(1970, 1, 1), zone)
    return Instant(us // 1000, us % _US * 1000)


def _us_of(value: datetime, zone: tzinfo | None) -> int:
    """Return microseconds since 1970."""
    if value.tzinfo is None:
        value = value.replace(tzinfo=zone) if zone is not None else value.astimezone()
    return (value - _EPOCH) // timedelta(microseconds=1)


def geometry_text(value: bytes) -> str:
    """Return a geometry as well-known text; bytes that are none as ISO-8859-1 text."""
    try:
        return "".join(_wkt(value, [4], 0))  # after the id of its coordinates' system
    except (struct.error, IndexError, RecursionError):
        return value.decode("latin-1")


def _wkt(data: bytes, at: list[int], depth: int) -> Iterator[str]:
    order = "<" if data[at[0]] else ">"
    (kind,) = struct.unpack_from(f"{order}I", data, at[0] + 1)
    at[0] += 5
    if depth > _MOST_DEPTH or not 0 < kind < len(_GEOMETRIES):
        raise IndexError(kind)
    yield f"{_GEOMETRIES[kind]} " if depth == 0 or kind > 0 else ""
    if kind == 1:
        yield f"({_point(data, at, order)})"
    elif kind == 2:
        yield _points(data, at, order)
    elif kind == 3:
        yield f"({', '.join(_points(data, at, order) for _ in range(_count(data, at, order)))})"
    else:
        texts = ["".join(_wkt(data, at, depth + 1)) for _ in range(_count(data, at, order))]
        # The members of a collection have names, those of the others are all of one kind.
        yield f"({', '.join(t if kind == 7 else t.partition(' ')[2] for t in texts)})"


def _count(data: bytes, at: list[int], order: str) -> int:
    (count,) = struct.unpack_from(f"{order}I", data, at[0])
    at[0] += 4
    if count > len(data):
        raise IndexError(count)
    return int(count)


def _points(data: bytes, at: list[int], order: str) -> str:
    return f"({', '.join(_point(data, at, order) for _ in range(_count(data, at, order)))})"


def _point(data: bytes, at: list[int], order: str) -> str:
    both = struct.unpack_from(f"{order}2d", data, at[0])
    at[0] += 16
    return " ".join(str(int(one)) if one.is_integer() else repr(one) for one in both)


def plain_text(value: Any) -> str:
    """Return any value's text: of bytes that in ISO-8859-1."""
    if isinstance(value, bytes):
        return value.decode("latin-1")
    if isinstance(value, float):
        return java_double(value)
    return format(value, "f") if isinstance(value, Decimal) else str(value)
