"""A relay in a fixture of an application's tests."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from databus.client import DatabusClient
from databus.demo.processes import ChildError
from databus.testing import RelayForTests, running_relay

TABLE = "CREATE TABLE orders (id INTEGER PRIMARY KEY, item TEXT)"


@pytest.fixture(scope="module")
def relay() -> Iterator[RelayForTests]:
    with running_relay(TABLE) as relay:
        yield relay


def test_a_transaction_is_one_window(relay: RelayForTests) -> None:
    relay.execute(
        "INSERT INTO orders VALUES (1, 'tea')", "UPDATE orders SET item = 'milk' WHERE id = 1"
    )
    with DatabusClient(relay.url) as client:
        window = next(client.windows(*relay.sources))
    assert relay.sources == ["shop.orders"]
    assert [(one.op.value, one.row["item"]) for one in window.events][-1][1] == "milk"


def test_a_statement_that_fails_changes_nothing(relay: RelayForTests) -> None:
    with pytest.raises(sqlite3.OperationalError):
        relay.execute("INSERT INTO orders VALUES (7, 'tea')", "INSERT INTO nothing VALUES (1)")
    relay.execute("INSERT INTO orders VALUES (8, 'tea')")
    with DatabusClient(relay.url) as client:
        keys = []
        for window in client.windows("shop.orders"):
            keys += [event.key["id"] for event in window.events]
            if keys[-1] == 8:
                break
    assert 7 not in keys


def test_after_a_kill_it_goes_on_at_its_address() -> None:
    with running_relay(TABLE) as relay:
        relay.execute("INSERT INTO orders VALUES (1, 'tea')")
        relay.kill()
        relay.execute("INSERT INTO orders VALUES (2, 'tea')")
        relay.start()
        with DatabusClient(relay.url) as client:
            keys: list[int] = []
            for window in client.windows("shop.orders"):
                keys += [event.key["id"] for event in window.events]
                if keys[-1] == 2:
                    break
    assert keys == [1, 2]


def test_a_relay_that_cannot_start_says_why(tmp_path: Path) -> None:
    no_key = 'CREATE TABLE "we\'ird ""name" (id INTEGER PRIMARY KEY) WITHOUT ROWID'
    (tmp_path / "relay").write_text("a file where a folder must be")
    with (
        pytest.raises(ChildError, match=str(tmp_path / "relay")),
        running_relay(no_key, folder=tmp_path),
    ):
        pass
