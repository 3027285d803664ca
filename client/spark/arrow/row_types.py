"""The Spark types of rows and of changes, made from the versions of a table's Avro schema.

    Avro                            Spark
    boolean, int, long              boolean, int, bigint
    float, double                   float, double
    string, bytes                   string, binary
    decimal(p,s)                    decimal(p,s); of more than 38 digits: string
    date                            date
    time-micros                     bigint, microseconds: a TIME may be negative or of days
    local-timestamp-micros          timestamp_ntz
    timestamp-micros                timestamp
    several of them (SQLite's       string: a long's digits, a double as Python writes it,
    NUMERIC and ANY)                bytes as x'hex', text as it is

A table's versions give one type: int and bigint are bigint, float, int and double
are double, decimals are as wide as needed, for an integer that became one too.
Of any other change of a column's type that a statement made the newer one counts, and
a row from before it is refused. Where no statement is known the types are: no type
holds both. Such a column can be had as text.

What a text is, of a value that is none: digits of numbers and decimals without
an exponent, doubles as Python writes them, dates and times as
`2026-11-21 10:00:00.000000` (of a zone: in UTC, with a Z), bytes as x'hex'.
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

CHANGE_COLUMN: Final = "_databus"  # the column that says of a record what happened
KEY: Final = "databus.key"  # of a field's metadata: its place in the primary key, from 0
SQL_TYPE: Final = "databus.sqlType"  # the type in the table's own words
# Of the metadata of `_databus`: the schemas' texts by source and version, which say what rows
# of one version are in another.
SCHEMAS: Final = "databus.schemas"

Layout = Literal["columns", "structs"]
NOT_APPLIED = (
    "into a target (apply_changes, `databus spark sync`, with any layout) such a table cannot be "
    f"followed, for there {CHANGE_COLUMN} says what each change is: rename the column"
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
    """A column as the versions so far have it, and which version had it last."""

    column: AvroColumn
    version: int
    text: str  # the schema's


def row_schema(versions: Sequence[WriterSchema], as_text: Collection[str] = ()) -> StructType:
    """Return the type of a source's rows, whichever of the versions wrote them.

    Its columns are those of the newest version in their order, then those that
    were dropped since. `as_text` are names of columns, also as
    `source.column`, that are to be strings. Raises SchemaError when a column's
    types have none in common; ValueError without versions.
    """
    if not versions:
        raise ValueError("a row's type is made of one schema version or more")
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
    dropped = sorted(set(seen) - set(newest), key=list(seen).index)
    fields = [_field(seen[name].column, is_key=True) for name in newest]
    return StructType(fields + [_field(seen[name].column, is_key=False) for name in dropped])


def is_as_text(source: str, column: str, as_text: Collection[str]) -> bool:
    """Say whether a column is among those to be delivered as text."""
    names = {name.lower() for name in as_text}
    return column.lower() in names or f"{source}.{column}".lower() in names


def check_text_columns(schemas: Sequence[WriterSchema], as_text: Collection[str]) -> None:
    """Raise SettingsError when a name of option columnsAsText is that of no column."""
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
    """Return the type of the column `_databus`; without `before` there is no such field."""
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
    """Return the layout that is taken when none is asked for."""
    return "structs" if _difference(by_source) else "columns"


def changes_schema(
    by_source: Mapping[str, StructType],
    layout: Layout | None = None,
    before_images: bool = True,
) -> StructType:
    """Return the type of a DataFrame of changes of these sources.

    `layout` None: `columns` when all have equal columns. Raises SettingsError
    when layout `columns` is asked for and they have not, or when a table has
    a column `_databus` itself.
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
    """Say that a row has a column of the name under which its change is told; empty if not."""
    names = [field.name for field in row if field.name.lower() == CHANGE_COLUMN]
    return f"{source} has a column {names[0]!r} itself" if names else ""


def arrow_schema(spark_schema: StructType) -> pa.Schema:
    """Return the Arrow schema that a record batch must have, to the letter, for Spark to take it.

    Instants are microseconds in UTC.
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
    """Return the newer column with a type that holds the older one's values too."""
    merged = _common(old.column, new.column)
    if merged is not None:
        return new._replace(column=merged)
    if change_of(new.text) is not None:
        # Of a statement: rows of before are read again, if any come at all.
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
        # An integer that became a decimal; not the other way, which rounds.
        whole = max(_DIGITS[old.kind], new.precision - new.scale)
        return _decimal(new, whole, new.scale)
    wider = _WIDER.get(frozenset({old.kind, new.kind}))
    return None if wider is None else new._replace(kind=wider)


def _decimal(column: AvroColumn, whole: int, scale: int) -> AvroColumn | None:
    if whole + scale > LARGEST_DECIMAL:
        return None
    return column._replace(precision=whole + scale, scale=scale)


def _difference(by_source: Mapping[str, StructType]) -> str:
    """Return in what the first source that differs does so; empty when none does."""
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
