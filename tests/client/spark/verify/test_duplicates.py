"""Targets in which a key has several rows, or rows that no look at the differing chunks shows."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner, Result
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession

from databus.cli.main import main
from databus.client.spark.jobs.load import load
from databus.client.spark.targets.iceberg import IcebergTarget
from databus.client.spark.verify.checksums.checksum_table import CREATE, NAME
from databus.client.spark.verify.chunks import ChunkDigest
from databus.client.spark.verify.repair import RepairOptions, repair
from databus.client.spark.verify.report import Report
from databus.client.spark.verify.target_table import TargetTable
from databus.client.spark.verify.verify import VerifyOptions, verify
from databus.conf.loading import load_settings
from databus.conf.settings import RelaySettings
from databus.schemas.errors import SettingsError
from tests.client.spark.source.table_shop import TableShop, table_shop
from tests.client.spark.verify.lake import Lake
from tests.relay.sources.sqlite import shop as sqlite

ROWS = 300
CHUNK_ROWS = 20
CHECKSUMS = CREATE.format(NAME).removeprefix("CREATE TABLE ")
OTHER = "other (k INTEGER PRIMARY KEY, note TEXT)"
# How many more rows there are of some keys. Two more do not change the XOR of the digests.
COPIES = {5: 1, 41: 2, 299: 1}
TABLE_NUMBERS = count()


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TableShop]:
    with table_shop(tmp_path_factory.mktemp("duplicates"), ROWS, CHECKSUMS, OTHER) as running:
        yield running


@pytest.fixture
def lake(shop: TableShop, spark: SparkSession, tmp_path: Path) -> Lake:
    made = Lake(shop, tmp_path / "lake", spark)
    made.catch_up()
    return made


def settings_of(shop: TableShop) -> RelaySettings:
    return load_settings(shop.relay.file, RelaySettings)


def options_of(shop: TableShop, **more: Any) -> VerifyOptions:
    options = VerifyOptions(
        relays=(shop.relay.url,),
        bootstrap_servers=(shop.server,),
        chunk_rows=CHUNK_ROWS,
        most_kept=100,
    )
    return replace(options, **more)


def orders_of(shop: TableShop) -> list[tuple[Any, ...]]:
    return list(shop.place.run("SELECT id, note FROM orders ORDER BY id"))


def repeat(uri: str, copies: Mapping[int, int]) -> None:
    """Append rows of a Delta table to it once more, as often as is said of their ids."""
    table = DeltaTable(uri.removeprefix("delta:"))
    rows = pa.table(table.to_pyarrow_table())
    ids = rows["id"].to_pylist()
    places = [at for at, one in enumerate(ids) for _ in range(copies.get(one, 0))]
    write_deltalake(table, rows.take(pa.array(places, pa.int64())), mode="append")


def duplicates(found: Report) -> dict[int, int]:
    assert {str(one.kind) for one in found.differences} <= {"duplicate"}
    assert all(one.source_rows <= 1 for one in found.differences)
    return {one.key[0]: one.target_rows for one in found.differences}


def call(*words: str) -> Result:
    return CliRunner().invoke(main, ["spark", *words])


def given(shop: TableShop) -> list[str]:
    named = ["--settings", str(shop.relay.file), "--relay", shop.relay.url]
    return [*named, "--bootstrap", shop.server]


def writing(shop: TableShop, keys: Sequence[int]) -> AbstractContextManager[None]:
    """Update, delete and insert rows of some keys, for the length of a `with`."""
    chance = random.Random(1)

    def statements() -> list[str]:
        key = chance.choice(keys)
        delete = f"DELETE FROM orders WHERE id = {key}"
        put = f"INSERT OR REPLACE INTO orders VALUES ({key}, 'new {chance.random()}')"
        return [delete if chance.random() < 0.3 else put]

    return sqlite.writing(shop.place.shop.path, statements, 0.01)


@pytest.mark.parametrize("how", [{}, {"through_log": True}, {"settle_s": 0, "settle_tries": 2}])
def test_keys_that_a_target_has_several_times_are_reported_and_repaired(
    shop: TableShop, lake: Lake, spark: SparkSession, tmp_path: Path, how: dict[str, Any]
) -> None:
    repeat(lake.uri, COPIES)
    report, settings, options = tmp_path / "report.jsonl", settings_of(shop), options_of(shop)

    found = verify(
        "shop.orders", lake.uri, settings, replace(options, **how), report=report, spark=spark
    )

    assert duplicates(found) == {key: copies + 1 for key, copies in COPIES.items()}
    assert (found.is_same, found.target_rows - found.rows) == (False, sum(COPIES.values()))
    lines = [json.loads(line) for line in report.read_text().splitlines()]
    told = {one["key"]["id"]: one for one in lines if "key" in one}
    assert (told[41]["kind"], told[41]["sourceRows"], told[41]["targetRows"]) == ("duplicate", 1, 3)
    assert lines[-1]["totals"]["duplicate"] == 3

    done = repair(report, settings, RepairOptions(verify=options), spark=spark)

    assert (done.is_same, done.written, done.deleted) == (True, 3, 7)
    assert lake.rows() == orders_of(shop)
    assert verify("shop.orders", lake.uri, settings, options, spark=spark).differing_chunks == 0


def test_the_commands_say_what_a_target_has_twice_and_exit_with_1(
    shop: TableShop, lake: Lake, tmp_path: Path
) -> None:
    repeat(lake.uri, COPIES)
    report = str(tmp_path / "report.jsonl")
    words = ["verify", "shop.orders", lake.uri, *given(shop)]

    as_json = call(*words, "--json", "--report", report)
    assert as_json.exit_code == 1, as_json.output
    counts = json.loads(as_json.stdout)
    assert (counts["isSame"], counts["duplicate"], counts["extra"]) == (False, 3, 0)
    shown = call(*words)
    assert (shown.exit_code, "duplicate: 3 rows" in shown.stdout) == (1, True)

    mended = call("repair", report, *given(shop))
    assert mended.exit_code == 0, mended.output
    assert "3 rows, 3 written in the target, 7 deleted in the target, no diff" in mended.stdout
    assert call(*words).exit_code == 0


def test_a_change_on_its_way_does_not_make_one_row_of_two(
    shop: TableShop, lake: Lake, spark: SparkSession, tmp_path: Path
) -> None:
    repeat(lake.uri, {7: 1, 8: 1})
    shop.place.run(
        "UPDATE orders SET note = 'newer' WHERE id IN (6, 7)",
        "DELETE FROM orders WHERE id = 8",
    )
    report, settings, options = tmp_path / "report.jsonl", settings_of(shop), options_of(shop)
    try:
        for through_log in (True, False):
            given_options = replace(options, through_log=through_log)
            found = verify(
                "shop.orders", lake.uri, settings, given_options, report=report, spark=spark
            )
            assert duplicates(found) == {7: 2, 8: 2}
        assert repair(report, settings, RepairOptions(verify=options), spark=spark).is_same
        lake.catch_up()
        assert lake.rows() == orders_of(shop)
    finally:
        shop.place.run("INSERT INTO orders VALUES (8, 'note 8')")


def test_a_repair_beside_a_running_job_leaves_one_row_of_each_key(
    shop: TableShop, lake: Lake, spark: SparkSession, tmp_path: Path
) -> None:
    report, settings, options = tmp_path / "report.jsonl", settings_of(shop), options_of(shop)
    keys = range(100, 130)
    repeat(lake.uri, dict.fromkeys(keys, 1))
    found = verify("shop.orders", lake.uri, settings, options, report=report, spark=spark)
    assert set(duplicates(found)) == set(keys)

    with writing(shop, keys), lake.following():
        # A row that a batch writes between the SCN and the delete is newer, and stays.
        for _ in range(3):
            repair(report, settings, RepairOptions(verify=options), spark=spark)

    lake.catch_up()
    assert lake.rows() == orders_of(shop)


@pytest.mark.usefixtures("iceberg_catalog")
def test_all_copies_of_a_row_are_removed_from_one_file(
    shop: TableShop, spark: SparkSession, tmp_path: Path
) -> None:
    uri = f"iceberg:lake.tests.twice{next(TABLE_NUMBERS)}"
    load(spark, "shop.orders", uri, bootstrap_servers=[shop.server])
    report, settings, options = tmp_path / "report.jsonl", settings_of(shop), options_of(shop)
    target = IcebergTarget(uri)
    rows = target.read()
    row = rows.filter(pa.compute.equal(rows["id"], 5))
    table = target._table()
    assert table is not None
    table.append(pa.concat_tables([row] * 3).cast(table.schema().as_arrow()))
    found = verify("shop.orders", uri, settings, options, report=report, spark=spark)
    assert duplicates(found) == {5: 4}

    assert repair(report, settings, RepairOptions(verify=options), spark=spark).is_same

    held = target.read()
    assert sorted(zip(*(held[name].to_pylist() for name in ("id", "note")), strict=True)) == [
        *orders_of(shop)
    ]
    target.close()


@pytest.mark.parametrize("mode", ["scd2", "soft_delete"])
def test_what_keeps_the_past_is_not_repaired_but_the_keys_are_named(
    shop: TableShop, spark: SparkSession, tmp_path: Path, mode: str
) -> None:
    uri, report = f"delta:{tmp_path}/orders", str(tmp_path / "report.jsonl")
    load(spark, "shop.orders", uri, bootstrap_servers=[shop.server], mode=mode)
    shop.place.run(f"UPDATE orders SET note = 'of {mode}' WHERE id IN (5, 41)")
    shop.scn()
    load(spark, "shop.orders", uri, bootstrap_servers=[shop.server], mode=mode)
    if mode == "scd2":
        table = DeltaTable(uri.removeprefix("delta:"))
        ended = "id in (5, 41) and _databus_to_scn is not null"
        table.update({"_databus_to_scn": "NULL", "_databus_to": "NULL"}, predicate=ended)
    else:
        repeat(uri, {5: 1, 41: 1})
    before = DeltaTable(uri.removeprefix("delta:")).version()

    for more in ([], ["--through-log"]):
        words = ["verify", "shop.orders", uri, *given(shop), "--report", report, "--json"]
        found = call(*words, *more)
        assert (found.exit_code, json.loads(found.stdout)["duplicate"]) == (1, 2), found.output
    refused = call("repair", report, *given(shop))

    assert refused.exit_code == 1
    assert "some still differ" in refused.stdout
    assert f"not mended: 2 keys (5; 41) have several current rows in {uri}" in refused.stdout
    assert f"databus spark load shop.orders NEW_TARGET --mode {mode}" in refused.stdout
    assert DeltaTable(uri.removeprefix("delta:")).version() == before


def test_a_row_without_a_key_is_found_and_not_taken_for_repaired(
    shop: TableShop, lake: Lake, spark: SparkSession, tmp_path: Path
) -> None:
    table = DeltaTable(lake.uri.removeprefix("delta:"))
    schema = pa.schema(table.schema().to_arrow())
    row = pa.Table.from_pylist([{"id": None, "note": "of nothing"}], schema)
    write_deltalake(table, row, mode="append")
    report, settings = tmp_path / "report.jsonl", settings_of(shop)
    for how in (options_of(shop, through_log=True), options_of(shop)):
        found = verify("shop.orders", lake.uri, settings, how, report=report, spark=spark)
        assert [(one.key, str(one.kind)) for one in found.differences] == [((None,), "extra")]

    refused = call("repair", str(report), *given(shop))

    assert refused.exit_code == 1
    assert "not mended: 1 keys (null) have a null in their key" in refused.stdout
    load(spark, "shop.orders", lake.uri, bootstrap_servers=[shop.server], again=True)
    assert lake.rows() == orders_of(shop)


def test_digests_that_no_row_explains_are_never_taken_for_equal(
    shop: TableShop, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["verify", "shop.orders", lake.uri, *given(shop), "--chunk-rows", str(CHUNK_ROWS)]
    digests, looks = TargetTable.digests, count()

    def wrong(self: TargetTable, *arguments: Any) -> dict[int, ChunkDigest]:
        found = dict(digests(self, *arguments))
        if next(looks) < until:
            found[2] = ChunkDigest(found[2].rows + 1, found[2].digest)
        return found

    monkeypatch.setattr(TargetTable, "digests", wrong)
    # A chunk that is equal at a later look was being written.
    until = 2
    assert call(*words).exit_code == 0
    until = 10**6
    found = call(*words, "--json")
    assert (found.exit_code, json.loads(found.stdout)["unexplainedChunks"]) == (1, 1)
    shown = call(*words)
    assert shown.exit_code == 1
    assert "1 chunks have other digests" in shown.stdout


def test_a_target_of_another_source_is_said_to_be_one(
    shop: TableShop, spark: SparkSession, tmp_path: Path
) -> None:
    uri = f"delta:{tmp_path}/orders"
    load(spark, "shop.orders", uri, bootstrap_servers=[shop.server])
    says = r"has the rows of shop\.orders, not of shop\.other: compare it with shop\.orders"
    with pytest.raises(SettingsError, match=says):
        verify("shop.other", uri, settings_of(shop), options_of(shop), spark=spark)
