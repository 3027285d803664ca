"""A client of Canal goes on at a relay that was just started, with an empty folder."""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from databus.demo.processes import free_port
from tests import PATIENCE_S
from tests.mariadb_server import Database
from tests.promises.running import RunningRelay, mysql_source, running, wait_until
from tests.relay.serving.canal.raw_client import RawClient, RefusedError
from tests.zookeeper_server import PrivateZookeeper

pytestmark = pytest.mark.mariadb


def insert(database: Database, *ids: int) -> None:
    """Insert rows, each in a transaction of its own."""
    for number in ids:
        database.run(f"INSERT INTO orders (id, note, price) VALUES ({number}, 'x', 1)")


def take(client: RawClient, last: int, tell: Any = str, wait_ms: int = 1000) -> list[int]:
    """Consume batches until a row comes; return the keys of all rows."""
    end, keys = time.monotonic() + PATIENCE_S, list[int]()
    while last not in keys:
        assert time.monotonic() < end, f"only {keys}: {tell()}"
        batch = client.get(size=1, timeout=wait_ms, unit=2)
        if batch.id > 0:
            keys += batch.keys
            client.ack(batch.id)
    return keys


def is_active(relay: RunningRelay) -> bool:
    """Return whether a relay serves the destination."""
    return bool(relay.get("/api/v1/canal").json()["destinations"][0]["isActive"])


def connected(relay: RunningRelay) -> RawClient:
    """Return a client that has logged in."""
    return RawClient(str(relay.get("/api/v1/canal").json()["address"])).login()


@pytest.mark.parametrize("log", [{}, {"log": {"sync_ms": 5}}], ids=["ring", "relay log"])
def test_a_relay_that_takes_a_destination_over_serves_what_was_before_its_begin(
    database: Database, tmp_path: Path, log: Mapping[str, Any]
) -> None:
    def relay(name: str, url: str, **source: Any) -> RunningRelay:
        destination = {"name": "example", "physical_sources": ["shop"]}
        canal = {"port": free_port(), "destinations": [destination], "zookeeper": True}
        settings = mysql_source(database, tmp_path, **log, **source)
        return RunningRelay(tmp_path, settings, name=name, canal=canal, coordinator=url)

    with PrivateZookeeper() as zookeeper:
        old = relay("old", zookeeper.url("/databus"))
        fresh = relay("fresh", zookeeper.url("/databus"), start="latest")
        with running(old), running(fresh):
            old.start()
            wait_until(lambda: is_active(old), "the relay that serves", old.tell)
            insert(database, 1, 2)
            with connected(old) as client:
                client.subscribe("")
                assert take(client, 2, old.tell) == [1, 2]
            insert(database, 3, 4, 5)
            fresh.start()
            insert(database, 6)
            wait_until(lambda: len(fresh.windows()) == 1, "its first row", fresh.tell)
            old.child.kill()
            wait_until(lambda: is_active(fresh), "the one that takes over", fresh.tell)
            with connected(fresh) as client:
                assert take(client, 6, fresh.tell) == [3, 4, 5, 6]
                insert(database, 7)
                assert take(client, 7, fresh.tell) == [7]


@pytest.mark.parametrize("ring_bytes", ["1MiB", "64KiB"])
def test_a_cursor_of_another_log_is_refused_where_its_place_is_read_from_that_log(
    database: Database, tmp_path: Path, ring_bytes: str
) -> None:
    """What the source's own log has there proves it, though the first answers wait for that."""
    database.run("RESET MASTER")
    destination = {"name": "example", "physical_sources": ["shop"]}
    source = mysql_source(database, tmp_path, ring_bytes=ring_bytes, start="latest")
    relay = RunningRelay(
        tmp_path, source, canal={"port": free_port(), "destinations": [destination]}
    )
    with running(relay):
        relay.start()
        with connected(relay) as client:
            client.subscribe("")
            client.get(size=1, timeout=1, unit=3)
            insert(database, *range(1, 100))
            assert take(client, 99, relay.tell)[-1] == 99
        relay.child.stop()
        database.run("DELETE FROM orders", "RESET MASTER")
        insert(database, *range(1000, 1800))
        for path in relay.data_dir.iterdir():
            if path.name != "canal":
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        relay.start()
        insert(database, 2000)
        wait_until(lambda: len(relay.windows()) >= 1, "its first row", relay.tell)
        with connected(relay) as client:
            client.subscribe("")
            with pytest.raises(RefusedError, match="another log"):
                take(client, 2000, relay.tell, wait_ms=1)


@pytest.mark.parametrize("catch_ups", [2, 0])
def test_a_client_that_rolls_back_before_its_first_acknowledgement_gets_the_same_rows(
    database: Database, tmp_path: Path, catch_ups: int
) -> None:
    """The relay began after a row, of which it has an empty window only."""
    destination = {"name": "example", "physical_sources": ["shop"]}
    source = mysql_source(database, tmp_path, start="latest", catch_ups=catch_ups)
    canal = {"port": free_port(), "destinations": [destination]}
    relay = RunningRelay(tmp_path, source, canal=canal)
    insert(database, 19)
    with running(relay):
        relay.start()
        insert(database, 20, 21, 22)
        wait_until(lambda: len(relay.windows()) >= 3, "the rows", relay.tell)
        with connected(relay) as client:
            client.subscribe("")
            assert client.get(size=100).keys == [20, 21, 22]
            client.roll_back()
            assert client.get(size=100).keys == [20, 21, 22]
        with connected(relay) as client:
            client.subscribe("")
            client.roll_back()
            assert take(client, 22, relay.tell) == [20, 21, 22]
