"""Digests of a target's chunks, each as of a place of its own in the stream."""

from __future__ import annotations

import random
from typing import Any, cast

from pyspark.sql import DataFrame, SparkSession, functions as sf
from pyspark.sql.types import LongType, StringType, StructField, StructType

from databus.client.spark.arrow.row_types import CHANGE_COLUMN, changes_schema
from databus.client.spark.targets.target import Target
from databus.client.spark.verify.chunks import ChunkDigest, KeyBuckets, KeyRanges
from databus.client.spark.verify.table_shape import shape_of
from databus.client.spark.verify.target_table import Place, TargetTable
from databus.client.spark.verify.texts import digest, row_text
from databus.schemas.table import Column, Table

ORDERS = Table(
    "shop.orders",
    (Column("id", "bigint", 0, nullable=False, key_position=0), Column("note", "text", 1)),
)
SHAPE = shape_of(ORDERS)
ROW = StructType([StructField("id", LongType()), StructField("note", StringType())])
CHANGES = changes_schema({"shop.orders": ROW})
KEYS, CHUNK_KEYS, SCNS, CHANGES_A_SCN = 60, 6, 40, 8
ROUNDS = 6
Rows = dict[int, str]
Change = tuple[Place, str, int, str | None, int | None]  # place, op, key, note, old key


class FakeTarget:
    """A target with given rows."""

    uri = "fake:"

    def __init__(self, rows: list[tuple[int, str | None]]) -> None:
        self._rows = rows

    def live_rows(self, spark: SparkSession) -> DataFrame:
        """Return the rows."""
        return spark.createDataFrame(self._rows, ROW)


def changes_frame(spark: SparkSession, changes: list[Change]) -> DataFrame:
    def told(change: Change) -> tuple[Any, ...]:
        place, op, key, note, old = change
        before = None if old is None else (old, "old")
        meta = (op, place[0], place[1], None, "shop", "shop.orders", 1, place[0], None, before)
        return (None if op == "truncate" else key, note, meta)

    return spark.createDataFrame([told(change) for change in changes], CHANGES)


def apply(rows: Rows, change: Change) -> None:
    _, op, key, note, old = change
    if op == "truncate":
        rows.clear()
        return
    if old is not None:
        rows.pop(old, None)
    rows.pop(key, None)
    if op != "delete":
        rows[key] = str(note)


def history_of(chance: random.Random, rows: Rows) -> list[Change]:
    """Return random changes of rows, which are changed by them."""
    made: list[Change] = []
    for scn in range(1, SCNS + 1):
        for index in range(chance.randint(0, CHANGES_A_SCN)):
            key, note = chance.randrange(KEYS), f"{scn}/{index}"
            change: Change = ((scn, index), "insert", key, note, None)
            if key in rows:
                moved = chance.randrange(KEYS)
                change = chance.choice(
                    [
                        ((scn, index), "delete", key, rows[key], None),
                        ((scn, index), "update", key, note, key),
                        ((scn, index), "update", moved if moved not in rows else key, note, key),
                    ]
                )
            elif chance.random() < 0.02:
                change = ((scn, index), "truncate", 0, None, None)
            apply(rows, change)
            made.append(change)
    return made


def chunk_digest(rows: list[tuple[int, str]]) -> ChunkDigest:
    text, found = row_text(SHAPE.columns, SHAPE.dialect), 0
    for row in rows:
        found ^= digest(text(row))
    return ChunkDigest(len(rows), found)


def rows_at(base: Rows, history: list[Change], place: Place) -> Rows:
    rows = dict(base)
    for change in history:
        if change[0] <= place:
            apply(rows, change)
    return rows


def digests_at(
    spark: SparkSession,
    read: list[tuple[int, str | None]],
    history: list[Change],
    chunks: KeyRanges | KeyBuckets,
    ends: list[Place],
) -> dict[int, ChunkDigest]:
    table = TargetTable(cast("Target", FakeTarget(read)), SHAPE, spark)
    is_row = sf.col(f"{CHANGE_COLUMN}.op") != "delete"
    changes = changes_frame(spark, history)
    return table.digests_at(table.keep_digests(), changes, is_row, chunks, ends)


def test_each_chunk_is_digested_as_of_its_own_place(spark: SparkSession) -> None:
    seed = random.randrange(10**6)
    print(f"seed {seed}")
    for number in range(ROUNDS):
        chance = random.Random(seed + number)
        base = dict.fromkeys(chance.sample(range(KEYS), KEYS // 2), "first")
        history = history_of(chance, dict(base))
        # Whoever reads the target may see more of some rows, but nothing behind a chunk's place.
        seen = [(chance.randrange(SCNS // 4), CHANGES_A_SCN) for _ in range(KEYS)]
        read = [
            (key, note)
            for key in range(KEYS)
            if (note := rows_at(base, history, seen[key]).get(key)) is not None
        ]
        chunks = KeyRanges(tuple(range(CHUNK_KEYS - 1, KEYS - CHUNK_KEYS, CHUNK_KEYS)))
        ends = [
            (chance.randrange(SCNS // 4, SCNS), chance.randrange(CHANGES_A_SCN))
            for _ in range(chunks.count)
        ]

        found = digests_at(spark, cast("Any", read), history, chunks, ends)

        for chunk, end in enumerate(ends):
            keys = range(chunk * CHUNK_KEYS, (chunk + 1) * CHUNK_KEYS)
            rows = rows_at(base, history, end)
            expected = chunk_digest([(key, rows[key]) for key in keys if key in rows])
            assert found.get(chunk, ChunkDigest()) == expected, (number, chunk, end)


def test_a_truncate_at_the_place_of_a_chunk_belongs_to_it(spark: SparkSession) -> None:
    changes: list[Change] = [((5, 1), "insert", 2, "b", None), ((5, 2), "truncate", 0, None, None)]
    read, chunks = [(1, "a")], KeyBuckets(1)
    assert digests_at(spark, cast("Any", read), changes, chunks, [(5, 2)]) == {}
    assert digests_at(spark, cast("Any", read), changes, chunks, [(5, 1)])[0].rows == 2


def test_a_row_that_a_target_has_twice_counts_twice(spark: SparkSession) -> None:
    twice: list[tuple[int, str | None]] = [(1, "a"), (1, "a"), (2, "b")]
    found = digests_at(spark, twice, [], KeyBuckets(1), [(5, 0)])
    assert found == {0: ChunkDigest(3, chunk_digest([(2, "b")]).digest)}


def test_a_change_of_a_key_that_a_target_has_twice_leaves_both_rows(spark: SparkSession) -> None:
    twice: list[tuple[int, str | None]] = [(1, "a"), (1, "a"), (2, "b"), (2, "b")]
    changes: list[Change] = [((5, 0), "update", 1, "c", 1), ((5, 1), "delete", 2, "b", None)]
    assert digests_at(spark, twice, changes, KeyBuckets(1), [(5, 1)])[0].rows == 4
    # A truncate removes them all.
    changes.append(((6, 0), "truncate", 0, None, None))
    assert digests_at(spark, twice, changes, KeyBuckets(1), [(6, 0)]) == {}
