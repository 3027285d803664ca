"""The versions that sync keeps are the table as of each SCN, as a bootstrap server has it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from random import Random
from typing import Any

import pytest
from pyspark.sql import SparkSession, functions as sf

from databus.client.spark.jobs.load import load
from databus.client.spark.jobs.sync import sync
from databus.client.spark.jobs.sync_tables import sync_tables
from databus.client.spark.targets.target import open_target
from databus.schemas.errors import SettingsError
from tests.client.spark.source.table_shop import TableShop, table_shop
from tests.client.spark.targets.target_rows import table_of

pytestmark = pytest.mark.usefixtures("delta_runtime")
ROWS = 60


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TableShop]:
    with table_shop(tmp_path_factory.mktemp("modes"), ROWS) as running:
        yield running


def write(shop: TableShop, chance: Random) -> int:
    """Change some rows in a few transactions; return the SCN."""
    for _ in range(chance.randint(1, 4)):
        key = chance.randint(1, ROWS + 10)
        shop.place.run(
            chance.choice(
                [
                    f"DELETE FROM orders WHERE id = {key}",
                    f"UPDATE orders SET note = 'n{chance.random()}' WHERE id BETWEEN {key} AND "
                    f"{key + 3}",
                    f"INSERT INTO orders VALUES ({key}, 'new {chance.random()}') "
                    "ON CONFLICT (id) DO UPDATE SET note = excluded.note",
                    f"UPDATE orders SET id = id + 1000 WHERE id = {key}",
                ]
            )
        )
    return shop.scn()


def test_versions_as_of_random_scns_are_the_table_as_of_them(
    shop: TableShop, spark: SparkSession, tmp_path: Path
) -> None:
    chance = Random(3)
    uri = f"delta:{tmp_path}/orders"
    given: dict[str, Any] = {
        "relays": [shop.relay.url],
        "bootstrap_servers": [shop.server],
        "checkpoint": str(tmp_path / "checkpoint"),
        "available_now": True,
        "mode": "scd2",
    }
    begin = shop.scn()
    sync(spark, "shop.orders", uri, **given)
    scns = []
    for _ in range(3):
        scns += [write(shop, chance) for _ in range(20)]
        sync(spark, "shop.orders", uri, **given)
    # All rows once more, as a load does and as a new checkpoint does: nothing becomes false.
    load(spark, "shop.orders", uri, bootstrap_servers=[shop.server], again=True)
    scns.append(write(shop, chance))
    sync(spark, "shop.orders", uri, **{**given, "checkpoint": str(tmp_path / "another")})
    with closing(open_target(uri)) as target:
        versions = target.rows(spark)
        for scn in [begin, *chance.sample(scns, 48), scns[-1]]:
            ended = sf.col("_databus_to_scn") <= scn
            found = versions.where((sf.col("_databus_scn") <= scn) & (ended.isNull() | ~ended))
            options = shop.options(asOf=scn)
            wanted = spark.read.format("databus").options(**options).load()
            rows = sorted(map(tuple, found.select("id", "note").collect()))
            assert rows == sorted(map(tuple, wanted.collect())), f"as of {scn}"
        now = sorted(map(tuple, target.live_rows(spark).select("id", "note").collect()))
    assert now == sorted(shop.place.run("SELECT * FROM orders"))
    with pytest.raises(SettingsError, match="of mode scd2, and cannot become one of mode mirror"):
        sync(spark, "shop.orders", uri, **{**given, "mode": "mirror"})


def test_many_tables_are_kept_in_one_mode_and_read_again_into_what_they_hold(
    shop: TableShop, spark: SparkSession, tmp_path: Path
) -> None:
    given: dict[str, Any] = {
        "relays": [shop.relay.url],
        "bootstrap_servers": [shop.server],
        "checkpoint": str(tmp_path / "checkpoint"),
        "available_now": True,
        "mode": "soft_delete",
    }
    template = f"delta:{tmp_path}/{{table}}"
    shop.place.run("INSERT INTO orders VALUES (500, 'kept'), (501, 'gone')")
    shop.scn()
    sync_tables(spark, ["shop.orders"], template, **given)
    shop.place.run("DELETE FROM orders WHERE id = 501")
    shop.scn()
    found = sync_tables(spark, ["shop.orders"], template, **given, reload=["shop.orders"])
    assert (found.aside, found.reloads) == ({}, 1)
    with closing(open_target(f"delta:{tmp_path}/orders")) as target:
        rows = {row["id"]: row for row in table_of(target).to_pylist()}
    marks = {key: rows[key]["_databus_deleted"] for key in (500, 501)}
    assert marks == {500: False, 501: True}
    assert rows[501]["note"] == "gone"
    assert rows[501]["_databus_time"] is not None
    live = {key: row["note"] for key, row in rows.items() if not row["_databus_deleted"]}
    assert live == dict(shop.place.run("SELECT * FROM orders"))
