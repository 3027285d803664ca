"""Canal's own clients consume unchanged: rollbacks, a killed relay, a killed client, two relays.

The long form, with 100,000 changes, is `python -m benchmarks.canal_clients`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.canal_clients.clients import RunningClient, canal_table
from databus.demo.processes import free_port
from tests import PATIENCE_S
from tests.mariadb_server import Database
from tests.promises.running import RunningRelay, mysql_source, running, wait_until
from tests.zookeeper_server import PrivateZookeeper
from tools.fetch_canal_clients import GO, JAVA, PYTHON, StockClient

pytest_plugins = ["tests.mariadb"]

EVERY_CLIENT = [
    pytest.param(JAVA, marks=pytest.mark.canal_client_java),
    pytest.param(GO, marks=pytest.mark.canal_client_go),
    pytest.param(PYTHON, marks=pytest.mark.canal_client_python),
]


@pytest.fixture
def shop(database: Database) -> Database:
    return database


def make_relay(shop: Database, folder: Path, name: str = "relay", **canal: Any) -> RunningRelay:
    options = {key: canal.pop(key) for key in ("coordinator",) if key in canal}
    folder.mkdir(exist_ok=True)
    table = canal_table(folder, free_port(), **canal)
    return RunningRelay(folder, mysql_source(shop, folder), name=name, canal=table, **options)


@pytest.fixture
def relay(shop: Database, tmp_path: Path) -> Iterator[RunningRelay]:
    with running(make_relay(shop, tmp_path)) as found:
        yield found


def address_of(relay: RunningRelay) -> str:
    return str(relay.get("/api/v1/canal").json()["address"])


def insert(shop: Database, first: int, count: int) -> None:
    """Insert rows with growing keys, in transactions of 5."""
    for begin in range(first, first + count, 5):
        values = ",".join(f"({n}, 'note {n}', {n}.25)" for n in range(begin, begin + 5))
        shop.run(f"INSERT INTO orders VALUES {values}")


def wait_for(client: RunningClient, last: int) -> None:
    wait_until(lambda: last in client.keys, f"row {last}", client.tell, PATIENCE_S)


def firsts(keys: list[int]) -> list[int]:
    """Return the keys without those that came again."""
    return list(dict.fromkeys(keys))


@pytest.mark.mariadb
@pytest.mark.parametrize("stock", EVERY_CLIENT)
def test_every_change_comes_once_with_rollbacks_and_again_after_a_kill(
    stock: StockClient, shop: Database, relay: RunningRelay, tmp_path: Path
) -> None:
    insert(shop, 1, 100)
    relay.start()
    with RunningClient(stock, address_of(relay), tmp_path, size=1, rollback_every=7) as client:
        wait_for(client, 100)
        # A rollback sends again what was not acknowledged, and nothing else.
        assert client.keys == list(range(1, 101))
        assert client.rollbacks > 0
        assert client.rows[0].columns == (
            ("id", "1", 4),
            ("note", "note 1", 12),
            ("price", "1.25", 3),
        )
        insert(shop, 101, 20)
        relay.child.kill()
        insert(shop, 121, 20)
        relay.start()
        wait_for(client, 140)
        client.kill()
        insert(shop, 141, 20)
        client.start()
        wait_for(client, 160)
    assert firsts(client.keys) == list(range(1, 161))


@pytest.mark.mariadb
@pytest.mark.canal_client_java
def test_every_kind_of_change_and_several_outstanding_batches(
    shop: Database, relay: RunningRelay, tmp_path: Path
) -> None:
    relay.start()
    with RunningClient(
        JAVA,
        address_of(relay),
        tmp_path,
        size=1,
        outstanding=3,
        filter_text=rf"{shop.name}\.orders",
    ) as client:
        shop.run("INSERT INTO people VALUES ('Ann', 'AT', '2000-01-01')")
        insert(shop, 1, 5)
        shop.run("UPDATE orders SET note = NULL WHERE id = 3", "DELETE FROM orders WHERE id = 4")
        shop.run("ALTER TABLE orders ADD COLUMN more INT")
        shop.run("INSERT INTO orders VALUES (9, 'x', 1, -7)")
        wait_for(client, 9)
    kinds = [row.kind for row in client.rows]
    assert kinds == ["INSERT"] * 5 + ["UPDATE", "DELETE", "INSERT"]
    assert client.rows[5].columns[1] == ("note", None, 12)
    assert client.rows[6].columns[0] == ("id", "4", 4)
    assert client.rows[7].columns[3] == ("more", "-7", 4)
    assert {row.table for row in client.rows} == {f"{shop.name}.orders"}
    assert client.statements[-1] == "ALTER TABLE orders ADD COLUMN more INT"


@pytest.mark.mariadb
@pytest.mark.parametrize(
    "stock",
    [
        pytest.param(JAVA, marks=pytest.mark.canal_client_java),
        pytest.param(GO, marks=pytest.mark.canal_client_go),
    ],
)
def test_a_cluster_client_goes_to_the_other_relay(
    stock: StockClient, shop: Database, tmp_path: Path
) -> None:
    with PrivateZookeeper() as zookeeper:
        common = {"coordinator": zookeeper.url("/databus"), "zookeeper": True}
        pair = [make_relay(shop, tmp_path / name, name, **common) for name in ("a", "b")]
        with running(pair[0]), running(pair[1]):
            for one in pair:
                one.start()
            wait_until(lambda: any(map(is_active, pair)), "a relay that serves")
            insert(shop, 1, 50)
            address = f"127.0.0.1:{zookeeper.port}"
            with RunningClient(stock, address, tmp_path, mode="cluster", size=1) as client:
                wait_for(client, 50)
                active = next(one for one in pair if is_active(one))
                active.child.kill()
                insert(shop, 51, 50)
                wait_for(client, 100)
            assert firsts(client.keys) == list(range(1, 101))


def is_active(relay: RunningRelay) -> bool:
    return bool(relay.get("/api/v1/canal").json()["destinations"][0]["isActive"])
