"""A job whose checkpoint is gone goes on at its target's position, in the log of then alone."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from databus.client.spark.jobs.load import load
from databus.client.spark.jobs.sync import sync
from databus.client.spark.jobs.sync_tables import sync_tables
from databus.schemas.errors import ConsumerError
from tests.client.spark.source.table_shop import TableShop, table_shop

ROWS = 20
_notes = itertools.count()


@pytest.fixture(scope="module")
def shops(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[TableShop, TableShop]]:
    """Two databases with the same table."""
    one, two = (tmp_path_factory.mktemp(name) for name in ("one", "two"))
    with table_shop(one, ROWS) as first, table_shop(two, ROWS) as second:
        yield first, second


def write(shop: TableShop) -> None:
    shop.place.run(f"UPDATE orders SET note = 'live {next(_notes)}' WHERE id = 3")
    shop.scn()


@pytest.mark.parametrize(
    ("is_of_many", "form"),
    [(False, "delta"), (True, "delta+spark")],
    ids=["one table", "many tables"],
)
def test_a_job_without_its_checkpoint_follows_its_target_in_the_log_of_then(
    shops: tuple[TableShop, TableShop],
    spark: SparkSession,
    tmp_path: Path,
    form: str,
    is_of_many: bool,
) -> None:
    shop, other = shops
    checkpoint = tmp_path / "checkpoint"

    def run(shop: TableShop) -> int:
        given: dict[str, Any] = {
            "relays": [shop.relay.url],
            "bootstrap_servers": [shop.server],
            "checkpoint": str(checkpoint),
            "available_now": True,
        }
        if is_of_many:
            found: Any = sync_tables(
                spark, ["shop.orders"], f"{form}:{tmp_path}/{{table}}", **given
            )
        else:
            found = sync(spark, "shop.orders", f"{form}:{tmp_path}/orders", **given)
        return int(found.rows)

    def is_equal(shop: TableShop) -> bool:
        rows = DeltaTable(str(tmp_path / "orders")).to_pyarrow_table(columns=["id", "note"])
        there = {tuple(row.values()) for row in rows.to_pylist()}
        return there == set(shop.place.run("SELECT id, note FROM orders"))

    assert run(shop) == ROWS
    write(shop)  # nothing but rows of changes tells a log from another one
    run(shop)
    write(shop)
    shutil.rmtree(checkpoint)
    assert run(shop) == 1, "it goes on from the target's position"
    assert is_equal(shop)
    while other.scn() <= shop.scn():
        write(other)
    shutil.rmtree(checkpoint)
    with pytest.raises(ConsumerError, match="another log of shop"):
        run(other)
    assert is_equal(shop)
    shutil.rmtree(checkpoint)
    target = f"delta:{tmp_path}/orders"
    load(spark, "shop.orders", target, bootstrap_servers=[other.server], again=True)
    write(other)
    assert run(other) == 1
    assert is_equal(other)
