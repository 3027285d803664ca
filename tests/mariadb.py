"""Fixtures with a real MariaDB; load with `pytest_plugins = ["tests.mariadb"]`.

One private server serves the whole session; each test that asks for `database`
gets a fresh one. A missing server fails the test and says what to install.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pymysql
import pytest
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


def connect(server: PrivateMariaDB, **options: Any) -> Connection[Cursor]:
    """Open a connection to a private server with its test account."""
    return pymysql.connect(
        host=HOST,
        port=server.port,
        user=server.user,
        password=server.password,
        **{"charset": "utf8mb4", "autocommit": True, **options},
    )


@pytest.fixture(scope="session")
def mariadb() -> Iterator[PrivateMariaDB]:
    """Run a private server for the session; leave its settings as they are."""
    with PrivateMariaDB() as server:
        yield server


@pytest.fixture
def database(mariadb: PrivateMariaDB) -> Iterator[Database]:
    """Make a fresh database, dropped at the end."""
    name = f"t{next(_numbers)}"
    connection = connect(mariadb)
    try:
        with connection.cursor() as cursor:
            cursor.execute(f"CREATE DATABASE {name} CHARACTER SET utf8mb4")
            cursor.execute(f"USE {name}")
        yield Database(mariadb, name, connection)
        with connection.cursor() as cursor:
            cursor.execute(f"DROP DATABASE {name}")
    finally:
        connection.close()
