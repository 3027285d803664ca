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

All versions of a column are merged to one type (`merged_columns`), or it is read as text.

The text of a value that is not a string: numbers and decimals as digits without an
exponent, doubles as Python prints them, dates and times as
`2026-11-21 10:00:00.000000` (with a zone: in UTC, with a Z), bytes as x'hex'.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final, Literal

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

from databus.client.arrow.arrow_types import CHANGE_COLUMN, KEY, LEAVE_OUT, SQL_TYPE
from databus.client.arrow.merged_columns import is_as_text, merged_columns
from databus.schemas.columns.avro_columns import AvroColumn, Kind, WriterSchema, columns_of
from databus.schemas.errors import SettingsError

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

# In the metadata of `_databus`: the schemas' texts by source and version, with which rows of
# one version are converted to another.
SCHEMAS: Final = "databus.schemas"

Layout = Literal["columns", "structs"]
NOT_APPLIED = (
    "such a table cannot be followed into a target (apply_changes, `databus spark sync`, with any "
    f"layout), where {CHANGE_COLUMN} describes each change: rename the column, or {LEAVE_OUT}"
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


def row_schema(versions: Sequence[WriterSchema], as_text: Collection[str] = ()) -> StructType:
    """Return the type that holds a source's rows of all versions.

    Its columns are those of the newest version in order, then the dropped ones.
    `as_text`: columns to read as strings, as `column` or `source.column`. Raises
    SchemaError if no type holds all versions of a column; ValueError without versions.
    """
    newest, dropped = merged_columns(versions, as_text)
    fields = [_field(column, is_key=True) for column in newest]
    return StructType(fields + [_field(column, is_key=False) for column in dropped])


def choose_columns(rows: StructType, names: Sequence[str]) -> StructType:
    """Return the columns of these names in this order; all columns if `names` is empty.

    The case of names is ignored, as in Spark. Raises SettingsError for a name that no
    column has, and for a repeated name.
    """
    if not names:
        return rows
    known = {field.name.lower(): field for field in rows}
    missing = [name for name in names if name.lower() not in known]
    if missing:
        raise SettingsError(
            f"option columns: there is no column {', '.join(map(repr, missing))}; the columns are "
            f"{', '.join(rows.names)}"
        )
    twice = [name for name in names if [n.lower() for n in names].count(name.lower()) > 1]
    if twice:
        raise SettingsError(f"option columns: {twice[0]} is named twice")
    return StructType([known[name.lower()] for name in names])


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


def _field(column: AvroColumn, *, is_key: bool) -> StructField:
    metadata: dict[str, Any] = {}
    if is_key and column.key is not None:
        metadata[KEY] = column.key
    if column.sql_type:
        metadata[SQL_TYPE] = column.sql_type
    return StructField(column.name, spark_type(column), True, metadata)


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
