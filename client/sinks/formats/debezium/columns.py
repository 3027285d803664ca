"""Columns as Debezium's MySQL connector 2.x sends them by its defaults: types and values. Pure.

    TINYINT, SMALLINT … BIGINT     int16 … int64, of the next size if it is unsigned
    DECIMAL                        Connect's Decimal: the unscaled number, big-endian
    FLOAT, DOUBLE                  float, double
    BIT(1); BIT(n)                 boolean; bytes, little-endian (io.debezium.data.Bits)
    DATE; TIME                     days; microseconds
    DATETIME(0…3); DATETIME(4…6)   milliseconds; microseconds since 1970
    TIMESTAMP                      `2018-06-20T13:37:03Z`
    YEAR, ENUM, SET, JSON          io.debezium.time.Year, io.debezium.data.…
    GEOMETRY and its kinds         struct of `wkb` and `srid`, a POINT with `x` and `y`

Where a relay says no SQL type, as of other databases, the Avro type of the column decides.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from decimal import Context, Decimal, Inexact, InvalidOperation
from functools import lru_cache, partial
from typing import Any, Literal, NamedTuple

from databus.client.sinks.formats.debezium.connect import DECIMAL, PRECISION, Schema
from databus.schemas.columns.avro_columns import AvroColumn, Kind, WriterSchema, columns_of
from databus.schemas.event.json import json_value

Decimals = Literal["precise", "string", "double"]
Datetimes = Literal["auto", "millis", "micros"]
Convert = Callable[[Any], Any]

_EPOCH, _EPOCH_DAY = datetime(1970, 1, 1), date(1970, 1, 1)
_MILLI, _MICRO = timedelta(milliseconds=1), timedelta(microseconds=1)
_SQL_TYPE = re.compile(r"([a-z0-9_]+)\s*(?:\((.*)\))?([^)]*)", re.S)
_LABEL = re.compile(r"'((?:[^']|'')*)'")
_MILLI_DIGITS = 3
_INTS = {"tinyint": "int16", "smallint": "int16", "mediumint": "int32", "int": "int32"}
_UNSIGNED = {"smallint": "int32", "int": "int64"}
_PLAIN = {
    Kind.BOOLEAN: "boolean",
    Kind.INT: "int32",
    Kind.LONG: "int64",
    Kind.FLOAT: "float",
    Kind.DOUBLE: "double",
    Kind.STRING: "string",
    Kind.BYTES: "bytes",
}
_GEOMETRIES = frozenset(
    (
        *("geometry", "linestring", "polygon", "multipoint", "multilinestring", "multipolygon"),
        *("geometrycollection", "geomcollection"),
    )
)
_INT64 = 1 << 63
# As many digits as a DECIMAL may have, and no rounding.
_EXACT = Context(prec=130, traps=[Inexact, InvalidOperation])


class Column(NamedTuple):
    """A column of a message: its type, and how a value that is not NULL becomes one of it."""

    name: str
    schema: Schema
    convert: Convert
    is_key: bool


class _Typed(NamedTuple):
    schema: Schema
    convert: Convert


@lru_cache(maxsize=4096)
def connect_columns(
    schema: WriterSchema, decimals: Decimals, datetimes: Datetimes
) -> Mapping[str, Column]:
    """Return the columns of rows of a schema, by name; raise SchemaError."""
    found = {}
    for one in columns_of(schema):
        typed = _typed(one, decimals, datetimes)
        is_optional = "null" in one.branches
        held = replace(typed.schema, is_optional=is_optional)
        found[one.name] = Column(one.name, held, typed.convert, one.key is not None)
    return found


def _typed(column: AvroColumn, decimals: Decimals, datetimes: Datetimes) -> _Typed:
    base, arguments, rest = _split(column.sql_type)
    if (named := _by_sql_type(column, base, arguments, rest)) is not None:
        return named
    kind = column.kind
    if kind in (Kind.DECIMAL, Kind.WIDE_DECIMAL):
        return _decimal(column, base == "bigint", decimals)
    if kind is Kind.DATE:
        return _Typed(_debezium("int32", "time.Date"), _days)
    if kind is Kind.TIME:
        return _Typed(_debezium("int64", "time.MicroTime"), lambda value: value // _MICRO)
    if kind is Kind.TIMESTAMP:
        return _Typed(_debezium("string", "time.ZonedTimestamp"), _zoned)
    if kind is Kind.DATETIME:
        return _moment(column, base, arguments, datetimes)
    if kind is Kind.ANY:
        return _Typed(Schema("string"), lambda value: str(json_value(value)))
    return _Typed(Schema(_PLAIN[kind]), json_value if kind in (Kind.FLOAT, Kind.DOUBLE) else _same)


def _by_sql_type(column: AvroColumn, base: str, arguments: str, rest: str) -> _Typed | None:
    """Return the type of a column whose Avro type does not say all."""
    kind = column.kind
    if kind in (Kind.INT, Kind.LONG) and base in _INTS:
        is_unsigned = "unsigned" in rest or "zerofill" in rest
        return _Typed(
            Schema(_UNSIGNED.get(base, _INTS[base]) if is_unsigned else _INTS[base]), _same
        )
    if kind is Kind.INT and base == "year":
        return _Typed(_debezium("int32", "time.Year"), _same)
    if kind is Kind.BYTES:
        return _special_bytes(base, arguments)
    if kind is Kind.STRING and base == "json":
        return _Typed(_debezium("string", "data.Json"), _same)
    if kind is Kind.STRING and base in ("enum", "set"):
        labels = ",".join(one.replace("''", "'") for one in _LABEL.findall(arguments))
        name = "data.Enum" if base == "enum" else "data.EnumSet"
        return _Typed(_debezium("string", name, {"allowed": labels}), _same)
    return None


def _special_bytes(base: str, arguments: str) -> _Typed | None:
    if base == "bit":
        length = int(arguments or 1)
        if length == 1:
            return _Typed(Schema("boolean"), lambda value: value != b"\0")
        bits = _debezium("bytes", "data.Bits", {"length": str(length)})
        return _Typed(bits, lambda value: value[::-1])
    if base == "point":
        return _Typed(_geometry("Point", ("x", Schema("double")), ("y", Schema("double"))), _point)
    if base in _GEOMETRIES:
        return _Typed(_geometry("Geometry"), _shape)
    return None


def _split(sql_type: str) -> tuple[str, str, str]:
    match = _SQL_TYPE.match(sql_type)
    if match is None:
        return "", "", ""
    base, arguments, rest = match.groups()
    return ("int" if base == "integer" else base), arguments or "", rest


def _debezium(type_: str, name: str, parameters: Mapping[str, str] | None = None) -> Schema:
    return Schema(type_, False, f"io.debezium.{name}", 1, parameters or {})


def _same(value: Any) -> Any:
    return value


def _days(value: date) -> int:
    return (value - _EPOCH_DAY).days


def _zoned(value: datetime) -> str:
    text = value.astimezone(UTC).replace(tzinfo=None).isoformat()
    return (text.rstrip("0") if value.microsecond else text) + "Z"


def _moment(column: AvroColumn, base: str, arguments: str, datetimes: Datetimes) -> _Typed:
    # Where the database's type is not known, nothing may be cut off.
    digits = int(arguments or 0) if base == "datetime" else _MILLI_DIGITS + 1
    is_micros = datetimes == "micros" or (datetimes == "auto" and digits > _MILLI_DIGITS)
    if is_micros:
        micros = _debezium("int64", "time.MicroTimestamp")
        return _Typed(micros, lambda value: (value - _EPOCH) // _MICRO)
    return _Typed(_debezium("int64", "time.Timestamp"), partial(_millis, column.name))


def _millis(column: str, value: datetime) -> int:
    if value.microsecond % 1000:
        raise ValueError(f"{column} has microseconds: set datetimes = 'micros' of its format")
    return (value - _EPOCH) // _MILLI


def _decimal(column: AvroColumn, is_bigint: bool, decimals: Decimals) -> _Typed:
    if is_bigint:
        return _Typed(Schema("int64"), int)
    if decimals == "double":
        return _Typed(Schema("double"), float)
    if decimals == "string":
        return _Typed(Schema("string"), lambda value: format(value, "f"))
    digits = {"scale": str(column.scale), PRECISION: str(column.precision)}
    return _Typed(Schema("bytes", False, DECIMAL, 1, digits), partial(unscaled, column.scale))


def unscaled(scale: int, value: Decimal) -> bytes:
    """Return a decimal as Kafka Connect's Decimal: its digits as a big-endian number."""
    number = int(value.scaleb(scale, _EXACT).to_integral_exact(context=_EXACT))
    # The fewest bytes of two's complement, as BigInteger.toByteArray has them.
    size = (number if number >= 0 else ~number).bit_length() // 8 + 1
    return number.to_bytes(size, "big", signed=True)


def _geometry(name: str, *fields: tuple[str, Schema]) -> Schema:
    held = (*fields, ("wkb", Schema("bytes")), ("srid", Schema("int32", True)))
    return Schema("struct", False, f"io.debezium.data.geometry.{name}", 1, {}, held)


def _shape(value: bytes) -> dict[str, Any]:
    """Return a value of the server's form: the SRID in 4 bytes, then WKB."""
    (srid,) = struct.unpack_from("<I", value)
    return {"wkb": value[4:], "srid": srid or None}


def _point(value: bytes) -> dict[str, Any]:
    x, y = struct.unpack_from("<dd", value, 9)  # behind the SRID, byte order and kind
    return {"x": x, "y": y, **_shape(value)}


def fits(schema: Schema, value: Any) -> bool:
    """Whether a value is within its type: BIGINT UNSIGNED may be larger than int64."""
    return schema.type != "int64" or value is None or -_INT64 <= value < _INT64
