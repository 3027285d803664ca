"""What a table of ClickHouse has, by mode, and the statement that makes it. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from databus.client.sinks.ready.clickhouse.names import identifier
from databus.client.sinks.ready.clickhouse.types import (
    MOMENT,
    column_type,
    has_null,
    held_type,
    nullable,
)
from databus.client.sinks.ready.clickhouse.versions import VERSION_TYPE
from databus.client.sql.modes import DELETED, ID, INDEX, OP, SCN, TIME, WriteMode
from databus.schemas.columns.avro_columns import AvroColumn, key_names

VERSION = "_databus_version"
# By mode: the columns that the source does not have. Nobody else may name a column so.
EXTRAS: dict[WriteMode, dict[str, str]] = {
    WriteMode.MIRROR: {VERSION: VERSION_TYPE, DELETED: "UInt8"},
    WriteMode.APPEND_HISTORY: {
        OP: "String",
        SCN: "UInt64",
        INDEX: "UInt32",
        TIME: MOMENT,
        ID: "String",
    },
}


@dataclass(frozen=True, slots=True)
class Shape:
    """What a table has besides the columns of the source."""

    mode: WriteMode

    @property
    def extras(self) -> dict[str, str]:
        """The type of each such column."""
        return EXTRAS[self.mode]

    def type_of(self, column: AvroColumn) -> str:
        """Return the type of a column of the source: a row of a history may lack any of them."""
        plain = column_type(column)
        is_nullable = has_null(column) or not self.mode.has_keys
        return nullable(plain) if is_nullable else plain

    def keys(self, columns: Sequence[AvroColumn]) -> tuple[str, ...]:
        """Return the columns by which a table is sorted, and rows are replaced."""
        return key_names(columns) if self.mode.has_keys else (SCN, ID)

    def create(self, place: str, columns: Sequence[AvroColumn]) -> str:
        """Return the statement that makes a table."""
        types = {one.name: self.type_of(one) for one in columns} | self.extras
        listed = ", ".join(f"{identifier(name)} {kind}" for name, kind in types.items())
        key = ", ".join(map(identifier, self.keys(columns)))
        arguments = f"{VERSION}, {DELETED}" if self.mode.has_keys else ""
        engine = f"ReplacingMergeTree({arguments}) ORDER BY ({key})"
        return f"CREATE TABLE IF NOT EXISTS {place} ({listed}) ENGINE = {engine}"


def nullable_type(text: str) -> str:
    """Return the type of a column with NULL, unless it has it."""
    return text if held_type(text).is_nullable else nullable(text)
