"""Rows as the columns of Ptubes' protobuf messages.

A schema is planned once: what is the same in every row of it is written then.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping
from datetime import tzinfo
from typing import Any, NamedTuple

from databus.relay.serving.columns.texts import (
    enum_place,
    java_double,
    java_float,
    set_bits,
    time_text,
)
from databus.relay.serving.protobuf import bytes_field, number_field, text_field
from databus.relay.serving.ptubes.packets import pair_field
from databus.relay.serving.ptubes.rows.compiled_columns import Fields, compiled_columns
from databus.relay.serving.ptubes.rows.value_texts import (
    Instant,
    date_instant,
    datetime_instant,
    geometry_text,
    plain_text,
    time_instant,
)
from databus.relay.sources.mysql.rows.columns import parse_sql_type
from databus.schemas.avro_meta import column_of, field_meta, record_meta
from databus.schemas.avro_rows import row_codec

_BASE = re.compile(r"\s*([A-Za-z_][A-Za-z0-9_]*)")
_DAY_US = 86_400_000_000
_IS_NULL, _NOT_NULL = number_field(6, 1), number_field(6, 0)

_SQL_TYPES = {
    **dict.fromkeys(("tinyint", "smallint", "mediumint", "year", "bool", "boolean"), 4),
    **dict.fromkeys(("int", "integer", "bigint"), -5),
    "float": 6,
    **dict.fromkeys(("double", "real"), 8),
    **dict.fromkeys(("decimal", "numeric", "dec", "fixed"), 3),
    **dict.fromkeys(("char", "nchar"), 1),
    "date": 91,
    "time": 92,
    **dict.fromkeys(("datetime", "timestamp"), 93),
    "binary": -2,
    **dict.fromkeys(("varbinary", "tinyblob", "blob", "mediumblob", "vector"), -3),
    "longblob": -4,
    "bit": -7,
    **dict.fromkeys(("enum", "set"), 1111),
}
_TEXT = 12
_GEOMETRIES = frozenset(
    ("geometry", "point", "linestring", "polygon", "multipoint", "multilinestring")
) | {"multipolygon", "geometrycollection", "geomcollection"}

Written = Callable[[Any], bytes]


class _Column(NamedTuple):
    name: str
    entry: bytes  # the key of its map entry
    begin: bytes  # the fields before isNull
    end: bytes  # those after value
    write: Written  # props and value


class RowColumns:
    """Writes the rows of one schema; its codec decides how they are read."""

    def __init__(self, schema_text: str, zone: tzinfo | None, key: Collection[str] = ()) -> None:
        """`key` are the columns by which rows are partitioned; none = the primary key."""
        self.codec = row_codec(schema_text)
        definition = json.loads(schema_text)
        meta = record_meta(definition)
        self.primary_key: tuple[str, ...] = tuple(meta.get("key", ()))
        self.table = str(meta.get("table") or meta.get("source", definition["name"]))
        self.partition_key = tuple(key) or self.primary_key
        self._is_mysql = meta.get("dialect", "mysql") == "mysql"
        planned = [self._plan(at, field, zone) for at, field in enumerate(definition["fields"])]
        self._columns = tuple(column for column, _ in planned)
        self._compiled: Any = None  # what writes most rows; None = Python writes all
        if self._is_mysql:
            fields = [Fields(base, one.entry, one.begin, one.end) for one, base in planned]
            avro = self.codec.column_plans
            self._compiled = compiled_columns(schema_text, fields, avro, zone)

    def row_fields(
        self, tag: int, row: bytes, absent: Collection[int], raw: Mapping[str, str]
    ) -> bytes:
        """Return the map entries of a row's columns, from its bytes and the notes on them."""
        if self._compiled is not None and not absent and not raw:
            data: bytes | None = self._compiled.map_fields(tag, row)
            if data is not None:
                return data
        return self.map_fields(tag, self.codec.decode(row, absent), raw)

    def map_fields(self, tag: int, row: Mapping[str, Any], raw: Mapping[str, str] = {}) -> bytes:
        """Return the map entries of a row's columns. `raw` has texts that the row has no value for.

        A column that was not logged is left out.
        """
        fields = []
        for name, entry, begin, end, write in self._columns:
            if name not in row:
                continue
            value = row[name]
            if value is not None:
                column = b"".join((begin, _NOT_NULL, write(value), end))
            elif name in raw:
                column = b"".join((begin, _NOT_NULL, pair_field(7, "fmtDate", raw[name]), end))
            else:
                column = b"".join((begin, _IS_NULL, end))
            fields.append(bytes_field(tag, entry + bytes_field(2, column)))
        return b"".join(fields)

    def _plan(
        self, index: int, field: Mapping[str, Any], zone: tzinfo | None
    ) -> tuple[_Column, str]:
        """Return a column, and the name of its type."""
        name, sql_type = column_of(field), str(field_meta(field).get("sqlType", ""))
        found = _BASE.match(sql_type)
        base = found[1].lower() if found and self._is_mysql else ""
        begin = number_field(1, index) + number_field(2, _SQL_TYPES.get(base, _TEXT))
        begin += text_field(3, name) + number_field(4, name in self.primary_key)
        write = _writer(base, sql_type, zone)
        shown = (base or sql_type).upper()
        return _Column(name, text_field(1, name), begin, text_field(10, shown), write), base


def _writer(base: str, sql_type: str, zone: tzinfo | None) -> Written:
    """Return the function that writes props and value of a column's values."""
    if base == "date":
        return lambda value: _instant(date_instant(value, zone))
    if base in ("datetime", "timestamp"):
        return lambda value: _instant(datetime_instant(value, zone))
    if base == "time":
        digits = next(iter(parse_sql_type(sql_type).arguments), 0)
        return lambda value: _time(value, digits, zone)
    return _text_writer(_to_text(base, sql_type))


def _to_text(base: str, sql_type: str) -> Callable[[Any], str]:
    if base == "float":
        return java_float
    if base in ("double", "real"):
        return java_double
    if base in ("enum", "set"):
        members = parse_sql_type(sql_type).members
        number_of = enum_place if base == "enum" else set_bits
        return lambda value: str(number_of(members, value))
    return geometry_text if base in _GEOMETRIES else plain_text


def _text_writer(to_text: Callable[[Any], str]) -> Written:
    return lambda value: text_field(8, to_text(value))


def _instant(instant: Instant, text: str = "") -> bytes:
    props = pair_field(7, "fmtDate", text) if text else b""
    if instant.nanos is not None:
        props += pair_field(7, "nanos", str(instant.nanos))
    return props + text_field(8, str(instant.ms))


def _time(us: int, digits: int, zone: tzinfo | None) -> bytes:
    # Java's Time is a time of one day.
    return _instant(time_instant(us, zone), "" if 0 <= us < _DAY_US else time_text(us, digits))
