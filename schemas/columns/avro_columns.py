"""The columns of an Avro row schema: their names, and the kind of value of each.

Spark's types (`row_types`) and Arrow's arrays (`event_batches`) are derived from
them. Supported are the types that `schemas.table_schema` writes, and unions with
null in either order, as other relays send them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from enum import StrEnum
from functools import lru_cache
from typing import Any, Final, NamedTuple

from databus.schemas.avro_meta import field_meta
from databus.schemas.errors import SchemaError

LARGEST_DECIMAL: Final = 38  # digits of a decimal in Spark and in Arrow's 128 bits


class Kind(StrEnum):
    """The kind of a column's values."""

    BOOLEAN = "boolean"
    INT = "int"
    LONG = "long"
    FLOAT = "float"
    DOUBLE = "double"
    STRING = "string"
    BYTES = "bytes"
    DECIMAL = "decimal"  # of at most 38 digits
    WIDE_DECIMAL = "wide decimal"  # of more
    DATE = "date"
    TIME = "time"  # microseconds, may be negative or longer than a day
    DATETIME = "datetime"  # without a zone
    TIMESTAMP = "timestamp"
    ANY = "any"  # a union of several kinds, like SQLite's NUMERIC


class WriterSchema(NamedTuple):
    """One version of a source's schema, from a server's `/register`."""

    source: str  # e.g. `shop.orders`
    src_id: int
    version: int
    text: str  # the Avro schema


class AvroColumn(NamedTuple):
    """One column. `branches`: those of its union, including `null`; empty = no union."""

    name: str
    kind: Kind
    precision: int = 0  # of decimals
    scale: int = 0
    branches: tuple[str, ...] = ()
    sql_type: str = ""
    key: int | None = None  # place in the primary key, from 0

    @property
    def type_text(self) -> str:
        """The type as shown in errors: the kind, and the SQL type it came from."""
        digits = f"({self.precision},{self.scale})" if "decimal" in self.kind else ""
        return f"{self.kind}{digits}" + (f" ({self.sql_type})" if self.sql_type else "")


_PLAIN = {
    kind.value: kind
    for kind in (
        *(Kind.BOOLEAN, Kind.INT, Kind.LONG, Kind.FLOAT, Kind.DOUBLE),
        *(Kind.STRING, Kind.BYTES),
    )
}
# By logical type: the underlying Avro type, and the kind.
_LOGICAL = {
    "date": ("int", Kind.DATE),
    "time-micros": ("long", Kind.TIME),
    "local-timestamp-micros": ("long", Kind.DATETIME),
    "timestamp-micros": ("long", Kind.TIMESTAMP),
}
_ANY_BRANCHES = frozenset({"null", "long", "double", "string", "bytes"})


@lru_cache(maxsize=4096)
def columns_of(schema: WriterSchema) -> tuple[AvroColumn, ...]:
    """Return a schema's columns in order.

    Raises SchemaError with source, version and column for a type that is not
    supported, and for two names that differ only in case.
    """
    try:
        fields = json.loads(schema.text)["fields"]
        columns = tuple(_column(schema, field) for field in fields)
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise SchemaError(
            f"{schema.source}: schema version {schema.version} is not a record schema: {error!r}"
        ) from error
    seen: dict[str, str] = {}
    for column in columns:
        other = seen.setdefault(column.name.lower(), column.name)
        if other is not column.name:
            raise SchemaError(
                f"{schema.source}: columns {other!r} and {column.name!r} of schema version "
                f"{schema.version} differ only in case, which Spark ignores"
            )
    return columns


def _column(schema: WriterSchema, field: Mapping[str, Any]) -> AvroColumn:
    meta = field_meta(field)
    name: str = meta.get("column", field["name"])
    avro_type = field["type"]
    branches = avro_type if isinstance(avro_type, list) else [avro_type]
    held = [branch for branch in branches if branch != "null"]
    kind: Kind | None
    if len(held) == 1:
        kind, precision, scale = _kind(held[0])
    else:
        is_any = len(held) > 1 and _is_any(branches)
        kind, precision, scale = (Kind.ANY if is_any else None), 0, 0
    if kind is None:
        raise SchemaError(
            f"{schema.source}, column {name!r}: its type {json.dumps(avro_type)} in schema version "
            f"{schema.version} has no column type"
        )
    return AvroColumn(
        name,
        kind,
        precision,
        scale,
        tuple(map(_branch_name, branches)) if isinstance(avro_type, list) else (),
        str(meta.get("sqlType", "")),
        meta.get("key"),
    )


def key_names(columns: Iterable[AvroColumn]) -> tuple[str, ...]:
    """Return the columns of the primary key, in its order."""
    keys = [(one.key, one.name) for one in columns if one.key is not None]
    return tuple(name for _, name in sorted(keys))


def _kind(avro_type: Any) -> tuple[Kind | None, int, int]:
    if isinstance(avro_type, str):
        return _PLAIN.get(avro_type), 0, 0
    written, logical = avro_type["type"], avro_type.get("logicalType")
    if logical is None:
        return (_PLAIN.get(written) if isinstance(written, str) else None), 0, 0
    if logical == "decimal" and written == "bytes":
        precision, scale = int(avro_type["precision"]), int(avro_type.get("scale", 0))
        return (
            Kind.DECIMAL if precision <= LARGEST_DECIMAL else Kind.WIDE_DECIMAL,
            precision,
            scale,
        )
    # A logical type over another Avro type is an error, not its Avro type.
    if (known := _LOGICAL.get(logical)) is not None and known[0] == written:
        return known[1], 0, 0
    return None, 0, 0


def _is_any(branches: list[Any]) -> bool:
    return all(isinstance(branch, str) and branch in _ANY_BRANCHES for branch in branches)


def _branch_name(branch: Any) -> str:
    return branch if isinstance(branch, str) else str(branch["type"])
