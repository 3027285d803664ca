"""The files of an Iceberg table, read and written by Arrow here or on executors.

A column of a file is found by its field id, so files that were written before a
rename are read right. New files are Parquet with the ids of the table's schema.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.io import load_file_io
from pyiceberg.table import Table
from pyspark.sql import DataFrame, SparkSession

from databus.client.spark.session import parallelism
from databus.client.spark.targets.changes import AS_OF, SCN, Changes, cast_to, key_codes
from databus.client.spark.targets.executors import (
    FILE,
    PART_ROWS,
    FileChange,
    numbered_type,
    numbers,
)
from databus.client.spark.targets.merge_plan import covered_by, merged
from databus.schemas.errors import SettingsError

_ID = b"PARQUET:field_id"
# More of them share tasks.
_MANY_FILES = 16
# Types that differ from those of changes only in how long their values may be.
_SHORT = {pa.large_string(): pa.string(), pa.large_binary(): pa.binary()}


@dataclass(frozen=True, slots=True)
class Storage:
    """Where a table's files are, and its schema with field ids; it can be sent to executors."""

    location: str
    properties: Mapping[str, str]
    ids: pa.Schema

    @classmethod
    def of(cls, table: Table) -> Storage:
        """Return the storage of a table with its current schema."""
        return cls(table.location(), dict(table.io.properties), ids_of(table.schema().as_arrow()))

    def read(self, path: str, names: Sequence[str]) -> pa.Table:
        """Return columns of a file, as the table has them now."""
        io = load_file_io(dict(self.properties), self.location)
        with io.new_input(path).open() as stream, pq.ParquetFile(stream) as file:
            held = {
                (field.metadata or {}).get(_ID, field.name.encode()): field.name
                for field in file.schema_arrow
            }
            fields = [self.ids.field(name) for name in names]
            found = [held.get(one.metadata[_ID], held.get(one.name.encode())) for one in fields]
            rows = file.read([name for name in found if name is not None])
        columns = [
            pa.nulls(rows.num_rows, field.type) if name is None else rows[name].cast(field.type)
            for field, name in zip(fields, found, strict=True)
        ]
        plain = pa.schema([field.remove_metadata() for field in fields])
        return pa.table(columns, schema=plain)

    def write(self, rows: pa.Table) -> str:
        """Write rows of the table's schema to a new file; return its path."""
        path = f"{self.location.rstrip('/')}/data/{uuid.uuid4().hex}.parquet"
        io = load_file_io(dict(self.properties), self.location)
        with io.new_output(path).create() as stream:
            pq.write_table(rows.select(self.ids.names).cast(self.ids), stream)
        return path

    def write_all(self, rows: pa.Table) -> list[str]:
        """Write rows to as many files as they need; return their paths."""
        starts = range(0, rows.num_rows, PART_ROWS)
        return [self.write(rows.slice(start, PART_ROWS)) for start in starts]


def ids_of(schema: pa.Schema) -> pa.Schema:
    """Return a table's Arrow schema with field ids, in the types of changes."""
    return pa.schema(
        [
            pa.field(one.name, _SHORT.get(one.type, one.type), True, {_ID: one.metadata[_ID]})
            for one in schema
        ]
    )


class IcebergFiles:
    """The files of an Iceberg table at the version that was read.

    With `least_scn` only those that may have a row of that SCN or a higher one.
    """

    def __init__(
        self, table: Table, storage: Storage, uri: str, least_scn: int | None = None
    ) -> None:
        self._storage = storage
        scan = table.scan() if least_scn is None else table.scan(f"{SCN} >= {least_scn}")
        tasks = list(scan.plan_files())
        if table.spec().fields or any(task.delete_files for task in tasks):
            raise SettingsError(
                f"{uri}: a table with partitions, or with delete files of other writers, cannot "
                "be merged here: rewrite its data files, or choose a new table"
            )
        self.data_files = {task.file.file_path: task.file for task in tasks}

    def rows_by_path(self) -> Mapping[str, int]:
        """Return the number of rows of each file, by its path."""
        return {path: file.record_count for path, file in self.data_files.items()}

    def frame(self, spark: SparkSession, paths: Sequence[str]) -> DataFrame:
        """Return the rows of some files."""
        return self._read(spark, paths, self._storage.ids.names).drop(FILE)

    def columns(self, spark: SparkSession, names: Sequence[str]) -> DataFrame:
        """Return some columns of all rows, and in FILE the path of their file."""
        return self._read(spark, list(self.data_files), names)

    def paths_of(self, found: Collection[str]) -> list[str]:
        """Return the paths of the files that FILE has told."""
        return list(found)

    def writer(self) -> Callable[[pa.Table], str]:
        """Return a function that writes a file, and returns its path."""
        return self._storage.write

    def _read(self, spark: SparkSession, paths: Sequence[str], names: Sequence[str]) -> DataFrame:
        kind = pa.schema(
            [*(self._storage.ids.field(name).remove_metadata() for name in names)]
        ).append(pa.field(FILE, pa.string()))
        listed = spark.createDataFrame([(path,) for path in paths], "path string")
        found = listed.repartition(_tasks(spark, len(paths))).mapInArrow(
            partial(_read_files, storage=self._storage, names=list(names)),
            numbered_type(kind),
        )
        return found.toDF(*kind.names)

    def found(self, condition: pc.Expression, tested: Sequence[str]) -> Iterator[pa.Table]:
        """Yield the rows that fulfil a condition on some columns, read on this machine."""
        for path in self.data_files:
            if self._storage.read(path, tested).filter(condition).num_rows:
                yield self._storage.read(path, self._storage.ids.names).filter(condition)

    def merge_here(
        self, changes: Changes, schema: pa.Schema, *, takes_new: bool = True
    ) -> FileChange:
        """Merge changes on this machine, a file at a time; nothing is committed."""
        rows = changes.in_types_of(schema).rows
        is_left = np.ones(rows.num_rows, dtype=bool)
        removed, added, written, deleted = [], list[str](), 0, 0
        for path in self.data_files:
            names = dict.fromkeys([*changes.keys, SCN, AS_OF])
            known = self._storage.read(path, list(names))
            held_codes, codes = key_codes(
                [known.select(changes.keys), rows.select(changes.keys)], changes.keys
            )
            is_here = np.isin(codes, held_codes)
            if not is_here.any() and not any(covered_by(known, one).any() for one in changes.marks):
                continue
            is_left &= ~is_here
            mine = replace(changes, rows=rows.filter(pa.array(is_here)))
            held = cast_to(self._storage.read(path, schema.names), schema)
            table, *counts = merged(held, mine, takes_new=takes_new)
            if any(counts):
                removed.append(path)
                added += self._storage.write_all(table)
                written, deleted = written + counts[0], deleted + counts[1]
        new = replace(changes, rows=rows.filter(pa.array(is_left)), marks=())
        table, count, _ = merged(schema.empty_table(), new, takes_new=takes_new)
        added += self._storage.write_all(table)
        return FileChange(tuple(removed), tuple(added), written + count, deleted)


def _tasks(spark: SparkSession, files: int) -> int:
    """Return how many tasks read so many files: each one tells the driver some kB of metrics."""
    if files <= _MANY_FILES:
        return max(1, files)
    return min(files, max(_MANY_FILES, 2 * parallelism(spark)))


def _read_files(
    batches: Iterator[pa.RecordBatch], storage: Storage, names: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """Read the files whose paths a task was given."""
    for batch in batches:
        for path in batch.column(0).to_pylist():
            rows = storage.read(path, names)
            rows = rows.append_column(FILE, pa.repeat(pa.scalar(path), rows.num_rows))
            yield from rows.rename_columns(numbers(rows.num_columns)).to_batches()
