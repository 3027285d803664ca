"""Seeding beside a writer who does not wait, with a real relay, producer and database."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random, SystemRandom
from threading import Event
from typing import Any

import pytest

from databus.bootstrap.seeder.job import SeedingThread, seed
from databus.bootstrap.store.snapshot_pages import needed_rows
from databus.bootstrap.store.store import SourceStatus, Store
from databus.bootstrap.verify.verify import verify
from databus.conf.settings import BootstrapSettings
from databus.demo.processes import Child, python_module
from databus.relay.sources.kind import open_scan
from tests import PATIENCE_S
from tests.bootstrap.live import (
    Connection,
    MariaDBConnection,
    Rows,
    SqliteConnection,
    live_rows,
    pair_settings,
    producing,
    wait_for_status,
    writing,
)
from tests.mariadb_server import Database
from tests.promises.running import RunningRelay, mysql_source, running, to_toml, wait_until

pytest_plugins = ["tests.mariadb"]

ROWS = 6_000
SEED = SystemRandom().randrange(1 << 30)
ORDERS = "CREATE TABLE orders (id INTEGER PRIMARY KEY, note VARCHAR(200), price DOUBLE)"
FILL = (
    "WITH RECURSIVE n (i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < {last})"
    " INSERT INTO orders SELECT i, 'old', i FROM n"
)
FILL_MARIADB = "INSERT INTO orders SELECT seq, 'old', seq FROM seq_0_to_{last}"


@dataclass(frozen=True)
class Live:
    """A database with a full table of orders, and the relay that reads it."""

    source: str
    physical: dict[str, Any]
    connection: Connection
    relay: RunningRelay
    folder: Path

    def settings(self, **more: Any) -> BootstrapSettings:
        """Return the settings of the pair."""
        return pair_settings(self.relay, self.physical, self.folder, **more)

    def table(self) -> Rows:
        """Return the table's rows by id, as the scan reads them."""
        scan = open_scan(self.settings().physical_sources[0])
        scan.open()
        try:
            chunks = scan.chunks(self.source, 10_000)
            return {row["id"]: dict(row) for chunk in chunks for row in chunk.rows}
        finally:
            scan.close()

    def wait_for_all(self, store: Store) -> None:
        """Wait until the producer has what the database has."""
        scan = open_scan(self.settings().physical_sources[0])
        scan.open()
        scn = scan.newest_scn()
        scan.close()
        wait_until(lambda: store.position().scn >= scn, f"scn {scn}", lambda: store.position())


@contextmanager
def sqlite_live(folder: Path) -> Iterator[Live]:
    """Make an SQLite shop with a relay."""
    path = folder / "shop.db"
    with closing(SqliteConnection(path)) as connection:
        connection.run(ORDERS, FILL.format(last=ROWS - 1))
        physical = {"name": "shop", "uri": f"sqlite:{path}", "sources": ["shop.orders"]}
        with running(RunningRelay(folder, physical)) as relay:
            relay.start()
            yield Live("shop.orders", physical, connection, relay, folder)


@contextmanager
def mariadb_live(folder: Path, database: Database) -> Iterator[Live]:
    """Make a MariaDB shop with a relay."""
    database.run(ORDERS, FILL_MARIADB.format(last=ROWS - 1))
    source = f"{database.name}.orders"
    physical = mysql_source(database, folder, sources=[source], start="latest")
    with (
        closing(MariaDBConnection(database)) as connection,
        running(RunningRelay(folder, physical)) as relay,
    ):
        relay.start()
        yield Live(source, physical, connection, relay, folder)


@pytest.fixture(params=["sqlite", "mariadb"])
def live(request: pytest.FixtureRequest, tmp_path: Path, database: Database) -> Iterator[Live]:
    print(f"seed {SEED}")
    is_sqlite = request.param == "sqlite"
    with sqlite_live(tmp_path) if is_sqlite else mariadb_live(tmp_path, database) as found:
        yield found


@pytest.fixture(params=["sqlite", "mariadb"])
def empty(
    request: pytest.FixtureRequest, tmp_path: Path, database: Database
) -> tuple[dict[str, Any], str]:
    """Return the settings of a database with an empty table of orders, and the source's name."""
    if request.param == "mariadb":
        database.run(ORDERS)
        source = f"{database.name}.orders"
        return mysql_source(database, tmp_path, sources=[source]), source
    with closing(SqliteConnection(tmp_path / "shop.db")) as connection:
        connection.run(ORDERS)
    uri = f"sqlite:{tmp_path / 'shop.db'}"
    return {"name": "shop", "uri": uri, "sources": ["shop.orders"]}, "shop.orders"


@pytest.mark.parametrize("start", ["latest", "earliest"])
def test_an_empty_table_that_nobody_writes_is_served(
    empty: tuple[dict[str, Any], str], start: str, tmp_path: Path
) -> None:
    physical, source = empty
    physical = {**physical, "start": start}
    with running(RunningRelay(tmp_path, physical)) as relay:
        relay.start()
        settings = pair_settings(relay, physical, tmp_path)
        with producing(settings) as store:
            thread = SeedingThread(settings, settings.physical_sources[0])
            thread.start()
            try:
                wait_for_status(store, source, SourceStatus.ACTIVE)
                assert thread.problem == ""
            finally:
                thread.stop()


def test_a_table_is_served_though_nobody_writes_behind_the_last_file_of_the_log(
    tmp_path: Path, database: Database
) -> None:
    """As after a server's restart: its log ends with events that are no transactions."""
    with mariadb_live(tmp_path, database) as live, producing(live.settings()) as store:
        database.run("FLUSH BINARY LOGS")
        settings = live.settings()
        thread = SeedingThread(settings, settings.physical_sources[0])
        thread.start()
        try:
            wait_for_status(store, live.source, SourceStatus.ACTIVE)
        finally:
            assert thread.stop(PATIENCE_S)
        assert live_rows(store, live.source) == live.table()


def test_the_rows_are_the_tables_though_a_writer_never_rests(live: Live) -> None:
    settings = live.settings(chunk_rows=100, most_rows_per_s=5_000)
    with writing(live.connection, ROWS, SEED) as writer, producing(settings) as store:
        thread = SeedingThread(settings, settings.physical_sources[0])
        thread.start()
        try:
            wait_for_status(store, live.source, SourceStatus.ACTIVE)
            during = writer.transactions
            found = verify(settings, settings.physical_sources[0], None, _ignore, Event())
        finally:
            assert thread.stop(PATIENCE_S)
        writer.stop()
        live.wait_for_all(store)
        assert live_rows(store, live.source) == live.table()
    assert during > 20
    assert [(one.is_same, one.rows > 0) for one in found] == [(True, True)], found


def test_a_seeder_that_is_killed_at_any_time_goes_on(live: Live) -> None:
    random = Random(SEED)
    settings = live.settings(chunk_rows=100, most_rows_per_s=3_000)
    file = live.folder / "pair.toml"
    options: dict[str, Any] = {"data_dir": str(settings.data_dir), "relays": [live.relay.url]}
    options |= {"chunk_rows": 100, "most_rows_per_s": 3_000}
    file.write_text(to_toml(options, {}, [live.physical]))
    command = python_module("databus.cli.main", "bootstrap", "seed", "-c", file)
    kills: list[int] = []
    with writing(live.connection, ROWS, SEED) as writer, producing(settings) as store:
        child = Child("seeder", command, live.folder)
        while store.source(live.source).status in (SourceStatus.NEW, SourceStatus.SEEDING):
            child.start()
            _wait_for_progress(store, live.source, child, random.randrange(500, 1900))
            child.kill()
            kills.append(store.source(live.source).seed_rows)
        writer.stop()
        wait_for_status(store, live.source, SourceStatus.ACTIVE)
        live.wait_for_all(store)
        assert live_rows(store, live.source) == live.table()
    assert len(kills) > 2
    assert kills == sorted(kills)


def _wait_for_progress(store: Store, source: str, child: Child, rows: int) -> None:
    """Wait until a child has seeded so many rows, or has ended."""
    begun = store.source(source).seed_rows

    def is_there() -> bool:
        state = store.source(source)
        return state.seed_rows >= begun + rows or child.exit_code is not None

    wait_until(is_there, f"{rows} more rows", child.log_tail)


def _ignore(_: object) -> None:
    pass


@contextmanager
def general_log(database: Database) -> Iterator[None]:
    """Let the server log what its clients ask."""
    database.run(
        "SET GLOBAL log_output = 'TABLE'",
        "TRUNCATE mysql.general_log",
        "SET GLOBAL general_log = 1",
    )
    try:
        yield
    finally:
        database.run("SET GLOBAL general_log = 0")


def test_mariadb_is_asked_for_no_lock_and_no_write(tmp_path: Path, database: Database) -> None:
    with mariadb_live(tmp_path, database) as live:
        settings = live.settings(chunk_rows=500)
        live.connection.run("UPDATE orders SET note = 'first' WHERE id = 1")
        with producing(settings) as store, general_log(database):
            (state,) = seed(settings, settings.physical_sources[0], None, _ignore, Event())
            wait_for_status(store, live.source, SourceStatus.ACTIVE)
    query = "SELECT argument FROM mysql.general_log WHERE command_type IN ('Query', 'Execute')"
    asked = [text for (text,) in database.run(query)]
    assert state.seed_rows == ROWS
    assert sum(f"`{database.name}`" in text for text in asked) >= ROWS / 500
    words = {word for text in asked if not text.startswith("SHOW") for word in text.upper().split()}
    assert words.isdisjoint({"LOCK", "FLUSH", "INSERT", "UPDATE", "DELETE", "REPLACE", "CREATE"})
    assert {text.split(maxsplit=1)[0].upper() for text in asked if "general_log" not in text} <= {
        *("SELECT", "SHOW", "SET", "START", "COMMIT", "ROLLBACK", "BEGIN", "WITH"),
    }


def test_a_changed_key_makes_a_seeding_begin_again(tmp_path: Path, database: Database) -> None:
    with mariadb_live(tmp_path, database) as live:
        live.connection.run("UPDATE orders SET note = concat('n', id)")
        settings = live.settings(chunk_rows=100)
        (physical,) = settings.physical_sources
        with producing(settings) as store:
            stop = Event()
            seed(settings, physical, None, lambda _: stop.set(), stop)
            before = store.source(live.source)
            live.connection.run("ALTER TABLE orders DROP PRIMARY KEY, ADD PRIMARY KEY (note)")
            seed(settings, physical, None, _ignore, Event())
            wait_for_status(store, live.source, SourceStatus.ACTIVE)
            after = store.source(live.source)
            live.wait_for_all(store)
            assert len(live_rows(store, live.source)) == ROWS
            page = store.snapshot_page(
                live.source, needed_rows(0, store.position().scn, 0, None), 1 << 40
            )
    assert (before.status, before.seed_rows) == (SourceStatus.SEEDING, 100)
    assert after.floor_scn > before.seed_scn
    assert {type(row.key) for row in page.rows} == {bytes}
    assert len(page.rows) == ROWS
