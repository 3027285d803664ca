"""`sync_tables`: a target for each of many tables, from one stream and one checkpoint."""

from __future__ import annotations

import json
import re
import shutil
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from databus.client.spark.consuming.apply_events import apply_events
from databus.client.spark.consuming.checkpoint_folder import CheckpointFolder
from databus.client.spark.consuming.schema_book import SchemaBook
from databus.client.spark.consuming.table_notes import TableNotes, check_as_left
from databus.client.spark.jobs import reload as reload_module, synced_tables
from databus.client.spark.jobs.load import Loaded, load as load_table
from databus.client.spark.jobs.sync import sync
from databus.client.spark.jobs.sync_tables import TablesProgress, sync_tables
from databus.client.spark.targets.target import open_target
from databus.demo.processes import free_port
from databus.schemas.errors import ConsumerError, DatabusError, ReloadNeededError, SettingsError
from tests import PATIENCE_S
from tests.client.spark.source.table_shop import TableShop, table_shop
from tests.client.spark.targets.target_rows import table_of
from tests.promises.running import wait_until

ROWS = 100
MORE = ("items (id INTEGER PRIMARY KEY, name TEXT)", "loose (a INTEGER, b TEXT)")


@pytest.fixture
def shop(tmp_path: Path, delta_runtime: None) -> Iterator[TableShop]:
    folder = tmp_path / "shop"
    folder.mkdir()
    with table_shop(folder, ROWS, *MORE) as running:
        yield running
        running.place.shop.connection.close()


class Lake:
    """The targets of a job in a folder."""

    def __init__(self, spark: SparkSession, shop: TableShop, folder: Path) -> None:
        self.spark, self.shop, self.folder = spark, shop, folder
        self.template = f"delta:{folder}/lake/{{schema}}/{{table}}"

    def run(self, *sources: str, **more: Any) -> TablesProgress:
        given: dict[str, Any] = {
            "relays": [self.shop.relay.url],
            "bootstrap_servers": [self.shop.server],
            "checkpoint": str(self.folder / "checkpoint"),
            "available_now": True,
            "every_s": 0.1,
        }
        sources = sources or ("shop.*",)
        return sync_tables(self.spark, sources, self.template, **{**given, **more})

    @contextmanager
    def running(self, *sources: str, **more: Any) -> Iterator[list[TablesProgress]]:
        """Run a job that follows for ever; gives what it reports."""
        stop, reports = threading.Event(), list[TablesProgress]()
        given = {**more, "available_now": False, "stop": stop, "report": reports.append}
        with ThreadPoolExecutor(1) as pool:
            job = pool.submit(self.run, *sources, **given)
            try:
                wait_until(lambda: job.done() or reports, "the job")
                yield reports
            finally:
                stop.set()
            job.result()

    def rows(self, table: str) -> list[tuple[Any, ...]] | None:
        names = [row[1] for row in self.shop.place.run(f"PRAGMA table_info({table})")]
        with closing(open_target(f"delta:{self.folder}/lake/shop/{table}")) as target:
            if target.schema() is None:
                return None
            rows = table_of(target).to_pylist()
            return sorted(tuple(row.get(name) for name in names) for row in rows)

    def is_equal(self, *tables: str) -> bool:
        return all(
            self.rows(table) == sorted(self.shop.place.run(f"SELECT * FROM {table}"))
            for table in tables
        )


def filled(lake: Lake) -> tuple[TableShop, tuple[str, ...]]:
    """Have a job fill the targets of two tables, and end; return the shop and the tables."""
    tables = ("shop.items", "shop.orders")
    lake.shop.place.run("INSERT INTO items VALUES (1, 'a'), (2, 'b')")
    lake.shop.scn()
    lake.run(*tables)
    return lake.shop, tables


@pytest.fixture
def lake(spark: SparkSession, shop: TableShop, tmp_path: Path) -> Lake:
    return Lake(spark, shop, tmp_path)


def test_tables_may_be_merged_on_the_executors(lake: Lake) -> None:
    shop = lake.shop
    lake.template = lake.template.replace("delta:", "delta+spark:")
    shop.place.run("INSERT INTO items VALUES (1, 'a'), (2, 'b')")
    shop.scn()
    lake.run("shop.orders", "shop.items")
    assert lake.is_equal("orders", "items")
    shop.place.run("UPDATE items SET id = 7 WHERE id = 1", "DELETE FROM orders WHERE id < 9")
    scn = shop.scn()
    found = lake.run("shop.orders", "shop.items")
    assert lake.is_equal("orders", "items")
    assert (found.scns, found.aside) == ({"shop": scn}, {})


def test_each_table_has_its_target_and_the_job_goes_on_where_it_was(lake: Lake) -> None:
    shop = lake.shop
    shop.place.run("INSERT INTO items VALUES (1, 'a'), (2, 'b')")
    shop.place.run("INSERT INTO people VALUES ('p', 'de', 'x')")
    shop.scn()
    found = lake.run("shop.*", "!shop.loose")
    assert lake.is_equal("orders", "items", "people")
    assert (found.tables, found.aside) == (3, {})
    shop.place.run("UPDATE items SET name = 'c' WHERE id = 1", "DELETE FROM orders WHERE id < 9")
    scn = shop.scn()
    found = lake.run("shop.*", "!shop.loose")
    assert lake.is_equal("orders", "items", "people")
    assert (found.rows, found.scns) == (9, {"shop": scn})


@pytest.mark.parametrize("batches", [1, 2])
def test_a_checkpoint_that_was_set_back_loses_no_change(lake: Lake, batches: int) -> None:
    shop, tables = filled(lake)
    for number in range(2):
        shop.place.run(f"UPDATE items SET name = 'n{number}' WHERE id = 1")
        shop.scn()
        lake.run(*tables)
    for folder in ("offsets", "commits"):
        files = list((lake.folder / "checkpoint" / folder).iterdir())
        numbered = sorted(
            (one for one in files if one.name.isdigit()), key=lambda one: int(one.name)
        )
        for newest in numbered[-batches:]:
            newest.unlink()
            newest.with_name(f".{newest.name}.crc").unlink(missing_ok=True)
    shop.place.run(
        "UPDATE items SET name = 'later' WHERE id = 2", "DELETE FROM orders WHERE id < 9"
    )
    shop.scn()
    lake.run(*tables)
    assert lake.is_equal("orders", "items")


@pytest.mark.parametrize("name", ["start", "sources", "RELAYS", "columns"])
def test_an_option_that_the_job_sets_itself_is_refused(lake: Lake, name: str) -> None:
    with pytest.raises(SettingsError, match=f"option {name}: a job sets it itself"):
        lake.run("shop.items", options={name: "x"})


def test_a_table_that_fails_is_set_aside_and_the_others_go_on(lake: Lake) -> None:
    shop = lake.shop
    shop.place.run("INSERT INTO loose VALUES (1, 'no key')", "INSERT INTO items VALUES (1, 'a')")
    shop.scn()
    found = lake.run()
    assert lake.is_equal("orders", "items", "people")
    assert list(found.aside) == ["shop.loose"]
    assert "key" in found.aside["shop.loose"]
    shop.place.run("INSERT INTO items VALUES (2, 'b')", "INSERT INTO loose VALUES (2, 'x')")
    shop.scn()
    found = lake.run()
    assert lake.is_equal("orders", "items"), "and after a restart, too"
    assert list(found.aside) == ["shop.loose"]


def test_a_table_with_a_column_of_our_name_is_set_aside_in_a_sentence(
    lake: Lake, caplog: pytest.LogCaptureFixture
) -> None:
    shop = lake.shop
    shop.place.run("ALTER TABLE items ADD COLUMN _DATABUS_SCN INTEGER")
    shop.place.run("INSERT INTO items VALUES (1, 'a', 7)")
    shop.scn()
    found = lake.run("shop.*", "!shop.loose")
    assert lake.is_equal("orders", "people")
    assert found.aside["shop.items"].startswith("shop.items has a column '_DATABUS_SCN' itself: ")
    assert "'!schema.table'" in found.aside["shop.items"]
    assert "Traceback" not in caplog.text


def test_a_table_without_a_key_is_told_what_to_do_and_a_history_takes_it(lake: Lake) -> None:
    lake.shop.place.run("INSERT INTO loose VALUES (1, 'no key')")
    lake.shop.scn()
    told = lake.run().aside["shop.loose"]
    assert "Give the table a primary key, or follow it into a target of mode append_hist" in told
    given: dict[str, Any] = {
        "relays": [lake.shop.relay.url],
        "bootstrap_servers": [lake.shop.server],
        "checkpoint": str(lake.folder / "of one"),
        "available_now": True,
        "mode": "append_history",
    }
    of_one = sync(lake.spark, "shop.loose", f"delta:{lake.folder}/of one table", **given)
    assert of_one.rows == 1
    lake.template = lake.template.replace("lake", "history")
    found = lake.run("shop.loose", mode="append_history", checkpoint=f"{lake.folder}/of many")
    assert (found.rows, found.aside) == (1, {})


@pytest.mark.parametrize("source", ["shop.*", "shop.items,shop.orders"])
def test_several_tables_for_one_target_are_refused_in_a_sentence(lake: Lake, source: str) -> None:
    with pytest.raises(SettingsError, match=r"is for one table, .* put {table} into the target"):
        sync(lake.spark, source, f"delta:{lake.folder}/one", relays=["x"], checkpoint="x")


def test_a_name_that_the_relay_does_not_have_is_told_with_those_that_it_has(lake: Lake) -> None:
    given: dict[str, Any] = {
        "relays": [lake.shop.relay.url],
        "available_now": True,
        "checkpoint": str(lake.folder / "of one"),
    }
    told = r"unknown source 'shop\.nope'; known: shop\.items, shop\.loose, shop\.orders"
    with pytest.raises(DatabusError, match=told):
        lake.run("shop.nope")
    with pytest.raises(DatabusError, match=told):
        sync(lake.spark, "shop.nope", f"delta:{lake.folder}/one", **given)


def test_a_job_whose_tables_all_fail_ends_with_the_reason(lake: Lake) -> None:
    lake.shop.place.run("INSERT INTO loose VALUES (1, 'no key')")
    lake.shop.scn()
    with pytest.raises(ConsumerError, match=r"shop\.loose: .*key"):
        lake.run("shop.loose")


def test_a_job_whose_jvm_ended_while_tables_are_applied_does_not_wait_for_it(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: Any, **__: Any) -> Any:
        raise ConnectionRefusedError(111, "Connection refused")

    monkeypatch.setattr(synced_tables, "apply_events", refused)
    monkeypatch.setattr(synced_tables, "has_spark", lambda: False)
    lake.shop.scn()
    with pytest.raises(ConsumerError, match="Connection refused"):
        lake.run("shop.orders", most_restarts=0)


def test_a_job_waits_at_its_first_start_for_a_database_that_is_away(lake: Lake) -> None:
    away, shop = lake.folder / "away", lake.shop
    lake.template = f"sqlite:///{away}/lake.db#{{table}}"
    shop.scn()
    stop = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        job = pool.submit(lake.run, "shop.orders", stop=stop)
        try:
            time.sleep(1)
            assert not job.done()
            away.mkdir()
            found = job.result(PATIENCE_S)
        finally:
            stop.set()
    assert (found.rows, found.aside, found.retried) == (ROWS, {}, {})


def test_a_table_whose_target_is_gone_is_set_aside_and_reload_fills_it_again(lake: Lake) -> None:
    shop = lake.shop
    shop.place.run("INSERT INTO items VALUES (1, 'a'), (2, 'b')")
    shop.scn()
    lake.run("shop.items", "shop.orders")
    (lake.folder / "lake/shop/items").rename(lake.folder / "elsewhere")
    shop.place.run("INSERT INTO items VALUES (3, 'c')", "DELETE FROM orders WHERE id = 3")
    shop.scn()
    found = lake.run("shop.items", "shop.orders")
    assert "--reload shop.items" in found.aside["shop.items"]
    assert lake.is_equal("orders")
    shop.place.run("INSERT INTO items VALUES (4, 'd')")
    shop.scn()
    found = lake.run("shop.items", "shop.orders", reload=["shop.items"])
    assert (found.aside, found.reloads) == ({}, 1)
    assert lake.is_equal("items", "orders")


@pytest.mark.parametrize("how", ["from a copy", "by its own format"])
def test_a_table_whose_target_was_set_back_is_set_aside_at_once_and_reload_fills_it_again(
    lake: Lake, how: str
) -> None:
    shop, tables = filled(lake)
    path = lake.folder / "lake/shop/items"
    shutil.copytree(path, lake.folder / "copy")
    place = DeltaTable(path).version()
    shop.place.run("INSERT INTO items VALUES (3, 'c')")
    shop.scn()
    lake.run(*tables)
    if how == "from a copy":
        shutil.rmtree(path)
        (lake.folder / "copy").rename(path)
    else:
        DeltaTable(path).restore(place)
    # Not of a table that the job does not follow any more.
    assert lake.run("shop.orders").aside == {}
    found = lake.run(*tables)
    assert list(found.aside) == ["shop.items"]
    assert re.search(
        r"has its batches up to \d+, but .*--reload shop.items", found.aside[tables[0]]
    )
    found = lake.run(*tables, reload=["shop.items"])
    assert (found.aside, found.reloads) == ({}, 1)
    shop.place.run("INSERT INTO items VALUES (4, 'd')")
    shop.scn()
    assert lake.run(*tables).aside == {}
    assert lake.is_equal("items", "orders")


def test_a_job_waits_at_its_start_for_a_target_that_it_has_to_look_at(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, tables = filled(lake)
    failures = [OSError("away"), OSError("away")]

    def away(*given: Any) -> None:
        if failures and given[2] == "shop.items":
            raise failures.pop()
        check_as_left(*given)

    monkeypatch.setattr(synced_tables, "check_as_left", away)
    assert lake.run(*tables).aside == {}
    assert not failures


def test_a_longer_list_takes_in_a_table_whole_and_a_shorter_one_leaves_it(lake: Lake) -> None:
    shop = lake.shop
    shop.place.run("INSERT INTO items VALUES (1, 'a'), (2, 'b')")
    shop.scn()
    lake.run("shop.orders")
    shop.place.run("INSERT INTO items VALUES (3, 'c')", "DELETE FROM orders WHERE id = 3")
    shop.scn()
    lake.run("shop.orders", "shop.items")
    assert lake.is_equal("items", "orders")
    shop.place.run("DELETE FROM items WHERE id = 1", "DELETE FROM orders WHERE id = 4")
    shop.scn()
    lake.run("shop.orders")
    assert lake.is_equal("orders")
    assert not lake.is_equal("items"), "it stays as it was"


def test_columns_change_while_the_query_goes_on(lake: Lake) -> None:
    shop = lake.shop
    with lake.running("shop.orders", "shop.items") as reports:
        wait_until(lambda: lake.is_equal("orders"), "the rows")
        shop.place.run(
            "ALTER TABLE orders ADD COLUMN price INTEGER DEFAULT 7",
            "INSERT INTO orders VALUES (6000, 'priced', 12)",
            "INSERT INTO items VALUES (1, 'a')",
        )
        wait_until(lambda: lake.is_equal("orders", "items"), "the new column")
    assert reports[-1].restarts == 0


def test_a_table_that_is_read_again_holds_no_other_and_a_later_start_goes_on_with_it(
    lake: Lake,
) -> None:
    shop, tables = filled(lake)
    away = {"bootstrap_servers": [f"http://127.0.0.1:{free_port()}"], "reload": ["shop.items"]}
    with lake.running(*tables, **away, options={"retrySeconds": "0.5"}) as reports:
        wait_until(lambda: "shop.items" in reports[-1].retried, "the reload that waits")
        assert "asked for" in reports[-1].reloading["shop.items"]
        shop.place.run("DELETE FROM orders WHERE id = 4", "INSERT INTO items VALUES (3, 'c')")
        shop.scn()
        wait_until(lambda: lake.is_equal("orders"), "the other table")
        wait_until(lambda: reports[-1].scns == {"shop": shop.scn()}, "the batch")
    assert not lake.is_equal("items"), "batches pass it over"
    found = lake.run(*tables)
    assert (found.reloading, found.aside, found.reloads) == ({}, {}, 1)
    assert lake.is_equal("items", "orders")


def test_what_batches_had_meanwhile_is_applied_before_a_table_that_is_read_again_is_put_in_place(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop, tables = filled(lake)
    load, reports = load_table, list[TablesProgress]()

    def slow_load(*arguments: Any, **named: Any) -> Loaded:
        loaded = load(*arguments, **named)
        shop.place.run("INSERT INTO items VALUES (3, 'c')", "DELETE FROM items WHERE id = 1")
        scn = shop.scn()
        wait_until(lambda: reports and reports[-1].scns == {"shop": scn}, "a batch meanwhile")
        return loaded

    monkeypatch.setattr(reload_module, "load", slow_load)
    with lake.running(*tables, reload=["shop.items"]) as shown:
        reports = shown
        wait_until(lambda: reports[-1].reloads == 1, "the reload")
        assert lake.is_equal("items")
        shop.place.run("INSERT INTO items VALUES (4, 'd')")
        wait_until(lambda: lake.is_equal("items"), "what comes after it")


def test_a_table_that_is_altered_again_while_it_is_read_again_lacks_no_change_in_the_end(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop, tables = filled(lake)
    old_scn, loads = shop.scn(), list[int]()

    def old_load(*arguments: Any, **named: Any) -> Loaded:
        # A server that is behind: its rows are of before what batches have had.
        loads.append(old_scn)
        return load_table(*arguments, **named, as_of=old_scn)

    def altered(*arguments: Any, **named: Any) -> Any:
        if len(loads) <= reload_module.ROUNDS + 1:
            raise ReloadNeededError("its columns changed once more")
        return apply_events(*arguments, **named)

    shop.place.run("INSERT INTO items VALUES (3, 'c')", "DELETE FROM items WHERE id = 1")
    shop.scn()
    lake.run(*tables)
    monkeypatch.setattr(reload_module, "load", old_load)
    monkeypatch.setattr(reload_module, "apply_events", altered)
    found = lake.run(*tables, reload=["shop.items"])
    assert (found.reloads, found.aside, len(loads)) == (1, {}, reload_module.ROUNDS + 2)
    assert lake.is_equal("items", "orders")


def test_a_table_that_is_filtered_is_set_aside_when_it_has_to_be_read_again(lake: Lake) -> None:
    shop, tables = lake.shop, ("shop.items", "shop.orders")
    shop.place.run("INSERT INTO items VALUES (1, 'a'), (2, 'b')")
    shop.scn()
    half = {"numBuckets": 2, "bktRange": {"start": 0, "end": 1}}
    some = {"shop.items": {"partitionType": "MOD", "filters": [half]}}
    options = {"filters": json.dumps(some)}
    lake.run(*tables, options=options)
    found = lake.run(*tables, options=options, reload=["shop.items"])
    assert "option filters" in found.aside["shop.items"]


def test_two_sources_with_one_target_are_refused_also_where_its_uri_has_a_password(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = SimpleNamespace(uri="mysql+pymysql://user:***@127.0.0.1/lake#t", close=lambda: None)
    monkeypatch.setattr(synced_tables, "open_target", lambda *_, **__: shown)
    given = {"sources": "a.t,b.t", "relays": "http://127.0.0.1:1"}
    with closing(SchemaBook.of([given["relays"]])) as book:
        tables = synced_tables.SyncedTables(
            spark,
            "mysql+pymysql://user:secret@127.0.0.1/lake#{table}",
            book,
            TableNotes(CheckpointFolder(spark, str(tmp_path))),
            given=given,
            reloads=True,
            stop=threading.Event(),
            homes=dict,
        )
        with closing(tables):
            tables.target("a.t")
            with pytest.raises(SettingsError, match=r"b\.t and a\.t have one target"):
                tables.target("b.t")
