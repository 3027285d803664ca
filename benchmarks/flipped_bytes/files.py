"""Makes the set of files that a relay, a bootstrap pair and a client leave behind.

The relay captures an SQLite database; a client with a checkpoint reads all of
it, a producer and a seeder fill a store. Then all of them end, and the files are
at rest. The definitions of a MySQL source are written by their own class, as that
needs no server.
"""

from __future__ import annotations

import asyncio
import random
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from databus.bootstrap.packs.building import PackSizes
from databus.bootstrap.packs.packer import Packer
from databus.bootstrap.pair import Pair
from databus.bootstrap.producer.producer import Producer
from databus.bootstrap.seeder.job import SeedingThread
from databus.bootstrap.store.store import Store
from databus.bootstrap.store.values import SourceStatus
from databus.client.client import DatabusClient
from databus.conf.loading import build_settings
from databus.conf.settings import BootstrapSettings, RelaySettings
from databus.daemon.service import serve
from databus.demo.processes import wait_until
from databus.relay.capture.max_scn import SqliteMaxScn
from databus.relay.relay import Relay
from databus.relay.service import make_service
from databus.relay.sources.mysql.rows.layout import DefinedColumn, Definition
from databus.relay.sources.mysql.tables.alter import TableVersion
from databus.relay.sources.mysql.tables.history import History, Record

RING_BYTES = 40 << 20
WIDE_BYTES = 32 << 20  # of rows: more than a restart reads
LEAST_WINDOWS = 30
SOURCES = ("main.orders", "main.notes")
PACKS = PackSizes(most_rows=10, fewest_rows=1, fewest_noted=1)
PACKED_BYTES = 1 << 30
PATIENCE_S = 60.0
_SCHEMA = """
create table orders (id integer primary key, item text not null);
create table notes (code text primary key, text text);
"""


def make_files(folder: Path, wide_bytes: int = WIDE_BYTES) -> None:
    """Make all kinds of files in a folder."""
    chosen = random.Random(1)
    with closing(sqlite3.connect(folder / "shop.db", isolation_level=None)) as database:
        database.execute("pragma journal_mode = wal")
        database.executescript(_SCHEMA)
        with _relay(folder) as (relay, url):
            # The triggers are there now: what comes next is captured.
            wait_until(
                lambda: len(relay.registry.sources()) == len(SOURCES) and _is_open(relay),
                PATIENCE_S,
                "the relay",
            )
            _write(database, chosen, wide_bytes, partial(_await_captured, relay, database))
            _consume(url, folder / "checkpoints", database)
            _fill_store(url, folder)
    SqliteMaxScn(folder / "max_scn.db", "shop").save(77, 1_700_000_000 * 10**9)
    _write_history(folder / "defined.history")


def _await_captured(relay: Relay, database: sqlite3.Connection) -> None:
    """Wait until everything is captured: what comes then is in windows of its own."""
    (scn,) = database.execute("select max(id) from _databus_log").fetchone()
    ring = relay.physical_sources["shop"].ring
    wait_until(lambda: ring.max_scn >= scn, PATIENCE_S, "the windows")


def _write(
    database: sqlite3.Connection,
    chosen: random.Random,
    wide_bytes: int,
    await_captured: Callable[[], None],
) -> None:
    """Commit rows of all sizes, changes and deletions, and alter a table; in many windows."""
    written, key, captured = 0, 0, 0
    while written < wide_bytes:
        key += 1
        if written - captured > wide_bytes / LEAST_WINDOWS:
            await_captured()
            captured = written
        size = chosen.choice((10, 200, 3000, 60_000))
        text = chosen.randbytes(size // 2).hex()
        database.execute("insert into orders (id, item) values (?, ?)", (key, text))
        written += size
        if key % 7 == 0:
            database.execute("insert into notes values (?, ?)", (f"n{key}", text[:50]))
            database.execute("delete from orders where id = ?", (key - 3,))
        if key == 50:
            database.execute("alter table orders add column price real")
            database.execute("update orders set price = 1.5 where id = 2")


def _consume(url: str, folder: Path, database: sqlite3.Connection) -> None:
    """Read everything, and save the checkpoint of the last window."""
    (newest,) = database.execute("select max(id) from orders").fetchone()
    client = DatabusClient([url], checkpoint_dir=folder, start="earliest", checkpoint_every_s=0)
    with client:
        for window in client.windows(*SOURCES):
            if any(e.source == SOURCES[0] and e.wire_key == newest for e in window.events):
                break


def _fill_store(url: str, folder: Path) -> None:
    values = {
        "data_dir": str(folder / "pair"),
        "relays": [url],
        "physical_sources": [_physical(folder)],
    }
    pair = Pair(build_settings(values, BootstrapSettings), Producer, SeedingThread)
    pair.start()
    try:
        wait_until(
            lambda: (
                [s.status for store in pair.stores.values() for s in store.sources]
                == [SourceStatus.ACTIVE] * len(SOURCES)
            ),
            PATIENCE_S,
            "the seeded sources",
        )
    finally:
        pair.stop(PATIENCE_S)
    with closing(Store.open(pair.paths["shop"])) as store:
        packer = Packer(store, PACKED_BYTES, PACKS)
        while packer.step():
            pass
        assert store.sizes().packed_bytes


def _write_history(path: Path) -> None:
    def version(*columns: str) -> TableVersion:
        found = tuple(DefinedColumn(name, "varchar(9)", True, "latin1") for name in columns)
        return TableVersion(Definition(found, columns[:1]), "latin1")

    history = History(path)
    table = ("shop", "orders")
    history.begin(Record(10, {table: version("a")}, {"shop": "latin1"}, is_beginning=True))
    for number in range(1, 30):
        columns = [f"c{n}" for n in range(number)]
        statement = f"alter table orders add c{number} varchar(9)"
        history.add(Record(10 + number, {table: version("a", *columns)}, text=statement))


def _physical(folder: Path) -> dict[str, Any]:
    return {
        "name": "shop",
        "uri": f"sqlite:{folder / 'shop.db'}",
        "sources": list(SOURCES),
        "start": "earliest",
        "ring_bytes": RING_BYTES,
    }


@contextmanager
def _relay(folder: Path) -> Iterator[tuple[Relay, str]]:
    values = {
        "data_dir": str(folder / "relay"),
        "http": {"port": 0},
        "physical_sources": [_physical(folder)],
    }
    relay = Relay(build_settings(values, RelaySettings))
    listening, urls = threading.Event(), []
    until: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []

    async def run() -> None:
        event = asyncio.Event()
        until.append((asyncio.get_running_loop(), event))

        def note(url: str, _server: object) -> None:
            urls.append(url)
            listening.set()

        await serve(make_service(relay), event, note)

    thread = threading.Thread(target=lambda: asyncio.run(run()))
    thread.start()
    try:
        assert listening.wait(PATIENCE_S)
        yield relay, urls[0]
    finally:
        loop, event = until[0]
        loop.call_soon_threadsafe(event.set)
        thread.join()


def _is_open(relay: Relay) -> bool:
    return relay.physical_sources["shop"].capture.status.was_opened
