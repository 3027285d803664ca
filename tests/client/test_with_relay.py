"""The client against a real relay that captures a real SQLite database."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

from databus.client.client import DatabusClient
from databus.client.consumer import DataEvent, Op
from databus.conf.loading import build_settings
from databus.conf.settings import RelaySettings
from databus.daemon.service import serve
from databus.relay.relay import Relay
from databus.relay.service import make_service
from databus.schemas.errors import ScnNotFoundError
from databus.schemas.filters import ModFilter, PartitionFilter, key_hash
from tests import PATIENCE_S
from tests.client.shop import wait_until

SOURCE = "main.orders"


class RunningRelay:
    """A relay with its HTTP server on a thread."""

    def __init__(self, folder: Path, name: str = "relay", ring_bytes: int = 1 << 20) -> None:
        values = {
            "data_dir": str(folder / name),
            "http": {"port": 0},
            "physical_sources": [
                {
                    "name": "shop",
                    "uri": f"sqlite:{folder / 'shop.db'}",
                    "sources": ["main.orders", "main.notes"],
                    "start": "earliest",
                    "ring_bytes": ring_bytes,
                }
            ],
        }
        self._settings = build_settings(values, RelaySettings)
        self._listening = threading.Event()
        self.url = ""
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()))

    def __enter__(self) -> RunningRelay:
        self._thread.start()
        assert self._listening.wait(PATIENCE_S)
        # Schemas are there once the triggers are: from then on changes are captured.
        wait_until(lambda: _ask(self.url, "/register"))
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()

    def stop(self) -> None:
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._until.set)
            self._thread.join()

    async def _serve(self) -> None:
        self._loop, self._until = asyncio.get_running_loop(), asyncio.Event()
        relay = Relay(self._settings)
        try:
            await serve(make_service(relay), self._until, self._note)
        finally:
            relay.stop()

    def _note(self, url: str, _server: object) -> None:
        self.url = url
        self._listening.set()


@pytest.fixture
def database(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(tmp_path / "shop.db", isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, item TEXT NOT NULL)")
    connection.execute("CREATE TABLE notes (id INTEGER PRIMARY KEY, text TEXT)")
    with closing(connection):
        yield connection


def insert(database: sqlite3.Connection, first: int, count: int, item: str = "tea") -> None:
    """Insert orders, one transaction each."""
    for number in range(first, first + count):
        database.execute("INSERT INTO orders VALUES (?, ?)", (number, item))


def make_client(*relays: RunningRelay, **options: Any) -> DatabusClient:
    quick: dict[str, Any] = {"back_off": {"first_s": 0.001, "max_s": 0.05}, "checkpoint_every_s": 0}
    return DatabusClient([r.url for r in relays], **(quick | options))


def test_committed_changes_reach_the_callback(database: sqlite3.Connection, tmp_path: Path) -> None:
    seen: list[tuple[Any, ...]] = []
    with RunningRelay(tmp_path) as relay:
        client = make_client(relay)

        @client.on(SOURCE)
        def take(event: DataEvent) -> None:
            seen.append((event.op, event.row, event.before))

        with client:
            wait_until(lambda: client.status()[0].state == "streaming")
            database.execute("INSERT INTO orders VALUES (1, 'tea')")
            database.execute("UPDATE orders SET item = 'milk' WHERE id = 1")
            database.execute("DELETE FROM orders WHERE id = 1")
            wait_until(lambda: len(seen) == 3)
    tea, milk = {"id": 1, "item": "tea"}, {"id": 1, "item": "milk"}
    assert seen == [(Op.INSERT, tea, None), (Op.UPDATE, milk, tea), (Op.DELETE, milk, None)]


def test_a_transaction_larger_than_size_arrives_whole_with_and_without_a_filter(
    database: sqlite3.Connection, tmp_path: Path
) -> None:
    with RunningRelay(tmp_path) as relay:
        client = make_client(relay, fetch_bytes=2048)
        database.execute("BEGIN")
        insert(database, 1, 500)
        database.execute("INSERT INTO notes VALUES (1, 'and a note')")
        database.execute("COMMIT")
        odd = {SOURCE: ModFilter(2, 1, 2)}
        with client:
            whole = next(client.windows(SOURCE, "main.notes"))
            half = next(client.windows(SOURCE, filters=odd, name="odd"))
    assert [e.wire_key for e in whole.events] == [*range(1, 501), 1]
    assert [e.wire_key for e in half.events] == list(range(1, 501, 2))


@pytest.mark.parametrize("by", [(), ("item",)])
def test_partitions_share_the_rows_and_an_update_that_changes_the_partition_is_in_both(
    database: sqlite3.Connection, tmp_path: Path, by: tuple[str, ...]
) -> None:
    items = [f"tea, no. {number}" for number in range(40)]
    with RunningRelay(tmp_path) as relay:
        database.execute("BEGIN")
        for number, item in enumerate(items):
            database.execute("INSERT INTO orders VALUES (?, ?)", (number, item))
        database.execute("UPDATE orders SET item = 'milk' WHERE id = 7")
        database.execute("DELETE FROM orders WHERE id = 9")
        database.execute("COMMIT")
        with make_client(relay) as client:
            seen = []
            for partition in range(3):
                wanted = {SOURCE: PartitionFilter(3, frozenset((partition,)), by)}
                window = next(client.windows(SOURCE, filters=wanted, name=f"p{partition}"))
                seen.append([(event.wire_key, event.op) for event in window.events])

    def partitions_of(number: int, text: str) -> set[int]:
        escaped = text.replace(",", "\\,").encode()
        return {key_hash(escaped if by else number) % 3}

    changes = [
        (number, Op.INSERT, partitions_of(number, item)) for number, item in enumerate(items)
    ]
    changes.append((7, Op.UPDATE, partitions_of(7, items[7]) | partitions_of(7, "milk")))
    changes.append((9, Op.DELETE, partitions_of(9, items[9])))
    assert seen == [
        [(key, op) for key, op, places in changes if partition in places] for partition in range(3)
    ]
    assert len(changes[40][2]) == (2 if by else 1), "or else this shows nothing"


def test_a_client_goes_on_after_a_restart_of_client_and_relay(
    database: sqlite3.Connection, tmp_path: Path
) -> None:
    keys: list[int | bytes] = []
    for first in (1, 51, 101):
        with RunningRelay(tmp_path) as relay:
            client = make_client(relay, checkpoint_dir=tmp_path / "state", fetch_bytes=4096)
            client.on(SOURCE)(lambda event: keys.append(event.wire_key))
            with client:
                insert(database, first, 50)
                wait_until(partial(_has, keys, first + 49))
    assert keys == list(range(1, 151))


def test_two_relays_of_one_database_are_one_to_a_client(
    database: sqlite3.Connection, tmp_path: Path
) -> None:
    keys: list[int | bytes] = []
    with RunningRelay(tmp_path, "one") as one, RunningRelay(tmp_path, "other") as other:
        client = make_client(one, other)
        client.on(SOURCE)(lambda event: keys.append(event.wire_key))
        with client:
            insert(database, 1, 50)
            wait_until(lambda: len(keys) == 50)
            here = one if client.status()[0].server == one.url else other
            here.stop()
            insert(database, 51, 50)
            wait_until(lambda: len(keys) == 100)
            assert client.status()[0].server != here.url
    assert keys == list(range(1, 101))


def test_a_column_that_is_added_while_the_client_reads_is_there_in_its_rows(
    database: sqlite3.Connection, tmp_path: Path
) -> None:
    rows: list[dict[str, Any]] = []
    with RunningRelay(tmp_path) as relay:
        client = make_client(relay)
        client.on(SOURCE)(lambda event: rows.append(event.row))
        with client:
            insert(database, 1, 1)
            wait_until(lambda: len(rows) == 1)
            database.execute("ALTER TABLE orders ADD COLUMN note TEXT")
            database.execute("INSERT INTO orders VALUES (2, 'tea', 'hot')")
            wait_until(lambda: "note" in rows[-1])
    # A row that came before the source had noticed comes again, in full.
    assert rows[0] == {"id": 1, "item": "tea"}
    assert rows[-1] == {"id": 2, "item": "tea", "note": "hot"}


def test_from_the_newest_on_nothing_is_missed_after_the_start(
    database: sqlite3.Connection, tmp_path: Path
) -> None:
    keys: list[int | bytes] = []
    with RunningRelay(tmp_path) as relay:
        insert(database, 1, 5)
        with make_client(relay) as client:
            keys_before = (e.wire_key for w in client.windows(SOURCE) for e in w.events)
            assert list(islice(keys_before, 5)) == [1, 2, 3, 4, 5]
            keys_before.close()
        client = make_client(relay, start="latest")
        client.on(SOURCE)(lambda event: keys.append(event.wire_key))
        with client:
            wait_until(lambda: client.status()[0].scn >= 0)
            insert(database, 6, 5)
            wait_until(lambda: len(keys) == 5)
    assert keys == [6, 7, 8, 9, 10]


def test_a_client_that_fell_behind_the_ring_is_told_so(
    database: sqlite3.Connection, tmp_path: Path
) -> None:
    with RunningRelay(tmp_path, ring_bytes=1 << 20) as relay:
        insert(database, 1, 1)
        with make_client(relay, checkpoint_dir=tmp_path / "state") as client:
            windows = client.windows(SOURCE)
            first = next(windows).scn
            insert(database, 2, 300, item="x" * 10_000)
            wait_until(lambda: _oldest(relay.url) > first + 1)
        told = pytest.raises(ScnNotFoundError, match=rf"scn {first} is gone; the oldest held is \d")
        with make_client(relay, start=str(first)) as client, told:
            next(client.windows(SOURCE))


def _has(keys: list[int | bytes], count: int) -> bool:
    return len(keys) >= count


def _oldest(url: str) -> int:
    found: int = _ask(url, "/bufferInfo/inbound/shop/0")["minScn"]
    return found


def _ask(url: str, path: str) -> Any:
    with urlopen(url + path) as answer:
        return json.load(answer)
