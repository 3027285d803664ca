"""`sync`: a target filled and kept equal to a table, through loads, changes and restarts."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from random import Random
from typing import Any

import pytest
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError
from pyspark.sql import SparkSession

from databus.client.machines.backoff import BackOff
from databus.client.spark.cli.sync_view import words_of
from databus.client.spark.consuming.restart_policy import Restarts
from databus.client.spark.jobs import sync as jobs_sync
from databus.client.spark.jobs.load import Loaded, load
from databus.client.spark.jobs.sync import SyncProgress, sync
from databus.client.spark.targets.target import open_target
from databus.conf.settings import BackOffSettings
from databus.schemas.errors import ConsumerError, NoAnswerError
from tests.client.spark.source.table_shop import TableShop, table_shop
from tests.client.spark.targets.target_rows import rows_of_target
from tests.promises.running import wait_until

pytest_plugins = ["tests.postgres"]

ROWS = 100
AWAY = (
    "Traceback (most recent call last):\n"
    "databus.schemas.errors.NoAnswerError: servers: none has answered /stream for 60 s: refused\n"
    "\tat org.apache.spark.Thing"
)
NEW_COLUMN = (
    "[STREAM_FAILED] databus.schemas.errors.RestartNeededError: shop.orders, column 'x': it is new "
    "in schema version 2, and the query was started without it: restart the query to take it in"
)


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TableShop]:
    with table_shop(tmp_path_factory.mktemp("sync"), ROWS) as running:
        yield running


def rows_in(target: str, *columns: str) -> set[tuple[Any, ...]]:
    try:
        table = DeltaTable(target.removeprefix("delta:")).to_pyarrow_table()
    except TableNotFoundError:
        return set()
    known = [name for name in columns if name in table.column_names]
    return {tuple(row[name] for name in known) for row in table.to_pylist()}


def rows_of(shop: TableShop, *columns: str) -> set[tuple[Any, ...]]:
    return set(shop.place.run(f"SELECT {', '.join(columns)} FROM orders"))


def test_what_load_has_filled_is_followed_from_the_load_s_scn_on(
    shop: TableShop, spark: SparkSession, tmp_path: Path
) -> None:
    target = f"delta:{tmp_path}/orders"
    given: dict[str, Any] = {
        "relays": [shop.relay.url],
        "bootstrap_servers": [shop.server],
        "checkpoint": str(tmp_path / "checkpoint"),
        "available_now": True,
    }
    load(spark, "shop.orders", target, bootstrap_servers=[shop.server])
    shop.place.run("UPDATE orders SET note = 'later' WHERE id = 7", "DELETE FROM orders WHERE id=8")
    scn = shop.scn()
    found = sync(spark, "shop.orders", target, **given)
    assert rows_in(target, "id", "note") == rows_of(shop, "id", "note")
    assert found.rows <= 2  # and not the table again
    assert found.scns == {"shop": scn}
    shop.place.run("INSERT INTO orders VALUES (5000, 'new')")
    scn = shop.scn()
    found = sync(spark, "shop.orders", target, **given)
    assert (found.rows, found.scns) == (1, {"shop": scn})
    assert rows_in(target, "id", "note") == rows_of(shop, "id", "note")


def test_an_empty_target_is_filled_and_a_new_column_taken_in_without_anybody_s_help(
    shop: TableShop, spark: SparkSession, tmp_path: Path
) -> None:
    target = f"delta:{tmp_path}/orders"
    stop, told = threading.Event(), list[SyncProgress]()
    with ThreadPoolExecutor(1) as pool:
        job = pool.submit(
            sync,
            spark,
            "shop.orders",
            target,
            relays=[shop.relay.url],
            bootstrap_servers=[shop.server],
            checkpoint=str(tmp_path / "checkpoint"),
            every_s=0.1,
            stop=stop,
            report=told.append,
        )
        try:
            wait_until(
                lambda: job.done() or rows_in(target, "id") == rows_of(shop, "id"), "the rows"
            )
            shop.place.run("ALTER TABLE orders ADD COLUMN price INTEGER")
            shop.place.run("INSERT INTO orders VALUES (6000, 'priced', 12)")
            wait_until(
                lambda: job.done() or (6000, 12) in rows_in(target, "id", "price"),
                "the new column",
            )
        finally:
            stop.set()
        found = job.result()
    assert rows_in(target, "id", "note", "price") == rows_of(shop, "id", "note", "price")
    assert found.restarts >= 1
    assert told[-1] == found


def test_a_stopped_source_is_seen_while_a_job_runs_and_ends_one_that_is_to_read_the_newest(
    shop: TableShop, spark: SparkSession, tmp_path: Path
) -> None:
    given: dict[str, Any] = {
        "relays": [shop.relay.url],
        "bootstrap_servers": [shop.server],
        "checkpoint": str(tmp_path / "checkpoint"),
    }
    target, stop, told = f"delta:{tmp_path}/orders", threading.Event(), list[SyncProgress]()
    with ThreadPoolExecutor(1) as pool:
        job = pool.submit(
            sync, spark, "shop.orders", target, **given, every_s=0.1, stop=stop, report=told.append
        )
        try:
            wait_until(lambda: job.done() or (told and told[-1].lag_s == 0), "all is read")
            shop.relay.post("/controlSources/pause")
            wait_until(lambda: job.done() or told[-1].stopped, "the pause")
            assert (told[-1].stopped, told[-1].lag_s) == ({"shop": "paused"}, None)
        finally:
            stop.set()
    stopped = r"shop\.orders: source shop stopped .* reports state paused: "
    with pytest.raises(ConsumerError, match=stopped):
        sync(spark, "shop.orders", target, **given, available_now=True)
    shop.relay.post("/controlSources/unpause")
    wait_until(lambda: not shop.relay.problem(), "capture")
    found = sync(spark, "shop.orders", target, **given, available_now=True)
    assert (found.stopped, found.restarts) == ({}, 0)


@pytest.mark.postgres
def test_a_value_that_the_target_cannot_have_ends_the_job_and_the_way_on_is_one(
    shop: TableShop, spark: SparkSession, tmp_path: Path, postgres_url: str
) -> None:
    target = f"{postgres_url}#orders"
    given: dict[str, Any] = {"relays": [shop.relay.url], "bootstrap_servers": [shop.server]}
    load(spark, "shop.orders", target, bootstrap_servers=[shop.server])
    shop.place.run("UPDATE orders SET note = 'a' || char(0) || 'b' WHERE id = 9")
    shop.scn()
    with pytest.raises(ConsumerError, match=r"column 'note': row id = 9 of SCN .* new checkpoint"):
        sync(spark, "shop.orders", target, **given, checkpoint=str(tmp_path / "c"))
    shop.place.run("UPDATE orders SET note = 'ab' WHERE id = 9")
    shop.scn()
    load(spark, "shop.orders", target, bootstrap_servers=[shop.server], again=True)
    shop.place.run("UPDATE orders SET note = 'abc' WHERE id = 9")
    scn = shop.scn()
    found = sync(
        spark, "shop.orders", target, **given, checkpoint=str(tmp_path / "d"), available_now=True
    )
    assert (found.scns, found.restarts) == ({"shop": scn}, 0)
    with closing(open_target(target)) as opened:
        rows = {(row["id"], row["note"]) for row in rows_of_target(opened)}
    assert rows == rows_of(shop, "id", "note")


def restarts(most: int) -> Restarts:
    return Restarts(most, BackOff(BackOffSettings(first_s=1, factor=2, jitter=0), Random()))


def test_a_schema_change_is_followed_by_a_start_at_once_and_an_absence_by_waits() -> None:
    rules = restarts(5)
    assert rules.wait_s(NEW_COLUMN, "shop.orders", 3) == 0
    assert [rules.wait_s(AWAY, "shop.orders", 3) for _ in range(3)] == [1, 2, 4]
    rules.progressed()
    assert rules.wait_s(AWAY, "shop.orders", 3) == 1


def test_what_servers_have_forgotten_since_it_was_planned_is_planned_anew() -> None:
    text = "databus.schemas.errors.BootstrapTooYoungError: http://b: x\n\tat org.apache"
    assert restarts(1).wait_s(text, "shop.orders", 3) == 1


class AtOnce(threading.Event):
    """The event of a stop that does not come; nobody waits for it."""

    def wait(self, timeout: float | None = None) -> bool:
        return False


def test_relays_that_are_away_when_rows_are_read_again_are_waited_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Without Spark: a target that needs all rows again takes the place of one beside it."""
    away, taken = [NoAnswerError("servers", "none has answered")] * 2, []
    servers = {"relays": "http://r", "bootstrapServers": "http://b"}
    with closing(open_target(f"delta:{tmp_path}/orders")) as target:
        monkeypatch.setattr(target, "take_over", lambda *what: taken.append(what))
        job = jobs_sync._Job(
            *(None, target, "delta:orders", {"sources": "shop.orders", **servers}),  # type: ignore[arg-type]
            *("checkpoint", {}, 10, lambda _: None),
        )

        def physical() -> list[str]:
            if away:
                raise away.pop()
            return ["shop"]

        monkeypatch.setattr(job, "_physical", physical)
        loaded = Loaded("shop.orders", "delta:orders__databus_reload", 7, 0, 1, 0)
        monkeypatch.setattr(jobs_sync, "load", lambda *_, **__: loaded)
        job._load_again(AtOnce())
    assert taken == [("delta:orders__databus_reload", "reload:shop.orders", 7, {"shop": 7})]


@pytest.mark.parametrize("text", [AWAY, NEW_COLUMN])
def test_failures_in_a_row_end_the_job_after_so_many(text: str) -> None:
    rules = restarts(2)
    for _ in range(2):
        rules.wait_s(text, "shop.orders", 3)
    with pytest.raises(ConsumerError, match=r"window 3: shop\.orders, 3 times in a row: "):
        rules.wait_s(text, "shop.orders", 3)


def test_what_no_start_can_cure_ends_the_job_with_our_words_alone() -> None:
    for error in ("databus.schemas.errors.RowError", "ImportError", "sqlalchemy.exc.DataError"):
        text = f"Traceback\n {error}: column x is odd\n\tat org.apache"
        with pytest.raises(ConsumerError, match=r"shop\.orders: column x is odd$"):
            restarts(5).wait_s(text, "shop.orders", 3)


def test_what_goes_wrong_within_spark_itself_is_tried_again_and_ends_with_its_first_line() -> None:
    text = "\n [STREAM_FAILED] Python worker failed to connect back\n\tat org.apache.spark"
    rules = restarts(1)
    assert rules.wait_s(text, "shop.orders", 3) == 1
    with pytest.raises(ConsumerError, match=r"\[STREAM_FAILED\] Python worker .* back$"):
        rules.wait_s(text, "shop.orders", 3)


def test_the_words_of_the_progress_say_rows_scn_and_lag() -> None:
    stopped = SyncProgress(5, 1, {"shop": 7}, {"shop": 7}, stopped={"shop": "error"})
    assert words_of("shop.orders", stopped) == (
        "shop.orders: 5 rows in 1 batches, shop at scn 7, "
        "shop is in error: the newest SCN is not known"
    )
    progress = SyncProgress(1200, 3, {"shop": 7}, {"shop": 9}, 1.25, 2)
    assert words_of("shop.orders", progress) == (
        "shop.orders: 1,200 rows in 3 batches, shop at scn 7 of 9, 1.2 s behind, restarted 2 times"
    )
