"""A batch of many tables, split into a DataFrame for each."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from databus.client.spark import register
from databus.client.spark.arrow.row_keys import key_columns
from databus.client.spark.consuming.apply import apply_changes
from databus.client.spark.consuming.schema_book import SchemaBook
from databus.client.spark.consuming.split import split_by_source
from databus.client.spark.targets.target import open_target
from databus.schemas.errors import SettingsError
from tests.client.spark.source.table_shop import TableShop, table_shop
from tests.client.spark.targets.target_rows import table_of


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[TableShop]:
    with table_shop(tmp_path, 5, "items (id INTEGER PRIMARY KEY, name TEXT)") as running:
        yield running
        running.place.shop.connection.close()


def follow(
    spark: SparkSession, shop: TableShop, folder: Path, consume: Any, sources: str = "shop.*"
) -> None:
    register(spark)
    changes = (
        spark.readStream.format("databus")
        .option("relays", shop.relay.url)
        .option("bootstrapServers", shop.server)
        .load(sources)
    )
    query = (
        changes.writeStream.foreachBatch(consume)
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def test_each_source_has_its_columns_and_key_and_can_be_applied(
    shop: TableShop, spark: SparkSession, delta_runtime: None, tmp_path: Path
) -> None:
    targets = {
        name: open_target(f"delta:{tmp_path}/{name}")
        for name in ("shop.orders", "shop.items", "shop.people")
    }
    shop.place.run("INSERT INTO items VALUES (1, 'a'), (2, 'b')")
    shop.scn()
    keys: dict[str, tuple[str, ...]] = {}
    with closing(SchemaBook.of([shop.relay.url])) as book:

        def consume(batch: DataFrame, batch_id: int) -> None:
            batch.persist()
            for source, changes in split_by_source(batch, book).items():
                keys[source] = key_columns(changes.schema)
                apply_changes(changes, batch_id, targets[source])
            batch.unpersist()

        follow(spark, shop, tmp_path, consume)
        shop.place.run(
            "UPDATE items SET id = 7 WHERE id = 1",
            "ALTER TABLE orders ADD COLUMN price INTEGER DEFAULT 7",
            "DELETE FROM orders WHERE id = 3",
        )
        shop.scn()
        follow(spark, shop, tmp_path, consume)
    assert keys == {"shop.orders": ("id",), "shop.items": ("id",), "shop.people": ("name", "land")}
    items = table_of(targets["shop.items"]).select(["id", "name"]).to_pylist()
    assert sorted(map(str, items)) == ["{'id': 2, 'name': 'b'}", "{'id': 7, 'name': 'a'}"]
    assert sorted(table_of(targets["shop.orders"])["id"].to_pylist()) == [1, 2, 4, 5]


def test_a_table_with_a_column_of_our_name_says_how_to_leave_it_out(
    shop: TableShop, spark: SparkSession, tmp_path: Path
) -> None:
    shop.place.run("ALTER TABLE items ADD COLUMN _databus TEXT", "INSERT INTO items VALUES (1,1,1)")
    shop.scn()
    found: list[str] = []
    with closing(SchemaBook.of([shop.relay.url])) as book:

        def consume(batch: DataFrame, _: int) -> None:
            found.extend(split_by_source(batch, book))

        told = r"shop\.items has a column '_databus' itself: .*leave the table out .*'!schema\.tab"
        with pytest.raises(StreamingQueryException, match=told):
            follow(spark, shop, tmp_path / "all", consume)
        follow(spark, shop, tmp_path / "others", consume, "shop.*,!shop.items")
    assert set(found) == {"shop.orders", "shop.people"}


def test_a_batch_of_one_table_is_no_batch_of_events(spark: SparkSession, shop: TableShop) -> None:
    book = SchemaBook.of([shop.relay.url])
    with closing(book), pytest.raises(SettingsError, match="rows_of"):
        split_by_source(spark.createDataFrame([(1,)], "id INT"), book)
