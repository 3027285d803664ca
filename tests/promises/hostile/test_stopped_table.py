"""One table of three becomes unreadable under load: it stops alone, and after the repair it has
no hole. The others do not notice it.
"""

from __future__ import annotations

import contextlib
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from databus.demo.private_mariadb import PrivateMariaDB
from databus.demo.processes import python_module
from tests.mariadb_server import Database, connect, fresh_database
from tests.promises.running import (
    Remembering,
    RunningRelay,
    consuming,
    mysql_source,
    running,
    wait_until,
)
from tests.promises.test_rewind import restart

pytestmark = pytest.mark.mariadb

TABLES = ("orders", "people", "items")
LAST = 10_000_000


@pytest.fixture(scope="module")
def server() -> Iterator[PrivateMariaDB]:
    """A MariaDB whose log does not name columns: only their definitions tell what rows mean."""
    with PrivateMariaDB(options={"binlog-row-metadata": "MINIMAL"}) as server:
        yield server


@pytest.fixture
def database(server: PrivateMariaDB) -> Iterator[Database]:
    with fresh_database(server) as database:
        for table in TABLES:
            database.run(f"CREATE TABLE {table} (id INT PRIMARY KEY, note VARCHAR(40))")
        yield database


class Load:
    """Writes a row to each table in one transaction, and now and then to one alone."""

    def __init__(self, database: Database) -> None:
        self._name = database.name
        self._connection = connect(database.server)
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run)
        self.rows = 0
        self._thread.start()

    def _run(self) -> None:
        while not self._stopping.is_set():
            self.write(self.rows + 1)

    def write(self, number: int) -> None:
        tables = TABLES if number % 5 else (TABLES[number % 3],)
        with self._lock, self._connection.cursor() as cursor:
            cursor.execute("BEGIN")
            for table in tables:
                statement = f"INSERT INTO {self._name}.{table} (id, note) VALUES ({number}, 'n')"
                cursor.execute(statement)
            cursor.execute("COMMIT")
        self.rows = number

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        with self._lock:
            yield

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()
        for number in range(1, 7):
            self.write(LAST + number)
        self._connection.close()


def ids(consumer: Remembering, table: str) -> list[int]:
    return [e.row["id"] for e in consumer.events if e.source.endswith(f".{table}")]


def ids_of(database: Database, table: str) -> list[int]:
    """Return the ids of a table in the order in which they were inserted."""
    return [number for (number,) in database.run(f"SELECT id FROM {table} ORDER BY id")]


def alter_unlogged(database: Database) -> None:
    database.run(
        "SET sql_log_bin = 0",
        "ALTER TABLE items ADD COLUMN extra INT NOT NULL DEFAULT 7 AFTER id",
        "SET sql_log_bin = 1",
    )


def stopped_table(relay: RunningRelay) -> dict[str, Any] | None:
    status = relay.get("/controlSources/status").json()["shop"]
    found: list[dict[str, Any]] = status["stoppedTables"]
    return found[0] if found else None


def repair(relay: RunningRelay, source: str, scn: int) -> None:
    command = python_module("databus.cli.main", "schema", "repair", source)
    said = subprocess.run(
        [*command, "--scn", str(scn), "-c", str(relay.file)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert said.returncode == 0, said.stderr + said.stdout
    assert "extra" in said.stdout


def scn_to_repair(problem: str) -> int:
    """Return the SCN that the advice names."""
    return int(problem.partition("--scn ")[2].split()[0])


def test_an_unreadable_table_stops_alone_and_is_complete_after_its_repair(
    database: Database, tmp_path: Path
) -> None:
    sources = [f"{database.name}.{table}" for table in TABLES]
    settings = mysql_source(database, tmp_path, sources=sources)
    others, third, both = Remembering(), Remembering(), Remembering()
    with contextlib.ExitStack() as stack:
        relay = stack.enter_context(running(RunningRelay(tmp_path, settings).start()))
        for consumer, wanted in ((others, sources[:2]), (third, sources[2:]), (both, sources[1:])):
            stack.enter_context(
                consuming([relay.url], wanted, consumer, start="earliest", name=str(len(wanted)))
            )
        load = Load(database)
        try:
            wait_until(lambda: len(ids(third, "items")) > 200, "the first rows", relay.tell)
            with load.paused():
                alter_unlogged(database)
            wait_until(lambda: stopped_table(relay), "the stop", relay.tell)
            at_stop = len(ids(others, "orders"))
            wait_until(lambda: len(ids(others, "orders")) > at_stop + 300, "others", relay.tell)
            relay.child.kill()
            relay.serve()
            stop = stopped_table(relay)
            assert stop is not None
            after_kill = load.rows
            wait_until(lambda: max(ids(others, "orders")) > after_kill + 300, "them", relay.tell)
            # Nothing after the stop has come, and what came before it is whole.
            assert third.scns == [scn for scn in third.scns if scn <= stop["afterScn"]]
            assert both.scns[-1] <= stop["afterScn"]
            relay.child.stop()
            repair(relay, sources[2], scn_to_repair(stop["problem"]))
            relay.serve()
            wait_until(lambda: restart(relay, stop["afterScn"]).status == 200, "it", relay.tell)
        finally:
            load.stop()
        wait_until(lambda: LAST + 6 in ids(third, "items"), "the third table", relay.tell)
        wait_until(lambda: LAST + 6 in ids(both, "people"), "both", relay.tell)
        wait_until(lambda: LAST + 6 in ids(others, "people"), "the others", relay.tell)
        assert ids(third, "items") == ids(both, "items") == ids_of(database, "items")
        assert ids(both, "people") == ids(others, "people") == ids_of(database, "people")
        assert ids(others, "orders") == ids_of(database, "orders")
        assert {e.row["extra"] for e in third.events if e.row["id"] > LAST} == {7}
        assert not third.errors + both.errors + others.errors
        wait_until(lambda: relay.get("/health").status == 200, "health", relay.tell)
