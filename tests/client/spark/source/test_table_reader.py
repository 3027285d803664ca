"""`spark.read` of a table as of an SCN, on a real relay and bootstrap pair."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from databus.bootstrap.store import watch as store_watch
from databus.bootstrap.store.check import check_store
from databus.client.spark.source.table_reader import TableReader, split_rows
from databus.schemas.errors import BootstrapTooOldError, SettingsError
from databus.schemas.scn import MAX_SCN
from tests import PATIENCE_S
from tests.bootstrap.filled import PERSON
from tests.bootstrap.serving import ServedStore
from tests.client.spark.source.table_shop import TableShop, read, table_shop
from tests.client.spark.source.test_database_reader import write_settings
from tests.promises.running import wait_until

ROWS = 400
SMALL_PAGES = {"fetchBytes": 4096, "batchRows": 20}
EMPTY = "nobody (id INTEGER PRIMARY KEY, note TEXT)"
TAKEN = "taken (id INTEGER PRIMARY KEY, _databus_scn INTEGER)"
MIXED = "mixed (k TEXT, l INTEGER, n INTEGER, x NUMERIC, PRIMARY KEY (k, l))"
State = Mapping[Any, tuple[Any, ...]]


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TableShop]:
    with table_shop(
        tmp_path_factory.mktemp("table"), ROWS, MIXED, "keyless (a)", EMPTY, TAKEN
    ) as running:
        yield running


class Writer:
    """Writes a table in small transactions, each a window, and keeps what it was after each."""

    def __init__(self, shop: TableShop, table: str, seed: int) -> None:
        self._shop = shop
        self._table = table
        self._random = random.Random(seed)
        self.states: dict[int, State] = {shop.scn(): self._now()}

    def write(self) -> int:
        """Write a transaction; return its SCN."""
        shop, chance = self._shop, self._random
        with shop.place.shop.transaction():
            for _ in range(chance.randrange(1, 6)):
                number, turn = chance.randrange(1, ROWS + 40), chance.random()
                if turn < 0.3:
                    shop.place.run(f"DELETE FROM orders WHERE id = {number}")
                elif turn < 0.6:
                    shop.place.run(
                        f"INSERT INTO orders VALUES ({number}, '{turn}')"
                        " ON CONFLICT (id) DO UPDATE SET note = excluded.note"
                    )
                elif turn < 0.7:
                    shop.place.run(
                        f"UPDATE orders SET id = {1000 + number} WHERE id = {number}"
                        f" AND NOT EXISTS (SELECT 1 FROM orders WHERE id = {1000 + number})"
                    )
                else:
                    shop.place.run(f"UPDATE orders SET note = '{turn}' WHERE id = {number}")
        scn = shop.scn()
        self.states[scn] = self._now()
        return scn

    def _now(self) -> State:
        return {row[0]: row for row in self._shop.place.run(f"SELECT * FROM {self._table}")}


def state_of(rows: Any) -> State:
    found = {row["id"]: (row["id"], row["note"]) for row in rows.to_pylist()}
    assert len(found) == rows.num_rows, "a row came twice"
    return found


@pytest.mark.parametrize("seed", range(3))
def test_rows_are_those_of_one_scn_whatever_is_written_meanwhile(
    shop: TableShop, seed: int
) -> None:
    writer = Writer(shop, "orders", seed)
    begin = max(writer.states)
    found = read(shop.options(partitions=3, **SMALL_PAGES), between=writer.write)
    assert len(writer.states) > 20
    assert state_of(found) == writer.states[begin]


def test_every_scn_that_is_kept_can_be_read_as_it_was(shop: TableShop) -> None:
    writer = Writer(shop, "orders", 10)
    for _ in range(30):
        writer.write()
    for scn in random.Random(11).sample(sorted(writer.states), 5):
        options = shop.options(asOf=scn, partitions=2, **SMALL_PAGES)
        assert state_of(read(options, between=writer.write)) == writer.states[scn]


def test_rows_come_with_the_scn_of_their_last_change_or_one_as_of_which_they_were_so(
    shop: TableShop,
) -> None:
    writer = Writer(shop, "orders", 20)
    scns = [writer.write() for _ in range(10)]
    as_of = scns[4]
    found = read(shop.options(asOf=as_of, scn="true")).to_pylist()
    ordered = sorted(s for s in writer.states if s <= as_of)
    for row in found:
        assert row["_databus_scn"] <= as_of
        for scn in (s for s in ordered if s >= row["_databus_scn"]):
            assert writer.states[scn].get(row["id"]) == (row["id"], row["note"])


def test_columns_and_a_condition_choose_what_is_read_of_rows_as_they_were(shop: TableShop) -> None:
    writer = Writer(shop, "orders", 30)
    as_of = writer.write()
    options = shop.options(
        asOf=as_of, columns="NOTE", where="id between 10 and 60 and id <> 12", **SMALL_PAGES
    )
    found = read(options, between=writer.write)
    wanted = [v[1] for k, v in writer.states[as_of].items() if 10 <= k <= 60 and k != 12]
    assert found.column_names == ["note"]
    assert sorted(found.column("note").to_pylist()) == sorted(wanted)


def test_a_filter_of_keys_goes_with_all_tasks(shop: TableShop) -> None:
    text = (
        '{"shop.orders": {"partitionType": "MOD", '
        '"filters": [{"numBuckets": 10, "bktRange": {"start": 2, "end": 7}}]}}'
    )
    options = shop.options(filters=text, partitions=2)
    reader = TableReader(options, TableReader.columns(options))
    assert len(reader.partitions()) == 2
    wanted = {k: (k, v) for k, v in shop.place.run("SELECT * FROM orders") if 2 <= k % 10 < 7}
    shop.scn()
    assert state_of(read(options)) == wanted


def test_keys_of_several_columns_and_values_of_any_type_are_read_as_they_were(
    shop: TableShop,
) -> None:
    run = shop.place.run
    run("DELETE FROM mixed")
    run(
        "INSERT INTO mixed VALUES ('a', 1, NULL, 1.5), ('a', 2, 5, 7), ('b', 1, 6, x'00ff'),"
        " ('1', 23, 0, 'text'), ('12', 3, 0, NULL)"
    )
    as_of = shop.scn()
    before = {row[:2]: row[2] for row in run("SELECT * FROM mixed")}
    run("UPDATE mixed SET n = 99 WHERE k = 'a'")
    run("DELETE FROM mixed WHERE k = '12'")
    run("INSERT INTO mixed VALUES ('12', 3, 77, 1), ('new', 0, 1, 2)")
    run("UPDATE mixed SET k = 'moved' WHERE k = 'b'")
    shop.scn()
    options = shop.options(sources="shop.mixed", asOf=as_of, partitions=2)
    rows = read(options).to_pylist()
    assert {(row["k"], row["l"]): row["n"] for row in rows} == before
    assert sorted(str(row["x"]) for row in rows) == ["1.5", "7", "None", "text", "x'00ff'"]


def test_an_scn_that_has_not_come_yet_says_to_wait(shop: TableShop) -> None:
    options = shop.options(asOf=shop.scn() + 1000)
    with pytest.raises(
        BootstrapTooOldError, match=r"shop\.orders cannot be read yet, choose an older"
    ):
        TableReader(options, TableReader.columns(options)).partitions()


def test_an_scn_before_what_is_kept_says_to_choose_a_newer_one(shop: TableShop) -> None:
    options = shop.options(asOf=0)
    newer = r"older than scn \d+.*choose a newer option asOf"
    with pytest.raises(SettingsError, match=newer) as refused:
        TableReader(options, TableReader.columns(options)).partitions()
    # The server's advice is for its clients.
    assert "/startSCN" not in str(refused.value)


def test_an_scn_after_which_rows_were_deleted_and_forgotten_is_refused_when_it_is_planned(
    tmp_path: Path,
) -> None:
    soon = {"deleted_retention_s": 0.1, "retention_every_s": 0.1}
    with table_shop(tmp_path, 10, **soon) as shop:
        as_of = shop.scn()
        options = shop.options(asOf=as_of)
        assert len(state_of(read(options))) == 10
        shop.place.run("DELETE FROM orders WHERE id = 3")
        deleted = shop.scn()
        wait_until(
            lambda: shop.pair.states()["shop.orders"].tombstone_floor_scn >= deleted, "retention"
        )
        forgotten = r"have no ids any more.*choose a newer option asOf"
        with pytest.raises(SettingsError, match=forgotten):
            TableReader(options, TableReader.columns(options)).partitions()
        assert len(state_of(read(shop.options()))) == 9


def test_a_table_without_a_key_is_refused(shop: TableShop) -> None:
    options = shop.options(sources="shop.keyless")
    shop.place.run("INSERT INTO keyless VALUES (1)")
    shop.scn()
    with pytest.raises(SettingsError, match=r"shop\.keyless has no primary key.*mode=database"):
        TableReader(options, TableReader.columns(options)).partitions()


def test_what_is_asked_for_must_be_there(shop: TableShop) -> None:
    for more, text in (
        ({"columns": "id,price"}, "there is no column 'price'; the columns are id, note"),
        ({"columns": "id,ID"}, "is named twice"),
        ({"sources": "shop.orders,shop.people"}, "reads one table"),
        ({"bootstrapServers": ""}, "bootstrapServers is missing"),
    ):
        with pytest.raises(SettingsError, match=text):
            TableReader.columns(shop.options(**more))
    with pytest.raises(SettingsError, match="a column '_databus_scn' itself: read it without opt"):
        TableReader.columns(shop.options(sources="shop.taken", scn="true"))
    with pytest.raises(SettingsError, match="there is no column 'price'"):
        read(shop.options(where="price > 3"))


def test_spark_reads_a_table_and_may_read_it_twice(shop: TableShop, spark: SparkSession) -> None:
    from databus.client.spark import register

    register(spark)
    reader = spark.read.format("databus").options(**shop.options(partitions=2))
    frame = reader.load()
    wanted = dict(shop.place.run("SELECT id, note FROM orders"))
    shop.scn()
    small = frame.where("id < 50").alias("small")
    joined = small.join(frame.alias("whole"), "id").select("id", "whole.note").collect()
    assert dict(map(tuple, joined)) == {k: v for k, v in wanted.items() if k < 50}
    assert frame.count() == len(wanted)


def test_a_table_without_rows_is_read_as_no_rows(
    shop: TableShop, spark: SparkSession, tmp_path: Path
) -> None:
    from databus.client.spark import register

    register(spark)
    settings = write_settings(tmp_path, f"sqlite:{shop.place.shop.path}", "shop.nobody")
    in_table = shop.options(sources="shop.nobody")
    in_database = {"mode": "database", "settings": settings, "sources": "shop.nobody"}
    past = shop.options(asOf=shop.scn(), sources="shop.nobody")
    for options in (in_table, {**in_table, "where": "id > 3"}, in_database, past):
        assert spark.read.format("databus").options(**options).load().collect() == []
    # As of before its first row, and with the rows of a table gone.
    scn = shop.scn()
    shop.place.run("INSERT INTO nobody VALUES (1, 'x')")
    shop.scn()
    assert spark.read.format("databus").options(**in_table).load().count() == 1
    then = {**in_table, "asOf": str(scn)}
    assert spark.read.format("databus").options(**then).load().collect() == []
    shop.place.run("DELETE FROM nobody")
    shop.scn()
    assert spark.read.format("databus").options(**in_table).load().collect() == []


def test_parts_of_a_table_have_every_row_that_there_may_be() -> None:
    assert split_rows(100, 1) == [(0, MAX_SCN)]
    assert split_rows(100, 3) == [(0, 33), (33, 66), (66, MAX_SCN)]
    assert split_rows(2, 8) == [(0, 1), (1, MAX_SCN)]
    assert split_rows(0, 8) == [(0, MAX_SCN)]


def test_a_store_that_is_checked_after_a_restart_is_to_be_asked_again_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_go_on = threading.Event()

    def slowly(path: Path) -> Iterator[int]:
        may_go_on.wait(PATIENCE_S)
        yield from check_store(path)

    monkeypatch.setattr(store_watch, "SMALL_BYTES", 0)
    monkeypatch.setattr(store_watch, "check_store", slowly)
    served = ServedStore(tmp_path)
    try:
        options = {"mode": "table", "sources": PERSON.source, "bootstrapServers": served.url}
        with pytest.raises(BootstrapTooOldError, match=r"is being checked.*ask again later"):
            TableReader.columns(options)
        may_go_on.set()
        wait_until(lambda: PERSON.source in served.get("/sources").body.decode(), "the store")
        assert TableReader.columns(options).names == ["id", "name"]
    finally:
        may_go_on.set()
        served.close()
