"""Merge a batch into a table's files on Spark's executors; the driver collects only small facts.

    batch ── convert, flat_rows ── by hash of the key ──┐
                                                        ├── net_rows, merged ── new files
    files with a row of these keys ── by hash of it ────┘

The rules are those of `changes` and `merge_plan`. They are applied to all rows of
some keys at a time, and marks to every part. The driver collects the batch's digest,
and the names of the files that are replaced and of the new ones, which it commits.
A task that Spark repeats leaves a file that no commit names.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame, SparkSession, functions as sf
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from databus.client.spark.arrow.row_keys import quoted
from databus.client.spark.arrow.row_types import arrow_schema
from databus.client.spark.targets.changes import (
    AS_OF,
    BOOKKEEPING,
    DELETE,
    MARK_OPS,
    META,
    OF_CHANGE,
    PLACE,
    SCN,
    SOURCE,
    Changes,
    Mark,
    cast_to,
    flat_rows,
    net_rows,
)
from databus.client.spark.targets.merge_plan import merged
from databus.client.sql.modes import WriteMode

Flatten = Callable[[pa.Table], pa.Table]
# Rows of a part, which a task holds in memory, and at most of a new file.
PART_ROWS = 250_000
_SAME = ("op", "source", "physical_source", "schema_version")
_PART, FILE = f"{OF_CHANGE}part", f"{OF_CHANGE}file"
_RESULT = "file string, written long, removed long"
_FLAT_META = {SOURCE: pa.string(), SCN: pa.int64(), AS_OF: pa.int64(), DELETE: pa.bool_()}


@dataclass(frozen=True, slots=True)
class ChangesFrame:
    """A batch of changes on executors, with what the driver knows of it; see `Changes`.

    `batch` is persisted by whoever made it. `flatten` makes `flat_rows` of a part of it.
    `columns`: the table's columns as the flat rows have them.
    """

    batch: DataFrame
    flatten: Flatten
    columns: pa.Schema
    keys: tuple[str, ...]
    marks: tuple[Mark, ...]
    positions: Mapping[str, int]
    newest_scn: int
    source: str | None = None
    count: int = 0
    mode: WriteMode = WriteMode.MIRROR
    notes: Mapping[str, int] | None = None
    made_of: Mapping[str, int] | None = None
    least_scn: int | None = None

    @property
    def schema(self) -> pa.Schema:
        """The schema of a table that is created for these rows."""
        names = [name for name in (SOURCE, SCN, AS_OF) if name != SOURCE or self.has_source]
        plain = [pa.field(field.name, field.type) for field in self.columns]
        return pa.schema([*plain, *((name, BOOKKEEPING[name]) for name in names)])

    @property
    def has_source(self) -> bool:
        """Whether rows name their source, which then is part of the key."""
        return SOURCE in self.keys

    def is_nothing(self) -> bool:
        """Return whether the batch was empty."""
        return not (self.count or self.marks or self.positions)


class Files(Protocol):
    """The files of a table at one version."""

    def rows_by_path(self) -> Mapping[str, int]:
        """Return the number of rows of each file, by its path for Spark."""

    def frame(self, spark: SparkSession, paths: Sequence[str]) -> DataFrame:
        """Return the rows of some files."""

    def columns(self, spark: SparkSession, names: Sequence[str]) -> DataFrame:
        """Return some columns of all rows, and in FILE what tells their file."""

    def paths_of(self, found: Collection[str]) -> list[str]:
        """Return the paths of the files that FILE has told."""

    def writer(self) -> Callable[[pa.Table], str]:
        """Return a function, to be run on executors, that writes a file and describes it."""


@dataclass(frozen=True, slots=True)
class FileChange:
    """Files to replace with new ones, in one commit; `added` as the writer described them."""

    removed: tuple[str, ...]
    added: tuple[str, ...]
    written: int
    deleted: int


class Digest(NamedTuple):
    """What the driver knows of a batch.

    `batch` is a small batch with the same marks, sources, versions and newest SCNs: one
    change of each kind, without values. `changes`: the number of the whole batch.
    """

    batch: pa.Table
    changes: int


def digest_of(batch: DataFrame) -> Digest:
    """Return the digest of a batch; one action."""
    meta = sf.col(META)
    is_mark = meta["op"].isin(*MARK_OPS)
    same = [meta[name].alias(name) for name in _SAME]
    # Each mark for itself, by its place; all others together.
    place = [sf.when(is_mark, meta[name]).alias(f"_{name}") for name in ("scn", "index")]
    newest = [sf.max(meta[name]).alias(name) for name in ("scn", "as_of")]
    grouped = batch.groupBy(*same, *place).agg(*newest, sf.count("*").alias("_count"))
    table = grouped.toArrow()
    told = {name: table[name] for name in (*_SAME, "scn", "as_of")} | {"index": table["_index"]}
    schema = arrow_schema(batch.schema)
    kind = [field.with_nullable(True) for field in schema.field(META).type]
    fields = [
        told[field.name].combine_chunks().cast(field.type)
        if field.name in told
        else pa.nulls(table.num_rows, field.type)
        for field in kind
    ]
    columns = {field.name: pa.nulls(table.num_rows, field.type) for field in schema}
    columns[META] = pa.StructArray.from_arrays(fields, fields=kind)
    return Digest(pa.table(columns), pc.sum(table["_count"]).as_py() or 0)


def frame_of(spark: SparkSession, changes: Changes) -> ChangesFrame:
    """Return changes that the driver has as changes on executors."""
    rows = changes.rows
    if not changes.has_source:
        # Marks have been applied to them: they are of no source.
        rows = rows.append_column(SOURCE, pa.repeat(pa.scalar(""), rows.num_rows))
    rows = rows.append_column(PLACE, pa.repeat(pa.scalar(0, pa.int32()), rows.num_rows))
    names = [name for name in rows.column_names if name not in {*_FLAT_META, PLACE}]
    rows = rows.select([*names, *_FLAT_META, PLACE])
    kind = from_arrow_schema(rows.schema, prefer_timestamp_ntz=True)
    return ChangesFrame(
        batch=spark.createDataFrame(rows, schema=kind),
        flatten=unchanged,
        columns=pa.schema([rows.schema.field(name) for name in names]),
        keys=changes.keys,
        marks=changes.marks,
        positions=changes.positions,
        newest_scn=changes.newest_scn,
        source=changes.source,
        count=rows.num_rows,
        mode=changes.mode,
        notes=changes.notes,
        made_of=changes.made_of,
        least_scn=changes.least_scn,
    )


def session_of(changes: Changes | ChangesFrame) -> SparkSession | None:
    """Return the session on whose executors changes can be merged; None if there is none."""
    if isinstance(changes, ChangesFrame):
        return changes.batch.sparkSession
    return SparkSession.getActiveSession()


@contextmanager
def persisted(batch: DataFrame) -> Iterator[DataFrame]:
    """Keep a batch on the executors, as each action would read it from the relay again."""
    kept = batch.persist(StorageLevel.MEMORY_AND_DISK)
    try:
        yield kept
    finally:
        kept.unpersist()


def unchanged(rows: pa.Table) -> pa.Table:
    """Return rows as they are."""
    return rows


def flattened(batch: pa.Table, convert: Flatten, keys: Sequence[str]) -> pa.Table:
    """Return the flat rows of a part of a batch, converted before."""
    return flat_rows(convert(batch), keys)


def merge_files(
    spark: SparkSession,
    changes: ChangesFrame,
    schema: pa.Schema,
    files: Files,
    *,
    takes_new: bool = True,
) -> FileChange:
    """Write the files that a table has after changes; nothing is committed.

    `schema`: the table's, with the columns and types of the changes.
    """
    if not changes.count and not changes.marks:
        return FileChange((), (), 0, 0)
    flat_schema = pa.schema(
        [
            *(schema.field(name) for name in changes.columns.names),
            *_FLAT_META.items(),
            (PLACE, pa.int32()),
        ]
    )
    flat = _flat(changes, flat_schema)
    rows_by_path = files.rows_by_path()
    paths = _touched(spark, changes, flat, files, rows_by_path)
    rows = changes.count + sum(rows_by_path[path] for path in paths)
    task = _Task(flat_schema, schema, changes.keys, changes.marks, takes_new, write=files.writer())
    parts = max(1, math.ceil(rows / PART_ROWS))
    held = files.frame(spark, paths)
    sides = [
        _numbered(frame, _part_of(changes.keys, parts)).groupBy(_PART) for frame in (flat, held)
    ]

    # Spark counts the parameters, and would count a method's `self`.
    def merge_part(flat: pa.Table, held: pa.Table) -> pa.Table:
        return task.merge(flat, held)

    found = sides[0].cogroup(sides[1]).applyInArrow(merge_part, _RESULT).toArrow()
    written, removed = (pc.sum(found[name]).as_py() or 0 for name in ("written", "removed"))
    if not written and not removed:
        # The new files have the rows of the old ones: leave those.
        return FileChange((), (), 0, 0)
    added = tuple(name for name in found["file"].to_pylist() if name is not None)
    return FileChange(tuple(paths), added, written, removed)


@dataclass(frozen=True, slots=True)
class _Task:
    """The merge of the changes and the rows of some keys, on an executor."""

    flat: pa.Schema
    schema: pa.Schema
    keys: tuple[str, ...]
    marks: tuple[Mark, ...]
    takes_new: bool
    write: Callable[[pa.Table], str]

    def merge(self, flat: pa.Table, held: pa.Table) -> pa.Table:
        """Write the file of these rows; return its description and what was done, in one row."""
        rows = net_rows(_named(flat, self.flat), self.keys, self.marks)
        changes = Changes(rows, self.keys, self.marks, {})
        held = _named(held, self.schema)
        table, written, removed = merged(held, changes, takes_new=self.takes_new)
        file = self.write(table) if table.num_rows else None
        return pa.table(
            {
                "file": pa.array([file], pa.string()),
                "written": pa.array([written], pa.int64()),
                "removed": pa.array([removed], pa.int64()),
            }
        )


def _flat(changes: ChangesFrame, schema: pa.Schema) -> DataFrame:
    """Return the flat rows of a batch, in the types of the table."""
    flatten, names = changes.flatten, changes.batch.columns

    def flatten_part(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            part = pa.Table.from_batches([batch]).rename_columns(names)
            flat = cast_to(flatten(part), schema)
            yield from flat.rename_columns(numbers(flat.num_columns)).to_batches()

    kind = numbered_type(schema)
    return _numbered(changes.batch).mapInArrow(flatten_part, kind).toDF(*schema.names)


def _numbered(frame: DataFrame, part: Column | None = None) -> DataFrame:
    """Return a frame with numbers for names: Spark's Arrow functions refuse some names.

    `part` is added as the last column.
    """
    names = numbers(len(frame.columns))
    return frame.toDF(*names) if part is None else frame.withColumn(_PART, part).toDF(*names, _PART)


def _named(part: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return the columns that `_numbered` has numbered, with their names and types."""
    return part.select(range(len(schema))).rename_columns(schema.names).cast(schema)


def numbers(count: int) -> list[str]:
    """Return numbered names of columns."""
    return [f"c{number}" for number in range(count)]


def numbered_type(schema: pa.Schema) -> StructType:
    """Return Spark's type of a schema whose columns have numbered names."""
    kind = pa.schema(list(zip(numbers(len(schema)), schema.types, strict=True)))
    return from_arrow_schema(kind, prefer_timestamp_ntz=True)


def _touched(
    spark: SparkSession,
    changes: ChangesFrame,
    flat: DataFrame,
    files: Files,
    rows_by_path: Mapping[str, int],
) -> list[str]:
    """Return the paths of the files that have a row of a changed key, or that a mark removes."""
    if not rows_by_path:
        return []
    keys = [quoted(key) for key in changes.keys]
    names = [*changes.keys, *(name for name in (SCN, AS_OF) if changes.marks)]
    if changes.least_scn is not None and SCN not in names:
        names.append(SCN)
    held = files.columns(spark, names)
    if changes.least_scn is not None and not changes.marks:
        # Parquet's statistics tell which files have no such row.
        held = held.where(sf.col(SCN) >= changes.least_scn)
    found = held.join(flat.select(*keys).distinct(), list(changes.keys), "left_semi").select(FILE)
    for mark in changes.marks:
        found = found.union(held.where(_may_go(mark, changes)).select(FILE))
    paths = files.paths_of(found.distinct().toArrow()[FILE].to_pylist())
    strange = set(paths) - set(rows_by_path)
    assert not strange, f"Spark read files that the table has not: {strange}"
    return paths


def _may_go(mark: Mark, changes: ChangesFrame) -> Column:
    """Return the condition for rows that a mark may remove: the batch may prove that they exist."""
    gone = sf.coalesce(sf.col(SCN), sf.lit(-1)) <= mark.scn
    if not mark.is_truncate:
        gone &= sf.coalesce(sf.col(AS_OF), sf.lit(-1)) < mark.scn
    return gone & (sf.col(SOURCE) == mark.source) if changes.has_source else gone


def _part_of(keys: Collection[str], parts: int) -> Column:
    return sf.pmod(sf.hash(*(sf.col(quoted(key)) for key in keys)), sf.lit(parts))
