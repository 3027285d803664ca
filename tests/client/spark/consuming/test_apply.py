"""A foreachBatch consumer's changes, from a DataFrame into a table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import (
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
)

from databus.client.spark.arrow.row_keys import meta_type
from databus.client.spark.arrow.row_types import KEY, SCHEMAS, changes_schema
from databus.client.spark.consuming.apply import apply_changes, key_columns, latest_per_key, rows_of
from databus.client.spark.modes import append_history, scd2, soft_delete
from databus.client.spark.modes.every_change import OP, TIME
from databus.client.spark.targets.changes import BOOKKEEPING, OF_CHANGE, PLACE
from databus.client.spark.targets.executors import FILE
from databus.client.spark.targets.target import MODES, Applied, open_target
from databus.schemas.errors import SettingsError
from tests import PATIENCE_S
from tests.client.spark.changing_source import Change, change
from tests.client.spark.targets.target_rows import rows_of_target

pytestmark = pytest.mark.usefixtures("delta_runtime")

PERSON = StructType(
    [
        StructField("id", IntegerType(), True, {KEY: 0}),
        StructField("name", StringType(), True),
    ]
)
ORDERS = StructType(
    [
        StructField("shop id", IntegerType(), True, {KEY: 1}),
        StructField("Number", LongType(), True, {KEY: 0}),
    ]
)


def frame(spark: SparkSession, changes: list[Change]) -> DataFrame:
    """Return changes of one source, as `layout=columns` has them."""
    return spark.createDataFrame(changes, changes_schema({"shop.person": PERSON}))


def two_sources(spark: SparkSession) -> DataFrame:
    """Return changes of two sources, as `layout=structs` has them."""
    schema = changes_schema({"shop.person": PERSON, "shop.orders": ORDERS})
    orders = {"shop id": 1, "Number": 8}
    moved = change("update", 3, source="shop.orders")
    moved["shop.orders"] = orders
    moved["_databus"]["before"] = {"shop.orders": {"shop id": 1, "Number": 7}}
    person = change("insert", 3, index=1)
    person["shop.person"] = {"id": 1, "name": "Ann"}
    return spark.createDataFrame([moved, person], schema)


def plain(found: DataFrame) -> set[tuple[Any, ...]]:
    """Return op, SCN and the columns of changes."""
    return {(row["_databus"]["op"], row["_databus"]["scn"], *row[:-1]) for row in found.collect()}


def test_the_newest_change_of_each_key_is_taken_and_keys_that_were_left_are_deleted(
    spark: SparkSession,
) -> None:
    ann, bob = {"id": 1, "name": "Ann"}, {"id": 2, "name": "Bob"}
    changes = frame(
        spark,
        [
            change("insert", 5, ann),
            change("update", 7, {"id": 1, "name": "Anna"}, index=2, before=ann),
            change("update", 7, {"id": 1, "name": "Anne"}, index=3, before=ann),
            change("update", 8, {"id": 3, "name": "Bob"}, before=bob),
            change("update", 8, {"id": 5, "name": "Eve"}, index=1, before={"id": 4}),
            change("insert", 9, {"id": 4, "name": "Dan"}),
            change("truncate", 6),
        ],
    )
    latest = latest_per_key(changes)
    assert latest.schema == changes.schema
    assert plain(latest) == {
        ("update", 7, 1, "Anne"),
        ("delete", 8, 2, "Bob"),
        ("update", 8, 3, "Bob"),
        ("insert", 9, 4, "Dan"),
        ("update", 8, 5, "Eve"),
        ("truncate", 6, None, None),
    }


@pytest.mark.parametrize("form", ["delta", "delta+spark"])
def test_rows_of_one_source_come_out_of_a_batch_of_several(
    spark: SparkSession, tmp_path: Path, form: str
) -> None:
    batch = two_sources(spark)
    orders = rows_of(batch, "shop.orders")
    assert orders.columns == ["shop id", "Number", "_databus"]
    assert key_columns(orders.schema) == ("Number", "shop id")
    assert meta_type(orders)["before"].dataType == ORDERS
    target = open_target(f"{form}:{tmp_path}/orders")
    applied = apply_changes(orders, 0, target, app_id="test")
    assert applied == Applied(upserts=1, deletes=0, positions={"shop": 3})
    assert rows_of_target(target) == [{"source": None, "shop id": 1, "Number": 8}]
    assert target.keys == ("Number", "shop id")
    with pytest.raises(SettingsError, match=r"it has shop\.person, shop\.orders"):
        rows_of(batch, "shop.order")
    with pytest.raises(SettingsError, match="give app_id"):
        apply_changes(orders, 1, target)


@pytest.mark.parametrize("form", ["delta", "delta+spark"])
def test_a_table_of_one_source_refuses_the_changes_of_another_and_names_both(
    spark: SparkSession, tmp_path: Path, form: str
) -> None:
    target = open_target(f"{form}:{tmp_path}/orders")
    row = {"id": 1, "name": "Ann"}
    first = frame(spark, [change("insert", 3, row, source="shop.orders")])
    other = frame(spark, [change("insert", 9, row, source="shop.customers")])
    apply_changes(first, 0, target, app_id="one")
    with pytest.raises(SettingsError, match=r"of shop\.orders, and these are of shop\.customers: "):
        apply_changes(other, 0, target, app_id="two")
    assert (target.applied("two"), target.positions()) == (None, {"shop": 3})
    apply_changes(other, 0, target, app_id="two", takes_over=True)
    with pytest.raises(SettingsError, match=r"of shop\.customers, and these are of shop\.orders: "):
        apply_changes(first, 1, target, app_id="one")
    several = open_target(f"{form}:{tmp_path}/several", source_column=True)
    for batch_id, batch in enumerate((first, other)):
        apply_changes(batch, batch_id, several, app_id="one")
    assert len(rows_of_target(several)) == 2


def test_a_table_with_a_column_of_our_name_is_refused_in_words_in_either_layout(
    spark: SparkSession,
) -> None:
    row = StructType([*PERSON, StructField("_databus", StringType(), True)])
    changes = spark.createDataFrame([], changes_schema({"shop.person": row}, "structs"))
    with pytest.raises(SettingsError, match=r"has a column '_databus' itself: .*rename the column"):
        rows_of(changes, "shop.person")


OURS_IN_A_MIRROR = {"_databus_scn", "_databus_as_of", "_databus_source", "_databus_delete"}
OURS = {
    *OURS_IN_A_MIRROR,
    *BOOKKEEPING,
    *{*scd2.EXTRAS.names, *soft_delete.EXTRAS.names, *append_history.EXTRAS.names},
    *{OF_CHANGE, PLACE, TIME, OP, FILE},
}


@pytest.mark.parametrize("mode", MODES)
def test_a_column_with_the_name_of_one_of_ours_is_refused_before_a_row_is_read(
    spark: SparkSession, tmp_path: Path, mode: str
) -> None:
    target = open_target(f"sqlite:///{tmp_path}/person.db#person", mode=mode)
    ours = {*OURS_IN_A_MIRROR, OF_CHANGE, PLACE, TIME, OP, FILE} if mode == "mirror" else OURS
    for name in {*ours, *map(str.upper, ours)}:
        row = StructType([*PERSON, StructField(name, StringType(), True)])
        schema = changes_schema({"shop.person": row})
        schema["_databus"].metadata[SCHEMAS] = {"shop.person": {}}
        changes = spark.createDataFrame([], schema)
        told = rf"^shop\.person has a column '{name}' itself: a target of mode {mode} has .*ename"
        with pytest.raises(SettingsError, match=told):
            apply_changes(changes, 0, target, app_id="app")
    assert target.schema() is None
    target.close()


@pytest.mark.parametrize("form", ["delta", "delta+spark"])
def test_the_batches_of_a_query_are_applied_under_its_id_and_once(
    spark: SparkSession, tmp_path: Path, form: str
) -> None:
    spark.range(3).write.parquet(f"{tmp_path}/in")
    rows = [{"id": n, "name": "x"} for n in range(3)]
    target = open_target(f"{form}:{tmp_path}/person")
    done: list[Applied] = []

    def consume(batch: DataFrame, batch_id: int) -> None:
        changes = frame(batch.sparkSession, [change("insert", 4, row) for row in rows])
        done.extend(apply_changes(changes, batch_id, target) for _ in range(2))

    stream = spark.readStream.schema("id long").parquet(f"{tmp_path}/in")
    query = (
        stream.writeStream.foreachBatch(consume)
        .option("checkpointLocation", f"{tmp_path}/checkpoint")
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(int(PATIENCE_S))
    assert [applied.is_skipped for applied in done] == [False, True]
    assert target.applied(query.id) == 0
    assert sorted(row["id"] for row in target.rows(spark).collect()) == [0, 1, 2]


@pytest.mark.parametrize(
    "form", ["delta:{}/person", "delta+spark:{}/person", "sqlite:///{}/person.db#person"]
)
def test_spark_reads_a_target_as_it_is_with_the_bookkeeping(
    spark: SparkSession, tmp_path: Path, form: str
) -> None:
    target = open_target(form.format(tmp_path))
    with pytest.raises(SettingsError, match="has no table yet"):
        target.rows(spark)
    people = [change("insert", 5, {"id": n, "name": f"n{n}"}, index=n) for n in range(5)]
    apply_changes(frame(spark, people), 0, target, app_id="test")
    old = {"id": 3, "name": "n3"}
    moved = change("update", 6, {"id": 30, "name": "moved"}, before=old)
    apply_changes(frame(spark, [moved]), 1, target, app_id="test")
    rows = target.rows(spark)
    assert rows.columns == ["id", "name", "_databus_scn", "_databus_as_of"]
    assert sorted(map(tuple, rows.collect())) == [
        *((n, f"n{n}", 5, 5) for n in (0, 1, 2, 4)),
        (30, "moved", 6, 6),
    ]
    target.close()
