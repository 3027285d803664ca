"""`load`: tables copied into targets, whatever is written or killed meanwhile."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import DataFrame, SparkSession

from databus.cli.main import main
from databus.client.spark.jobs.load import LoadProgress, load
from databus.client.spark.jobs.load_query import load_query
from databus.client.spark.jobs.load_source import BootstrapLoadSource
from databus.client.spark.jobs.sync import sync
from databus.client.spark.jobs.sync_tables import sync_tables
from databus.client.spark.sql.table_references import table_places, with_views
from databus.client.spark.targets.following import noted_scn, shape_note
from databus.client.spark.targets.target import open_target
from databus.schemas.errors import (
    BootstrapTooOldError,
    ConsumerError,
    ReadAgainError,
    SettingsError,
)
from tests.client.spark.changing_source import META_ALONE, batch_of, change
from tests.client.spark.conftest import JAVA_OPTIONS
from tests.client.spark.source.table_shop import TableShop, table_shop

ROWS = 400
TAKEN = "taken (id INTEGER PRIMARY KEY, note TEXT, _Databus_Scn INTEGER)"
KILLED = """
    import os, signal, sys
    from databus.client.spark.jobs.load import load
    from databus.client.spark.session import job_session

    def report(progress):
        if progress.chunk == 2:
            os.kill(os.getpid(), signal.SIGKILL)

    server, target, java_options = sys.argv[1:]
    spark = job_session("load", {"spark.master": "local[1]", "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.extraJavaOptions": java_options})
    load(spark, "shop.orders", target, bootstrap_servers=[server], chunk_rows=100, report=report)
"""


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TableShop]:
    with table_shop(tmp_path_factory.mktemp("load"), ROWS, TAKEN) as running:
        yield running


def rows_in(target: str) -> dict[int, str]:
    table = DeltaTable(target.removeprefix("delta:")).to_pyarrow_table(columns=["id", "note"])
    rows = dict(zip(*(table.column(name).to_pylist() for name in ("id", "note")), strict=True))
    assert len(rows) == table.num_rows
    return rows


def rows_of(shop: TableShop) -> dict[int, str]:
    return dict(shop.place.run("SELECT id, note FROM orders"))


def write(shop: TableShop, seed: int) -> int:
    """Change some rows, add some, delete some; return the SCN."""
    chance = random.Random(seed)
    with shop.place.shop.transaction():
        for number in chance.sample(range(1, ROWS), 40):
            kind = number % 3
            if kind == 0:
                shop.place.run(f"DELETE FROM orders WHERE id = {number}")
            elif kind == 1:
                shop.place.run(f"UPDATE orders SET note = 'seed {seed}' WHERE id = {number}")
            else:
                new = 10_000 * seed + number
                shop.place.run(f"INSERT INTO orders VALUES ({new}, 'new {seed}')")
    return shop.scn()


def test_a_load_that_is_killed_goes_on_as_of_the_scn_that_it_began_with(
    shop: TableShop, spark: SparkSession, tmp_path: Path
) -> None:
    target = f"delta:{tmp_path}/orders"
    begun, scn = rows_of(shop), shop.scn()
    command = [sys.executable, "-c", textwrap.dedent(KILLED), shop.server, target, JAVA_OPTIONS]
    assert subprocess.run(command, check=False).returncode == -signal.SIGKILL
    assert 0 < len(rows_in(target)) < len(begun)
    assert open_target(target).positions() == {"shop": 0}
    write(shop, 1)
    chunks: list[LoadProgress] = []
    found = load(
        spark,
        "shop.orders",
        target,
        bootstrap_servers=[shop.server],
        chunk_rows=100,
        report=chunks.append,
    )
    assert found.scn == scn
    assert (found.skipped, found.chunks) == (2, 4)
    assert [one.chunk for one in chunks[:-1]] == [3, 4]
    assert rows_in(target) == begun
    assert open_target(target).positions() == {"shop": scn}


def test_a_table_loaded_again_has_what_the_source_has_and_nothing_else(
    shop: TableShop, spark: SparkSession, tmp_path: Path
) -> None:
    target = f"delta:{tmp_path}/orders"
    for seed in (2, 3):
        scn = write(shop, seed)
        found = load(spark, "shop.orders", target, bootstrap_servers=[shop.server])
        assert (found.scn, found.skipped) == (scn, 0)
        assert rows_in(target) == rows_of(shop)
    again = load(spark, "shop.orders", target, bootstrap_servers=[shop.server], again=True)
    assert (again.scn, again.rows) == (scn, len(rows_of(shop)))
    few = load(
        spark, "shop.orders", target, bootstrap_servers=[shop.server], where="id % 7 = 0", as_of=scn
    )
    assert few.scn == scn
    assert rows_in(target) == {k: v for k, v in rows_of(shop).items() if k % 7 == 0}


def killed(progress: LoadProgress) -> None:
    raise InterruptedError(f"at chunk {progress.chunk}")


@pytest.mark.parametrize("is_whole", [True, False], ids=["finished", "killed"])
def test_a_killed_load_begins_anew_if_another_one_came_between(
    shop: TableShop, spark: SparkSession, tmp_path: Path, is_whole: bool
) -> None:
    target = f"delta:{tmp_path}/orders"
    given: dict[str, Any] = {"bootstrap_servers": [shop.server], "chunk_rows": 100}
    with pytest.raises(InterruptedError):
        load(spark, "shop.orders", target, where="id % 2 = 0", report=killed, **given)
    with suppress(InterruptedError):
        more: dict[str, Any] = {} if is_whole else {"report": killed}
        load(spark, "shop.orders", target, **given, **more)
    found = load(spark, "shop.orders", target, where="id % 2 = 0", **given)
    assert found.skipped == 0
    assert rows_in(target) == {k: v for k, v in rows_of(shop).items() if k % 2 == 0}


def test_a_load_as_of_the_scn_of_one_before_it_copies_the_table_once_more(
    shop: TableShop, spark: SparkSession, tmp_path: Path
) -> None:
    target, before = f"delta:{tmp_path}/orders", shop.scn()
    older = rows_of(shop)
    write(shop, 7)
    given: dict[str, Any] = {"bootstrap_servers": [shop.server]}
    load(spark, "shop.orders", target, **given)
    load(spark, "shop.orders", target, **given, as_of=before, again=True)
    assert rows_in(target) == older
    for _ in range(2):
        assert load(spark, "shop.orders", target, **given).skipped == 0
        assert rows_in(target) == rows_of(shop)
        table = DeltaTable(f"{tmp_path}/orders").to_pyarrow_table(columns=["_databus_scn"])
        assert table["_databus_scn"].null_count == 0


def test_a_load_whose_table_is_emptied_meanwhile_begins_again_as_of_a_newer_scn(
    shop: TableShop, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = f"delta:{tmp_path}/orders"
    read, scns, seeds = BootstrapLoadSource.chunk, list[int](), [5, 4]

    def chunk(self: BootstrapLoadSource, scn: int, *more: Any) -> DataFrame:
        scns.append(scn)
        if len(scns) == 2:
            write(shop, seeds.pop())
            # As tasks raise it, when the log has a TRUNCATE after the SCN.
            raise ReadAgainError("shop.orders was truncated")
        return read(self, scn, *more)

    monkeypatch.setattr(BootstrapLoadSource, "chunk", chunk)
    given: dict[str, Any] = {"bootstrap_servers": [shop.server], "chunk_rows": 100}
    found = load(spark, "shop.orders", target, **given)
    assert found.scn == shop.scn() > scns[0]
    assert rows_in(target) == rows_of(shop)
    scns[:] = [0]
    with pytest.raises(ReadAgainError, match="truncated"):
        load(spark, "shop.orders", f"{target}-then", as_of=found.scn, **given)


def test_a_target_that_is_for_a_load_alone_has_nothing_of_one_before_it(
    shop: TableShop, spark: SparkSession, tmp_path: Path
) -> None:
    target, given = f"delta:{tmp_path}/beside", {"bootstrap_servers": [shop.server]}
    more: dict[str, Any] = {"chunk_rows": 100, "alone": True, **given}
    write_deltalake(f"{tmp_path}/beside", pa.table({"id": ["no integer"], "dropped": [1]}))
    with pytest.raises(InterruptedError):
        load(spark, "shop.orders", target, report=killed, **more)
    assert load(spark, "shop.orders", target, **more).skipped == 1, "its own rows are resumed"
    assert rows_in(target) == rows_of(shop)
    assert "dropped" not in DeltaTable(f"{tmp_path}/beside").schema().to_json()


def test_rows_with_the_key_of_another_one_are_gone_when_a_mirror_is_loaded_again(
    shop: TableShop, spark: SparkSession, tmp_path: Path
) -> None:
    target, servers = f"delta:{tmp_path}/orders", [shop.server]
    load(spark, "shop.orders", target, bootstrap_servers=servers)
    table = DeltaTable(f"{tmp_path}/orders")
    rows = pa.table(table.to_pyarrow_table())
    for copies in (3, 1):
        write_deltalake(table, rows.slice(7, copies), mode="append")
    # One that the source does not have, twice.
    extra = rows.slice(0, 1).set_column(0, rows.schema.field("id"), [[-1]])
    write_deltalake(table, pa.concat_tables([extra] * 2), mode="append")

    found = load(spark, "shop.orders", target, bootstrap_servers=servers, again=True)

    assert found.rows == len(rows_of(shop))
    assert rows_in(target) == rows_of(shop)


def test_a_table_takes_the_rows_of_another_source_only_in_place_of_all(
    shop: TableShop, spark: SparkSession, tmp_path: Path
) -> None:
    target = f"delta:{tmp_path}/orders"
    fill(target, "shop.lines", "other", key=pa.int32())
    given: dict[str, Any] = {"bootstrap_servers": [shop.server]}
    refused = r"of shop\.lines, and these are of shop\.orders"
    with pytest.raises(SettingsError, match=refused):
        load(spark, "shop.orders", target, **given)
    nobody: dict[str, Any] = {"relays": ["http://127.0.0.1:1"], "checkpoint": str(tmp_path / "c")}
    with pytest.raises(SettingsError, match=refused):
        sync(spark, "shop.orders", target, **nobody)
    load(spark, "shop.orders", target, **given, again=True)
    assert open_target(target).sources() == ["shop.orders"]
    assert rows_in(target) == rows_of(shop)
    load(spark, "shop.orders", target, **given)


def fill(
    target: str,
    source: str,
    physical_source: str,
    mode: str | None = None,
    key: pa.DataType = pa.int64(),  # noqa: B008 - it never changes
) -> None:
    """Fill a target with rows of another server, whose SCNs are greater."""
    other = open_target(target, mode=mode)
    old = 12 << 32
    rows = [change("insert", old + key, {"id": key, "note": "old"}, source=source,
                   physical_source=physical_source) for key in (1, 2, 10**6)]  # fmt: skip
    columns = pa.schema([("id", key), ("note", pa.string()), ("_databus", META_ALONE)])
    changes = other.changes_of(batch_of(rows, columns), ["id"], source)
    other.apply("app", 0, changes)
    other.apply(shape_note(source), old, changes)


def test_rows_of_a_log_with_greater_scns_are_replaced_only_if_that_is_asked_for(
    shop: TableShop, spark: SparkSession, tmp_path: Path
) -> None:
    target = f"delta:{tmp_path}/orders"
    fill(target, "shop.orders", "shop")
    given: dict[str, Any] = {"bootstrap_servers": [shop.server]}
    with pytest.raises(BootstrapTooOldError, match=r"changes up to scn 515\d+: ask again.*--again"):
        load(spark, "shop.orders", target, **given)
    assert len(rows_in(target)) == 3, "it is as it was"
    scn = load(spark, "shop.orders", target, **given, again=True).scn
    assert rows_in(target) == rows_of(shop)
    assert open_target(target).positions() == {"shop": scn}
    assert noted_scn(open_target(target), "shop.orders") == scn, "the columns of then are followed"
    fill(target, "shop.orders", "shop")
    before = scn, rows_of(shop)
    write(shop, 6)
    for scn, rows in ((shop.scn(), rows_of(shop)), before):
        sql = "SELECT id, note FROM shop.orders WHERE id < 100"
        load_query(spark, sql, target, keys=["id"], bootstrap_servers=[shop.server], as_of=scn)
        assert rows_in(target) == {key: note for key, note in rows.items() if key < 100}


@pytest.mark.parametrize("mode", ["scd2", "soft_delete", "append_history"])
def test_a_table_that_keeps_what_was_refuses_rows_of_another_source_or_log(
    shop: TableShop, spark: SparkSession, tmp_path: Path, mode: str
) -> None:
    target = f"delta:{tmp_path}/orders"
    given: dict[str, Any] = {"bootstrap_servers": [shop.server], "again": True}
    fill(target, "shop.lines", "other", mode)
    with pytest.raises(SettingsError, match=r"are of shop\.orders: .* of its own; for several"):
        load(spark, "shop.orders", target, **given)
    target += "-then"
    fill(target, "shop.orders", "shop", mode)
    with pytest.raises(BootstrapTooOldError, match=f"of mode {mode} keeps what was, so fill a new"):
        load(spark, "shop.orders", target, **given)


@pytest.mark.parametrize(
    "part", [{"where": "id < 3"}, {"columns": ["id"]}], ids=["rows", "columns"]
)
@pytest.mark.parametrize("mode", ["mirror", "soft_delete"])
def test_a_part_of_a_table_is_not_followed_before_the_whole_is_loaded(
    shop: TableShop, spark: SparkSession, tmp_path: Path, part: dict[str, Any], mode: str
) -> None:
    target = f"delta:{tmp_path}/orders"
    servers: dict[str, Any] = {"bootstrap_servers": [shop.server]}
    load(spark, "shop.orders", target, mode=mode, **servers, **part)
    given: dict[str, Any] = {"relays": [shop.relay.url], **servers, "available_now": True}
    with pytest.raises(SettingsError, match="has only the rows or columns"):
        sync(spark, "shop.orders", target, checkpoint=str(tmp_path / "one"), **given)
    tables: dict[str, Any] = {"target": f"delta:{tmp_path}/{{table}}", **given}
    with pytest.raises(ConsumerError, match="has only the rows or columns"):
        sync_tables(spark, ["shop.orders"], checkpoint=str(tmp_path / "many"), **tables)
    load(spark, "shop.orders", target, mode=mode, **servers)
    sync(spark, "shop.orders", target, checkpoint=str(tmp_path / "whole"), **given)
    assert rows_in(target) == rows_of(shop)


@pytest.mark.parametrize("mode", ["scd2", "append_history"])
@pytest.mark.parametrize(
    "part", [{"where": "id < 3"}, {"columns": ["id"]}], ids=["rows", "columns"]
)
def test_a_history_takes_no_part_of_a_table(
    shop: TableShop, spark: SparkSession, tmp_path: Path, part: dict[str, Any], mode: str
) -> None:
    servers: dict[str, Any] = {"bootstrap_servers": [shop.server], "mode": mode}
    with pytest.raises(SettingsError, match=f"of mode {mode} takes the whole table"):
        load(spark, "shop.orders", f"delta:{tmp_path}/orders", **servers, **part)
    assert not (tmp_path / "orders").exists()


def test_a_job_reads_a_table_again_that_has_a_part_only(
    shop: TableShop, spark: SparkSession, tmp_path: Path
) -> None:
    target = f"delta:{tmp_path}/{{table}}"
    servers: dict[str, Any] = {"bootstrap_servers": [shop.server]}
    given: dict[str, Any] = {
        "relays": [shop.relay.url],
        "checkpoint": str(tmp_path / "checkpoint"),
        "available_now": True,
    } | servers
    sync_tables(spark, ["shop.orders"], target, **given)
    load(spark, "shop.orders", f"delta:{tmp_path}/orders", **servers, where="id < 3")
    sync_tables(spark, ["shop.orders"], target, **given, reload=["shop.orders"])
    assert rows_in(f"delta:{tmp_path}/orders") == rows_of(shop)
    found = sync_tables(spark, ["shop.orders"], target, **given)
    assert found.aside == {}


def test_a_table_is_loaded_from_the_database_itself(
    shop: TableShop, spark: SparkSession, tmp_path: Path
) -> None:
    target = f"delta:{tmp_path}/orders"
    settings = shop.relay.file
    found = load(spark, "shop.orders", target, settings=settings, chunk_rows=150)
    assert found.chunks > 1
    assert rows_in(target) == rows_of(shop)
    assert open_target(target).positions() == {"shop": found.scn}


def test_the_rows_of_a_query_take_the_place_of_all_rows(
    shop: TableShop, spark: SparkSession, tmp_path: Path
) -> None:
    target = f"delta:{tmp_path}/wide"
    shop.place.run("DELETE FROM people", "INSERT INTO people VALUES ('note 5', 'd1', 'x')")
    sql = (
        "SELECT o.id, concat(people.land, '!') AS note FROM shop.orders o "
        "JOIN shop.people ON people.name = o.note"
    )
    shop.place.run("UPDATE orders SET note = 'note 5' WHERE id IN (2, 4, 5, 8)")
    for gone in (0, 4):
        shop.place.run(f"DELETE FROM orders WHERE id = {gone}")
        scn = shop.scn()
        found = load_query(spark, sql, target, keys=["id"], bootstrap_servers=[shop.server])
        wanted = shop.place.run("SELECT id FROM orders WHERE note = 'note 5'")
        assert rows_in(target) == {number: "d1!" for (number,) in wanted}
        assert found.scn == scn
    assert spark.catalog.listTables() == []


def test_tables_of_a_select_are_found_and_all_else_stays_as_it_was_written() -> None:
    sql = "with a as (select * from shop.orders) SELECT /* x */ orders.id FROM shop.orders, a"
    views = {"shop.orders": "v"}
    assert with_views(sql, table_places(sql), views) == (
        "with a as (select * from v AS `orders`) SELECT /* x */ orders.id FROM v AS `orders`, a"
    )
    quoted = "select * from `shop`.`orders` x join local on true"
    assert with_views(quoted, table_places(quoted), views) == (
        "select * from v x join local on true"
    )
    own = "select * from `com.example.shop.Orders`, `a`"
    assert with_views(own, table_places(own), {"com.example.shop.Orders": "v"}) == (
        "select * from v AS `com.example.shop.Orders`, `a`"
    )
    for text, problem in (
        ("select * from com.example.shop.Orders", "in backquotes, `com.example.shop.Orders`"),
        ("select * from com.shop.Orders", "in backquotes, `com.shop.Orders`"),
        ("select from where", "is not Spark SQL"),
        ("drop table a.b", "not a SELECT"),
    ):
        with pytest.raises(SettingsError, match=problem):
            table_places(text)


def test_wrong_arguments_are_refused_before_anything_is_written(
    shop: TableShop, spark: SparkSession, tmp_path: Path
) -> None:
    target = f"delta:{tmp_path}/orders"
    wrong: tuple[tuple[Mapping[str, Any], str], ...] = (
        ({"bootstrap_servers": ()}, "name a bootstrap server"),
        ({"columns": ["note"]}, "the key columns id are missing in columns"),
        ({"columns": ["id", "price"]}, "there is no column 'price'"),
        ({"settings": shop.relay.file, "as_of": 3}, "not the database"),
    )
    for more, problem in wrong:
        given: dict[str, Any] = {"bootstrap_servers": [shop.server], **more}
        with pytest.raises(SettingsError, match=problem):
            load(spark, "shop.orders", target, **given)
    assert not list(tmp_path.iterdir())


def test_a_column_with_the_name_of_one_of_ours_is_refused_and_may_be_left_out(
    shop: TableShop, spark: SparkSession, tmp_path: Path
) -> None:
    target = f"delta:{tmp_path}/taken"
    shop.place.run("INSERT INTO taken VALUES (1, 'a', 7)")
    shop.scn()
    places: tuple[dict[str, Any], ...] = (
        {"bootstrap_servers": [shop.server]}, {"settings": shop.relay.file},
    )  # fmt: skip
    for given in places:
        for more in (dict[str, Any](), {"where": "id < 9", "columns": ["id"]}):
            with pytest.raises(SettingsError, match="has a column '_Databus_Scn' itself: a target"):
                load(spark, "shop.taken", target, **given, **more)
        assert not list(tmp_path.iterdir())
    for given in places:
        assert load(spark, "shop.taken", target, columns=["id", "note"], **given).rows == 1


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["shop.orders"], "give a TARGET for each SOURCE"),
        (["a", "b", "--from-database"], "go together"),
        (["a", "b", "--sql", "select 1"], "give TARGET alone"),
    ],
)
def test_the_command_says_what_goes_together(words: list[str], problem: str) -> None:
    found = CliRunner().invoke(main, ["spark", "load", *words])
    assert found.exit_code == 2
    assert problem in found.output
