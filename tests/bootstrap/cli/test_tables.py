"""`databus bootstrap seed` and `databus bootstrap verify`, as somebody types them."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from databus.bootstrap.cli.tables import words_of
from databus.bootstrap.seeder.rate_limiter import Progress
from databus.bootstrap.store.store import SourceStatus
from databus.cli.main import main
from tests.bootstrap.seeder.seeded_shop import ORDERS, Shop, shop_at
from tests.promises.running import to_toml


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    with shop_at(tmp_path, ("orders", "hits")) as shop:
        shop.insert(*range(30))
        physical = {
            "name": "shop",
            "uri": shop.physical.uri,
            "sources": ["shop.orders", {"name": "shop.hits"}],
        }
        options = {"data_dir": str(shop.store.path.parent), "relays": ["http://127.0.0.1:1"]}
        toml = to_toml(options, {}, [physical | {"sources": ["shop.orders", "shop.hits"]}])
        (tmp_path / "pair.toml").write_text(toml)
        yield shop


def run(shop: Shop, command: str, *arguments: str) -> Result:
    """Run a command on the shop's pair."""
    file = shop.store.path.parent.parent / "pair.toml"
    return CliRunner().invoke(main, ["bootstrap", command, "-c", str(file), *arguments])


def test_seeding_says_what_came_of_each_table(shop: Shop) -> None:
    shop.begin()
    found = run(shop, "seed")
    assert found.exit_code == 0
    assert f"{ORDERS}: 30 rows, served" in found.output
    assert "shop.hits: 0 rows, served" in found.output
    assert shop.stored() == shop.table()
    assert "nothing to seed" in run(shop, "seed").output


def test_a_table_is_seeded_anew_when_it_is_named(shop: Shop) -> None:
    shop.begin()
    run(shop, "seed")
    shop.insert(100)
    found = run(shop, "seed", "--source", ORDERS)
    scn = shop.store.source(ORDERS).seed_until_scn
    assert f"{ORDERS}: 31 rows, served when the producer is at scn {scn}" in found.output
    assert shop.store.source("shop.hits").status is SourceStatus.ACTIVE


def test_a_table_that_cannot_be_seeded_is_named_with_the_reason(tmp_path: Path) -> None:
    with shop_at(tmp_path, ("codes",), "INSERT INTO codes VALUES ('a', 'many')") as shop:
        physical = {"name": "shop", "uri": shop.physical.uri, "sources": ["shop.codes"]}
        options = {"data_dir": str(shop.store.path.parent), "relays": ["http://127.0.0.1:1"]}
        (tmp_path / "pair.toml").write_text(to_toml(options, {}, [physical]))
        shop.begin()
        found = run(shop, "seed")
    assert found.exit_code == 1
    assert "shop.codes, column 'n': str 'many' does not fit its type" in found.output


def test_without_a_producer_nothing_is_seeded(shop: Shop) -> None:
    found = run(shop, "seed")
    assert found.exit_code == 1
    assert "start `databus bootstrap run`" in found.output


def test_a_source_of_no_physical_source_is_an_error(shop: Shop) -> None:
    found = run(shop, "verify", "--source", "shop.nothing")
    assert found.exit_code == 1
    assert "unknown source 'shop.nothing'; known: shop.hits, shop.orders" in found.output


def test_verifying_exits_with_one_when_something_differs(shop: Shop) -> None:
    shop.begin()
    run(shop, "seed")
    assert run(shop, "verify").exit_code == 0
    with closing(sqlite3.connect(shop.store.path)) as connection, connection:
        connection.execute(f"DELETE FROM snapshot_{shop.src_ids[ORDERS]} WHERE key = 7")
    found = run(shop, "verify", "--source", ORDERS)
    assert found.exit_code == 1
    assert "missing" in found.output
    as_json = run(shop, "verify", "--json")
    assert as_json.exit_code == 1
    value = json.loads(as_json.stdout)
    assert {name: one["isSame"] for name, one in value.items()} == {
        ORDERS: False,
        "shop.hits": True,
    }


def spoil_events(shop: Shop) -> None:
    """Change a byte of the last event of each of the orders, behind everybody's back."""
    table = f"snapshot_{shop.src_ids[ORDERS]}"
    with closing(sqlite3.connect(shop.store.path)) as connection, connection:
        for row_id, event in connection.execute(f"SELECT id, event FROM {table}").fetchall():
            spoilt = event[:-1] + bytes([event[-1] ^ 1])
            connection.execute(f"UPDATE {table} SET event = ? WHERE id = ?", (spoilt, row_id))


def test_verifying_a_damaged_store_names_the_file_and_the_way_on(shop: Shop) -> None:
    shop.begin()
    run(shop, "seed")
    spoil_events(shop)
    found = run(shop, "verify", "--source", ORDERS)
    assert found.exit_code == 1
    assert str(shop.store.path) in found.output
    assert "seeded again" in found.output


def test_seeding_over_a_damaged_row_names_the_file_and_the_way_on(shop: Shop) -> None:
    shop.begin()
    run(shop, "seed")
    spoil_events(shop)
    shop.run("DELETE FROM orders WHERE id = 7")
    found = run(shop, "seed", "--source", ORDERS)
    assert found.exit_code == 1
    assert str(shop.store.path) in found.output
    assert "seeded again" in found.output


def test_progress_says_rows_rate_and_time_left() -> None:
    assert words_of(Progress(ORDERS, 250, 7_000, 0.9)) == "250 rows, 1 rows/s, 2:05:00 left"
    assert words_of(Progress(ORDERS, 7_250, 7_000, 5e4)) == "7,250 rows, 50,000 rows/s"
