"""`sync` past statements whose rows were not logged: the rows are read again, never left wrong."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from deltalake.exceptions import TableNotFoundError
from pyspark.sql import SparkSession

from databus.client.spark.jobs.sync import SyncProgress, sync
from databus.schemas.errors import ReloadNeededError
from tests import PATIENCE_S
from tests.client.spark.jobs.test_sync_schema import has_all, rows_in, rows_of
from tests.mariadb_server import Database
from tests.promises.bootstrapping import running_pair, serving
from tests.promises.running import wait_until
from tests.promises.statements.test_copies import DeliveringPlace

pytest_plugins = ["tests.mariadb"]
pytestmark = pytest.mark.mariadb


@pytest.fixture
def place(database: Database, tmp_path: Path) -> DeliveringPlace:
    found = DeliveringPlace(database, tmp_path)
    found.run(
        "CREATE TABLE orders (id INT PRIMARY KEY, note VARCHAR(200), price DECIMAL(8,2))",
        "CREATE TABLE people (name VARCHAR(40), land CHAR(2), PRIMARY KEY (name, land))",
        "INSERT INTO orders VALUES (1, 'a', 1.25), (2, 'b', 2.75), (3, NULL, NULL)",
    )
    return found


def test_a_running_job_finds_out_by_itself_and_one_without_a_store_ends_with_what_to_do(
    place: DeliveringPlace,
    spark: SparkSession,
    delta_runtime: None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("databus.client.spark.jobs.sync.CHECK_EVERY", 1)
    uri, stop, told = f"delta:{tmp_path}/orders", threading.Event(), list[SyncProgress]()
    with running_pair(tmp_path, place) as (relay, pair):
        pair.seed()
        with serving(pair.server()) as (server,), ThreadPoolExecutor(1) as pool:
            given: dict[str, Any] = {"relays": [relay.url], "checkpoint": str(tmp_path / "c")}
            follows: dict[str, Any] = {"every_s": 0.1, "stop": stop, "report": told.append}
            job = pool.submit(
                sync, spark, place.orders, uri, bootstrap_servers=[server], **given, **follows
            )
            try:
                wait_until(
                    lambda: job.done() or is_equal(uri, place), "the rows", patience_s=PATIENCE_S
                )
                place.run_unlogged("DELETE FROM orders WHERE id = 1")
                wait_until(
                    lambda: job.done() or told[-1].reload, "what is wrong", patience_s=PATIENCE_S
                )
                assert "the statement instead of the rows" in told[-1].reload
                pair.seed()
                wait_until(
                    lambda: job.done() or told[-1].reloads, "the reload", patience_s=PATIENCE_S
                )
                assert is_equal(uri, place)
            finally:
                stop.set()
            job.result()
            place.run_unlogged("DELETE FROM orders WHERE id = 2")
            wait_until(lambda: pair.states()[place.orders].status.value == "new", "the table's end")
            with pytest.raises(ReloadNeededError, match=r"databus spark load .* --again"):
                sync(spark, place.orders, uri, **given, available_now=True)


def is_equal(uri: str, place: DeliveringPlace) -> bool:
    try:
        return rows_in(uri, place) == rows_of(place)
    except (TableNotFoundError, FileNotFoundError):
        return False


@pytest.mark.parametrize("is_last", [False, True], ids=["a row after it", "nothing after it"])
@pytest.mark.parametrize("form", ["delta:{}/orders"])
def test_a_job_reads_the_rows_again(
    place: DeliveringPlace,
    spark: SparkSession,
    delta_runtime: None,
    tmp_path: Path,
    form: str,
    is_last: bool,
) -> None:
    uri = form.format(tmp_path)
    with running_pair(tmp_path, place) as (relay, pair):
        pair.seed()
        with serving(pair.server()) as (server,):
            given: dict[str, Any] = {
                "relays": [relay.url],
                "bootstrap_servers": [server],
                "checkpoint": str(tmp_path / "checkpoint"),
                "available_now": True,
            }
            sync(spark, place.orders, uri, **given)
            assert rows_in(uri, place) == rows_of(place)
            place.run_unlogged("UPDATE orders SET note = 'z' WHERE id = 1")
            if not is_last:
                place.run("INSERT INTO orders VALUES (10, 'logged', 1)")
            wait_until(lambda: pair.states()[place.orders].status.value == "new", "the table's end")
            pair.seed()
            wait_until(lambda: has_all(place, relay, pair), "the store")
            found = sync(spark, place.orders, uri, **given)
            assert (rows_in(uri, place), found.reloads) == (rows_of(place), 1)
