"""A destination of two databases, by stock clients: order by commits, and one that is away."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from benchmarks.canal_clients.clients import Row, RunningClient, canal_table
from databus.demo.private_mariadb import PrivateMariaDB
from databus.demo.processes import free_port
from tests import PATIENCE_S
from tests.mariadb_server import Database
from tests.promises.running import RunningRelay, mysql_source, new_database, running, wait_until
from tests.promises.statements.unlogged import session
from tests.promises.stock_canal.test_stock_clients import address_of
from tools.fetch_canal_clients import JAVA, PYTHON, StockClient

pytestmark = pytest.mark.mariadb

CLIENTS = [
    pytest.param(JAVA, marks=pytest.mark.canal_client_java),
    pytest.param(PYTHON, marks=pytest.mark.canal_client_python),
]
WAIT_MS = 300
LATER_S = 2_000_000_000  # the commit times that a session gives itself, after those of the tables
FILTER = r"north\.orders,south\.orders"  # and not the people


class Shops(NamedTuple):
    """Two databases, and the relay of both."""

    north: Database
    south: Database
    relay: RunningRelay
    folder: Path

    def client(self, stock: StockClient, **more: Any) -> RunningClient:
        """Return a client of both, not started yet."""
        return RunningClient(
            stock, address_of(self.relay), self.folder, filter_text=FILTER, size=1, **more
        )


@pytest.fixture
def shops(tmp_path: Path) -> Iterator[Shops]:
    with ExitStack() as stack:
        north, south = (
            stack.enter_context(
                new_database(stack.enter_context(PrivateMariaDB(options={"server-id": n})), name)
            )
            for n, name in enumerate(("north", "south"), 1)
        )
        physical = []
        for shop in (north, south):
            folder = tmp_path / shop.name
            folder.mkdir()
            physical.append(mysql_source(shop, folder, name=shop.name))
        destination = {"name": "example", "physical_sources": ["north", "south"]}
        canal = canal_table(
            tmp_path, free_port(), merge_wait_ms=WAIT_MS, destinations=[destination]
        )
        relay = stack.enter_context(running(RunningRelay(tmp_path, *physical, canal=canal)))
        yield Shops(north, south, relay.start(), tmp_path)


def insert(shop: Database, *ids: int) -> None:
    """Insert orders and people, each a transaction."""
    for number in ids:
        shop.run(
            f"INSERT INTO people VALUES ('p{number}', 'AT', NULL)",
            f"INSERT INTO orders VALUES ({number}, 'of {shop.name}', 1)",
        )


def shown(rows: list[Row]) -> list[tuple[str, int]]:
    """Return the first letter of each row's database, and its key."""
    return [(row.table[0], row.key) for row in rows]


def of(rows: list[Row], shop: Database) -> list[int]:
    """Return the keys of one database's rows, in order, without those that came again."""
    return list(dict.fromkeys(row.key for row in rows if row.table == f"{shop.name}.orders"))


def wait_for(client: RunningClient, shop: Database, last: int) -> None:
    wait_until(
        lambda: last in of(client.rows, shop), f"{shop.name} {last}", client.tell, PATIENCE_S
    )


@contextmanager
def frozen(server: PrivateMariaDB) -> Iterator[None]:
    """Freeze a server's process for the duration of the block."""
    pid = server.pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


@contextmanager
def frozen_with_a_writer(shop: Database, number: int) -> Iterator[None]:
    """Freeze a server, and insert a row that it gets to only when it goes on."""
    with session(shop.server, shop.name) as writer:
        thread = threading.Thread(target=insert, args=(writer, number))
        with frozen(shop.server):
            thread.start()
            yield
        thread.join()


@pytest.mark.parametrize("stock", CLIENTS)
def test_rows_of_both_come_by_commit_times_also_after_rollbacks(
    stock: StockClient, shops: Shops
) -> None:
    for number in range(1, 21):
        # Now and then two in a row of one database, and the same keys in both.
        for shop in (shops.north, shops.south) if number % 3 else (shops.north,):
            shop.run(f"SET timestamp = {LATER_S + 10 * number + (5 if shop is shops.south else 0)}")
            insert(shop, number)
    for shop in (shops.north, shops.south):
        shop.run(f"SET timestamp = {LATER_S + 1000}")
    shops.north.run("DELETE FROM orders WHERE id = 1")
    insert(shops.north, 99)
    insert(shops.south, 99)
    expected = [("n", n) for n in range(1, 21)] + [("s", n) for n in range(1, 21) if n % 3]
    expected.sort(key=lambda one: (one[1], one[0]))
    with shops.client(stock, rollback_every=7) as client:
        for shop in (shops.north, shops.south):
            wait_for(client, shop, 99)
    assert client.rollbacks > 0
    # A rollback sends again what was not acknowledged, of both, and nothing else.
    assert shown(client.rows)[: len(expected)] == expected
    assert shown(client.rows)[len(expected) :] == [("n", 1), ("n", 99), ("s", 99)]
    kept = {}
    for row in client.rows:
        kept[row.table, row.key] = row.kind
    assert (kept["north.orders", 1], kept["south.orders", 1]) == ("DELETE", "INSERT")
    assert {row.table for row in client.rows} == {"north.orders", "south.orders"}


@pytest.mark.parametrize("stock", CLIENTS)
def test_one_goes_on_while_the_other_is_frozen_and_all_rows_of_that_one_come_after(
    stock: StockClient, shops: Shops
) -> None:
    with shops.client(stock) as client:
        for number in range(1, 6):
            insert(shops.north, number)
            insert(shops.south, number)
        wait_for(client, shops.north, 5)
        wait_for(client, shops.south, 5)
        insert(shops.south, 6)  # committed, and perhaps not read yet
        with frozen_with_a_writer(shops.south, 7):
            insert(shops.north, *range(6, 16))
            wait_for(client, shops.north, 15)
        insert(shops.south, *range(8, 12))
        insert(shops.north, 16)
        wait_for(client, shops.south, 11)
        wait_for(client, shops.north, 16)
    keys = [key for letter, key in shown(client.rows) if letter == "n"]
    assert keys == list(range(1, 17))  # once: nothing failed
    assert [key for letter, key in shown(client.rows) if letter == "s"] == list(range(1, 12))


@pytest.mark.parametrize("stock", CLIENTS)
def test_a_relay_that_is_killed_while_one_is_frozen_goes_on_with_the_other(
    stock: StockClient, shops: Shops
) -> None:
    with shops.client(stock) as client:
        insert(shops.north, 1)
        insert(shops.south, 1, 2)
        wait_for(client, shops.south, 2)
        with frozen(shops.south.server):
            insert(shops.north, 2, 3)
            shops.relay.child.kill()
            insert(shops.north, 4)
            shops.relay.serve()
            insert(shops.north, 5)
            wait_for(client, shops.north, 5)
        insert(shops.south, 3)
        wait_for(client, shops.south, 3)
        insert(shops.north, 6)
        wait_for(client, shops.north, 6)
    assert of(client.rows, shops.north) == list(range(1, 7))
    assert of(client.rows, shops.south) == list(range(1, 4))


@pytest.mark.canal_client_java
def test_a_database_that_is_killed_and_comes_back_is_read_on_where_it_ended(
    shops: Shops,
) -> None:
    with shops.client(JAVA) as client:
        insert(shops.north, 1)
        insert(shops.south, 1)
        wait_for(client, shops.south, 1)
        shops.south.server.kill()
        insert(shops.north, *range(2, 8))
        wait_for(client, shops.north, 7)
        shops.south.server.start()
        with session(shops.south.server, "south") as writer:
            insert(writer, 2, 3)
        wait_for(client, shops.south, 3)
        insert(shops.north, 8)
        wait_for(client, shops.north, 8)
    assert of(client.rows, shops.north) == list(range(1, 9))
    assert of(client.rows, shops.south) == [1, 2, 3]
