"""A real MariaDB in tests: connections to a private server, and a test's own database.

The fixtures that give them are in `tests/mariadb.py`.
"""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pymysql
from pymysql.connections import Connection
from pymysql.cursors import Cursor

from databus.demo.private_mariadb import HOST, PrivateMariaDB

_numbers = itertools.count(1)


@dataclass(frozen=True)
class Database:
    """A database of one test on the private server."""

    server: PrivateMariaDB
    name: str
    connection: Connection[Cursor]

    def run(self, *statements: str, args: tuple[Any, ...] | None = None) -> tuple[Any, ...]:
        """Run statements, each in its own transaction unless one says BEGIN; last one's rows."""
        rows: tuple[Any, ...] = ()
        with self.connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement, args)
                rows = tuple(cursor.fetchall())
        return rows


@contextlib.contextmanager
def fresh_database(server: PrivateMariaDB) -> Iterator[Database]:
    """Make a database of a new name, with a connection that uses it, dropped at the end."""
    name = f"t{next(_numbers)}"
    with contextlib.closing(connect(server)) as connection:
        database = Database(server, name, connection)
        database.run(f"CREATE DATABASE {name} CHARACTER SET utf8mb4", f"USE {name}")
        yield database
        database.run(f"DROP DATABASE {name}")


def connect(server: PrivateMariaDB, **options: Any) -> Connection[Cursor]:
    """Open a connection to a private server with its test account."""
    return pymysql.connect(
        host=HOST,
        port=server.port,
        user=server.user,
        password=server.password,
        **{"charset": "utf8mb4", "autocommit": True, **options},
    )


def purge_to(server: PrivateMariaDB, file: str, patience_s: float = 30.0) -> None:
    """Purge the binlogs before a file, and wait until they are gone.

    A server keeps a file that it has not yet noted, beside this, to be of no use any more.
    """
    deadline = time.monotonic() + patience_s
    with contextlib.closing(connect(server)) as connection, connection.cursor() as cursor:
        while True:
            cursor.execute(f"PURGE BINARY LOGS TO '{file}'")
            cursor.execute("SHOW BINARY LOGS")
            if cursor.fetchall()[0][0] == file:
                return
            assert time.monotonic() < deadline, f"{file} is not the first one"
            time.sleep(0.05)


def prepare_xa(database: Database, xid: str, *statements: str, patience_s: float = 10.0) -> None:
    """Run statements as an XA transaction up to its XA PREPARE, in a session that then ends.

    Returns when the server has let go of the session: before that no other one may decide.
    """
    with contextlib.closing(connect(database.server)) as connection, connection.cursor() as cursor:
        cursor.execute(f"USE {database.name}")
        for text in (f"XA START {xid}", *statements, f"XA END {xid}", f"XA PREPARE {xid}"):
            cursor.execute(text)
        cursor.execute("SELECT CONNECTION_ID()")
        ((session,),) = cursor.fetchall()
    deadline = time.monotonic() + patience_s
    while database.run(f"SELECT 1 FROM information_schema.processlist WHERE id = {session}"):
        assert time.monotonic() < deadline, f"session {session!r} does not end"
