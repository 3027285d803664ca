"""The Avro schema of a table, made from its columns' SQL types.

The same table gives the same text, byte for byte, wherever it is made; the MD5
of its normal form is the schema's id. A nullable column is a union with null and
null its default. Each field has a `meta` with the column's name, position, SQL
type, place in the key, the precision and scale of a decimal, and the mask of its values; the
record's `meta` has the source, its table if that has another name, the dialect, the
key's columns and the columns that are left out (`avro_meta`). A name that Avro does
not allow is escaped, and `meta` keeps it.

What a source hands over for each type, and gets back (`avro_rows.RowCodec`):

    MySQL, MariaDB                   Avro                        Python
    TINYINT … INT                    int                         int
    INT UNSIGNED, BIGINT             long                        int
    BIGINT UNSIGNED                  decimal(20,0)               Decimal
    DECIMAL(p,s)                     decimal(p,s)                Decimal
    FLOAT, DOUBLE                    float, double               float
    DATE                             date                        date
    TIME                             long, time-micros           int, microseconds; a client
                                                                 has a timedelta
    DATETIME                         long, local-timestamp-micros  naive datetime
    TIMESTAMP                        long, timestamp-micros      aware datetime, UTC
    YEAR                             int                         int
    BIT(n)                           bytes                       bytes, big-endian, (n+7)//8
    ENUM, JSON, UUID, INET4, INET6   string                      str
    SET                              string                      str, joined by ","
    CHAR, VARCHAR, …TEXT             string                      str
    BINARY, VARBINARY, …BLOB         bytes                       bytes
    GEOMETRY and its kinds, VECTOR   bytes                       bytes, the server's own

    SQLite, by affinity
    INTEGER                          long                        int
    REAL                             double                      float
    TEXT                             string                      str
    BLOB                             bytes                       bytes
    NUMERIC, ANY, no type            null, long, double, string or bytes

A TIME may be negative or beyond 24 hours, which no `datetime.time` can say, so
here it is always the plain number, though the schema says what it counts.
A DATE, DATETIME or TIMESTAMP is nullable whatever the column says: a server
may hold dates such as 0000-00-00, which are no date anywhere else.
"""

from __future__ import annotations

import json
import re
from functools import lru_cache
from typing import Any

from databus.schemas.avro_meta import decimal_members, field_meta_text, record_meta_text
from databus.schemas.errors import SchemaError
from databus.schemas.table import Column, Table

_SQL_TYPE = re.compile(
    r"\s*([a-z_][a-z0-9_]*)\s*(?:\(\s*(\d+)?\s*(?:,\s*(\d+))?[^)]*\))?(.*)", re.S
)
_ILLEGAL = re.compile(r"[^A-Za-z0-9_]")

AvroType = str | dict[str, Any] | list[Any]

_DATE: AvroType = {"type": "int", "logicalType": "date"}
_TIME: AvroType = {"type": "long", "logicalType": "time-micros"}
_DATETIME: AvroType = {"type": "long", "logicalType": "local-timestamp-micros"}
_TIMESTAMP: AvroType = {"type": "long", "logicalType": "timestamp-micros"}

_INTS = ("bool", "boolean", "tinyint", "smallint", "mediumint", "int", "integer", "year")
_STRINGS = (
    *("char", "varchar", "nchar", "nvarchar", "tinytext", "text", "mediumtext", "longtext"),
    *("enum", "set", "json", "uuid", "inet4", "inet6"),
)
_BYTES = (
    *("binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob", "bit", "vector"),
    *("geometry", "point", "linestring", "polygon", "multipoint", "multilinestring"),
    *("multipolygon", "geometrycollection", "geomcollection"),
)
_MYSQL_TYPES: dict[str, AvroType] = {
    **dict.fromkeys(_INTS, "int"),
    "bigint": "long",
    "float": "float",
    **dict.fromkeys(("double", "real"), "double"),
    "date": _DATE,
    "time": _TIME,
    "datetime": _DATETIME,
    "timestamp": _TIMESTAMP,
    **dict.fromkeys(_STRINGS, "string"),
    **dict.fromkeys(_BYTES, "bytes"),
}
_MYSQL_DECIMALS = frozenset(("decimal", "numeric", "dec", "fixed"))
_MYSQL_INTS = frozenset(("int", "integer"))
_ZERO_DATES = frozenset(("date", "datetime", "timestamp"))

_SQLITE_ANY: AvroType = ["null", "long", "double", "string", "bytes"]


@lru_cache(maxsize=4096)
def avro_schema(table: Table) -> str:
    """Return the text of a table's Avro schema.

    A column's own `avro_type` goes before what its dialect makes of its SQL type.
    Raises SchemaError naming the column when a SQL type has no Avro type.
    """
    if not table.columns:
        raise SchemaError(f"{table.source}: a table without columns has no schema")
    namespace, _, name = table.source.rpartition(".")
    record: dict[str, Any] = {"type": "record", "name": legal_name(name)}
    if namespace:
        record["namespace"] = ".".join(legal_name(part) for part in namespace.split("."))
    record["fields"] = _fields(table)
    named = {"table": table.table} if table.table else {}
    key = [column.name for column in table.key_columns]
    meta = {"source": table.source, **named, "dialect": table.dialect, "key": key}
    if table.left_out:
        meta["leftOut"] = table.left_out
    record["meta"] = record_meta_text(meta)
    return json.dumps(record, separators=(",", ":"))


def _fields(table: Table) -> list[dict[str, Any]]:
    fields = []
    taken: set[str] = set()
    for column in table.columns:
        name = free_name(column.name, taken)
        avro_type = _avro_type(table, column)
        field: dict[str, Any] = {"name": name, "type": avro_type}
        if isinstance(avro_type, list):
            field["default"] = None
        field["meta"] = field_meta_text(_field_meta(column) | decimal_members(avro_type))
        fields.append(field)
    return fields


def _avro_type(table: Table, column: Column) -> AvroType:
    if column.avro_type is not None:
        given: AvroType = json.loads(column.avro_type)
        return ["null", given] if column.nullable and not isinstance(given, list) else given
    if table.dialect not in _DIALECTS:
        raise SchemaError(f"{table.source}: unknown dialect {table.dialect!r}")
    return _DIALECTS[table.dialect](table.source, column)


def _field_meta(column: Column) -> dict[str, Any]:
    meta: dict[str, Any] = {
        "column": column.name,
        "position": column.position,
        "sqlType": column.sql_type,
    }
    if column.key_position is not None:
        meta["key"] = column.key_position
    if column.mask:
        meta["mask"] = column.mask
    return meta


def _mysql_type(source: str, column: Column) -> AvroType:
    match = _SQL_TYPE.match(column.sql_type.lower())
    if match is None:
        raise _unknown(source, column)
    base, precision, scale, rest = match.groups()
    avro_type = _MYSQL_TYPES.get(base)
    is_unsigned = "unsigned" in rest or "zerofill" in rest
    if base in _MYSQL_DECIMALS:
        avro_type = _decimal(int(precision or 10), int(scale or 0))
    elif base == "bigint" and is_unsigned:
        avro_type = _decimal(20, 0)
    elif base in _MYSQL_INTS and is_unsigned:
        avro_type = "long"
    if avro_type is None:
        raise _unknown(source, column)
    if column.nullable or base in _ZERO_DATES:
        return ["null", avro_type]
    return avro_type


def _decimal(precision: int, scale: int) -> AvroType:
    return {"type": "bytes", "logicalType": "decimal", "precision": precision, "scale": scale}


def _sqlite_type(source: str, column: Column) -> AvroType:  # noqa: ARG001 - one shape for both
    avro_type = sqlite_affinity_type(column.sql_type.upper())
    if column.nullable and not isinstance(avro_type, list):
        return ["null", avro_type]
    return avro_type


def sqlite_affinity_type(declared: str) -> AvroType:
    """Follow "Determination Of Column Affinity" of SQLite's manual, rule by rule."""
    if "INT" in declared:
        return "long"
    if any(word in declared for word in ("CHAR", "CLOB", "TEXT")):
        return "string"
    if "BLOB" in declared:
        return "bytes"
    if any(word in declared for word in ("REAL", "FLOA", "DOUB")):
        return "double"
    return _SQLITE_ANY


_DIALECTS = {"mysql": _mysql_type, "sqlite": _sqlite_type}


def legal_name(name: str) -> str:
    """Return a name that Avro allows: what it does not allow becomes `_`."""
    legal = _ILLEGAL.sub("_", name)
    return legal if legal and not legal[0].isdigit() else f"_{legal}"


def free_name(name: str, taken: set[str]) -> str:
    """Take a name that Avro allows, or the first of name_2, name_3 … that is not taken."""
    legal = free = legal_name(name)
    count = 1
    while free in taken:
        count += 1
        free = f"{legal}_{count}"
    taken.add(free)
    return free


def _unknown(source: str, column: Column) -> SchemaError:
    return SchemaError(
        f"{source}, column {column.name!r}: SQL type {column.sql_type!r} has no Avro type"
    )
