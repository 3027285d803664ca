"""Plans the columns of a schema: what is the same in each row, and how a value becomes text. Pure.

A MySQL column is planned by its declared type, any other by its Avro type.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from enum import Enum
from functools import lru_cache
from typing import Any, NamedTuple

from databus.relay.sources.mysql.rows.columns import SqlType, parse_sql_type
from databus.schemas.avro_meta import column_of, field_meta, record_meta


class Kind(Enum):
    """How text is made of a value, beyond what its Avro type says."""

    PLAIN = 0
    TIME = 1  # of microseconds
    YEAR = 2
    BIT = 3  # a number of big-endian bytes
    BINARY = 4  # bytes, zeros at the end cut
    ENUM = 5  # the member's place, from 1
    SET = 6  # a bit for each member


class JavaType:
    """Numbers of `java.sql.Types`."""

    BIT, TINYINT, SMALLINT, INTEGER, BIGINT = -7, -6, 5, 4, -5
    FLOAT, REAL, DOUBLE, DECIMAL = 6, 7, 8, 3
    CHAR, VARCHAR, CLOB = 1, 12, 2005
    BINARY, VARBINARY, LONGVARBINARY, BLOB = -2, -3, -4, 2004
    DATE, TIME, TIMESTAMP, BOOLEAN, OTHER = 91, 92, 93, 16, 1111


AS_NEEDED = -1  # digits of a fraction: none or six


class PlannedColumn(NamedTuple):
    """One column.

    `branches` are the names of its Avro types, and `sql_types` has a Java type for each. A number
    of `wide_from` and more has `wide_type` instead; 0 = none has. `digits` are those of a fraction
    of a second.
    """

    position: int
    name: str
    is_key: bool
    mysql_type: str
    kind: Kind
    branches: tuple[str, ...]
    sql_types: tuple[int, ...]
    digits: int = AS_NEEDED
    wide_from: int = 0
    wide_type: int = 0
    members: tuple[str, ...] = ()


_T = JavaType
_TEXTS = ("tinytext", "text", "mediumtext", "longtext")
_BLOBS = ("tinyblob", "blob", "mediumblob", "longblob")
_SHAPES = (
    *("geometry", "point", "linestring", "polygon", "multipoint", "multilinestring"),
    *("multipolygon", "geometrycollection", "geomcollection"),
)
_DECIMALS = ("decimal", "numeric", "dec", "fixed")

_TYPES = {
    **{"bool": _T.TINYINT, "boolean": _T.TINYINT, "tinyint": _T.TINYINT, "smallint": _T.SMALLINT},
    **dict.fromkeys(("mediumint", "int", "integer"), _T.INTEGER),
    "bigint": _T.BIGINT,
    **dict.fromkeys(_DECIMALS, _T.DECIMAL),
    **{"float": _T.REAL, "double": _T.DOUBLE, "real": _T.DOUBLE, "bit": _T.BIT},
    **dict.fromkeys(("char", "nchar", "uuid", "inet4", "inet6"), _T.CHAR),
    **dict.fromkeys(("varchar", "nvarchar", "year", "json"), _T.VARCHAR),
    **dict.fromkeys(_TEXTS, _T.CLOB),
    **dict.fromkeys(("binary", "varbinary", *_BLOBS, *_SHAPES, "vector"), _T.BLOB),
    **{"enum": _T.INTEGER, "set": _T.BIT},
    **{"date": _T.DATE, "time": _T.TIME, "datetime": _T.TIMESTAMP, "timestamp": _T.TIMESTAMP},
}
# Where NULL has another type than a value.
_NULLS = {"set": _T.BLOB, "json": _T.OTHER}
# By name: the first number that has no room in the signed type, and the next wider type.
_WIDER = {
    **dict.fromkeys(("bool", "boolean", "tinyint"), (1 << 7, _T.SMALLINT)),
    "smallint": (1 << 15, _T.INTEGER),
    "mediumint": (1 << 23, _T.INTEGER),
    **dict.fromkeys(("int", "integer"), (1 << 31, _T.BIGINT)),
    "bigint": (1 << 63, _T.DECIMAL),
}
_KINDS = {
    **{"time": Kind.TIME, "year": Kind.YEAR, "bit": Kind.BIT, "binary": Kind.BINARY},
    **{"enum": Kind.ENUM, "set": Kind.SET},
}
_FRACTIONS = frozenset(("time", "datetime", "timestamp"))

# Of columns that MySQL did not declare, by Avro type.
_BY_AVRO = {
    **{"null": _T.VARCHAR, "boolean": _T.BOOLEAN, "int": _T.INTEGER, "long": _T.BIGINT},
    **{"float": _T.REAL, "double": _T.DOUBLE, "bytes": _T.BLOB, "fixed": _T.BLOB},
    **{"decimal": _T.DECIMAL, "date": _T.DATE, "time-millis": _T.TIME, "time-micros": _T.TIME},
    **dict.fromkeys(("timestamp-micros", "local-timestamp-micros"), _T.TIMESTAMP),
    **dict.fromkeys(("timestamp-millis", "local-timestamp-millis"), _T.TIMESTAMP),
}


@lru_cache(maxsize=1024)
def plan_columns(schema_text: str) -> tuple[PlannedColumn, ...]:
    """Return the plans of a schema's columns, in the order of the fields."""
    record = json.loads(schema_text)
    meta = record_meta(record)
    plan = _plan_mysql if meta.get("dialect") == "mysql" else _plan_other
    key = frozenset(meta.get("key", ()))
    return tuple(plan(at, field, key) for at, field in enumerate(record["fields"]))


def _plan_mysql(at: int, field: Mapping[str, Any], key: frozenset[str]) -> PlannedColumn:
    meta = field_meta(field)
    declared = str(meta.get("sqlType", ""))
    try:
        sql = parse_sql_type(declared)
    except ValueError:
        sql = SqlType("")
    if sql.name not in _TYPES:
        return _plan_other(at, field, key)
    sql_type = _TYPES[sql.name]
    null_type = _NULLS.get(sql.name, sql_type)
    name = column_of(field)
    branches = _branches(field["type"])
    planned = PlannedColumn(
        int(meta.get("position", at)),
        name,
        name in key or "key" in meta,
        declared,
        _KINDS.get(sql.name, Kind.PLAIN),
        branches,
        tuple(null_type if one == "null" else sql_type for one in branches),
        members=sql.members,
    )
    if sql.name in _FRACTIONS:
        return planned._replace(digits=sql.arguments[0] if sql.arguments else 0)
    if sql.is_unsigned and sql.name in _WIDER:
        wide_from, wide_type = _WIDER[sql.name]
        return planned._replace(wide_from=wide_from, wide_type=wide_type)
    return planned


def _plan_other(at: int, field: Mapping[str, Any], key: frozenset[str]) -> PlannedColumn:
    meta, name, branches = field_meta(field), column_of(field), _branches(field["type"])
    found = [_BY_AVRO.get(one, _T.VARCHAR) for one in branches]
    values = [sql_type for one, sql_type in zip(branches, found, strict=True) if one != "null"]
    null_type = values[0] if len(values) == 1 else _T.VARCHAR
    return PlannedColumn(
        int(meta.get("position", at)),
        name,
        name in key or "key" in meta,
        str(meta.get("sqlType", "")),
        Kind.PLAIN,
        branches,
        tuple(
            null_type if one == "null" else sql_type
            for one, sql_type in zip(branches, found, strict=True)
        ),
    )


def _branches(avro_type: Any) -> tuple[str, ...]:
    return tuple(map(_name, avro_type if isinstance(avro_type, list) else [avro_type]))


def _name(branch: Any) -> str:
    if isinstance(branch, dict):
        return str(branch.get("logicalType") or branch["type"])
    return str(branch)
