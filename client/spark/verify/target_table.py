"""The target of a comparison, read with Spark: digests of chunks, and rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import reduce
from operator import and_, or_

import numpy as np
import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession, functions as sf
from pyspark.sql.types import StructField, StructType

from databus.client.spark.arrow.row_keys import split_moves
from databus.client.spark.arrow.row_types import CHANGE_COLUMN, arrow_schema, spark_type
from databus.client.spark.targets.changes import MARK_OPS, SCN, SOURCE
from databus.client.spark.targets.target import Target
from databus.client.spark.verify.chunks import ChunkDigest, Chunks, Digests, KeyRanges, Span
from databus.client.spark.verify.spark_texts import digest_of, in_python, value_of
from databus.client.spark.verify.table_shape import Key, Row, Shape
from databus.schemas.errors import SettingsError

MOST_SPANS = 200  # ranges in a Spark filter, with which Spark skips files
_CHUNK, _DIGEST = "_databus_chunk", "_databus_digest"
_KEY, _PLACE, _IS_ROW, _OP = "_databus_key_{}", "_databus_place", "_databus_is_row", "_databus_op"
_FIRST = -1  # the SCN of what was read, which is before any change
Place = tuple[int, int]  # SCN, index in its window


class TargetTable:
    """A table that was filled from a source; rows have the columns of `shape` and `_databus_scn`.

    Raises SettingsError for a target that lacks a column.
    """

    def __init__(self, target: Target, shape: Shape, spark: SparkSession) -> None:
        self.shape = shape
        self._target = target
        self._spark = spark
        names = self._target.live_rows(spark).columns
        missing = [name for name in shape.names if name not in names]
        if missing:
            both = ",".join(name for name in shape.names if name in names)
            raise SettingsError(
                f"target {target.uri} has no column {missing[0]!r}. It comes with the table's next "
                "row, or within 10 seconds of a `databus spark sync` that runs; until then compare "
                f"the columns that the target has: --columns {both}"
            )

    def position(self, physical_source: str) -> int | None:
        """Return the SCN up to which everything is applied; None if it is not recorded."""
        return self._target.positions().get(physical_source)

    def digests(self, chunks: Chunks, numbers: Sequence[int] | None = None) -> Digests:
        """Return the digests of all chunks, or of some, that have rows, in one pass."""
        held = self._rows()
        if numbers is not None:
            held = held.where(_is_in(chunks, numbers, self.shape))
        rows = held.select(
            _chunk_of(chunks, self.shape).alias(_CHUNK),
            digest_of(self.shape.columns, self.shape.dialect).alias(_DIGEST),
        )
        found = rows.groupBy(_CHUNK).agg(sf.count("*"), sf.bit_xor(_DIGEST)).collect()
        return {chunk: ChunkDigest(count, digest) for chunk, count, digest in found}

    def keep_digests(self) -> DataFrame:
        """Read the key and the digest of every row now, and keep them for `digests_at`."""
        # A lost block ends the job. Spark would read a cached frame's rows again, and find others.
        return self._rows().select(*_digested(self.shape)).localCheckpoint(eager=True)

    def digests_at(
        self,
        kept: DataFrame,
        changes: DataFrame,
        is_row: Column,
        chunks: Chunks,
        ends: Sequence[Place],
    ) -> dict[int, ChunkDigest]:
        """Return the digest of each chunk as of its own place; empty chunks are missing.

        `changes`: those since the SCN up to which the kept rows are complete. `is_row`: the
        condition that a row exists after a change. `ends`: the places by chunk number, none
        of them before anything that the kept rows have.
        """
        changed = _digested_changes(changes, is_row, self.shape).persist()
        try:
            empties = changed.where(sf.col(_OP) == "truncate")
            truncates = [tuple(row) for row in empties.select(f"{_PLACE}.*").collect()]
            first = sf.struct(sf.lit(_FIRST).cast("bigint").alias("scn"), sf.lit(-1).alias("index"))
            first_rows = kept.withColumns({_PLACE: first, _IS_ROW: sf.lit(True)})
            # Unlike a join, a union keeps rows of the target that have the same key.
            changed_rows = changed.where(~sf.col(_OP).isin(*MARK_OPS)).drop(_OP)
            both = first_rows.unionByName(changed_rows).withColumn(_CHUNK, _chunk_of_key(chunks))
            rows = _rows_at(both, ends, truncates, len(self.shape.key))
            found = rows.groupBy(_CHUNK).agg(sf.sum("rows"), sf.bit_xor(_DIGEST)).collect()
        finally:
            changed.unpersist()
        return {chunk: ChunkDigest(rows, digest or 0) for chunk, rows, digest in found if rows}

    def rows(self, chunks: Chunks, numbers: Sequence[int]) -> Iterator[Row]:
        """Yield the rows of some chunks."""
        return self._fetch(_is_in(chunks, numbers, self.shape))

    def rows_with_keys(self, keys: Sequence[Key]) -> Iterator[Row]:
        """Yield the rows that have these keys, several of a key if the target has them."""
        frame, is_same = key_frame(self._spark, self.shape, keys)
        return self._collect(self._rows().join(sf.broadcast(frame), is_same, "left_semi"))

    def _rows(self) -> DataFrame:
        rows = self._target.live_rows(self._spark)
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


def check_holds(target: Target, source: str) -> None:
    """Raise SettingsError for a target that is recorded to have another source's rows."""
    known, schema = target.sources(), target.schema()
    if not known or source in known or (schema is not None and SOURCE in schema.names):
        return
    held = " and ".join(known)
    raise SettingsError(
        f"target {target.uri} has the rows of {held}, not of {source}: compare it with {held}, or "
        f"name the target of {source}"
    )


def key_frame(spark: SparkSession, shape: Shape, keys: Sequence[Key]) -> tuple[DataFrame, Column]:
    """Return keys as a DataFrame, and the condition that a row has one of them.

    A damaged target may have a null in a key, and such a row must be found, too.
    """
    names = [f"_databus_key_{at}" for at in range(len(shape.key))]
    pairs = list(zip(names, shape.key, strict=True))
    schema = arrow_schema(StructType([StructField(n, spark_type(column)) for n, column in pairs]))
    table = pa.Table.from_pylist([dict(zip(names, key, strict=True)) for key in keys], schema)
    same = (value_of(column).eqNullSafe(sf.col(name)) for name, column in pairs)
    is_same = reduce(and_, same)
    return spark.createDataFrame(table), is_same


def _digested(shape: Shape) -> list[Column]:
    """Return the key's columns under names of their own, and the digest of a row."""
    keys = [value_of(column).alias(_KEY.format(at)) for at, column in enumerate(shape.key)]
    return [*keys, digest_of(shape.columns, shape.dialect).alias(_DIGEST)]


def _digested_changes(changes: DataFrame, is_row: Column, shape: Shape) -> DataFrame:
    meta = sf.col(CHANGE_COLUMN)
    rows = split_moves(changes, [(name,) for name in shape.key_names], as_inserts=False)
    place = sf.struct(meta["scn"].alias("scn"), meta["index"].alias("index"))
    return rows.select(
        *_digested(shape), place.alias(_PLACE), is_row.alias(_IS_ROW), meta["op"].alias(_OP)
    )


def _rows_at(
    rows: DataFrame, ends: Sequence[Place], truncates: Sequence[Place], key_columns: int
) -> DataFrame:
    """Return chunk, `rows` (0 or 1, or more of a repeated key) and digest of each key.

    `rows` has what was read and all changes; each key's is its last change up to the place of
    its chunk, or what was read. A key that was read several times stays so: a change does not
    make one row of them.
    """
    reached = rows.where(~_is_behind(ends))
    if truncates:
        none = (_FIRST - 1, 0)
        reached = reached.where(
            _is_behind([max([none, *(one for one in truncates if one <= end)]) for end in ends])
        )
    is_first = sf.col(f"{_PLACE}.scn") == _FIRST
    change = sf.struct(sf.col(_IS_ROW).alias("is_row"), sf.col(_DIGEST).alias("digest"))
    keys = [sf.col(_KEY.format(at)) for at in range(key_columns)]
    of_key = reached.groupBy(_CHUNK, *keys).agg(
        sf.count_if(is_first).alias("first_rows"),
        sf.bit_xor(sf.when(is_first, sf.col(_DIGEST))).alias("first_digest"),
        sf.max_by(change, sf.when(~is_first, sf.col(_PLACE))).alias("last"),
    )
    last_change = sf.col("last")
    is_as_read = last_change.isNull() | (sf.col("first_rows") > 1)
    is_there = last_change["is_row"]
    digest = sf.when(is_as_read, sf.col("first_digest")).when(is_there, last_change["digest"])
    return of_key.select(
        _CHUNK,
        sf.when(is_as_read, sf.col("first_rows")).otherwise(is_there.cast("bigint")).alias("rows"),
        digest.alias(_DIGEST),
    )


def _is_behind(places: Sequence[Place]) -> Column:
    """Return the condition that a row's place is behind a place of its chunk."""
    scn, index = sf.col(f"{_PLACE}.scn"), sf.col(f"{_PLACE}.index")
    scns, indexes = (_looked_up(part)(sf.col(_CHUNK)) for part in zip(*places, strict=True))
    return (scn > scns) | ((scn == scns) & (index > indexes))


def _chunk_of_key(chunks: Chunks) -> Column:
    """Return the chunk of a digested row; without key ranges there is one chunk."""
    if not isinstance(chunks, KeyRanges) or not chunks.bounds:
        return sf.lit(0)
    return _range_of(chunks.bounds)(sf.col(_KEY.format(0)).cast("bigint"))


def _looked_up(values: Sequence[int]) -> Callable[[Column], Column]:
    """Return the function from a chunk's number to a value of that chunk."""
    by_chunk = np.array(values, dtype=np.int64)

    def found(numbers: pa.Array) -> pa.Array:
        return pa.array(by_chunk[numbers.to_numpy(zero_copy_only=False)], pa.int64())

    return in_python(found, "bigint")


def _chunk_of(chunks: Chunks, shape: Shape) -> Column:
    """Return the number of the chunk that a row is in."""
    if not isinstance(chunks, KeyRanges):
        return sf.pmod(digest_of(shape.key, shape.dialect), sf.lit(chunks.count))
    if not chunks.bounds:
        return sf.lit(0)
    return _range_of(chunks.bounds)(value_of(shape.key[0]).cast("bigint"))


def _is_in(chunks: Chunks, numbers: Sequence[int], shape: Shape) -> Column:
    """Return the condition that a row is in one of some chunks."""
    if not isinstance(chunks, KeyRanges):
        return _chunk_of(chunks, shape).isin(list(numbers))
    spans = chunks.spans(numbers)
    # With too many ranges Spark would spend its time on the filter.
    if not 0 < len(spans) <= MOST_SPANS:
        return _chunk_of(chunks, shape).isin(list(numbers))
    key = value_of(shape.key[0])
    found = reduce(or_, (_is_within(key, span) for span in spans))
    # The digests count a null as 0: see `_range_of`.
    return found | key.isNull() if chunks.chunk_of(None) in numbers else found


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
