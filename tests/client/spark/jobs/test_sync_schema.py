"""`sync` through schema changes on a real server: the table follows, or its rows are read again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from databus.client.spark.jobs.sync import sync
from databus.client.spark.targets.target import open_target
from tests.client.spark.targets.target_rows import table_of
from tests.mariadb_server import Database
from tests.promises.bootstrapping import MysqlPlace, running_pair, serving
from tests.promises.running import wait_until

pytest_plugins = ["tests.mariadb"]

# The last one may lose what does not fit: what rows are then, only the database knows.
STEPS = (
    ("ALTER TABLE orders RENAME COLUMN note TO text, ADD vip INT NOT NULL DEFAULT 7", 0),
    ("ALTER TABLE orders MODIFY price INT", 1),
)


@pytest.mark.parametrize("form", ["delta:{}/orders"])
def test_a_job_follows_its_table_and_reads_again_what_nobody_can_tell(
    database: Database, spark: SparkSession, delta_runtime: None, tmp_path: Path, form: str
) -> None:
    place, uri = MysqlPlace(database, tmp_path), form.format(tmp_path)
    place.run(
        "CREATE TABLE orders (id INT PRIMARY KEY, note VARCHAR(200), price DECIMAL(8,2))",
        "CREATE TABLE people (name VARCHAR(40), land CHAR(2), PRIMARY KEY (name, land))",
        "INSERT INTO orders VALUES (1, 'a', 1.25), (2, 'b', 2.75), (3, NULL, NULL)",
    )
    with running_pair(tmp_path, place) as (relay, pair):
        pair.seed()
        with serving(pair.server()) as (server,):
            reloads = 0
            for number, (statement, more) in enumerate((("DO 1", 0), *STEPS)):
                place.run(statement, f"INSERT INTO orders (id, price) VALUES ({10 + number}, 1)")
                wait_until(lambda: has_all(place, relay, pair), "the row in the store")
                if more:
                    pair.seed()
                given: dict[str, Any] = {
                    "relays": [relay.url],
                    "bootstrap_servers": [server],
                    "checkpoint": str(tmp_path / "checkpoint"),
                }
                found = sync(spark, place.orders, uri, **given, available_now=True)
                reloads += more
                assert (rows_in(uri, place), found.reloads) == (rows_of(place), more)


def has_all(place: MysqlPlace, relay: Any, pair: Any) -> bool:
    return bool(relay.max_scn() > 0 and pair.position() >= relay.max_scn())


def rows_of(place: MysqlPlace) -> list[tuple[Any, ...]]:
    return sorted(place.run("SELECT * FROM orders"))


def rows_in(uri: str, place: MysqlPlace) -> list[tuple[Any, ...]]:
    names = [row[0] for row in place.run("SHOW COLUMNS FROM orders")]
    target = open_target(uri)
    try:
        return sorted(tuple(row[name] for name in names) for row in table_of(target).to_pylist())
    finally:
        target.close()
