"""The two databases the demo and the benchmarks write to, behind one small session.

SQL here uses `?` for parameters. This module only writes to databases; change logs are
read by `databus.relay.sources`.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol
from urllib.parse import urlsplit

import pymysql

from databus.demo.private_mariadb import PrivateMariaDB

Dialect = Literal["sqlite", "mysql"]
MYSQL_DATABASE = "shop"
BUSY_TIMEOUT_S = 30.0


class Session(Protocol):
    """A connection outside any transaction until `begin`."""

    def begin(self) -> None:
        """Start a transaction."""

    def execute(self, sql: str, parameters: Sequence[object] = ()) -> None:
        """Run one statement."""

    def rows(self, sql: str, parameters: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """Run one query."""
        ...

    def commit(self) -> None:
        """Commit the transaction."""

    def rollback(self) -> None:
        """Roll the transaction back."""

    def close(self) -> None:
        """Close the connection."""


class SqliteSession:
    """A session in WAL mode without a flush at each commit: a demo's data is expendable."""

    def __init__(self, path: Path) -> None:
        self._db = sqlite3.connect(path, timeout=BUSY_TIMEOUT_S, isolation_level=None)
        self._db.execute("PRAGMA journal_mode = WAL")
        self._db.execute("PRAGMA synchronous = NORMAL")

    def begin(self) -> None:
        """Start a transaction, and take the write lock now rather than fail later."""
        self._db.execute("BEGIN IMMEDIATE")

    def execute(self, sql: str, parameters: Sequence[object] = ()) -> None:
        """Run one statement."""
        self._db.execute(sql, parameters)

    def rows(self, sql: str, parameters: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """Run one query."""
        return self._db.execute(sql, parameters).fetchall()

    def commit(self) -> None:
        """Commit the transaction."""
        self._db.execute("COMMIT")

    def rollback(self) -> None:
        """Roll the transaction back."""
        self._db.execute("ROLLBACK")

    def close(self) -> None:
        """Close the connection."""
        self._db.close()


class MysqlSession:
    """A PyMySQL connection to the database `shop` of a private server."""

    def __init__(self, host: str, port: int, user: str, password: str) -> None:
        self._db = pymysql.connect(
            host=host, port=port, user=user, password=password, charset="utf8mb4", autocommit=True
        )
        self.execute(f"CREATE DATABASE IF NOT EXISTS {MYSQL_DATABASE} CHARACTER SET utf8mb4")
        self._db.select_db(MYSQL_DATABASE)

    def begin(self) -> None:
        """Start a transaction."""
        self._db.begin()

    def execute(self, sql: str, parameters: Sequence[object] = ()) -> None:
        """Run one statement."""
        with self._db.cursor() as cursor:
            cursor.execute(sql.replace("?", "%s"), tuple(parameters) or None)

    def rows(self, sql: str, parameters: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """Run one query."""
        with self._db.cursor() as cursor:
            cursor.execute(sql.replace("?", "%s"), tuple(parameters) or None)
            return list(cursor.fetchall())

    def commit(self) -> None:
        """Commit the transaction."""
        self._db.commit()

    def rollback(self) -> None:
        """Roll the transaction back."""
        self._db.rollback()

    def close(self) -> None:
        """Close the connection."""
        self._db.close()


@dataclass(frozen=True, slots=True)
class Database:
    """The address of a database, for a relay's settings and a writer's command line."""

    dialect: Dialect
    uri: str
    password_file: Path | None = None

    def connect(self) -> Session:
        """Open a session in the calling process."""
        if self.dialect == "sqlite":
            return SqliteSession(Path(self.uri.removeprefix("sqlite:")))
        place = urlsplit(self.uri)
        password = self.password_file.read_text().strip() if self.password_file else ""
        return MysqlSession(
            place.hostname or "", place.port or 3306, place.username or "", password
        )

    def arguments(self) -> list[str]:
        """Return the command-line arguments from which `database_of` makes this again."""
        found = ["--uri", self.uri]
        return [*found, "--password-file", str(self.password_file)] if self.password_file else found


def database_of(uri: str, password_file: Path | None = None) -> Database:
    """Return the database that a URI names."""
    return Database("sqlite" if uri.startswith("sqlite:") else "mysql", uri, password_file)


@contextmanager
def private_database(dialect: Dialect, folder: Path) -> Iterator[Database]:
    """Create a database for the duration of a `with` block: a file in `folder`, or a server."""
    with ExitStack() as stack:
        if dialect == "sqlite":
            yield Database("sqlite", f"sqlite:{folder / 'shop.db'}")
            return
        server = stack.enter_context(PrivateMariaDB())
        password_file = folder / "password"
        password_file.touch(0o600)
        password_file.write_text(server.password)
        yield Database("mysql", server.uri, password_file)
