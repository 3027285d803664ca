"""The seals of a change log: which of its rows make up the window of an SCN.

They are kept in a small database of their own beside the watched one,
`<file>-databus`, not inside it: SQLite lets one connection write at a time, and
a relay that had to write into the application's file for every window would
have to wait for long transactions, starve behind busy writers, and make them
wait. So sealing takes no lock that an application wants.

The two files belong together, as a database and its WAL do. A seal names a log
row and its time; if that row is not in the log any more, or is another one, the
database was restored or made again, and the source stops.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import NamedTuple

from databus.relay.sources.sqlite_connection import connect, transaction, waiting

_TABLES = (
    "CREATE TABLE IF NOT EXISTS owner(identity TEXT NOT NULL)",
    "CREATE TABLE IF NOT EXISTS seal(scn INTEGER PRIMARY KEY AUTOINCREMENT,"
    " first_id INTEGER NOT NULL, last_id INTEGER NOT NULL UNIQUE, at INTEGER NOT NULL)",
)
_NEWEST = "SELECT scn, first_id, last_id, at FROM seal ORDER BY scn DESC LIMIT 1"
_OLDEST = "SELECT scn, first_id, last_id, at FROM seal ORDER BY scn LIMIT 1"
_AFTER = "SELECT scn, first_id, last_id, at FROM seal WHERE scn > ? ORDER BY scn LIMIT ?"
_ADD = "INSERT INTO seal(first_id, last_id, at) VALUES (?, ?, ?)"
_TRIM = (
    "DELETE FROM seal WHERE scn IN"
    " (SELECT scn FROM seal WHERE scn <= ? AND last_id <= ? ORDER BY scn LIMIT ?)"
)
_MOST_WAL_SEALS = 5_000
_LOCK_WAIT_S = 1.0


class Seal(NamedTuple):
    """One window: the first and the last of its log rows, and the last one's time."""

    scn: int
    first_id: int
    last_id: int
    timestamp_ns: int


NO_SEAL = Seal(0, 0, 0, 0)


def seals_path(database: Path) -> Path:
    """Return where the seals of a database are."""
    return database.with_name(f"{database.name}-databus")


class SealStore:
    """The seals, through one connection. Not thread-safe.

    With `is_synced` a seal is on disk when `add` and its transaction are done,
    so that not even a power failure gives its SCN to other rows. `wait_s` is how
    long to wait for another relay that is sealing.
    """

    def __init__(self, database: Path, identity: str, is_synced: bool, wait_s: float = 0.0) -> None:
        self.path = seals_path(database)
        self._connection = connect(self.path, mode="rwc")
        try:
            with waiting(self._connection, _LOCK_WAIT_S):
                self._prepare(identity, is_synced)
            self._connection.execute(f"PRAGMA busy_timeout = {int(wait_s * 1000)}")
        except BaseException:
            self._connection.close()
            raise
        self._since_checkpoint = 0

    def _prepare(self, identity: str, is_synced: bool) -> None:
        self._connection.execute("PRAGMA journal_mode = WAL")
        self._connection.execute(f"PRAGMA synchronous = {'FULL' if is_synced else 'NORMAL'}")
        with transaction(self._connection):
            for statement in _TABLES:
                self._connection.execute(statement)
            self._claim(identity)

    def _claim(self, identity: str) -> None:
        row = self._connection.execute("SELECT identity FROM owner").fetchone()
        if row is None:
            self._connection.execute("INSERT INTO owner VALUES (?)", (identity,))
        self.owner: str = row[0] if row else identity

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def locked(self) -> AbstractContextManager[sqlite3.Connection]:
        """Return a context, one transaction, in which nobody else can seal."""
        return transaction(self._connection)

    def version(self) -> int:
        """Return a number that moves when another connection has sealed."""
        (number,) = self._connection.execute("PRAGMA data_version").fetchone()
        return int(number)

    def newest(self) -> Seal:
        """Return the newest seal, or NO_SEAL."""
        row = self._connection.execute(_NEWEST).fetchone()
        return Seal(*row) if row else NO_SEAL

    def oldest(self) -> Seal:
        """Return the oldest seal held, or NO_SEAL."""
        row = self._connection.execute(_OLDEST).fetchone()
        return Seal(*row) if row else NO_SEAL

    def after(self, scn: int, most: int) -> list[Seal]:
        """Return the next seals, oldest first."""
        return [Seal(*row) for row in self._connection.execute(_AFTER, (scn, most))]

    def add(self, seals: Iterable[tuple[int, int, int]]) -> None:
        """Add (first id, last id, time) each; inside `locked`."""
        rows = list(seals)
        self._connection.executemany(_ADD, rows)
        self._since_checkpoint += len(rows)

    def trim(self, last_scn: int, last_id: int, most: int) -> int:
        """Forget at most `most` seals up to an SCN and a log id; return how many."""
        with transaction(self._connection):
            return self._connection.execute(_TRIM, (last_scn, last_id, most)).rowcount

    def checkpoint(self) -> None:
        """Move the WAL into the file once in a while; outside any transaction.

        SQLite would do it in the midst of a commit, and a window would wait.
        """
        if self._since_checkpoint >= _MOST_WAL_SEALS:
            self._connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
            self._since_checkpoint = 0
