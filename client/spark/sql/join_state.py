"""The state of a JOIN: one Delta table per source, which equals the source after each batch.

The tables lie in the folder `mirrors` of the job's checkpoint. Only the job reads
them. Each takes the job's batches exactly once, by the rules of `targets.changes`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import LongType, StructField, StructType

from databus.client.spark.arrow.row_types import CHANGE_COLUMN
from databus.client.spark.sql.plan import SourceStream, StateColumns
from databus.client.spark.targets.changes import SCN, Changes, changes_of
from databus.client.spark.targets.target import Target, open_target

TIDY_EVERY = 50  # batches


@dataclass(frozen=True, slots=True)
class StateTable:
    """The state of one source; `row` is the type of its columns."""

    stream: SourceStream
    kept: StateColumns
    row: StructType
    target: Target

    def changes(self, batch: pa.Table) -> Changes:
        """Return this source's changes in a batch that has the shape of `source_streams`."""
        return changes_of(_rows_of(batch, self.stream, self.kept.columns), self.kept.key)

    def rows(self, spark: SparkSession) -> DataFrame:
        """Return the current rows with their SCNs."""
        if self.target.schema() is None:  # no change has arrived yet
            return spark.createDataFrame([], self._type())
        return self.target.rows(spark).select(*self.kept.columns, SCN)

    def _type(self) -> StructType:
        return StructType([*self.row, StructField(SCN, LongType())])


JoinState: TypeAlias = Mapping[SourceStream, StateTable]


def open_join_state(
    columns: Mapping[SourceStream, StateColumns],
    rows: Mapping[SourceStream, StructType],
    folder: Path,
) -> JoinState:
    """Open the join state in a folder; the first changes create its tables."""
    return {
        stream: StateTable(
            stream,
            kept,
            StructType([rows[stream][name] for name in kept.columns]),
            open_target(
                f"delta:{folder / stream.label}",
                kept.key,
                optimize_every=TIDY_EVERY,
                vacuum_hours=0,  # the only reader is done with a version when the next one comes
            ),
        )
        for stream, kept in columns.items()
    }


def _rows_of(batch: pa.Table, stream: SourceStream, columns: tuple[str, ...]) -> pa.Table:
    """Return a source's changes in layout `columns`, with only these columns."""
    meta = batch[CHANGE_COLUMN]
    is_ours = pc.equal(pc.struct_field(meta, "source"), stream.source)
    if stream.physical_source:
        physical = pc.equal(pc.struct_field(meta, "physical_source"), stream.physical_source)
        is_ours = pc.and_(is_ours, physical)
    ours = batch.filter(is_ours).combine_chunks()
    row, before = (_struct(ours[stream.label], side) for side in ("row", "before"))
    change = _struct_array(ours[CHANGE_COLUMN])
    images = _structs_of({name: pc.struct_field(before, name) for name in columns}, before)
    fields = {field.name: pc.struct_field(change, field.name) for field in change.type}
    return pa.table(
        {name: pc.struct_field(row, name) for name in columns}
        | {CHANGE_COLUMN: _structs_of(fields | {"before": images}, change)}
    )


def _struct(column: pa.ChunkedArray, field: str) -> pa.StructArray:
    return pc.struct_field(_struct_array(column), field)


def _struct_array(column: pa.ChunkedArray) -> pa.StructArray:
    whole = column.combine_chunks()
    # combine_chunks() may leave several chunks, or none.
    if isinstance(whole, pa.ChunkedArray):
        return pa.concat_arrays(whole.chunks) if whole.chunks else pa.array([], column.type)
    return whole


def _structs_of(fields: Mapping[str, pa.Array], like: pa.StructArray) -> pa.StructArray:
    """Return structs of these fields, null where `like` is null."""
    return pa.StructArray.from_arrays(
        list(fields.values()), names=list(fields), mask=like.is_null()
    )
