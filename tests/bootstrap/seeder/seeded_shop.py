"""An SQLite shop whose changes come into a store when a test says so."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from threading import Event
from typing import Any

from databus.bootstrap.seeder.rate_limiter import Progress
from databus.bootstrap.seeder.seeder import Seeder
from databus.bootstrap.store.snapshot_pages import needed_rows
from databus.bootstrap.store.store import Store, StoredEvent
from databus.conf.settings import PhysicalSourceSettings
from databus.registry.registry import SchemaRegistry
from databus.registry.store import MemoryStore
from databus.relay.capture.window_encoder import WindowEncoder
from databus.relay.sources.kind import open_scan
from databus.relay.sources.source import Transaction
from databus.relay.sources.sqlite.source import SqliteSource
from databus.relay.sources.table_scan import TableScan
from databus.schemas.avro_rows import row_codec, schema_id
from databus.schemas.event.event import Opcode
from databus.schemas.event.v2 import decode, encode
from databus.schemas.stream.stream_reader import walk
from tests.bootstrap.filled import emptied
from tests.relay.sources.sqlite.shop import database, drain, opened, settings

ORDERS = "shop.orders"
TABLES = """
CREATE TABLE orders (id INTEGER PRIMARY KEY, note TEXT, price REAL);
CREATE TABLE people (name TEXT, land TEXT, age INT, PRIMARY KEY (name, land));
CREATE TABLE codes (code TEXT PRIMARY KEY, n INT) WITHOUT ROWID;
CREATE TABLE hits (page TEXT, n INT);
"""
NAMES = ("orders", "people", "codes", "hits")


class Shop:
    """A shop, its store, and what stands for the relay and the producer between them."""

    def __init__(
        self,
        connection: sqlite3.Connection,
        source: SqliteSource,
        store: Store,
        physical: PhysicalSourceSettings,
    ) -> None:
        self.connection = connection
        self.source = source
        self.store = store
        self.physical = physical
        self.src_ids = {name: 40 + at for at, name in enumerate(map(str, physical.sources))}
        self._registry = SchemaRegistry(MemoryStore())
        for name, src_id in self.src_ids.items():
            self._registry.add_source(name, src_id)
        self._encoder = WindowEncoder(self._registry, self.src_ids, before_images=False)
        self.progress: list[Progress] = []
        self.stop = Event()

    def run(self, *statements: str) -> None:
        """Run statements, each a transaction."""
        for statement in statements:
            self.connection.execute(statement)

    def insert(self, *ids: int, note: str = "x") -> None:
        """Insert orders."""
        with self.connection:
            self.connection.execute("BEGIN")
            self.connection.executemany(
                "INSERT INTO orders VALUES (?, ?, 1.5)", [(number, note) for number in ids]
            )

    def catch_up(self) -> None:
        """Let the producer come to the end of the change log."""
        for transaction in drain(self.source):
            self.apply(transaction)
        self.store.activate_caught_up()

    def apply(self, transaction: Transaction) -> None:
        """Apply one window."""
        window = self._encoder.encode(transaction)
        for name, src_id in self.src_ids.items():
            made = [(version.version, version.text) for version in self._registry.versions(name)]
            self.store.add_schemas(src_id, made)
        events = [
            (
                event.src_id,
                StoredEvent(event.scn, event.key, event.opcode is Opcode.DELETE, encode(event)),
            )
            for event in walk(window.data)
            if not event.is_control
        ]
        self.store.apply_window(transaction.scn, transaction.timestamp_ns, events)

    def empty(self, source: str = ORDERS) -> None:
        """Delete all rows of a table, as a TRUNCATE of which the store knows at once."""
        self.catch_up()
        self.run(f"DELETE FROM {source.partition('.')[2]}")
        (transaction,) = drain(self.source)
        change = emptied(self.src_ids[source], transaction.scn)
        self.store.apply_window(transaction.scn, transaction.timestamp_ns, [change])

    def begin(self) -> None:
        """Let the producer begin: the store has the sources and the log a beginning."""
        self.store.add_sources(self.src_ids)
        self.store.begin_log(0)
        self.run("INSERT INTO orders VALUES (-99, '', 0)", "DELETE FROM orders WHERE id = -99")
        self.catch_up()

    @contextmanager
    def scanning(self) -> Iterator[TableScan]:
        """Open a scan of the shop."""
        scan = open_scan(self.physical)
        scan.open()
        try:
            yield scan
        finally:
            scan.close()

    def seeder(self, scan: TableScan, chunk_rows: int = 10, **options: Any) -> Seeder:
        """Return a seeder with small chunks, whose progress is remembered."""
        options.setdefault("report", self.progress.append)
        options.setdefault("most_rows_per_s", 0)
        return Seeder(self.store, scan, chunk_rows, stop=self.stop, **options)

    def seed(self, *sources: str, chunk_rows: int = 10) -> None:
        """Seed sources to their end."""
        with self.scanning() as scan:
            for source in sources or (ORDERS,):
                assert self.seeder(scan, chunk_rows).seed(source)

    def stored(self, source: str = ORDERS, scn: int | None = None) -> list[dict[str, Any]]:
        """Return the live rows of the store, decoded and sorted."""
        until = self.store.position().scn if scn is None else scn
        page = self.store.snapshot_page(source, needed_rows(0, until, 0, None), 1 << 30)
        assert page.is_last
        texts = {schema_id(text): text for _, _, text in self.store.schemas(self.src_ids.values())}
        events = [decode(row.event)[0] for row in page.rows]
        assert [event.scn for event in events] == [row.scn for row in page.rows]
        return ordered(row_codec(texts[event.schema_id]).decode(event.value) for event in events)

    def table(self, source: str = ORDERS) -> list[dict[str, Any]]:
        """Return the rows of the table, sorted the same way."""
        cursor = self.connection.execute(f"SELECT * FROM {source.partition('.')[2]}")
        names = [column[0] for column in cursor.description]
        return ordered(dict(zip(names, row, strict=True)) for row in cursor)


def ordered(rows: Any) -> list[dict[str, Any]]:
    """Return rows in an order of their own."""
    return sorted(rows, key=repr)


@contextmanager
def shop_at(folder: Path, tables: Sequence[str] = NAMES, script: str = "") -> Iterator[Shop]:
    """Make a shop, and run a script in it; then the relay puts its change log there.

    The producer has not begun yet.
    """
    path = folder / "shop.db"
    with ExitStack() as stack:
        connection = stack.enter_context(database(path, TABLES + script))
        source = stack.enter_context(opened(path, *tables, start="earliest"))
        store = Store.open(folder / "data" / "shop.db")
        stack.callback(store.close)
        yield Shop(connection, source, store, settings(path, *tables))
