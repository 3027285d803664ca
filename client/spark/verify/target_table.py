"""A target, as a comparison reads it with Spark: digests of chunks, and rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.functions import arrow_udf
from pyspark.sql.types import StructField, StructType

from databus.client.spark.avro_columns import AvroColumn
from databus.client.spark.row_types import arrow_schema, spark_type
from databus.client.spark.targets.changes import SCN, SOURCE
from databus.client.spark.targets.target import Target
from databus.client.spark.verify.chunks import ChunkDigest, Chunks, Digests, KeyRanges
from databus.client.spark.verify.shape import Key, Row, Shape
from databus.client.spark.verify.spark_texts import digest_of, quoted, value_of
from databus.schemas.errors import SettingsError

MOST_SPANS = 200  # ranges that Spark is told of, so that files without them are left out
_CHUNK, _DIGEST = "_databus_chunk", "_databus_digest"


class TargetTable:
    """One table that was filled from a source; rows have the columns of `shape` and `_databus_scn`.

    Raises SettingsError for a target that lacks a column.
    """

    def __init__(self, target: Target, shape: Shape, spark: SparkSession) -> None:
        self.shape = shape
        self._target = target
        self._spark = spark
        names = self._target.rows(spark).columns
        missing = [name for name in shape.names if name not in names]
        if missing:
            raise SettingsError(
                f"target {target.uri} has no column {missing[0]!r}; compare only those that it "
                f"has: --columns {','.join(name for name in shape.names if name in names)}"
            )

    def position(self, physical_source: str) -> int | None:
        """Return the SCN up to which everything is applied; None when nobody has noted it."""
        return self._target.positions().get(physical_source)

    def digests(self, chunks: Chunks) -> Digests:
        """Return the digests of all chunks that have rows, in one pass over the table."""
        rows = self._rows().select(
            chunk_column(chunks, self.shape).alias(_CHUNK),
            digest_of(self.shape.columns, self.shape.dialect).alias(_DIGEST),
        )
        found = rows.groupBy(_CHUNK).agg(F.count("*"), F.bit_xor(_DIGEST)).collect()
        return {chunk: ChunkDigest(count, digest) for chunk, count, digest in found}

    def rows(self, chunks: Chunks, numbers: Sequence[int]) -> Iterator[Row]:
        """Yield the rows of some chunks."""
        return self._fetch(in_chunks(chunks, numbers, self.shape))

    def rows_of_keys(self, keys: Sequence[Key]) -> dict[Key, Row]:
        """Return the rows that have these keys, by key."""
        wanted = key_table(self.shape, keys)
        rows = self._rows()
        frame = self._spark.createDataFrame(wanted)
        same = [
            value_of(column).eqNullSafe(F.col(f"key.{quoted(f'k{at}')}"))
            for at, column in enumerate(self.shape.key)
        ]
        condition = same[0]
        for one in same[1:]:
            condition = condition & one
        found = rows.join(F.broadcast(frame.alias("key")), condition, "left_semi")
        return {self.shape.key_of(row): row for row in self._collect(found)}

    def _rows(self) -> DataFrame:
        rows = self._target.rows(self._spark)
        if SOURCE in rows.columns:
            rows = rows.where(F.col(SOURCE) == self.shape.source)
        return rows

    def _fetch(self, condition: Column) -> Iterator[Row]:
        return self._collect(self._rows().where(condition))

    def _collect(self, rows: DataFrame) -> Iterator[Row]:
        scn = [F.col(SCN)] if SCN in rows.columns else [F.lit(None).cast("bigint").alias(SCN)]
        columns = [value_of(column).alias(column.name) for column in self.shape.columns]
        for batch in rows.select(*columns, *scn).toArrow().to_batches():
            yield from batch.to_pylist()


def key_table(shape: Shape, keys: Sequence[Key]) -> pa.Table:
    """Return keys as a table of the columns k0, k1, … of the types they have in Spark."""
    fields = [StructField(f"k{at}", spark_type(column)) for at, column in enumerate(shape.key)]
    schema = arrow_schema(StructType(fields))
    return pa.Table.from_pylist(
        [{f"k{at}": value for at, value in enumerate(key)} for key in keys], schema=schema
    )


def chunk_column(
    chunks: Chunks, shape: Shape, value: Callable[[AvroColumn], Column] = value_of
) -> Column:
    """Return the number of the chunk that a row is in; `value` is where its columns are."""
    if not isinstance(chunks, KeyRanges):
        return F.pmod(digest_of(shape.key, shape.dialect, value), F.lit(chunks.count))
    if not chunks.bounds:
        return F.lit(0)
    return _range_of(chunks.bounds)(value(shape.key[0]).cast("bigint"))


def in_chunks(
    chunks: Chunks,
    numbers: Sequence[int],
    shape: Shape,
    value: Callable[[AvroColumn], Column] = value_of,
) -> Column:
    """Return the condition that a row is in some chunks."""
    if isinstance(chunks, KeyRanges):
        spans = chunks.spans(numbers)
        if len(spans) <= MOST_SPANS:
            key = value(shape.key[0])
            condition = F.lit(False)
            for span in spans:
                within = F.lit(True)
                if span.after is not None:
                    within = within & (key > span.after)
                if span.last is not None:
                    within = within & (key <= span.last)
                condition = condition | within
            return condition
    return chunk_column(chunks, shape, value).isin(list(numbers))


def _range_of(bounds: Sequence[int]):  # type: ignore[no-untyped-def]  # of a UDF: no public type
    ends = np.array(bounds, dtype=np.int64)

    def numbers(keys: pa.Array) -> pa.Array:
        # A target may have no value where the source's key has one.
        found = np.searchsorted(ends, keys.fill_null(0).to_numpy(zero_copy_only=False), "left")
        return pa.array(found.astype(np.int32), pa.int32())

    return arrow_udf(numbers, "int")
