"""Checksums of SQLite hold at their place in the change log, whoever writes meanwhile."""

from __future__ import annotations

import random
import threading
from contextlib import closing
from pathlib import Path

import pytest

from databus.client.spark.verify.checksums.checksum_table import CREATE, NAME
from databus.client.spark.verify.source_table import open_source_table
from databus.schemas.errors import SettingsError
from tests import PATIENCE_S
from tests.client.spark.verify.checksums.replica import Replica
from tests.relay.sources.sqlite.shop import database, drain, opened, run, settings

KEYS = 200
CHUNK_ROWS = 30
TRANSACTIONS = 1500
ORDERS = "CREATE TABLE orders (id INTEGER PRIMARY KEY, note TEXT, amount REAL)"


def statement(chance: random.Random) -> str:
    key, other = chance.randrange(KEYS), chance.randrange(KEYS)
    return chance.choice(
        [
            f"INSERT OR REPLACE INTO orders VALUES ({key}, 'new {other}', {other}.25)",
            f"UPDATE orders SET amount = amount + 1 WHERE id BETWEEN {key} AND {key + 5}",
            f"DELETE FROM orders WHERE id = {key}",
            f"UPDATE OR IGNORE orders SET id = {other} WHERE id = {key}",
        ]
    )


def test_every_checksum_of_sqlite_holds_at_its_place_in_the_change_log(tmp_path: Path) -> None:
    seed = random.randrange(10**6)
    print(f"seed {seed}")
    chance, path, name = random.Random(seed), tmp_path / "shop.db", f"shop.{NAME}"

    def write() -> None:
        with database(path) as connection:
            for _ in range(TRANSACTIONS):
                run(connection, [statement(chance) for _ in range(chance.randint(1, 3))])

    with database(path, f"{ORDERS}; {CREATE.format(NAME)}"), opened(path, "orders", NAME) as source:
        with open_source_table(settings(path, "orders"), "shop.orders") as table:
            replica = Replica(table, name, KEYS)
            with closing(table.checksums(name, name, "run")) as checksums:
                checksums.check()
                writer = threading.Thread(target=write)
                writer.start()
                number, after = 0, None
                while writer.is_alive():
                    after = checksums.write(number, table.chunk_query(after, CHUNK_ROWS)).last
                    number += 1
                writer.join(PATIENCE_S)
                for transaction in drain(source, PATIENCE_S):
                    for change in transaction.changes:
                        replica.take(change)
                assert (replica.seen, replica.wrong) == (number, [])
                assert number > KEYS // CHUNK_ROWS
                checksums.delete()
        assert table.shape.names == ("id", "note", "amount")


def test_a_table_of_checksums_that_is_missing_is_created_when_asked_for(tmp_path: Path) -> None:
    path, name = tmp_path / "shop.db", f"shop.{NAME}"
    with database(path, ORDERS) as connection, opened(path, "orders"):
        orders = open_source_table(settings(path, "orders"), "shop.orders")
        with orders as table, closing(table.checksums(name, name, "run")) as checksums:
            with pytest.raises(SettingsError, match="--create-table creates it"):
                checksums.check()
            checksums.create()
            checksums.create()
            checksums.check()
        assert connection.execute(f"SELECT * FROM {NAME}").fetchall() == []
