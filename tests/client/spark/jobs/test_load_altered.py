"""`load` of a table that is altered meanwhile: all rows are of one moment, with its columns."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from databus.cli.main import main
from databus.client.spark.jobs.load import LoadProgress, load
from databus.client.spark.jobs.load_source import DatabaseLoadSource
from tests.client.spark.source.table_shop import TableShop, table_shop

COLUMNS = "(id INTEGER PRIMARY KEY, note TEXT)"
# One for each test.
TABLES = ("killed", "going", "added")


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TableShop]:
    tables = [f"{name} {COLUMNS}" for name in TABLES]
    with table_shop(tmp_path_factory.mktemp("altered"), 40, *tables) as running:
        for name in TABLES:
            running.place.run(f"INSERT INTO {name} SELECT id, note FROM orders")
        yield running


@pytest.mark.parametrize("table", ["killed", "going"])
def test_a_load_begins_anew_if_a_column_got_another_name(
    shop: TableShop, spark: SparkSession, tmp_path: Path, table: str
) -> None:
    target, chunks, is_killed = f"delta:{tmp_path}/{table}", list[int](), table == "killed"

    def report(progress: LoadProgress) -> None:
        chunks.append(progress.chunk)
        if len(chunks) == 1:
            shop.place.run(f"ALTER TABLE {table} RENAME COLUMN note TO text")
            if is_killed:
                raise InterruptedError

    given: dict[str, Any] = {"settings": shop.relay.file, "chunk_rows": 10, "report": report}
    if is_killed:
        with pytest.raises(InterruptedError):
            load(spark, f"shop.{table}", target, **given)
    found = load(spark, f"shop.{table}", target, **given)
    assert found.skipped == 0
    assert chunks[:2] == [1, 1]
    assert rows_in(target, "text") == set(shop.place.run(f"SELECT id, text FROM {table}"))
    # The name of before is in what was written by then, and is told.
    assert found.only_there == ("note",)
    arguments = [f"shop.{table}", target, "--from-database", "--settings", str(shop.relay.file)]
    told = CliRunner().invoke(main, ["spark", "load", *arguments])
    assert told.output.rstrip().endswith(
        f"; as it was, since shop.{table} has no such column: note"
    ), told.output


def test_a_column_that_is_added_before_the_load_knows_its_scn_is_copied(
    shop: TableShop, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, begin = f"delta:{tmp_path}/added", DatabaseLoadSource.begin
    statements = ["ALTER TABLE added ADD vip INTEGER DEFAULT 7"]

    def altering(self: DatabaseLoadSource) -> int:
        while statements:
            shop.place.run(statements.pop())
        return begin(self)

    monkeypatch.setattr(DatabaseLoadSource, "begin", altering)
    load(spark, "shop.added", target, settings=shop.relay.file)
    assert rows_in(target, "vip") == {(key, 7) for (key,) in shop.place.run("SELECT id FROM added")}


def rows_in(target: str, column: str) -> set[tuple[Any, ...]]:
    table = DeltaTable(target.removeprefix("delta:")).to_pyarrow_table(columns=["id", column])
    return {tuple(row.values()) for row in table.to_pylist()}
