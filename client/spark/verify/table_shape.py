"""The compared part of a table: its key, and the requested columns. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from databus.client.spark.verify.chunks import has_key_ranges
from databus.schemas.columns.any_text import any_text
from databus.schemas.columns.avro_columns import AvroColumn, Kind, WriterSchema, columns_of
from databus.schemas.errors import SettingsError
from databus.schemas.table import Table
from databus.schemas.table_schema import avro_schema

Row = Mapping[str, Any]
Key = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Shape:
    """The compared columns, including the key's, in the table's order.

    Values are those of a stream in Spark: see `row_types`.
    """

    source: str
    dialect: str
    columns: tuple[AvroColumn, ...]
    key: tuple[AvroColumn, ...]
    has_key_ranges: bool

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the columns."""
        return tuple(column.name for column in self.columns)

    @property
    def key_names(self) -> tuple[str, ...]:
        """The names of the key's columns."""
        return tuple(column.name for column in self.key)

    def key_of(self, row: Row) -> Key:
        """Return a row's key."""
        return tuple(row[column.name] for column in self.key)


def shape_of(table: Table, columns: Sequence[str] = ()) -> Shape:
    """Return the compared part of a table; empty `columns` means all.

    Raises SettingsError for an unknown column, and for a table without a key.
    """
    known = columns_of(WriterSchema(table.source, 0, 0, avro_schema(table)))
    if not table.key_columns:
        raise SettingsError(f"{table.source} has no primary key, so its rows cannot be compared")
    names = [column.name for column in known]
    unknown = [name for name in columns if name not in names]
    if unknown:
        raise SettingsError(
            f"columns: {table.source} has no column {unknown[0]!r}; it has {', '.join(names)}"
        )
    key_names = [column.name for column in table.key_columns]
    by_name = {column.name: column for column in known}
    # The key always: rows are found by it.
    wanted = {*(columns or names), *key_names}
    key = tuple(by_name[name] for name in key_names)
    return Shape(
        table.source,
        table.dialect,
        tuple(column for column in known if column.name in wanted),
        key,
        has_key_ranges(key, table.key_columns[0].nullable),
    )


def spark_values(shape: Shape, names: Sequence[str] | None = None) -> Callable[[Row], Row]:
    """Return the conversion of a scanned row to Spark's values."""
    makers = {
        column.name: make
        for column in shape.columns
        if (make := _MAKERS.get(column.kind)) and (names is None or column.name in names)
    }

    def convert(row: Row) -> Row:
        changed = {name: make(row[name]) for name, make in makers.items() if row[name] is not None}
        return {**row, **changed}

    return convert if makers else lambda row: row


_MAKERS: Mapping[Kind, Callable[[Any], Any]] = {
    Kind.WIDE_DECIMAL: lambda value: format(value, "f"),
    Kind.ANY: any_text,
}
