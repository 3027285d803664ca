"""A database with a writer, a relay process, and a producer: what seeding is like in earnest."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from random import Random
from typing import Any, Protocol

from databus.bootstrap.producer.producer import Producer
from databus.bootstrap.seeder.job import store_path
from databus.bootstrap.store.snapshot_pages import needed_rows
from databus.bootstrap.store.store import SourceStatus, Store
from databus.conf.settings import BackOffSettings, BootstrapSettings, PhysicalSourceSettings
from databus.schemas.avro_rows import row_codec, schema_id
from databus.schemas.event.v2 import decode
from tests import PATIENCE_S
from tests.mariadb_server import Database, connect
from tests.promises.running import RunningRelay, wait_until

EACH_S = 0.003  # between two transactions of the writer
NEW_FROM = 1_000_000

Rows = dict[Any, dict[str, Any]]


class Connection(Protocol):
    """Where a writer writes."""

    def run(self, *statements: str) -> None:
        """Run statements as one transaction."""


class SqliteConnection:
    """A connection to an SQLite file."""

    def __init__(self, path: Path) -> None:
        self._db = sqlite3.connect(
            path, isolation_level=None, timeout=PATIENCE_S, check_same_thread=False
        )

    def run(self, *statements: str) -> None:
        """Run statements as one transaction."""
        self._db.execute("BEGIN IMMEDIATE")
        for statement in statements:
            self._db.execute(statement)
        self._db.execute("COMMIT")

    def close(self) -> None:
        """Close it."""
        self._db.close()


class MariaDBConnection:
    """A connection to a database of the private server."""

    def __init__(self, database: Database) -> None:
        self._db = connect(database.server, database=database.name)

    def run(self, *statements: str) -> None:
        """Run statements as one transaction."""
        with self._db.cursor() as cursor:
            for statement in ("BEGIN", *statements, "COMMIT"):
                cursor.execute(statement)

    def close(self) -> None:
        """Close it."""
        self._db.close()


class Writer:
    """Writes to `orders (id, note, price)`, of ids 0 … `rows` - 1 and above NEW_FROM."""

    def __init__(self, connection: Connection, rows: int, seed: int) -> None:
        self._connection = connection
        self._rows = rows
        self._random = Random(seed)
        self._stop = threading.Event()
        self._error: BaseException | None = None
        self._next = NEW_FROM
        self._thread = threading.Thread(target=self._run, name="writer")
        self.transactions = 0

    def start(self) -> None:
        """Start writing."""
        self._thread.start()

    def stop(self) -> None:
        """Stop writing; raises what went wrong."""
        self._stop.set()
        self._thread.join()
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        try:
            while not self._stop.wait(EACH_S):
                self._connection.run(*self._statements())
                self.transactions += 1
        except BaseException as error:
            self._error = error

    def _statements(self) -> list[str]:
        return [self._statement() for _ in range(self._random.choice((1, 1, 2, 5)))]

    def _statement(self) -> str:
        one, number = self._random.randrange(self._rows), self._random.randrange(1000)
        self._next += 1
        kinds = (
            f"INSERT INTO orders VALUES ({self._next}, 'new {number}', {number})",
            f"UPDATE orders SET note = 'changed {number}' WHERE id = {one}",
            f"UPDATE orders SET price = {number} WHERE id BETWEEN {one} AND {one + 20}",
            f"DELETE FROM orders WHERE id = {one}",
            f"DELETE FROM orders WHERE id = {self._next - number}",
            f"UPDATE orders SET id = {self._next} WHERE id = {one}",
            f"REPLACE INTO orders VALUES ({one}, 'again {number}', NULL)",
        )
        return self._random.choice(kinds)


@contextmanager
def writing(connection: Connection, rows: int, seed: int) -> Iterator[Writer]:
    """Write as long as the block lasts."""
    writer = Writer(connection, rows, seed)
    writer.start()
    try:
        yield writer
    finally:
        writer.stop()


def pair_settings(
    relay: RunningRelay, physical: Mapping[str, Any], folder: Path, **more: Any
) -> BootstrapSettings:
    """Return settings of a pair for the relay's physical source."""
    return BootstrapSettings(
        data_dir=folder / "pair",
        relays=(relay.url,),
        physical_sources=(PhysicalSourceSettings(**physical),),
        back_off=BackOffSettings(first_s=0.01, max_s=0.1),
        **more,
    )


@contextmanager
def producing(settings: BootstrapSettings) -> Iterator[Store]:
    """Run the producer, and give a connection to its store once it has begun."""
    (physical,) = settings.physical_sources
    producer = Producer(settings, physical)
    producer.start()
    try:
        path = store_path(settings, physical)
        wait_until(path.exists, "the store", producer.status)
        with closing(Store.open(path)) as store:
            wait_until(lambda: store.position().scn >= 0, "a position", producer.status)
            yield store
    finally:
        assert producer.stop(PATIENCE_S)


def wait_for_status(store: Store, source: str, *statuses: SourceStatus) -> None:
    """Wait until a source is in one of the states."""
    wait_until(
        lambda: store.source(source).status in statuses,
        f"{source} to be {', '.join(statuses)}",
        lambda: (store.source(source), store.position()),
    )


def wait_for_producer(store: Store, relay: RunningRelay, newest: Callable[[], int]) -> None:
    """Wait until the relay has what was written, and the producer what the relay has."""
    scn = newest()
    wait_until(lambda: store.position().scn >= scn, f"scn {scn}", lambda: (store.position(), scn))


def live_rows(store: Store, source: str) -> Rows:
    """Return the live rows of a store, decoded, by id."""
    state = store.source(source)
    texts = {schema_id(text): text for _, _, text in store.schemas([state.src_id])}
    page = store.snapshot_page(source, needed_rows(0, store.position().scn, 0, None), 1 << 40)
    events = (decode(row.event)[0] for row in page.rows)
    rows = (row_codec(texts[event.schema_id]).decode(event.value) for event in events)
    return {row["id"]: row for row in rows}
