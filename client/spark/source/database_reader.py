"""`spark.read` of a table from its source database, through the project's own scan.

A table with an integer key is read in key ranges, each by its own task; any other
table by one task. Each task reads its rows in chunks, and each chunk at its own
moment: concurrent writes are visible in some chunks and not in others. mode=table
reads a table as of one moment.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.types import StructType

from databus.client.arrow.arrow_types import HEAD_TYPES, RowBatch, stored_type
from databus.client.spark.arrow.column_plan import ColumnPlan, Frame
from databus.client.spark.arrow.predicate import condition_of
from databus.client.spark.arrow.row_types import (
    arrow_schema,
    changes_schema,
    check_text_columns,
    choose_columns,
    row_schema,
)
from databus.client.spark.options import SourceOptions, parse_options
from databus.conf.loading import load_settings
from databus.conf.settings import PhysicalSourceSettings, RelaySettings
from databus.relay.sources.kind import open_scan
from databus.relay.sources.table_scan import NO_KEY_RANGES, Chunk, KeyRange, TableScan
from databus.schemas.columns.any_text import any_text
from databus.schemas.columns.avro_columns import AvroColumn, Kind, WriterSchema
from databus.schemas.errors import ReadAgainError, SettingsError
from databus.schemas.filters import AnyOf, EventFilter, NoFilter, RangeFilter
from databus.schemas.table import Table
from databus.schemas.table_schema import avro_schema

DEFAULT_PARTITIONS = 2
_LEAST, _GREATEST = -(1 << 63), (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class DatabasePartition:
    """A range of a table's keys (None: all keys), and the settings of its database.

    It does not contain the password: each worker reads the file that the settings name.
    """

    database: PhysicalSourceSettings
    table: Table
    within: KeyRange | None


class DatabaseReader:
    """Plans and reads one table; `schema` is what `columns` returned, or part of it."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        """Raise SettingsError for wrong options."""
        self._options = _checked(parse_options(options))
        self._source = self._options.sources[0]
        self._schema = schema

    @classmethod
    def columns(cls, options: Mapping[str, str]) -> StructType:
        """Return the table's current columns; raises DatabusError."""
        parsed = _checked(parse_options(options))
        with closing(_opened(_database(parsed))) as scan:
            rows = _row_type(parsed, scan.table(parsed.sources[0]))
        condition_of(parsed.where, arrow_schema(rows))  # a wrong one is refused before any task
        return choose_columns(rows, parsed.columns)

    def partitions(self) -> list[DatabasePartition]:
        """Return the partitions of the tasks; raises DatabusError."""
        database = _database(self._options)
        with closing(_opened(database)) as scan:
            table = scan.table(self._source)
            whole = scan.key_range(self._source)
        wanted = _wanted_range(self._options.filters.get(self._source))
        if whole is None:
            if wanted is not None:
                raise ReadAgainError(NO_KEY_RANGES.format(self._source))
            return [DatabasePartition(database, table, None)]
        # Open the outer ranges, so that rows inserted beyond the ends are read too.
        ends = wanted or KeyRange(min(whole.first, _LEAST), max(whole.last, _GREATEST))
        begin, end = max(whole.first, ends.first), min(whole.last, ends.last)
        inner = KeyRange(begin, end) if begin <= end else ends
        parts = inner.split(self._options.partitions or DEFAULT_PARTITIONS)
        parts[0] = KeyRange(ends.first, parts[0].last)
        parts[-1] = KeyRange(parts[-1].first, ends.last)
        return [DatabasePartition(database, table, part) for part in parts]

    def read(self, partition: DatabasePartition) -> Iterator[pa.RecordBatch]:
        """Yield a partition's rows as batches with exactly the schema; raises SourceError."""
        options, source = self._options, self._source
        rows = RowBatches(options, partition.table, self._schema)
        with closing(_opened(partition.database)) as scan:
            if partition.within is None:
                chunks = scan.chunks(source, options.batch_rows)
            else:
                chunks = scan.chunks_within(source, options.batch_rows, partition.within)
            for chunk in chunks:
                if chunk.rows:
                    yield rows.batch(chunk)


class RowBatches:
    """Converts scanned rows to Arrow batches, with the same values as in the stream."""

    def __init__(self, options: SourceOptions, table: Table, schema: StructType) -> None:
        self._options = options
        rows = _row_type(options, table)
        self._target = arrow_schema(schema)
        shape = arrow_schema(changes_schema({table.source: rows}, "columns", False))
        self._frame = Frame(shape, "columns", "", 0)
        self._condition = condition_of(options.where, arrow_schema(rows))
        self._plans: dict[Table, ColumnPlan] = {}
        self._plan(table)

    def batch(self, chunk: Chunk) -> pa.RecordBatch:
        """Return a chunk's rows that fulfil the condition; raises SchemaError for new columns."""
        plan = self._plan(chunk.table)
        rows = chunk.rows
        arrays = [_array(column, rows) for column in plan.columns]
        # Rows of a scan have no SCN and no other fields of a change.
        heads = tuple(pa.nulls(len(rows), of_type) for of_type in HEAD_TYPES.values())
        batch = plan.batch(RowBatch(len(rows), heads, arrays, None, None))
        if self._condition is not None:
            batch = self._condition.rows(batch)
        # Spark may have asked for some columns only.
        found = [batch.column(name) for name in self._target.names]
        return pa.RecordBatch.from_arrays(found, schema=self._target)

    def _plan(self, table: Table) -> ColumnPlan:
        plan = self._plans.get(table)
        if plan is None:
            # The table may be altered while it is read: number the versions as they appear.
            version = len(self._plans) + 1
            schema = WriterSchema(table.source, 0, version, avro_schema(table))
            options = self._options
            plan = ColumnPlan(schema, self._frame, options.on_new_column, options.columns_as_text)
            self._plans[table] = plan
        return plan


def _array(column: AvroColumn, rows: Any) -> pa.Array:
    name = column.name
    if column.kind in (Kind.ANY, Kind.WIDE_DECIMAL):
        return pa.array([any_text(row[name]) for row in rows], stored_type(column))
    return pa.array([row[name] for row in rows], stored_type(column))


def _checked(options: SourceOptions) -> SourceOptions:
    if len(options.sources) != 1:
        raise SettingsError(
            f"option sources = {','.join(options.sources)}: mode=database reads one table"
        )
    if options.settings is None:
        raise SettingsError(
            "option settings is missing: the relay's settings file, with the database's URI"
        )
    return options


def physical_source_of(source: str, file: Path) -> PhysicalSourceSettings:
    """Return the physical source of a source, from a relay's settings file.

    Raises SettingsError if the file does not have the source.
    """
    settings = load_settings(file, RelaySettings)
    for physical in settings.physical_sources:
        if (having := physical.with_source(source)) is not None:
            return having
    known = [name for one in settings.physical_sources for name in one.source_names]
    raise SettingsError(f"{file} has no source {source!r}; it has {', '.join(sorted(known))}")


def _database(options: SourceOptions) -> PhysicalSourceSettings:
    assert options.settings is not None, "checked"
    return physical_source_of(options.sources[0], options.settings)


def _wanted_range(wanted: EventFilter | None) -> KeyRange | None:
    if isinstance(wanted, AnyOf) and len(wanted.filters) == 1:
        wanted = wanted.filters[0]
    if wanted is None or isinstance(wanted, NoFilter):
        return None
    if isinstance(wanted, RangeFilter):
        return KeyRange(wanted.start, wanted.end - 1)
    raise SettingsError("option filters: mode=database supports one RANGE, or none")


def _opened(database: PhysicalSourceSettings) -> TableScan:
    scan = open_scan(database)
    scan.open()
    return scan


def _row_type(options: SourceOptions, table: Table) -> StructType:
    versions = [WriterSchema(table.source, 0, 1, avro_schema(table))]
    check_text_columns(versions, options.columns_as_text)
    return row_schema(versions, options.columns_as_text)
