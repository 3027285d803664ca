"""A batch cut into ordered_groups keeps the order that its mode promises."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import IntegerType, StructField, StructType

from databus.client.spark.arrow.row_types import KEY, changes_schema
from databus.client.spark.consuming.order_modes import Mode, ordered_groups
from databus.schemas.errors import SettingsError
from tests.client.spark.changing_source import Change, change

ROW = StructType([StructField("id", IntegerType(), True, {KEY: 0})])
A, B, C = "shop.a", "shop.b", "bill.c"


def row(op: str, scn: int, key: int | None, index: int = 0, table: str = A) -> Change:
    """Return a change of a table; of the key alone."""
    physical = table.partition(".")[0]
    found = change(op, scn, index=index, source=table, physical_source=physical)
    return found if key is None else {**found, table: {"id": key}}


def moved(scn: int, old: int, new: int) -> Change:
    """Return an update that moves a row of A."""
    found = row("update", scn, new)
    found["_databus"]["before"] = {A: {"id": old}}
    return found


CHANGES = [
    row("insert", 3, 2),
    row("insert", 1, 1),
    row("update", 3, 1, index=1),
    row("insert", 2, 1, table=B),
    # One transaction of two tables.
    row("insert", 5, 9, table=B, index=1),
    row("insert", 5, 9),
    row("delete", 6, 1),
    row("insert", 1, 4, table=C),
]

Shape = list[list[list[tuple[Any, ...]]]]


def frame(spark: SparkSession, changes: Iterable[Change]) -> DataFrame:
    schema = changes_schema({A: ROW, B: ROW, C: ROW}, "structs")
    return spark.createDataFrame(list(changes), schema).repartition(3)


def shown(found: DataFrame) -> list[tuple[Any, ...]]:
    """Return the rows in the order of their partitions: table, SCN, key."""
    found_rows = ((record["_databus"], record) for record in found.collect())
    return [
        (meta["source"][-1], meta["scn"], record[meta["source"]] and record[meta["source"]]["id"])
        for meta, record in found_rows
    ]


def cut(spark: SparkSession, mode: Mode) -> Shape:
    batch = frame(spark, CHANGES)
    found: Shape = []
    for stage in ordered_groups(batch, mode):
        assert batch.storageLevel.useMemory
        assert all(part.rdd.getNumPartitions() == 1 for part in stage)
        found.append([shown(part) for part in stage])
    assert not batch.storageLevel.useMemory
    return found


def test_transactions_come_one_after_another_for_each_physical_source(spark: SparkSession) -> None:
    shop = [("a", 1, 1), ("b", 2, 1), ("a", 3, 2), ("a", 3, 1), ("a", 5, 9), ("b", 5, 9)]
    assert cut(spark, "transaction") == [[[("c", 1, 4)], [*shop, ("a", 6, 1)]]]


def test_transactions_of_one_table_go_in_parallel_between_those_of_several(
    spark: SparkSession,
) -> None:
    assert cut(spark, "single-table") == [
        [[("c", 1, 4)], [("a", 1, 1), ("a", 3, 2), ("a", 3, 1)], [("b", 2, 1)]],
        [[("a", 5, 9), ("b", 5, 9)]],
        [[("a", 6, 1)]],
    ]


def test_tables_go_in_parallel_each_in_its_order(spark: SparkSession) -> None:
    of_a = [("a", 1, 1), ("a", 3, 2), ("a", 3, 1), ("a", 5, 9), ("a", 6, 1)]
    assert cut(spark, "table") == [[[("c", 1, 4)], of_a, [("b", 2, 1), ("b", 5, 9)]]]


def test_rows_go_in_parallel_each_key_in_its_order_and_a_moved_row_in_both(
    spark: SparkSession,
) -> None:
    changes = [*CHANGES, moved(7, 2, 3), row("insert", 8, 2)]
    (((rows),),) = list(ordered_groups(frame(spark, changes), "row"))
    assert rows.rdd.getNumPartitions() > 1
    places: dict[tuple[str, int], list[tuple[int, str]]] = {}
    by_key: dict[tuple[str, int], set[int]] = {}
    for number, part in enumerate(rows.rdd.glom().collect()):
        for record in part:
            meta = record["_databus"]
            key = (meta["source"][-1], record[meta["source"]]["id"])
            places.setdefault(key, []).append((meta["scn"], meta["op"]))
            by_key.setdefault(key, set()).add(number)
    assert all(len(numbers) == 1 for numbers in by_key.values())
    assert places["a", 1] == [(1, "insert"), (3, "update"), (6, "delete")]
    assert places["a", 2] == [(3, "insert"), (7, "delete"), (8, "insert")]
    assert places["a", 3] == [(7, "insert")]


def test_a_truncate_is_between_the_rows_before_and_after_it_in_mode_row(
    spark: SparkSession,
) -> None:
    changes = [row("insert", 1, 1), row("truncate", 2, None), row("insert", 3, 1)]
    batch = frame(spark, [*changes, row("insert", 9, 1, table=C)])
    found = [[part for part in map(shown, stage) if part] for stage in ordered_groups(batch, "row")]
    assert found == [[[("c", 9, 1)], [("a", 1, 1)]], [[("a", 2, None)]], [[("a", 3, 1)]]]


def test_a_mode_that_is_not_known_is_refused_at_once(spark: SparkSession) -> None:
    with pytest.raises(SettingsError, match="not one of transaction, single-table, table, row"):
        ordered_groups(frame(spark, CHANGES), "serial")  # type: ignore[arg-type]
