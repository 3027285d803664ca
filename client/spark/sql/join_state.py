"""The mirrors of a JOIN: a Delta table of each source, as it is after the last batch.

They lie in the job's folder and nobody else reads them. Each takes the job's
batches exactly once, by the rules of `targets.changes`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import LongType, StructField, StructType

from databus.client.spark.arrow.row_types import CHANGE_COLUMN
from databus.client.spark.sql.plan import Feed, Mirror
from databus.client.spark.targets.changes import SCN, Changes, changes_of
from databus.client.spark.targets.target import Target, open_target

TIDY_EVERY = 50  # batches


@dataclass(frozen=True, slots=True)
class MirrorTable:
    """One source's mirror. `row` is the type of its columns."""

    feed: Feed
    kept: Mirror
    row: StructType
    target: Target

    def changes(self, batch: pa.Table) -> Changes:
        """Return what a batch, in the shape of `feeds`, has for this source."""
        return changes_of(_rows_of(batch, self.feed, self.kept.columns), self.kept.key)

    def rows(self, spark: SparkSession) -> DataFrame:
        """Return the rows as they are now, and their SCNs."""
        if self.target.schema() is None:  # nothing has come yet
            return spark.createDataFrame([], self._type())
        return self.target.rows(spark).select(*self.kept.columns, SCN)

    def _type(self) -> StructType:
        return StructType([*self.row, StructField(SCN, LongType())])


def open_mirrors(
    kept: Mapping[Feed, Mirror], rows: Mapping[Feed, StructType], folder: Path
) -> dict[Feed, MirrorTable]:
    """Open the mirrors in a folder; they are made by their first changes."""
    return {
        feed: MirrorTable(
            feed,
            mirror,
            StructType([rows[feed][name] for name in mirror.columns]),
            open_target(
                f"delta:{folder / feed.label}",
                mirror.key,
                optimize_every=TIDY_EVERY,
                vacuum_hours=0,  # the only reader is done with a version when the next one comes
            ),
        )
        for feed, mirror in kept.items()
    }


def _rows_of(batch: pa.Table, feed: Feed, columns: tuple[str, ...]) -> pa.Table:
    """Return a source's changes in layout `columns`, with these columns alone."""
    meta = batch[CHANGE_COLUMN]
    is_ours = pc.equal(pc.struct_field(meta, "source"), feed.source)
    if feed.physical_source:
        physical = pc.equal(pc.struct_field(meta, "physical_source"), feed.physical_source)
        is_ours = pc.and_(is_ours, physical)
    ours = batch.filter(is_ours).combine_chunks()
    row, before = (_struct(ours[feed.label], side) for side in ("row", "before"))
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
    if isinstance(whole, pa.ChunkedArray):
        return pa.concat_arrays(whole.chunks) if whole.chunks else pa.array([], column.type)
    return whole


def _structs_of(fields: Mapping[str, pa.Array], like: pa.StructArray) -> pa.StructArray:
    """Return structs of these fields, null where another column is."""
    return pa.StructArray.from_arrays(
        list(fields.values()), names=list(fields), mask=like.is_null()
    )
