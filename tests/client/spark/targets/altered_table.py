"""A table that is altered between changes: its schema versions, its batches, its rows now."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.types import StructField, StructType

from databus.client.spark.arrow.row_types import (
    SCHEMAS,
    WriterSchema,
    arrow_schema,
    changes_schema,
    row_schema,
)
from databus.client.spark.consuming.apply import apply_changes
from databus.client.spark.targets.following import SchemaFollower
from databus.client.spark.targets.reshaping import find
from databus.client.spark.targets.target import Applied, Target
from databus.schemas.table import Column, Table
from databus.schemas.table_change import TableChange, shape_id, with_change
from databus.schemas.table_schema import avro_schema

SOURCE = "shop.people"
Row = dict[str, Any]


def text_of(columns: Mapping[str, str], key: str) -> str:
    """Return the shape of a table; what ends with `!` cannot be null."""
    made = [
        Column(
            name,
            kind.rstrip("!"),
            place,
            nullable=not kind.endswith("!"),
            key_position=0 if name == key else None,
        )
        for place, (name, kind) in enumerate(columns.items())
    ]
    return avro_schema(Table(SOURCE, tuple(made)))


@dataclass
class AlteredTable:
    """The source: `rows` are what it has now."""

    columns: Mapping[str, str]
    key: str = "id"
    rows: dict[Any, Row] = field(default_factory=dict)
    scn: int = 0
    as_of: int = 0  # of rows that a snapshot brings
    texts: dict[int, str] = field(default_factory=dict)
    pending: list[tuple[int, str, int | None, Row | None]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.texts[1] = text_of(self.columns, self.key)

    def write(self, *rows: Row) -> None:
        """Insert or update rows."""
        for row in rows:
            self.scn += 1
            op = "update" if row[self.key] in self.rows else "insert"
            self.rows[row[self.key]] = row
            self.pending.append((self.scn, op, max(self.texts), row))

    def empty(self, op: str) -> None:
        """Have no row any more; `op` says it of all rows at once, and of no version."""
        self.scn += 1
        self.rows = {}
        self.pending.append((self.scn, op, None, None))

    def alter(
        self,
        columns: Mapping[str, str],
        become: Callable[[Row], Row],
        key: str | None = None,
        **change: Any,
    ) -> None:
        """Alter the table; `become` is what the database makes of a row that is there."""
        self.scn += 1
        before = self.texts[max(self.texts)]
        self.columns, self.key = columns, key or self.key
        if change.get("is_emptied"):
            self.rows = {}
        rows = [become(dict(row)) for row in self.rows.values()]
        self.rows = {row[self.key]: row for row in rows}
        told = TableChange(self.scn, shape_id(before), **change)
        self.texts[max(self.texts) + 1] = with_change(text_of(columns, self.key), told)

    def schema(self, known: Mapping[int, str] | None = None) -> StructType:
        """Return the type of a DataFrame of changes, with the texts of the versions."""
        texts = self.texts if known is None else known
        versions = [WriterSchema(SOURCE, 1, number, text) for number, text in texts.items()]
        *row, meta = changes_schema({SOURCE: row_schema(versions)}, "columns", before_images=False)
        told = {SCHEMAS: {SOURCE: {str(number): text for number, text in texts.items()}}}
        return StructType([*row, StructField(meta.name, meta.dataType, True, told)])

    def batch(self, known: Mapping[int, str] | None = None) -> pa.Table:
        """Return what was written since the last one, in all columns that there ever were.

        `known`: the versions of a query that does not know all.
        """
        schema = arrow_schema(self.schema(known))
        found, self.pending = self.pending, []
        records, known_names = [], dict.fromkeys(schema.names)
        for scn, op, number, values in found:
            meta = {"op": op, "scn": scn, "index": 0, "schema_version": number}
            meta["as_of"] = max(scn, self.as_of)
            meta |= {"source": SOURCE, "physical_source": "shop"}
            # As readers do: a column is spelled as in the newest version that is known.
            spelled = {find(known_names, name) or name: v for name, v in (values or {}).items()}
            records.append({**spelled, "_databus": meta})
        return pa.Table.from_pylist(records, schema)


def bring(
    target: Target,
    table: AlteredTable,
    batch_id: int,
    batch: pa.Table | None = None,
    between: Callable[[], None] | None = None,
) -> Applied:
    """Apply what was written; `between` is called between the table's ALTER and the batch."""
    batch = batch or table.batch()
    spark = SparkSession.getActiveSession()
    if target.merges_on_executors and spark is not None and between is None:
        changes = spark.createDataFrame(batch, schema=table.schema())
        return apply_changes(changes, batch_id, target, app_id="app")
    rows, key = SchemaFollower(SOURCE, table.texts, batch).lead(target, None)
    if between is not None:
        between()
    return target.apply("app", batch_id, target.changes_of(rows, key))


def rows_of(target: Target, table: AlteredTable, read: Callable[[Target], pa.Table]) -> list[Row]:
    """Return a target's rows in the columns that the source has now, by key."""
    found = [{name: row[name] for name in table.columns} for row in read(target).to_pylist()]
    return sorted(found, key=lambda row: row[table.key])


def rows_in(table: AlteredTable) -> list[Row]:
    """Return the source's rows by key."""
    return [table.rows[key] for key in sorted(table.rows)]
