"""A MariaDB that goes away, cuts connections, refuses or is set up wrong."""

from __future__ import annotations

import contextlib
import io
import os
import re
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pymysql
import pytest
from rich.console import Console

from databus.cli.api_client import named_server
from databus.demo.private_mariadb import PrivateMariaDB
from databus.relay.cli.top import picture_of
from databus.relay.cli.top_view import draw
from tests.mariadb_server import Database, connect
from tests.promises.running import (
    Remembering,
    RunningRelay,
    consuming,
    mysql_source,
    new_database,
    running,
    sources_of,
    wait_until,
)

pytestmark = pytest.mark.mariadb
ROWS_EACH = 7


@pytest.fixture
def relay(database: Database, tmp_path: Path) -> Iterator[RunningRelay]:
    with running(RunningRelay(tmp_path, mysql_source(database, tmp_path))) as relay:
        yield relay


class Load:
    """Writes transactions of seven rows, whatever happens to the server."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.failures: list[Exception] = []

    def __enter__(self) -> Load:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._done.set()
        self._thread.join()

    def _run(self) -> None:
        number = 0
        while not self._done.is_set():
            with (
                contextlib.suppress(pymysql.Error),
                contextlib.closing(connect(self._database.server)) as connection,
                connection.cursor() as cursor,
            ):
                cursor.execute(f"USE {self._database.name}")
                while not self._done.wait(0.0005):
                    number += 1
                    rows = ",".join(
                        f"({number * ROWS_EACH + n}, 'n{number}')" for n in range(ROWS_EACH)
                    )
                    cursor.execute(f"INSERT INTO orders (id, note) VALUES {rows}")


def check(seen: Remembering, database: Database, relay: RunningRelay) -> None:
    """Wait until all rows are there, and compare: exactly once, in order, whole."""
    orders = f"{database.name}.orders"
    with contextlib.closing(connect(database.server)) as connection, connection.cursor() as cursor:
        cursor.execute(f"SELECT id, note FROM {database.name}.orders ORDER BY id")
        there = list(cursor.fetchall())
    wait_until(
        lambda: len(seen.events) >= len(there), "all rows", lambda: relay.get("/health").body
    )
    assert [(e.row["id"], e.row["note"]) for e in seen.events if e.source == orders] == there
    assert set(Counter(e.scn for e in seen.events).values()) == {ROWS_EACH}
    assert seen.scns == sorted(set(seen.scns))


def test_capture_goes_on_exactly_when_its_connection_is_killed_under_load(
    relay: RunningRelay, database: Database
) -> None:
    seen = Remembering()
    with relay_and_client(relay, database, seen):
        with Load(database):
            for _ in range(4):
                count = len(seen.windows)
                wait_until(lambda c=count: len(seen.windows) > c + 50, "windows")  # type: ignore[misc]
                # What is read out of the ring comes also while the relay still connects.
                wait_until(lambda: dump_threads(database), "a dump")
                ((thread_id, _),) = dump_threads(database)
                database.run(f"KILL {thread_id}")
        check(seen, database, relay)
        wait_until(lambda: relay.get("/health").status == 200, "health")


def dump_threads(database: Database) -> list[tuple[int, str]]:
    rows = database.run("SELECT id, command FROM information_schema.processlist")
    return [(i, command) for i, command in rows if command.startswith("Binlog Dump")]


@contextlib.contextmanager
def relay_and_client(relay: RunningRelay, database: Database, seen: Remembering) -> Iterator[None]:
    relay.start()
    with consuming([relay.url], sources_of(database), seen):
        yield


@pytest.mark.parametrize("kill", [False, True], ids=["shut-down", "killed"])
def test_capture_goes_on_exactly_when_the_server_is_restarted_under_load(
    tmp_path: Path, kill: bool
) -> None:
    seen = Remembering()
    # Flushed at each commit: otherwise a server that is killed forgets what is in its binlog.
    with PrivateMariaDB(flush_log_at_commit=1) as own, new_database(own, "shop") as database:
        relay = RunningRelay(tmp_path, mysql_source(database, tmp_path))
        with running(relay), relay_and_client(relay, database, seen):
            with Load(database):
                wait_until(lambda: len(seen.windows) > 100, "windows")
                own.restart(kill=kill)
                wait_until(lambda: len(seen.windows) > 200, "windows")
            check(seen, database, relay)


def test_a_wrong_password_is_told_and_a_right_one_is_enough_to_go_on(
    relay: RunningRelay, database: Database, tmp_path: Path
) -> None:
    right = (tmp_path / "password").read_text()
    (tmp_path / "password").write_text("wrong")
    relay.serve()
    problem = relay.wait_for_problem("password_file")
    assert "wrong" not in problem
    assert relay.get("/health").status == 503
    database.run("INSERT INTO orders (id) VALUES (1)")
    (tmp_path / "password").write_text(right)
    wait_until(lambda: len(relay.windows()) == 1, "the window", lambda: relay.problem())


def test_a_server_without_row_format_is_told_what_to_set(
    relay: RunningRelay, database: Database
) -> None:
    database.run("SET GLOBAL binlog_format = 'STATEMENT'")
    try:
        relay.serve()
        problem = relay.wait_for_problem("binlog_format is STATEMENT")
        assert "SET GLOBAL binlog_format = 'ROW'" in problem
        assert relay.get("/health").status == 503
        assert relay.stream().body == b""
    finally:
        database.run("SET GLOBAL binlog_format = 'ROW'")
    relay.post("/controlSources/unpause")
    database.run("SET SESSION binlog_format = 'ROW'", "INSERT INTO orders (id) VALUES (1)")
    wait_until(lambda: len(relay.windows()) == 1, "the window", lambda: relay.problem())


def test_a_table_that_does_not_exist_is_told(database: Database, tmp_path: Path) -> None:
    settings = mysql_source(database, tmp_path, sources=[f"{database.name}.nothing"])
    with running(RunningRelay(tmp_path, settings).serve()) as relay:
        assert f"{database.name}.nothing" in relay.wait_for_problem("does not exist")
        database.run("CREATE TABLE nothing (id INT PRIMARY KEY)")
        relay.post("/controlSources/unpause")
        wait_until(lambda: relay.get("/health").status == 200, "health")


def shown(relay: RunningRelay) -> tuple[str, Any, dict[str, float]]:
    """Return `/health`'s status, the API's view of the source, and the metrics about it."""
    # First of the three: what it says must be so in the others by then.
    status = relay.get("/health").json()["status"]
    view = relay.get("/api/v1/physicalSources/shop").json()
    text = relay.get("/metrics").body.decode()
    found = re.findall(r'^databus_relay_(\w+)\{physical_source="shop"\} (\S+)$', text, re.M)
    return status, view, {name: float(v) for name, v in found}


def looks_well(relay: RunningRelay) -> bool:
    status, view, figures = shown(relay)
    return (status, view["state"], view["isConnected"], figures["connected"]) == (
        *("ok", "running", True),
        1.0,
    )


def says_unreachable(relay: RunningRelay) -> bool:
    """Whether all of it says so; nothing may say that it is at the newest meanwhile."""
    status, view, figures = shown(relay)
    if status == "ok":
        return False
    assert (status, view["state"], view["isConnected"]) == ("unreachable", "unreachable", False)
    assert (view["delayS"], view["log"]["behindS"]) == (None, None)
    assert figures["connected"] == 0.0
    assert figures.keys().isdisjoint({"lag_seconds", "log_behind_seconds", "log_behind_bytes"})
    (client,) = relay.get("/api/v1/clients").json()["clients"]
    (position,) = client["positions"]
    assert (client["state"], position["behindS"]) == ("waiting", None)
    assert "shop is unreachable since" in top_of(relay)
    return relay.get("/ready").status == 200


def top_of(relay: RunningRelay) -> str:
    """Return what `databus top` shows."""
    picture = picture_of(named_server(relay.url, None, None))
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(draw(relay.url, picture))
    return console.export_text()


def test_a_database_that_has_let_nobody_in_yet_looks_well_nowhere(
    relay: RunningRelay, database: Database
) -> None:
    pid = database.server.pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    try:
        relay.serve()
        status, view, figures = shown(relay)
        assert (status, view["state"], view["isConnected"]) == ("starting", "starting", False)
        assert (view["delayS"], view["heardAt"], figures["connected"]) == (None, None, 0.0)
        assert figures.keys().isdisjoint({"lag_seconds", "log_behind_seconds"})
        assert "NOT HEALTHY" in top_of(relay)
        assert "shop is starting since" in top_of(relay)
        assert (relay.get("/health").status, relay.get("/ready").status) == (503, 503)
    finally:
        os.kill(pid, signal.SIGCONT)
    wait_until(lambda: looks_well(relay), "health", relay.tell)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_database_that_is_gone_or_hangs_is_shown_so_until_it_is_back(
    tmp_path: Path, number: signal.Signals
) -> None:
    seen = Remembering()
    with PrivateMariaDB(flush_log_at_commit=1) as own, new_database(own, "shop") as database:
        relay = RunningRelay(tmp_path, mysql_source(database, tmp_path))
        with running(relay), relay_and_client(relay, database, seen):
            database.run("INSERT INTO orders (id) VALUES (1)")
            wait_until(lambda: len(seen.events) == 1, "a row")
            wait_until(lambda: looks_well(relay), "health", relay.tell)
            if number is signal.SIGKILL:
                own.kill()
            else:
                assert own.pid is not None
                os.kill(own.pid, number)
                # Before it is given up, nobody says that there is no lag.
                wait_until(lambda: not shown(relay)[1]["isConnected"], "doubt", relay.tell)
                assert "lag_seconds" not in shown(relay)[2]
            wait_until(lambda: says_unreachable(relay), "what is wrong", relay.tell)
            if number is signal.SIGKILL:
                own.start()
            else:
                assert own.pid is not None
                os.kill(own.pid, signal.SIGCONT)
            wait_until(lambda: looks_well(relay), "health", relay.tell)
            # Of the one before, the server that was killed knows nothing.
            with contextlib.closing(connect(own, database="shop")) as connection:
                connection.cursor().execute("INSERT INTO orders (id) VALUES (2)")
            wait_until(lambda: len(seen.events) == 2, "the next row", relay.tell)
