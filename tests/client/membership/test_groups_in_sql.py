"""A group that meets in an SQL database: kills, freezes, a resize, and the database away."""

from __future__ import annotations

import os
import signal
import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path

import pytest
from click.testing import CliRunner

from databus.cli.main import main
from databus.demo.private_mariadb import HOST, PrivateMariaDB
from tests import PATIENCE_S
from tests.client.asyncio_processes import Processes
from tests.client.shop import wait_until
from tests.client.test_with_relay import RunningRelay, database, insert
from tests.mariadb_server import connect

__all__ = ["database"]

TTL_S = 5.0  # of the processes
OUTAGE_S = 2 * TTL_S
patiently = partial(wait_until, patience_s=PATIENCE_S)


class SqliteCoordinator:
    """A file; it is away while it is locked."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "group.db"
        self.url = f"sqlite:///{self._path}"

    def be_away(self, seconds: float) -> None:
        with closing(
            sqlite3.connect(self._path, isolation_level=None, timeout=PATIENCE_S)
        ) as locking:
            locking.execute("BEGIN EXCLUSIVE")
            time.sleep(seconds)
            locking.execute("ROLLBACK")

    def is_locked(self) -> bool:
        """Whether somebody was frozen while it wrote, so that SQLite's lock stays with it."""
        with closing(sqlite3.connect(self._path, isolation_level=None, timeout=0.5)) as locking:
            try:
                locking.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError:
                return True
            locking.execute("ROLLBACK")
        return False


class MariaDBCoordinator:
    """A server; it is away after a kill."""

    def __init__(self, server: PrivateMariaDB) -> None:
        self._server = server
        with closing(connect(server)) as connection, connection.cursor() as cursor:
            cursor.execute("CREATE DATABASE coordination")
        place = f"{server.user}:{server.password}@{HOST}:{server.port}"
        self.url = f"mysql://{place}/coordination"

    def be_away(self, seconds: float) -> None:
        self._server.kill()
        time.sleep(seconds)
        self._server.start()

    def is_locked(self) -> bool:
        return False


Coordinator = SqliteCoordinator | MariaDBCoordinator


@pytest.fixture(params=["sqlite", "mariadb"])
def coordinator(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Coordinator]:
    if request.param == "sqlite":
        yield SqliteCoordinator(tmp_path)
        return
    # What it has confirmed must outlive a kill.
    with PrivateMariaDB(flush_log_at_commit=1) as server:
        yield MariaDBCoordinator(server)


def freeze(group: Processes, name: str, is_locked: Callable[[], bool]) -> None:
    """Stop a process, at a moment in which it keeps nobody else out."""
    process = group.running[name]
    for _ in range(20):
        process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
        if not is_locked():
            return
        process.send_signal(signal.SIGCONT)
    raise AssertionError(f"{name} has the database locked whenever it is stopped")


def test_every_row_comes_whatever_happens_to_processes_and_database(
    coordinator: Coordinator, database: sqlite3.Connection, tmp_path: Path
) -> None:
    with RunningRelay(tmp_path) as relay, ExitStack() as ended:
        group = Processes(relay.url, coordinator.url, tmp_path)
        ended.callback(group.close)
        last = 0

        def owned(*names: str) -> list[int]:
            return [len(group.owned(name)) for name in names]

        def insert_and_wait() -> None:
            nonlocal last
            insert(database, last + 1, 50)
            last += 50
            patiently(lambda: {row["id"] for row in group.rows()} == set(range(1, last + 1)))

        group.start("a")
        group.start("b")
        patiently(lambda: owned("a", "b") == [4, 4])
        insert_and_wait()
        assert len(group.rows()) == last, "nothing has happened, so nothing came twice"

        freeze(group, "b", coordinator.is_locked)
        patiently(lambda: owned("a") == [8])
        insert_and_wait()
        group.running["b"].send_signal(signal.SIGCONT)
        patiently(lambda: owned("a") == [4])

        group.running["a"].kill()
        insert_and_wait()
        group.start("c")
        patiently(lambda: owned("c") == [4])

        words = ["group", "resize", "billing", "12", "--coordinator", coordinator.url]
        resized = CliRunner().invoke(main, words)
        assert resized.exit_code == 0, resized.output
        insert_and_wait()
        patiently(lambda: owned("c") == [6])

        coordinator.be_away(OUTAGE_S)
        insert_and_wait()
        patiently(lambda: owned("c") == [6])
        for name in ("b", "c"):
            group.running[name].send_signal(signal.SIGTERM)
        assert [group.running[name].wait(PATIENCE_S) for name in ("b", "c")] == [0, 0]
    counts = Counter(row["id"] for row in group.rows())
    assert set(counts) == set(range(1, last + 1))
    assert max(counts.values()) <= 3
