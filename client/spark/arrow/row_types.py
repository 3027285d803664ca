"""The Spark types of rows and of changes, derived from the versions of a table's Avro schema.

    Avro                            Spark
    boolean, int, long              boolean, int, bigint
    float, double                   float, double
    string, bytes                   string, binary
    decimal(p,s)                    decimal(p,s); string with more than 38 digits
    date                            date
    time-micros                     bigint, microseconds: a TIME may be negative or over 24 h
    local-timestamp-micros          timestamp_ntz
    timestamp-micros                timestamp
    a union of several              string: a long's digits, a double as Python prints it,
    (SQLite's NUMERIC and ANY)      bytes as x'hex', text unchanged

All versions of a column are merged to one type. int and bigint become bigint; float,
int and double become double; decimals, and an integer that became a decimal, get
as many digits as needed. After any other change of type by a DDL statement the newer
type counts, and older rows are refused. If the statement is not known, no type holds
both, and that is an error. Such a column can be read as text.

The text of a value that is not a string: numbers and decimals as digits without an
exponent, doubles as Python prints them, dates and times as
`2026-11-21 10:00:00.000000` (with a zone: in UTC, with a Z), bytes as x'hex'.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from databus.client.spark.arrow.avro_columns import (
    LARGEST_DECIMAL,
    AvroColumn,
    Kind,
    WriterSchema,
    columns_of,
)
from databus.schemas.errors import SchemaError, SettingsError
from databus.schemas.table_change import change_of

__all__ = [
    "CHANGE_COLUMN",
    "KEY",
    "SCHEMAS",
    "SQL_TYPE",
    "Layout",
    "WriterSchema",
    "arrow_schema",
    "change_type",
    "changes_schema",
    "check_text_columns",
    "choose_layout",
    "row_schema",
]

CHANGE_COLUMN: Final = "_databus"  # the column that describes the change
KEY: Final = "databus.key"  # in a field's metadata: its place in the primary key, from 0
SQL_TYPE: Final = "databus.sqlType"  # in a field's metadata: the column's SQL type
# In the metadata of `_databus`: the schemas' texts by source and version, with which rows of
# one version are converted to another.
SCHEMAS: Final = "databus.schemas"

Layout = Literal["columns", "structs"]
NOT_APPLIED = (
    "such a table cannot be followed into a target (apply_changes, `databus spark sync`, with any "
    f"layout), where {CHANGE_COLUMN} describes each change: rename the column"
)

_TYPES: dict[Kind, DataType] = {
    Kind.BOOLEAN: BooleanType(),
    Kind.INT: IntegerType(),
    Kind.LONG: LongType(),
    Kind.FLOAT: FloatType(),
    Kind.DOUBLE: DoubleType(),
    Kind.STRING: StringType(),
    Kind.BYTES: BinaryType(),
    Kind.WIDE_DECIMAL: StringType(),
    Kind.DATE: DateType(),
    Kind.TIME: LongType(),
    Kind.DATETIME: TimestampNTZType(),
    Kind.TIMESTAMP: TimestampType(),
    Kind.ANY: StringType(),
}
_TEXTS = frozenset({Kind.STRING, Kind.WIDE_DECIMAL, Kind.ANY})
_WIDER = {
    frozenset({Kind.INT, Kind.LONG}): Kind.LONG,
    frozenset({Kind.FLOAT, Kind.DOUBLE}): Kind.DOUBLE,
    frozenset({Kind.INT, Kind.DOUBLE}): Kind.DOUBLE,
}
_DIGITS = {Kind.INT: 10, Kind.LONG: 19}


class _Seen(NamedTuple):
    """A column, merged over the versions so far, and the last version that has it."""

    column: AvroColumn
    version: int
    text: str  # the schema's


def row_schema(versions: Sequence[WriterSchema], as_text: Collection[str] = ()) -> StructType:
    """Return the type that holds a source's rows of all versions.

    Its columns are those of the newest version in order, then the dropped ones.
    `as_text`: columns to read as strings, as `column` or `source.column`. Raises
    SchemaError if no type holds all versions of a column; ValueError without versions.
    """
    if not versions:
        raise ValueError("row_schema needs at least one schema version")
    seen: dict[str, _Seen] = {}
    ordered = sorted(versions, key=lambda schema: schema.version)
    for schema in ordered:
        for column in columns_of(schema):
            merged = _Seen(_in_text(schema.source, column, as_text), schema.version, schema.text)
            before = seen.get(column.name.lower())
            if before is not None:
                merged = _merge(schema.source, before, merged)
            seen[column.name.lower()] = merged
    newest = [column.name.lower() for column in columns_of(ordered[-1])]
    # In the order in which they first appeared, so that the type does not depend on chance.
    dropped = sorted(set(seen) - set(newest), key=list(seen).index)
    fields = [_field(seen[name].column, is_key=True) for name in newest]
    return StructType(fields + [_field(seen[name].column, is_key=False) for name in dropped])


def is_as_text(source: str, column: str, as_text: Collection[str]) -> bool:
    """Return whether a column is to be read as text."""
    names = {name.lower() for name in as_text}
    return column.lower() in names or f"{source}.{column}".lower() in names


def check_text_columns(schemas: Sequence[WriterSchema], as_text: Collection[str]) -> None:
    """Raise SettingsError if a name in option columnsAsText matches no column."""
    known = [(schema.source, column.name) for schema in schemas for column in columns_of(schema)]
    for name in as_text:
        if not any(is_as_text(source, column, (name,)) for source, column in known):
            columns = ", ".join(dict.fromkeys(column for _, column in known))
            raise SettingsError(
                f"option columnsAsText: there is no column {name!r}; the columns are {columns}"
            )


def spark_type(column: AvroColumn) -> DataType:
    """Return the Spark type of a column's values."""
    if column.kind is Kind.DECIMAL:
        return DecimalType(column.precision, column.scale)
    return _TYPES[column.kind]


def change_type(before: StructType | None) -> StructType:
    """Return the type of the column `_databus`; None for `before` leaves that field out."""
    fields: list[tuple[str, DataType]] = [
        ("op", StringType()),
        ("scn", LongType()),
        ("index", IntegerType()),
        ("time", TimestampType()),
        ("physical_source", StringType()),
        ("source", StringType()),
        ("schema_version", IntegerType()),
        ("as_of", LongType()),
        ("gtid", StringType()),
    ]
    if before is not None:
        fields.append(("before", before))
    return StructType([StructField(name, data_type, True) for name, data_type in fields])


def choose_layout(by_source: Mapping[str, StructType]) -> Layout:
    """Return the default layout for these sources."""
    return "structs" if _difference(by_source) else "columns"


def changes_schema(
    by_source: Mapping[str, StructType],
    layout: Layout | None = None,
    before_images: bool = True,
) -> StructType:
    """Return the type of a DataFrame of changes of these sources.

    `layout` None: `columns` if all sources have equal columns, else `structs`.
    Raises SettingsError for layout `columns` of sources with different columns, and
    for a table that has a column `_databus` itself.
    """
    if layout is None:
        layout = choose_layout(by_source)
    if layout == "structs":
        rows = StructType([StructField(name, row, True) for name, row in by_source.items()])
    else:
        if difference := _difference(by_source):
            raise SettingsError(f"option layout=columns needs equal columns: {difference}")
        rows = next(iter(by_source.values()))
        if taken := taken_name(next(iter(by_source)), rows):
            raise SettingsError(f"{taken}: read it with option layout=structs; {NOT_APPLIED}")
    change = change_type(rows if before_images else None)
    return StructType([*rows, StructField(CHANGE_COLUMN, change, True)])


def taken_name(source: str, row: StructType) -> str:
    """Return a message if a row has a column named `_databus`; "" if not."""
    names = [field.name for field in row if field.name.lower() == CHANGE_COLUMN]
    return f"{source} has a column {names[0]!r} itself" if names else ""


def arrow_schema(spark_schema: StructType) -> pa.Schema:
    """Return the exact Arrow schema that Spark requires of a record batch.

    Timestamps are microseconds in UTC.
    """
    return to_arrow_schema(spark_schema, timezone="UTC")


def _in_text(source: str, column: AvroColumn, as_text: Collection[str]) -> AvroColumn:
    if not is_as_text(source, column.name, as_text):
        return column
    return column._replace(kind=Kind.STRING, precision=0, scale=0)


def _field(column: AvroColumn, *, is_key: bool) -> StructField:
    metadata: dict[str, Any] = {}
    if is_key and column.key is not None:
        metadata[KEY] = column.key
    if column.sql_type:
        metadata[SQL_TYPE] = column.sql_type
    return StructField(column.name, spark_type(column), True, metadata)


def _merge(source: str, old: _Seen, new: _Seen) -> _Seen:
    """Return the newer column with a type that also holds the older column's values."""
    merged = _common(old.column, new.column)
    if merged is not None:
        return new._replace(column=merged)
    if change_of(new.text) is not None:
        # The change comes from a DDL statement: older rows are refused, if any come.
        return new
    name = new.column.name
    raise SchemaError(
        f"{source}, column {name!r}: schema version {old.version} has {old.column.type_text} and "
        f"version {new.version} has {new.column.type_text}: no type holds both. "
        f"Read it as text with option columnsAsText={name}"
    )


def _common(old: AvroColumn, new: AvroColumn) -> AvroColumn | None:
    if old.kind in _TEXTS and new.kind in _TEXTS:
        return new._replace(kind=Kind.STRING, precision=0, scale=0)
    if old.kind is Kind.DECIMAL and new.kind is Kind.DECIMAL:
        scale = max(old.scale, new.scale)
        whole = max(old.precision - old.scale, new.precision - new.scale)
        return _decimal(new, whole, scale)
    if old.kind is new.kind:
        return new
    if new.kind is Kind.DECIMAL and old.kind in _DIGITS:
        # From integer to decimal only: the other direction rounds.
        whole = max(_DIGITS[old.kind], new.precision - new.scale)
        return _decimal(new, whole, new.scale)
    wider = _WIDER.get(frozenset({old.kind, new.kind}))
    return None if wider is None else new._replace(kind=wider)


def _decimal(column: AvroColumn, whole: int, scale: int) -> AvroColumn | None:
    if whole + scale > LARGEST_DECIMAL:
        return None
    return column._replace(precision=whole + scale, scale=scale)


def _difference(by_source: Mapping[str, StructType]) -> str:
    """Return the first difference between the sources' columns; "" if there is none."""
    (first, columns), *others = by_source.items()
    for source, row in others:
        mine, theirs = _shape(columns), _shape(row)
        if mine != theirs:
            at = next(
                (n for n, pair in enumerate(zip(mine, theirs, strict=False)) if pair[0] != pair[1]),
                min(len(mine), len(theirs)),
            )
            return f"{first} has {_shown(mine, at)} where {source} has {_shown(theirs, at)}"
    return ""


def _shape(row: StructType) -> list[tuple[str, str, int | None]]:
    return [(f.name, f.dataType.simpleString(), f.metadata.get(KEY)) for f in row]


def _shown(shape: list[tuple[str, str, int | None]], at: int) -> str:
    if at >= len(shape):
        return "no more columns"
    name, type_text, key = shape[at]
    return f"column {name} {type_text}" + ("" if key is None else f" (key column {key + 1})")
