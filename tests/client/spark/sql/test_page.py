"""docs/spark-sql.md, done as it says, with two shops: what it shows is what comes out."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

from databus.cli.main import main
from databus.client.spark.sql.job_file import parse_job
from databus.client.spark.sql.run import run
from databus.client.spark.targets.target import open_target
from databus.demo.processes import wait_until
from databus.demo.stage import Stage
from databus.schemas.errors import SettingsError
from tests import PATIENCE_S
from tests.docs.markdown import (
    block_for,
)
from tools.repository import ROOT

PAGE = ROOT / "docs" / "spark-sql.md"
TABLES = [
    "CREATE TABLE orders (id INTEGER PRIMARY KEY, customer INTEGER, item TEXT NOT NULL, "
    "status TEXT NOT NULL, total INTEGER)",
    "CREATE TABLE customers (id INTEGER PRIMARY KEY, name TEXT NOT NULL, country TEXT)",
    "CREATE TABLE countries (code TEXT NOT NULL PRIMARY KEY, name TEXT NOT NULL)",
]
ROWS = [
    "INSERT INTO orders VALUES (1, 1, 'tea', 'open', 20), (2, 1, 'rope', 'open', 5), "
    "(3, 2, 'lamp', 'new', 30), (4, 3, 'book', 'open', 40), (5, 9, 'map', 'sent', NULL)",
    "INSERT INTO customers VALUES (1, 'Ann', 'no'), (2, 'Bob', 'at'), (3, 'Cem', NULL)",
    "INSERT INTO countries VALUES ('no', 'Norway'), ('at', 'Atlantis')",
]
SOURCES = ("shop.orders", "shop.customers", "shop.countries")


@dataclass
class Shop:
    """A shop with its relay and bootstrap pair."""

    stage: Stage
    events: int = 0

    def commit(self, script: str) -> None:
        """Change rows, one each statement, and wait until the relay has them."""
        statements = [one for one in script.split(";") if one.strip()]
        place = self.stage.database.uri.removeprefix("sqlite:")
        with closing(sqlite3.connect(place)) as database, database:
            for statement in statements:
                database.execute(statement)
        self.events += len(statements)
        wait_until(self._has_all, PATIENCE_S, "the relay")

    def answer(self, select: str) -> list[tuple[Any, ...]]:
        place = self.stage.database.uri.removeprefix("sqlite:")
        with closing(sqlite3.connect(place)) as database:
            return database.execute(select.replace("shop.", "")).fetchall()

    def _has_all(self) -> bool:
        found = self.stage.get("/containerStats/inbound/events/total")
        return int(re.findall(rb'"events": ?(\d+)', found)[0]) >= self.events


@pytest.fixture(scope="module")
def shops() -> Iterator[tuple[Shop, Shop]]:
    with (
        Stage("sqlite", TABLES + ROWS, SOURCES, physical_source="east") as east,
        Stage("sqlite", TABLES + ROWS, SOURCES, physical_source="west") as west,
    ):
        found = Shop(east), Shop(west)
        for shop in found:
            shop.stage.start_relay()
            # A source is served once it has a change.
            shop.commit(
                "INSERT INTO orders VALUES (6, 1, 'pen', 'sent', 0); "
                "INSERT INTO customers VALUES (4, 'Dan', NULL); "
                "INSERT INTO countries VALUES ('pe', 'Peru')"
            )
            shop.stage.start_bootstrap()
        for shop in found:
            wait_until(lambda stage=shop.stage: stage.is_seeded, PATIENCE_S, "the pair")  # type: ignore[misc]
        yield found


@pytest.fixture
def page(shops: tuple[Shop, Shop], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Page:
    monkeypatch.chdir(tmp_path)
    return Page(*shops)


@dataclass
class Page:
    """The page's blocks, with the ports of this machine."""

    east: Shop
    west: Shop

    def text(self, test: str) -> str:
        text = block_for(PAGE, test).text
        for port, shop in (("1111", self.east), ("1112", self.west)):
            text = text.replace(f"http://127.0.0.1:{port}5", shop.stage.url)
            text = text.replace(f"http://127.0.0.1:{port}6", shop.stage.bootstrap_url)
        return text

    def write(self, name: str) -> None:
        Path(name).write_text(self.text(f"write {name}"), encoding="utf-8")

    def do(self, test: str) -> None:
        """Run a block's first line; the others come out of it, `…` being anything."""
        command, *lines = self.text(test).splitlines()
        printed = databus(command)
        pattern = ".*?".join(
            ".*".join(re.escape(part) for part in line.split("…")) for line in lines
        )
        assert re.search(pattern, printed, re.DOTALL), f"{pattern}\nnot in\n{printed}"


def databus(command: str) -> str:
    """Run a command of the page; return what it printed."""
    words = command.split()
    assert words[0] == "databus"
    result = CliRunner().invoke(main, words[1:])
    assert result.exit_code == 0, result.output
    return result.output


def rows_of(spark: SparkSession, uri: str, *columns: str) -> list[tuple[Any, ...]]:
    found = open_target(uri).rows(spark).select(*columns).collect()
    return sorted((tuple(row) for row in found), key=repr)


def test_open_orders_are_loaded_and_followed(spark: SparkSession, page: Page) -> None:
    page.write("open_orders.sql")
    page.do("explain")
    page.do("load")
    columns = ("id", "customer", "item", "total")
    target = "delta:lake/open_orders"
    assert rows_of(spark, target, *columns) == [(1, 1, "TEA", 20), (4, 3, "BOOK", 40)]
    page.east.commit(page.text("changes"))
    page.do("follow")
    assert rows_of(spark, target, *columns) == [(3, 2, "LAMP", 30), (4, 3, "BOOK", 99)]
    again = databus("databus spark run open_orders.sql --available-now")
    assert again.splitlines()[-1] == "no batches: there was nothing new"


def test_two_shards_become_one_table(spark: SparkSession, page: Page) -> None:
    page.write("all_orders.sql")
    databus("databus spark run all_orders.sql --available-now")
    east = page.east.answer("SELECT 'east', id, total FROM orders")
    west = page.west.answer("SELECT 'west', id, total FROM orders WHERE total > 0")
    found = rows_of(spark, "delta:lake/all_orders", "shard", "id", "total")
    assert found == sorted(east + west, key=repr)


def test_a_wide_table_is_right_after_a_change_of_a_dimension(
    spark: SparkSession, page: Page
) -> None:
    page.write("wide_orders.sql")
    select = Path("wide_orders.sql").read_text().partition("SELECT")[2]
    for change in ("", "UPDATE countries SET name = 'Austria' WHERE code = 'at'"):
        page.east.commit(change)
        databus("databus spark run wide_orders.sql --available-now")
        found = rows_of(spark, "delta:lake/wide_orders", "id", "total", "customer", "country")
        assert found == sorted(page.east.answer(f"SELECT {select}"), key=repr)
    assert (3, 30, "Bob", "Austria") in found


HEAD = "-- target: delta:t\n-- relays: {url}\n-- checkpoint: c\n"
UNFIT = [
    ("SELECT id, price FROM shop.orders", "line 4, column 12: there is no column price"),
    ("SELECT id FROM north.shop.orders", "no source shop.orders of a physical source north"),
    ("SELECT id, nonsense(id) AS n FROM shop.orders", "Spark says: [UNRESOLVED_ROUTINE"),
    ("SELECT id FROM shop.orders WHERE total", "Spark says: [DATATYPE_MISMATCH"),
]


@pytest.mark.parametrize(("select", "said"), UNFIT)
def test_a_select_that_does_not_fit_its_sources_is_refused_before_it_runs(
    spark: SparkSession, page: Page, select: str, said: str
) -> None:
    job = parse_job(HEAD.format(url=page.east.stage.url) + select)
    with pytest.raises(SettingsError) as refused:
        run(job, spark, available_now=True)
    assert said in str(refused.value)
    assert not Path("t").exists()


def test_a_folder_belongs_to_the_first_select_that_ran(spark: SparkSession, page: Page) -> None:
    head = HEAD.format(url=page.east.stage.url)

    def attempt(select: str) -> None:
        run(parse_job(head + select), spark, on_plan=_end)

    with pytest.raises(SettingsError, match="no column shape"):
        attempt("SELECT id, shape FROM shop.orders")
    with pytest.raises(EndError):
        attempt("SELECT id FROM shop.orders")
    with pytest.raises(EndError):
        attempt("SELECT  id -- the same\nFROM shop.orders")
    with pytest.raises(SettingsError, match="c was created with another SELECT"):
        attempt("SELECT id, total FROM shop.orders")


class EndError(Exception):
    """Ends a job before its first batch."""


def _end(_: list[str]) -> None:
    raise EndError
