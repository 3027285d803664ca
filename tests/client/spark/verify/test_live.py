"""Verify and repair on a real relay, database and Delta table, while the target is behind."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner
from deltalake import write_deltalake
from pyspark.sql import SparkSession

from databus.cli.main import main
from databus.client.spark.verify.repair import How, RepairOptions, repair
from databus.client.spark.verify.source_table import Selection
from databus.client.spark.verify.verify import VerifyOptions, verify
from databus.conf.loading import load_settings
from databus.conf.settings import RelaySettings
from databus.schemas.errors import SettingsError
from tests.client.spark.source.table_shop import TableShop, table_shop
from tests.client.spark.verify.lake import Lake

ROWS = 400
CHUNK_ROWS = 20
PEOPLE = [("Ana", "es", "1970"), ("ana", "es", "1980"), ("Bo ", "se", "x"), ("Bo", "se", None)]
Pair = tuple[tuple[Any, ...], str]


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TableShop]:
    with table_shop(tmp_path_factory.mktemp("verify"), ROWS) as running:
        yield running


@pytest.fixture(scope="module")
def lake(shop: TableShop, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Lake:
    made = Lake(shop, tmp_path_factory.mktemp("lake"), spark)
    made.catch_up()
    return made


def settings_of(shop: TableShop) -> RelaySettings:
    return load_settings(shop.relay.file, RelaySettings)


def options_of(shop: TableShop) -> VerifyOptions:
    return VerifyOptions(
        relays=(shop.relay.url,),
        bootstrap_servers=(shop.server,),
        chunk_rows=CHUNK_ROWS,
        most_kept=100,
    )


def orders_of(shop: TableShop) -> list[tuple[Any, ...]]:
    return list(shop.place.run("SELECT id, note FROM orders ORDER BY id"))


def test_exactly_the_injected_differences_are_reported_and_repaired(
    shop: TableShop, lake: Lake, spark: SparkSession, tmp_path: Path
) -> None:
    report = tmp_path / "report.jsonl"
    shop.place.run(
        "UPDATE orders SET note = 'newer' WHERE id BETWEEN 100 AND 110",
        "DELETE FROM orders WHERE id BETWEEN 201 AND 205",
        "INSERT INTO orders (id, note) VALUES (1000, 'new'), (1001, NULL)",
        "UPDATE orders SET id = 1002 WHERE id = 300",
    )
    lake.damage(missing=[5, 104], extra=[-3, 2000], changed=[6, 399])
    settings, options = settings_of(shop), options_of(shop)

    found = verify("shop.orders", lake.uri, settings, options, report=report, spark=spark)

    # Row 104 was missing and is on its way again, whole.
    assert {(one.key[0], str(one.kind), one.columns) for one in found.differences} == {
        (5, "missing", ("id", "note")),
        (-3, "extra", ("id", "note")),
        (2000, "extra", ("id", "note")),
        (6, "changed", ("note",)),
        (399, "changed", ("note",)),
    }
    assert found.moving == 11 + 5 + 2 + 2
    assert (found.rows, found.chunks) == (397, 20)
    assert 0 < found.differing_chunks < found.chunks
    assert found.fetched_rows <= found.differing_chunks * CHUNK_ROWS

    shop.place.run("UPDATE orders SET note = 'newest' WHERE id = 6")
    done = repair(report, settings, RepairOptions(verify=options), spark=spark)

    assert (done.keys, done.written, done.deleted) == (5, 3, 2)
    assert done.is_same
    assert (6, "newest") in lake.rows()
    lake.catch_up()
    assert lake.rows() == orders_of(shop)
    again = verify("shop.orders", lake.uri, settings, options, spark=spark)
    assert (again.is_same, again.differing_chunks, again.fetched_rows) == (True, 0, 0)


def test_touched_rows_come_by_the_stream_and_what_has_no_row_is_deleted(
    shop: TableShop, lake: Lake, spark: SparkSession, tmp_path: Path
) -> None:
    report, settings, options = tmp_path / "report.jsonl", settings_of(shop), options_of(shop)
    lake.damage(missing=[15], extra=[-4], changed=[16])
    verify("shop.orders", lake.uri, settings, options, report=report, spark=spark)

    with lake.following():
        touch = RepairOptions(How.TOUCH, "note", options)
        done = repair(report, settings, touch, spark=spark)

    assert (done.touched, done.written, done.deleted, done.is_same) == (2, 0, 1, True)
    assert lake.rows() == orders_of(shop)


@pytest.fixture
def people(shop: TableShop, tmp_path: Path) -> str:
    """Make a copy of some columns of some people, which notes no position."""
    shop.place.run("DELETE FROM people")
    for name, land, born in PEOPLE:
        text = "NULL" if born is None else f"'{born}'"
        shop.place.run(f"INSERT INTO people VALUES ('{name}', '{land}', {text})")
    rows = [("Ana", "es"), ("ANA", "es"), ("Bo", "no")]
    table = pa.table({"name": [n for n, _ in rows], "land": [land for _, land in rows]})
    write_deltalake(str(tmp_path / "people"), table, configuration={})
    return f"delta:{tmp_path / 'people'}"


def test_a_target_without_positions_is_looked_at_again(
    shop: TableShop, people: str, spark: SparkSession, tmp_path: Path
) -> None:
    settings, selection = settings_of(shop), Selection(("name",), "land = 'es'")
    with pytest.raises(SettingsError, match="--settle SECONDS"):
        verify("shop.people", people, settings, VerifyOptions(selection=selection), spark=spark)
    with pytest.raises(SettingsError, match=r"no column 'born'.*--columns name,land"):
        verify("shop.people", people, settings, VerifyOptions(settle_s=0), spark=spark)

    options = VerifyOptions(selection=selection, settle_s=0, settle_tries=2)
    found = verify("shop.people", people, settings, options, spark=spark)

    # To Ana and ana belong ANA and none: blanks and case count.
    assert {(one.key, str(one.kind)) for one in found.differences} == {
        (("ana", "es"), "missing"),
        (("ANA", "es"), "extra"),
        (("Bo", "no"), "extra"),
    }


def test_the_commands_exit_with_1_as_long_as_something_differs(
    shop: TableShop, people: str, tmp_path: Path
) -> None:
    report = tmp_path / "report.jsonl"
    given = ["--settings", str(shop.relay.file), "--settle", "0"]
    arguments = ["shop.people", people, *given, "--columns", "name", "--report", str(report)]

    result = CliRunner().invoke(main, ["spark", "verify", *arguments, "--json"])

    assert result.exit_code == 1
    assert json.loads(result.stdout)["missing"] == 3
    assert "Ana" not in report.read_text()
    shown = CliRunner().invoke(main, ["spark", "repair", str(report), *given])
    assert shown.exit_code == 0, shown.output
    assert "5 rows, 3 written in the target, 2 deleted in the target" in shown.stdout
    assert CliRunner().invoke(main, ["spark", "verify", *arguments]).exit_code == 0


def test_rows_that_lack_what_an_alter_gave_them_are_found(
    shop: TableShop, spark: SparkSession, tmp_path: Path
) -> None:
    """A target that took a new column in, and left it null in the rows that were there."""
    shop.place.run("ALTER TABLE orders ADD COLUMN vip INTEGER NOT NULL DEFAULT 7")
    shop.place.run("INSERT INTO orders (id, note, vip) VALUES (5000, 'written since', 1)")
    ids, notes = zip(*orders_of(shop), strict=True)
    vips = [1 if number == 5000 else None for number in ids]
    kinds = pa.schema([("id", pa.int64()), ("note", pa.string()), ("vip", pa.int64())])
    write_deltalake(str(tmp_path / "orders"), pa.table([ids, notes, vips], schema=kinds))
    options = VerifyOptions(settle_s=0, settle_tries=2, most_kept=1000)

    found = verify(
        "shop.orders", f"delta:{tmp_path}/orders", settings_of(shop), options, spark=spark
    )

    assert {(str(one.kind), one.columns) for one in found.differences} == {("changed", ("vip",))}
    assert {one.key[0] for one in found.differences} == {*ids} - {5000}
