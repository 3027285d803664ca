"""A target compared with checksums that come in the change stream, while both are written."""

from __future__ import annotations

import json
import random
from bisect import bisect_left
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

from databus.cli.main import main
from databus.client.spark.verify.checksums.checksum_table import CREATE, NAME
from databus.client.spark.verify.repair import RepairOptions, repair
from databus.client.spark.verify.report import Report
from databus.client.spark.verify.source_table import Selection
from databus.client.spark.verify.verify import VerifyOptions, verify
from databus.conf.loading import load_settings
from databus.conf.settings import RelaySettings
from databus.schemas.errors import SettingsError
from tests.client.spark.source.table_shop import TableShop, table_shop
from tests.client.spark.verify.lake import Lake
from tests.relay.sources.sqlite import shop as sqlite

ROWS = 400
QUIET = 250  # keys up to this one are not written to
CHUNK_ROWS = 20
ROUNDS = 3
CHECKSUMS = CREATE.format(NAME).removeprefix("CREATE TABLE ")


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TableShop]:
    with table_shop(tmp_path_factory.mktemp("checksums"), ROWS, CHECKSUMS) as running:
        yield running


@pytest.fixture(scope="module")
def lake(shop: TableShop, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Lake:
    made = Lake(shop, tmp_path_factory.mktemp("lake"), spark)
    made.catch_up()
    return made


def options_of(shop: TableShop) -> VerifyOptions:
    return VerifyOptions(
        relays=(shop.relay.url,),
        bootstrap_servers=(shop.server,),
        chunk_rows=CHUNK_ROWS,
        most_kept=100,
        through_log=True,
    )


def settings_of(shop: TableShop) -> RelaySettings:
    return load_settings(shop.relay.file, RelaySettings)


def writing(shop: TableShop, seed: int) -> AbstractContextManager[None]:
    """Change rows behind the quiet ones, a transaction after the other, for the length of a `with`.

    Rows are inserted, updated and deleted, and keys are changed.
    """
    chance = random.Random(seed)

    def statement() -> str:
        key, other = (chance.randint(QUIET + 1, 2 * ROWS) for _ in range(2))
        return chance.choice(
            [
                f"INSERT OR REPLACE INTO orders (id, note) VALUES ({key}, 'new {other}')",
                f"UPDATE orders SET note = 'note {other}' WHERE id BETWEEN {key} AND {key + 5}",
                f"DELETE FROM orders WHERE id = {key}",
                f"UPDATE OR IGNORE orders SET id = {other} WHERE id = {key}",
            ]
        )

    def statements() -> list[str]:
        return [statement() for _ in range(chance.randint(1, 4))]

    return sqlite.writing(shop.place.shop.path, statements, 0.002)


def differing_chunks(found: Report) -> list[int]:
    return [at for at, one in enumerate(found.chunk_results) if not one.is_equal]


def chunks_of(found: Report, keys: list[int]) -> list[int]:
    bounds = [one.last for one in found.chunk_results if one.last is not None]
    return sorted({bisect_left(bounds, key) for key in keys})


def test_exactly_the_wrong_rows_and_their_chunks_are_found_under_writes(
    shop: TableShop, lake: Lake, spark: SparkSession, tmp_path: Path
) -> None:
    seed = random.randrange(10**6)
    print(f"seed {seed}")
    chance, settings, options = random.Random(seed), settings_of(shop), options_of(shop)
    for number in range(ROUNDS):
        report = tmp_path / f"{number}.jsonl"
        with writing(shop, seed + number):
            clean = verify("shop.orders", lake.uri, settings, options, spark=spark)
            assert (clean.is_same, differing_chunks(clean), clean.fetched_rows) == (True, [], 0)
            assert len(clean.chunk_results) >= QUIET // CHUNK_ROWS

            wrong = chance.sample(range(1, QUIET), chance.randint(2, 6))
            missing, changed, extra = wrong[:1], wrong[1:], [-chance.randint(1, 9)]
            lake.damage(missing, extra, changed)
            found = verify("shop.orders", lake.uri, settings, options, report=report, spark=spark)

        assert sorted(one.key[0] for one in found.differences) == sorted([*wrong, *extra])
        assert differing_chunks(found) == chunks_of(found, [*wrong, *extra])
        assert sum(one.differing_rows for one in found.chunk_results) == len([*wrong, *extra])
        scns = [one.scn for one in found.chunk_results]
        assert scns == sorted(scns)
        written = [
            json.loads(line)["chunk"]
            for line in report.read_text().splitlines()
            if "chunk" in json.loads(line)
        ]
        assert written == [one.to_json() for one in found.chunk_results]
        plain = replace(options, through_log=False)
        assert repair(report, settings, RepairOptions(verify=plain), spark=spark).is_same
    assert shop.place.run(f"SELECT count(*) FROM {NAME}") == [(0,)]


def test_a_copy_that_is_being_written_is_equal_at_every_checksum(
    shop: TableShop, lake: Lake, spark: SparkSession
) -> None:
    with writing(shop, random.randrange(10**6)), lake.following():
        found = verify("shop.orders", lake.uri, settings_of(shop), options_of(shop), spark=spark)
    assert (found.is_same, differing_chunks(found)) == (True, [])


def test_part_of_a_table_is_compared_with_checksums_of_that_part(
    shop: TableShop, lake: Lake, spark: SparkSession
) -> None:
    selection = Selection(("id",), "note LIKE 'note%' AND id > 100")
    options = replace(options_of(shop), selection=selection)
    with writing(shop, random.randrange(10**6)):
        found = verify("shop.orders", lake.uri, settings_of(shop), options, spark=spark)
    # The copy has every row, and only the source is asked for part of them.
    assert {str(one.kind) for one in found.differences} == {"extra"}


def test_a_table_without_key_ranges_is_compared_as_one_chunk(
    shop: TableShop, spark: SparkSession, tmp_path: Path
) -> None:
    shop.place.run("DELETE FROM people", "INSERT INTO people VALUES ('Ana', 'es', '1970')")
    people = Lake(shop, tmp_path, spark, "people")
    people.catch_up()
    shop.place.run("INSERT INTO people VALUES ('Bo', 'se', NULL)")
    settings, options = settings_of(shop), options_of(shop)

    found = verify("shop.people", people.uri, settings, options, spark=spark)
    assert [(one.rows, one.is_equal) for one in found.chunk_results] == [(2, True)]
    with pytest.raises(SettingsError, match="has no integer key whose ranges could be locked"):
        verify("shop.people", people.uri, settings, replace(options, chunk_rows=2), spark=spark)


def test_what_cannot_be_compared_through_the_log_is_refused(
    shop: TableShop, lake: Lake, spark: SparkSession
) -> None:
    settings, options = settings_of(shop), options_of(shop)
    with pytest.raises(SettingsError, match="does not go with --settle"):
        verify("shop.orders", lake.uri, settings, replace(options, settle_s=1), spark=spark)
    (physical,) = settings.physical_sources
    alone = physical.model_copy(update={"sources": ("shop.orders",)})
    alone_settings = settings.model_copy(update={"physical_sources": (alone,)})
    with pytest.raises(SettingsError, match=f"shop.{NAME} is not among the sources of shop"):
        verify("shop.orders", lake.uri, alone_settings, options, spark=spark)


def test_the_command_shows_the_chunks_that_differ_and_where(
    shop: TableShop, lake: Lake, tmp_path: Path
) -> None:
    given = ["--settings", str(shop.relay.file), "--relay", shop.relay.url]
    given += ["--bootstrap", shop.server, "--through-log", "--create-table"]
    arguments = ["spark", "verify", "shop.orders", lake.uri, *given]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 0, result.output
    assert "1 chunks are equal at their checksums" in result.stdout

    lake.damage(missing=[3], extra=[], changed=[4])
    result = CliRunner().invoke(main, [*arguments, "--chunk-rows", "100"])
    assert result.exit_code == 1, result.output
    assert "different are" in result.stdout
