"""A stock client on our relay and bootstrap server: a whole life, and whole copies."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from databus.demo.private_mariadb import PrivateMariaDB
from tests.mariadb_server import Database, fresh_database
from tests.promises.bootstrapping import RunningPair, RunningServer, has_evicted, serving
from tests.promises.running import RunningRelay, mysql_source, running
from tests.promises.stock_databus.stock_checkpoint import ONLINE, StockCheckpoint
from tests.promises.stock_databus.stock_client import StockClient, StockWindow

ORDERS, PEOPLE, TICKETS = (f"com.example.shop.{name}" for name in ("Orders", "People", "Tickets"))
SOURCES = (ORDERS, PEOPLE, TICKETS)
TABLES = (
    "CREATE TABLE orders (id BIGINT PRIMARY KEY, tx BIGINT, note VARCHAR(200), price DOUBLE)",
    "CREATE TABLE people (name VARCHAR(20), land VARCHAR(20), tx BIGINT, age INT, "
    "PRIMARY KEY (name, land))",
    "CREATE TABLE tickets (code VARCHAR(20) PRIMARY KEY, tx BIGINT, data VARBINARY(50))",
)
RING_BYTES = 256 << 10
EVENT_VERSIONS = pytest.mark.parametrize("event_version", [0, 2])
PROTOCOLS = pytest.mark.parametrize("protocol", [2, 3, 4])


class Stage:
    """A database that is written to, our relay of it, and our bootstrap pair."""

    def __init__(self, database: Database, folder: Path) -> None:
        self.database = database
        tables = zip(SOURCES, ("orders", "people", "tickets"), strict=True)
        sources = [{"name": name, "table": f"{database.name}.{table}"} for name, table in tables]
        settings = mysql_source(
            database, folder, sources=sources, ring_bytes=RING_BYTES, catch_ups=0
        )
        self.relay = RunningRelay(folder, settings)
        self.pair = RunningPair(folder, self.relay)
        self.server: RunningServer = self.pair.server()
        self.seed = random.randrange(1 << 30)
        self.random = random.Random(self.seed)
        self.tx = 0
        self._marks = 0

    def write(self, count: int = 1) -> None:
        """Commit transactions over all tables; the row of `tickets` is the last of each."""
        for _ in range(count):
            self.tx += 1
            statements = [self._statement() for _ in range(self.random.randrange(1, 4))]
            ticket = f"INSERT INTO tickets VALUES ('t{self.tx}', {self.tx}, X'{self.tx:08x}')"
            self.database.run("BEGIN", *statements, ticket, "COMMIT")

    def _statement(self) -> str:
        tx, number = self.tx, self.random.randrange(400)
        kinds = (
            f"REPLACE INTO orders (id, tx, note, price) VALUES ({number}, {tx}, 'é {tx}', {tx}.5)",
            f"INSERT INTO orders (id, tx, note) VALUES ({1000 + tx * 10 + number % 10}, {tx}, "
            f"REPEAT('n', 150)) ON DUPLICATE KEY UPDATE tx = {tx}",
            f"UPDATE orders SET tx = {tx}, price = NULL WHERE id % 23 = {number % 23}",
            f"DELETE FROM orders WHERE id = {number}",
            f"REPLACE INTO people VALUES ('p{number % 60}', 'd{number % 7}', {tx}, {number})",
            f"DELETE FROM people WHERE name = 'p{number % 60}'",
        )
        return self.random.choice(kinds)

    def write_past_the_ring(self, scn: int) -> None:
        """Write until the relay no longer has what follows an SCN."""
        while not has_evicted(self.relay, scn):
            self.write(20)
        self.wait_for_relay()

    def wait_for_relay(self) -> int:
        """Wait until relay and producer have all that was written; return the newest SCN."""
        self._marks += 1
        mark = f"UPDATE tickets SET data = X'{self._marks:08x}' WHERE code = 't{self.tx}'"
        self.database.run(mark)
        file, offset, *_ = self.database.run("SHOW MASTER STATUS")[0]
        self.relay.wait_for_scn(int(file.rpartition(".")[2]) << 32 | offset)
        self.pair.wait_for_producer()
        return self.relay.max_scn()

    def client(self, **options: Any) -> StockClient:
        """Return a client of all tables from nothing, unless the options say otherwise."""
        sources = options.pop("sources", SOURCES)
        port = int(self.server.url.rpartition(":")[2])
        return StockClient(self.relay.port, sources, bootstrap_port=port, **options)

    def follow(self, client: StockClient) -> None:
        """Let a client read all that was written."""
        scn = self.wait_for_relay()
        try:
            client.run(lambda: client.checkpoint.mode == ONLINE and client.checkpoint.scn >= scn)
        except BaseException as error:
            error.add_note(f"seed {self.seed}\n{self.relay.child.log_tail()}")
            raise

    def check(self, client: StockClient, *sources: str) -> None:
        """Check that a client's copies are the tables, and its windows whole and in order."""
        for source in sources or SOURCES:
            assert copy_of(client, source) == self.table(source), f"{source}, seed {self.seed}"
        check_windows(client.tables.windows)

    def table(self, source: str) -> list[dict[str, Any]]:
        """Return a table's rows."""
        table = source.rpartition(".")[2].lower()
        columns = [row[0] for row in self.database.run(f"SHOW COLUMNS FROM {table}")]
        rows = self.database.run(f"SELECT * FROM {table}")
        return sorted((dict(zip(columns, row, strict=True)) for row in rows), key=str)


def copy_of(client: StockClient, source: str) -> list[dict[str, Any]]:
    return sorted(client.tables.rows.get(source, {}).values(), key=str)


def check_windows(windows: list[StockWindow]) -> None:
    """Check that windows are whole transactions, each once, in order."""
    scns = [window.scn for window in windows]
    assert scns == sorted(set(scns))
    seen: set[int] = set()
    for window in windows:
        written = {one.row["tx"] for one in window.rows if not one.event.is_delete}
        if not window.rows or window.rows[-1].source != TICKETS:
            assert not written & seen, f"window {window.scn} is half a transaction"
            continue
        last = window.rows[-1].row["tx"]
        assert written == {last}, f"window {window.scn} has rows of {written}"
        seen.add(last)


@pytest.fixture
def stage(server: PrivateMariaDB, tmp_path: Path) -> Iterator[Stage]:
    with fresh_database(server) as database:
        database.run(*TABLES)
        stage = Stage(database, tmp_path)
        stage.write(100)
        with running(stage.relay.start()), running_pair_of(stage):
            yield stage


@contextmanager
def running_pair_of(stage: Stage) -> Iterator[None]:
    pair = stage.pair
    try:
        pair.start()
        pair.seed()
        with serving(stage.server):
            yield
    finally:
        pair.producer.stop()


@PROTOCOLS
@EVENT_VERSIONS
def test_a_client_from_nothing_bootstraps_and_goes_on_online(
    stage: Stage, protocol: int, event_version: int
) -> None:
    stage.write_past_the_ring(0)
    client = stage.client(protocol=protocol, event_version=event_version)
    stage.follow(client)
    assert client.bootstraps == 1
    assert client.tables.bootstrap_rows
    stage.write(50)
    stage.follow(client)
    client.close()
    assert len(client.tables.windows) >= 50
    stage.check(client)


def test_a_client_waits_for_a_source_that_is_not_seeded_yet(stage: Stage) -> None:
    stage.write_past_the_ring(0)
    stage.pair.reset(SOURCES[0])
    client = stage.client()
    client.run(lambda: client.waits > 2)
    assert client.tables.rows == {}
    stage.pair.seed()
    stage.follow(client)
    client.close()
    stage.check(client)


def test_a_client_that_was_away_too_long_bootstraps_again(stage: Stage) -> None:
    client = stage.client(checkpoint=StockCheckpoint.flexible())
    stage.follow(client)
    client.close()
    stage.write_past_the_ring(client.checkpoint.scn)
    stage.follow(client)
    stage.write(20)
    stage.follow(client)
    client.close()
    assert client.bootstraps == 1
    stage.check(client)


@EVENT_VERSIONS
def test_small_answers_and_small_pages_give_the_same_copies(
    stage: Stage, event_version: int
) -> None:
    stage.write_past_the_ring(0)
    client = stage.client(event_version=event_version, size_bytes=8192)
    stage.follow(client)
    stage.write(100)
    stage.follow(client)
    client.close()
    stage.check(client)


def test_mod_and_range_filters_divide_the_tables(stage: Stage) -> None:
    stage.write_past_the_ring(0)
    whole: dict[str, list[dict[str, Any]]] = {source: [] for source in SOURCES}
    for part in range(3):
        mod = {"numBuckets": 3, "bktRange": {"start": part, "end": part + 1}}
        one = {"partitionType": "MOD", "filters": [mod]}
        limits = (-(1 << 62), 150, 1100, 1 << 62)
        keys = {"keyRange": {"start": limits[part], "end": limits[part + 1]}}
        by_range = {"partitionType": "RANGE", "filters": [keys]}
        filters = {ORDERS: by_range, PEOPLE: one, TICKETS: one}
        client = stage.client(filters=filters, protocol=2 + part)
        stage.follow(client)
        stage.write(20)
        stage.follow(client)
        client.close()
        ids = [row["id"] for row in copy_of(client, ORDERS)]
        assert all(limits[part] <= number < limits[part + 1] for number in ids)
        for source in SOURCES:
            found = {str(row) for row in copy_of(client, source)}
            assert found <= {str(row) for row in stage.table(source)}
            whole[source] += copy_of(client, source)
    assert all(whole.values())


def test_kills_of_either_side_lose_nothing(stage: Stage) -> None:
    stage.write_past_the_ring(0)
    client = stage.client(size_bytes=8192)
    client.is_cut_expected = True
    for _ in range(6):
        for _ in range(stage.random.randrange(1, 12)):
            client.step()
        child = stage.random.choice((stage.relay.child, stage.server.child))
        child.kill()
        for _ in range(3):
            client.step()
        if child is stage.relay.child:
            stage.relay.start()
        else:
            stage.server.start()
        stage.write(stage.random.randrange(30))
    stage.follow(client)
    client.close()
    stage.check(client)


@EVENT_VERSIONS
def test_a_table_is_altered_while_a_client_reads(stage: Stage, event_version: int) -> None:
    client = stage.client(checkpoint=StockCheckpoint.flexible(), event_version=event_version)
    stage.follow(client)
    stage.database.run("ALTER TABLE orders ADD COLUMN paid INT")
    stage.write(10)
    stage.database.run("UPDATE orders SET paid = 1, tx = -1 WHERE id % 2 = 0")
    stage.follow(client)
    stage.database.run("ALTER TABLE orders MODIFY note VARCHAR(190)")
    stage.database.run("UPDATE orders SET note = 'x', tx = -2")
    stage.follow(client)
    client.close()
    assert copy_of(client, ORDERS) == stage.table(ORDERS)
    assert client.picks >= 3


@EVENT_VERSIONS
def test_a_client_gets_nothing_of_a_truncate_and_reads_on(stage: Stage, event_version: int) -> None:
    client = stage.client(checkpoint=StockCheckpoint.flexible(), event_version=event_version)
    stage.follow(client)
    before = copy_of(client, PEOPLE)
    stage.database.run("TRUNCATE TABLE people")
    stage.write(20)
    stage.follow(client)
    client.close()
    stage.check(client, ORDERS, TICKETS)
    assert len(copy_of(client, PEOPLE)) >= len(stage.table(PEOPLE))
    assert before
    again = stage.client(event_version=event_version)
    stage.write_past_the_ring(0)
    stage.follow(again)
    again.close()
    stage.check(again)
