"""Two real servers, of which one replicates the other with GTIDs, and a writer on the first."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pymysql

from databus.demo.private_mariadb import HOST, PrivateMariaDB
from tests import PATIENCE_S
from tests.mariadb_server import connect

# A killed process loses nothing that it has written to the system.
OPTIONS: dict[str, str | int] = {
    "log-slave-updates": "ON",
    "relay-log": "relay",
    "innodb-flush-log-at-trx-commit": 2,
}
_WITHOUT_GTIDS: dict[str, str | int] = {"gtid-mode": "OFF", "enforce-gtid-consistency": "OFF"}
_JOIN_MARIADB = (
    "CHANGE MASTER TO MASTER_HOST = '{host}', MASTER_PORT = {port}, MASTER_USER = '{user}', "
    "MASTER_PASSWORD = '{password}', MASTER_USE_GTID = slave_pos, MASTER_CONNECT_RETRY = 1",
    "START SLAVE",
)
_JOIN_WITHOUT = (
    "CHANGE REPLICATION SOURCE TO SOURCE_HOST = '{host}', SOURCE_PORT = {port}, "
    "SOURCE_USER = '{user}', SOURCE_PASSWORD = '{password}', SOURCE_LOG_FILE = 'binlog.000001', "
    "SOURCE_LOG_POS = 4, GET_SOURCE_PUBLIC_KEY = 1, SOURCE_CONNECT_RETRY = 1",
    "START REPLICA",
)
_JOIN_MYSQL = (
    "CHANGE REPLICATION SOURCE TO SOURCE_HOST = '{host}', SOURCE_PORT = {port}, "
    "SOURCE_USER = '{user}', SOURCE_PASSWORD = '{password}', SOURCE_AUTO_POSITION = 1, "
    "GET_SOURCE_PUBLIC_KEY = 1, SOURCE_CONNECT_RETRY = 1",
    "START REPLICA",
)

MakeServer = Callable[[dict[str, str | int]], PrivateMariaDB]


class ServerPair:
    """A primary and its replica; a context manager. `make` makes a server with options.

    Those of MySQL have no GTIDs if not `has_gtids`.
    """

    def __init__(self, make: MakeServer, *, is_mariadb: bool, has_gtids: bool = True) -> None:
        self._make = make
        self._is_mariadb = is_mariadb
        self._join_mysql = _JOIN_MYSQL if has_gtids else _JOIN_WITHOUT
        self._options = OPTIONS if has_gtids else OPTIONS | _WITHOUT_GTIDS
        self._made = 0
        self._opened = contextlib.ExitStack()

    def __enter__(self) -> ServerPair:
        with contextlib.ExitStack() as opened:
            self._opened = opened
            self.primary = self._start(0, "")
            run(
                self.primary,
                "CREATE DATABASE shop",
                "CREATE TABLE shop.orders (id INT PRIMARY KEY, note VARCHAR(200))",
            )
            self.replica = self._start(0, self.primary.password)
            self._join(self.replica)
            self._opened = opened.pop_all()
        return self

    def __exit__(self, *exception: object) -> None:
        self._opened.close()

    def _start(self, port: int, password: str) -> PrivateMariaDB:
        self._made += 1
        server = self._make({**self._options, "server-id": self._made})
        server.port, server.password = port, password or server.password
        self._opened.callback(server.close)
        server.start()
        return server

    def _join(self, server: PrivateMariaDB) -> None:
        """Make a new server replicate the primary from its first transaction on."""
        primary = self.primary
        facts = {"host": HOST, "port": primary.port, "user": primary.user}
        for statement in _JOIN_MARIADB if self._is_mariadb else self._join_mysql:
            run(server, statement.format(password=primary.password, **facts))

    def write_astray(self, statement: str) -> None:
        """Write to the replica, in a domain of its own where there are domains."""
        domain = ["SET SESSION gtid_domain_id = 7"] if self._is_mariadb else []
        run(self.replica, *domain, statement)

    def hold_replica(self) -> None:
        """Let the replica get nothing more."""
        run(self.replica, "STOP SLAVE" if self._is_mariadb else "STOP REPLICA")

    def release_replica(self) -> None:
        """Let the replica replicate again."""
        run(self.replica, "START SLAVE" if self._is_mariadb else "START REPLICA")

    def catch_up(self) -> None:
        """Wait until the replica has all rows of the primary."""
        end = time.monotonic() + PATIENCE_S
        while rows(self.replica) != rows(self.primary):
            assert time.monotonic() < end, "the replica does not catch up"
            time.sleep(0.02)

    def fail_over(self) -> None:
        """Kill the primary, and let the replica take its place."""
        self.primary.kill()
        self.promote()

    def promote(self) -> None:
        """Make the replica the primary, whose old one was killed."""
        statements = ("STOP SLAVE", "RESET SLAVE ALL")
        if not self._is_mariadb:
            statements = ("STOP REPLICA", "RESET REPLICA ALL")
        run(self.replica, *statements)
        self.primary, self.replica = self.replica, self.primary

    def rebuild(self) -> None:
        """Begin the killed server anew at its address, as a replica that is another server."""
        dead = self.replica
        dead.close()
        self.replica = self._start(dead.port, self.primary.password)
        self._join(self.replica)


class Load:
    """Inserts rows of rising ids into whatever server is the primary, on a thread of its own.

    `pause_s` is the time between two rows of `running`: a replica of a busy machine keeps up.
    """

    def __init__(self, pair: ServerPair, pause_s: float = 0.002) -> None:
        self._pair, self._pause_s = pair, pause_s
        self.ended = ""  # the error that ended it before the end of its block
        self._next = 1
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def write(self, count: int) -> list[int]:
        """Insert rows now, one a transaction; return their ids."""
        ids = list(range(self._next, self._next + count))
        self._next += count
        run(self._pair.primary, *(_insert(number) for number in ids))
        return ids

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Insert rows until the end of the block, or until the server is gone."""
        self._stopped.clear()
        self.ended = ""
        self._thread = threading.Thread(target=self._run, name="load")
        self._thread.start()
        try:
            yield
        finally:
            self._stopped.set()
            self._thread.join()

    def _run(self) -> None:
        try:
            self._insert()
        except (pymysql.MySQLError, OSError) as error:
            self.ended = repr(error)

    def _insert(self) -> None:
        with (
            contextlib.closing(connect(self._pair.primary)) as connection,
            connection.cursor() as cursor,
        ):
            while not self._stopped.wait(self._pause_s):
                number, self._next = self._next, self._next + 1
                cursor.execute(_insert(number))


def _insert(number: int) -> str:
    return f"INSERT INTO shop.orders VALUES ({number}, 'note {number}')"


def run(server: PrivateMariaDB, *statements: str) -> tuple[Any, ...]:
    """Run statements; return the last one's rows."""
    found: tuple[Any, ...] = ()
    with contextlib.closing(connect(server)) as connection, connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)
            found = tuple(cursor.fetchall())
    return found


def rows(server: PrivateMariaDB) -> list[int]:
    """Return the ids that a server has; [] before it has the table."""
    try:
        return [row[0] for row in run(server, "SELECT id FROM shop.orders ORDER BY id")]
    except (pymysql.ProgrammingError, pymysql.OperationalError) as error:
        if error.args[0] not in (1049, 1146):  # no such database, no such table
            raise
        return []
