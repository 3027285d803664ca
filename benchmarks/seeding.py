"""Seeding a store, and its snapshot: `python -m benchmarks.seeding [--short] [--json FILE]`.

A table of 9 columns in a private MariaDB. Each step stands beside the plainest program that
reads the same rows, on the same machine; they take turns, and a ratio is the median of the
repeats:

- seeding (the bootstrap server's own seeder and store) / a keyed SELECT: PyMySQL, SSCursor,
  its own conversions, as many rows at a time;
- pages of the snapshot, as the server makes them / a scan of the store: all events of the
  same table by their ids, with Python's sqlite3;
- snapshot to callback (server, HTTP, client, a consumer that counts, and one that also decodes
  every row) / the same scan.

Where Maven and a JDK are there, and MySQL, seeding also stands beside the initial snapshot of
Debezium's embedded engine: of the same table in a MySQL, from its first record to its last.

CPU seconds are those of the seeding process; the database's are not in them.
"""

from __future__ import annotations

import math
import shutil
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any

import click
import pymysql
from pymysql.cursors import SSCursor

from benchmarks.catch_up import Pair
from benchmarks.peers.log import make_numbers, mysql_with_log
from benchmarks.peers.programs import SNAPSHOT, BuildError
from benchmarks.peers.run import Reading, command_of_peer, run_reader
from benchmarks.shared.report import Figure, at_least, command
from databus.bootstrap.seeder.read_ahead import ReadAheadScan
from databus.bootstrap.seeder.seeder import Seeder
from databus.bootstrap.store.snapshot_pages import needed_rows
from databus.bootstrap.store.store import Store
from databus.conf.settings import PhysicalSourceSettings
from databus.demo.private_mariadb import HOST, PrivateMariaDB
from databus.relay.sources.mysql.scan.tables import MysqlTableScan
from databus.schemas.checkpoint import Checkpoint

SOURCE, SRC_ID = "shop.stock", 1
CHUNK_ROWS = 2000
PAGE_BYTES = 1 << 20
SEEDING, CALLBACK, DEBEZIUM = at_least(0.6), at_least(0.6), at_least(1.5)
CREATE = """
CREATE TABLE shop.stock (
    id BIGINT PRIMARY KEY, customer_id BIGINT NOT NULL, product_id BIGINT NOT NULL,
    quantity BIGINT NOT NULL, total DECIMAL(10,2) NOT NULL, status VARCHAR(100) NOT NULL,
    ordered_at DATETIME(3) NOT NULL, change_no BIGINT NOT NULL, changed_ns BIGINT NOT NULL
)
"""
# MySQL has no sequences: the numbers of two small tables.
FILL = """
INSERT INTO shop.stock
SELECT seq, seq * 7919 % 10000, seq * 31 % 1000, seq % 9, seq % 1000000 / 100,
ELT(1 + seq % 4, 'new', 'paid', 'shipped', 'returned'),
'2026-01-01' + INTERVAL seq SECOND, seq, 1790000000000000000 + seq
FROM (SELECT (a.seq - 1) * 1000 + b.seq AS seq FROM numbers a, numbers b) n WHERE seq <= {rows}
"""


@dataclass(frozen=True, slots=True)
class Cost:
    """The time that a number of rows took, and the CPU time of this process."""

    rows: int
    seconds: float
    cpu_s: float

    @property
    def rows_per_s(self) -> float:
        """Rows a second."""
        return self.rows / self.seconds

    @property
    def cpu_s_per_million(self) -> float:
        """CPU seconds for a million rows."""
        return self.cpu_s / self.rows * 1e6


def cost_of(work: Callable[[], int]) -> Cost:
    """Measure work that returns a number of rows."""
    began_s, cpu_s = time.perf_counter(), time.process_time()
    rows = work()
    return Cost(rows, time.perf_counter() - began_s, time.process_time() - cpu_s)


class Shop:
    """The database and its table."""

    def __init__(self, server: PrivateMariaDB, folder: Path, rows: int) -> None:
        self.rows = rows
        self._server = server
        password = folder / "password"
        password.write_text(server.password, encoding="utf-8")
        self._settings = PhysicalSourceSettings(
            name="shop", uri=server.uri, password_file=password, sources=(SOURCE,)
        )
        with closing(self._connect()) as connection, connection.cursor() as cursor:
            cursor.execute("CREATE DATABASE shop")
            cursor.execute("USE shop")
            cursor.execute(CREATE)
            make_numbers(cursor)
            cursor.execute(FILL.format(rows=rows))

    def _connect(self) -> Any:
        server = self._server
        return pymysql.connect(
            host=HOST,
            port=server.port,
            user=server.user,
            password=server.password,
            charset="utf8mb4",
            autocommit=True,
            cursorclass=SSCursor,
        )

    def select(self) -> int:
        """Read the table by its key."""
        rows, last = 0, 0
        query = "SELECT * FROM shop.stock WHERE id > %s ORDER BY id LIMIT %s"
        with closing(self._connect()) as connection:
            while True:
                before = rows
                with connection.cursor() as cursor:
                    cursor.execute(query, (last, CHUNK_ROWS))
                    for row in cursor:
                        last = row[0]
                        rows += 1
                if rows == before:
                    return rows

    def seed(self, path: Path) -> int:
        """Seed a new store."""
        scan = ReadAheadScan(MysqlTableScan(self._settings))
        scan.open()
        try:
            with closing(Store.open(path)) as store:
                store.add_sources({SOURCE: SRC_ID})
                scn = scan.newest_scn()
                store.apply_window(scn, scn, [])
                seeder = Seeder(store, scan, CHUNK_ROWS, 0, lambda _: None, Event())
                if not seeder.seed(SOURCE):
                    raise RuntimeError("the table is not seeded")
                return store.source(SOURCE).seed_rows
        finally:
            scan.close()


@contextmanager
def shop_of(folder: Path, rows: int) -> Iterator[Shop]:
    """Run a database with a table of so many rows for the length of a `with`."""
    options = {"innodb-buffer-pool-size": "1G", "log-bin": "binlog", "server-id": "1"}
    with PrivateMariaDB(options=options) as server:
        yield Shop(server, folder, rows)


def scan_store(path: Path) -> int:
    """Read the events of a store's table by their ids."""
    rows = size = 0
    with closing(sqlite3.connect(path)) as connection:
        for _, event in connection.execute(f"SELECT id, event FROM snapshot_{SRC_ID} ORDER BY id"):
            rows += 1
            size += len(event)
    return rows


def read_pages(path: Path) -> int:
    """Make every page of the snapshot, without sending it."""
    rows = after_id = 0
    with closing(Store.open(path, is_read_only=True)) as store:
        scn = store.position().scn
        while True:
            with store.reading():
                wanted = needed_rows(0, scn, after_id, None)
                _, found = store.snapshot_body(SOURCE, wanted, PAGE_BYTES)
            rows, after_id = rows + found.rows, found.last_id
            if found.is_last:
                return rows


def call_back(folder: Path) -> tuple[Cost, Cost]:
    """Bootstrap two clients from the store in a folder: of events alone, and of rows."""
    with closing(Store.open(folder / "server" / "shop.db", is_read_only=True)) as store:
        last_scn = store.position().scn
    start = Checkpoint.at(0)
    with serving(folder, last_scn) as pair:
        # A server that was just started checks a store before it serves it, once.
        pair.catch_up(start, decodes=False)
        return (
            cost_of(lambda: pair.catch_up(start, decodes=False).events),
            cost_of(lambda: pair.catch_up(start).events),
        )


@contextmanager
def serving(folder: Path, last_scn: int) -> Iterator[Pair]:
    """Serve the store of a folder for the length of a `with`."""
    pair = Pair(folder, last_scn)
    try:
        pair.relay.start()
        pair.server.start()
        pair.wait()
        yield pair
    finally:
        pair.server.stop()
        pair.relay.stop()


@dataclass(frozen=True, slots=True)
class Round:
    """One repeat of everything."""

    select: Cost
    seed: Cost
    scan: Cost
    pages: Cost
    events: Cost
    rows: Cost


def measure(shop: Shop, folder: Path) -> Round:
    """Do everything once, with a new store."""
    (folder / "server").mkdir(parents=True)
    store = folder / "server" / "shop.db"
    try:
        select = cost_of(shop.select)
        seed = cost_of(lambda: shop.seed(store))
        scan = cost_of(lambda: scan_store(store))
        pages = cost_of(lambda: read_pages(store))
        found = Round(select, seed, scan, pages, *call_back(folder))
    finally:
        shutil.rmtree(folder)
    for cost in (found.select, found.seed, found.scan, found.pages, found.events, found.rows):
        if cost.rows != shop.rows:
            raise RuntimeError(f"{cost.rows} rows of {shop.rows}")
    return found


def beside_debezium(rows: int, repeats: int) -> list[Figure]:
    """Measure seeding beside a snapshot of Debezium's, in turns.

    The figures are not-a-number where Debezium or MySQL is not there.
    """
    seeds: list[Cost] = []
    snapshots: list[Reading] = []
    with suppress(BuildError, click.ClickException), tempfile.TemporaryDirectory() as name:
        folder, peer = Path(name), command_of_peer(SNAPSHOT)
        with mysql_with_log() as server:
            shop = Shop(server, folder, rows)
            for turn in range(repeats):
                store = folder / f"{turn}.db"
                seeds.append(cost_of(partial(shop.seed, store)))
                store.unlink()
                snapshots.append(run_reader(peer, server, ("", "0", SOURCE), rows))
    return _beside(seeds, snapshots)


def _beside(seeds: Sequence[Cost], snapshots: Sequence[Reading]) -> list[Figure]:
    def middle(values: Iterable[float]) -> float:
        found = list(values)
        return statistics.median(found) if found else math.nan

    pairs = zip(seeds, snapshots, strict=True)
    ratio = middle(seed.rows_per_s * one.seconds / one.rows for seed, one in pairs)
    return [
        Figure("MySQL: seeding", middle(seed.rows_per_s for seed in seeds), "rows/s"),
        Figure("MySQL: seeding, CPU", middle(s.cpu_s_per_million for s in seeds), "s/M rows"),
        Figure("Debezium: snapshot", middle(one.rows / one.seconds for one in snapshots), "rows/s"),
        Figure(
            "Debezium: snapshot, CPU",
            middle(one.cpu_seconds / one.rows * 1e6 for one in snapshots),
            "s/M rows",
        ),
        Figure("MySQL: seeding / Debezium: snapshot", ratio, "x", DEBEZIUM),
    ]


def figures(short: bool = False) -> list[Figure]:
    """Measure a few rounds, and take their medians."""
    rows, repeats = (50_000, 3) if short else (1_000_000, 3)
    folder = Path(tempfile.mkdtemp(prefix="databus-seeding-"))
    try:
        with shop_of(folder, rows) as shop:
            rounds = [measure(shop, folder / str(number)) for number in range(repeats)]
    finally:
        shutil.rmtree(folder, ignore_errors=True)

    def middle(value: Callable[[Round], float]) -> float:
        return statistics.median(map(value, rounds))

    return [
        Figure("seeding", middle(lambda one: one.seed.rows_per_s), "rows/s"),
        Figure("seeding, CPU", middle(lambda one: one.seed.cpu_s_per_million), "s/M rows"),
        Figure(
            "seeding / keyed SELECT by PyMySQL",
            middle(lambda one: one.select.seconds / one.seed.seconds),
            "x",
            SEEDING,
        ),
        Figure("snapshot pages", middle(lambda one: one.pages.rows_per_s), "rows/s"),
        Figure("snapshot pages, CPU", middle(lambda one: one.pages.cpu_s_per_million), "s/M rows"),
        Figure(
            "snapshot pages / SQLite scan",
            middle(lambda one: one.scan.seconds / one.pages.seconds),
            "x",
        ),
        Figure("snapshot to callback", middle(lambda one: one.events.rows_per_s), "rows/s"),
        Figure(
            "snapshot to callback / SQLite scan",
            middle(lambda one: one.scan.seconds / one.events.seconds),
            "x",
            CALLBACK,
        ),
        Figure("snapshot to rows", middle(lambda one: one.rows.rows_per_s), "rows/s"),
        Figure(
            "snapshot to rows / SQLite scan",
            middle(lambda one: one.scan.seconds / one.rows.seconds),
            "x",
        ),
        *beside_debezium(rows, repeats),
    ]


main = command("seeding", figures)
if __name__ == "__main__":
    main()
