"""A real MariaDB in tests: connections to a private server, and a test's own database.

The fixtures that give them are in `tests/mariadb.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pymysql
from pymysql.connections import Connection
from pymysql.cursors import Cursor

from databus.demo.private_mariadb import HOST, PrivateMariaDB


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
