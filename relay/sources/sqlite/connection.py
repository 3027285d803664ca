"""Connections to a watched database, and the translation of SQLite's errors."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

from databus.daemon.faults import as_sqlite_errors
from databus.schemas.errors import SourceError, SourceStoppedError, SourceUnavailableError

# Transient errors: a lock is held, the disk is full, the file does not exist yet.
_PASSING = {
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_LOCKED,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_INTERRUPT,
    sqlite3.SQLITE_SCHEMA,
    sqlite3.SQLITE_PROTOCOL,
    sqlite3.SQLITE_NOMEM,
}


def connect(path: Path, mode: str = "rw") -> sqlite3.Connection:
    """Open a database in autocommit mode, without waiting for locks; mode "rwc" may create it.

    The connection never runs a checkpoint in a commit. That is left to the application's
    writers, whose commits fill the WAL.
    """
    uri = f"file:{quote(str(path.absolute()))}?mode={mode}"
    connection = sqlite3.connect(uri, uri=True, timeout=0, isolation_level=None)
    try:
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute("PRAGMA wal_autocheckpoint = 0")
    except BaseException:
        connection.close()
        raise
    return connection


@contextmanager
def transaction(
    connection: sqlite3.Connection, kind: str = "IMMEDIATE"
) -> Iterator[sqlite3.Connection]:
    """Run the block in one transaction; commit it, or roll it back and raise."""
    connection.execute(f"BEGIN {kind}")
    try:
        yield connection
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


@contextmanager
def waiting(connection: sqlite3.Connection, wait_s: float) -> Iterator[None]:
    """Wait up to `wait_s` for each lock inside the block, and not at all after it."""
    connection.execute(f"PRAGMA busy_timeout = {int(wait_s * 1000)}")
    try:
        yield
    finally:
        connection.execute("PRAGMA busy_timeout = 0")


def is_busy(error: sqlite3.Error) -> bool:
    """Return whether another connection holds the lock."""
    return _code(error) in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


@contextmanager
def translated(source: str, path: Path, scn: Callable[[], int]) -> Iterator[None]:
    """Turn SQLite's errors into SourceUnavailableError or SourceStoppedError."""
    try:
        with as_sqlite_errors():
            yield
    except sqlite3.Error as error:
        raise _translate(error, source, path, scn()) from error


def _code(error: sqlite3.Error) -> int:
    return int(getattr(error, "sqlite_errorcode", 0)) & 0xFF


def _translate(error: sqlite3.Error, source: str, path: Path, scn: int) -> SourceError:
    code = _code(error)
    if code in _PASSING:
        return SourceUnavailableError(f"source {source}: {path}: {error}")
    advice = {
        sqlite3.SQLITE_READONLY: "the relay must be allowed to write to the file and its folder, "
        "because its change log and triggers are in it",
        sqlite3.SQLITE_NOTADB: "is this an SQLite database?",
        sqlite3.SQLITE_CORRUPT: "the database is damaged; restore it",
    }.get(code, "was a table `_databus_…` changed by hand?")
    return SourceStoppedError(source, scn, f"{path}: {error}; {advice}")
