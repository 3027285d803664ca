"""The target of a comparison, read with Spark: digests of chunks, and rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import reduce
from operator import and_, or_

import numpy as np
import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession, functions as sf
from pyspark.sql.types import StructField, StructType

from databus.client.spark.arrow.row_types import arrow_schema, spark_type
from databus.client.spark.targets.changes import SCN, SOURCE
from databus.client.spark.targets.target import Target
from databus.client.spark.verify.chunks import ChunkDigest, Chunks, Digests, KeyRanges, Span
from databus.client.spark.verify.spark_texts import digest_of, in_python, value_of
from databus.client.spark.verify.table_shape import Key, Row, Shape
from databus.schemas.errors import SettingsError

MOST_SPANS = 200  # ranges in a Spark filter, with which Spark skips files
_CHUNK, _DIGEST = "_databus_chunk", "_databus_digest"


class TargetTable:
    """A table that was filled from a source; rows have the columns of `shape` and `_databus_scn`.

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
        """Return the SCN up to which everything is applied; None if it is not recorded."""
        return self._target.positions().get(physical_source)

    def digests(self, chunks: Chunks) -> Digests:
        """Return the digests of all chunks that have rows, in one pass over the table."""
        rows = self._rows().select(
            _chunk_of(chunks, self.shape).alias(_CHUNK),
            digest_of(self.shape.columns, self.shape.dialect).alias(_DIGEST),
        )
        found = rows.groupBy(_CHUNK).agg(sf.count("*"), sf.bit_xor(_DIGEST)).collect()
        return {chunk: ChunkDigest(count, digest) for chunk, count, digest in found}

    def rows(self, chunks: Chunks, numbers: Sequence[int]) -> Iterator[Row]:
        """Yield the rows of some chunks."""
        return self._fetch(_is_in(chunks, numbers, self.shape))

    def rows_of_keys(self, keys: Sequence[Key]) -> dict[Key, Row]:
        """Return the rows that have these keys, by key."""
        frame, is_same = key_frame(self._spark, self.shape, keys)
        found = self._rows().join(sf.broadcast(frame), is_same, "left_semi")
        return {self.shape.key_of(row): row for row in self._collect(found)}

    def _rows(self) -> DataFrame:
        rows = self._target.rows(self._spark)
        # A table of several sources: only this one's rows are compared.
        if SOURCE in rows.columns:
            rows = rows.where(sf.col(SOURCE) == self.shape.source)
        return rows

    def _fetch(self, condition: Column) -> Iterator[Row]:
        return self._collect(self._rows().where(condition))

    def _collect(self, rows: DataFrame) -> Iterator[Row]:
        scn = [sf.col(SCN)] if SCN in rows.columns else [sf.lit(None).cast("bigint").alias(SCN)]
        columns = [value_of(column).alias(column.name) for column in self.shape.columns]
        for batch in rows.select(*columns, *scn).toArrow().to_batches():
            yield from batch.to_pylist()


def key_frame(spark: SparkSession, shape: Shape, keys: Sequence[Key]) -> tuple[DataFrame, Column]:
    """Return keys as a DataFrame, and the condition that a row has one of them."""
    names = [f"_databus_key_{at}" for at in range(len(shape.key))]
    pairs = list(zip(names, shape.key, strict=True))
    schema = arrow_schema(StructType([StructField(n, spark_type(column)) for n, column in pairs]))
    table = pa.Table.from_pylist([dict(zip(names, key, strict=True)) for key in keys], schema)
    is_same = reduce(and_, (value_of(column) == sf.col(name) for name, column in pairs))
    return spark.createDataFrame(table), is_same


def _chunk_of(chunks: Chunks, shape: Shape) -> Column:
    """Return the number of the chunk that a row is in."""
    if not isinstance(chunks, KeyRanges):
        return sf.pmod(digest_of(shape.key, shape.dialect), sf.lit(chunks.count))
    if not chunks.bounds:
        return sf.lit(0)
    return _range_of(chunks.bounds)(value_of(shape.key[0]).cast("bigint"))


def _is_in(chunks: Chunks, numbers: Sequence[int], shape: Shape) -> Column:
    """Return the condition that a row is in one of some chunks."""
    spans = chunks.spans(numbers) if isinstance(chunks, KeyRanges) else []
    # With too many ranges Spark would spend its time on the filter.
    if not 0 < len(spans) <= MOST_SPANS:
        return _chunk_of(chunks, shape).isin(list(numbers))
    key = value_of(shape.key[0])
    return reduce(or_, (_is_within(key, span) for span in spans))


def _is_within(key: Column, span: Span) -> Column:
    condition = sf.lit(True)
    if span.after is not None:
        condition = condition & (key > span.after)
    if span.last is not None:
        condition = condition & (key <= span.last)
    return condition


def _range_of(bounds: Sequence[int]) -> Callable[[Column], Column]:
    ends = np.array(bounds, dtype=np.int64)

    def numbers(keys: pa.Array) -> pa.Array:
        # The target's key column may have nulls.
        found = np.searchsorted(ends, keys.fill_null(0).to_numpy(zero_copy_only=False), "left")
        return pa.array(found.astype(np.int32), pa.int32())

    return in_python(numbers, "int")
