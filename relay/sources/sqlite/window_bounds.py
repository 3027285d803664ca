"""The seals of a change log: where its windows end.

They are kept in a small database of their own beside the watched one,
`<file>-databus`, not inside it: SQLite lets one connection write at a time, and
a relay that had to write into the application's file for every window would
have to wait for long transactions, starve behind busy writers, and make them
wait. So sealing takes no lock that an application wants.

A seal's SCN is the id of the window's last log row, so the seals may be lost:
whoever has everything up to an SCN still gets every row after it, at worst some
rows again, when the log is sealed anew with other boundaries. That is why a
commit here waits for no disk (`synchronous = NORMAL`: the last commits may be
gone after a power failure). With OFF nothing would be flushed at checkpoints
either, and a file could be left in which old and new pages are mixed, with a
boundary in the midst of a transaction; a flush in thousands of windows is not
worth that.

The two files belong together, as a database and its WAL do: the identity of the
database is in both.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from databus.relay.sources.sqlite.connection import connect, transaction

_TABLES = (
    "CREATE TABLE IF NOT EXISTS owner(identity TEXT NOT NULL)",
    "CREATE TABLE IF NOT EXISTS seal(scn INTEGER PRIMARY KEY, prev_scn INTEGER NOT NULL,"
    " at INTEGER NOT NULL)",
)
_NEWEST = "SELECT scn, prev_scn, at FROM seal ORDER BY scn DESC LIMIT 1"
_OLDEST = "SELECT scn, prev_scn, at FROM seal ORDER BY scn LIMIT 1"
_AFTER = "SELECT scn, prev_scn, at FROM seal WHERE scn > ? ORDER BY scn LIMIT ?"
_ADD = "INSERT INTO seal SELECT ?, ?, ? WHERE (SELECT coalesce(max(scn), 0) FROM seal) = ?"
_FORGET = "DELETE FROM seal WHERE prev_scn < ?"
_TRIM = "DELETE FROM seal WHERE scn IN (SELECT scn FROM seal WHERE scn <= ? ORDER BY scn LIMIT ?)"
_MOST_WAL_SEALS = 5_000
_LOCK_WAIT_S = 0.1  # for another relay, which holds the lock for a moment only


class Seal(NamedTuple):
    """One window: the log rows after `prev_scn` up to `scn`, and the time of the last one."""

    scn: int
    prev_scn: int
    timestamp_ns: int


NO_SEAL = Seal(0, 0, 0)


def seals_path(database: Path) -> Path:
    """Return where the seals of a database are."""
    return database.with_name(f"{database.name}-databus")


class SealStore:
    """The seals, through one connection. Not thread-safe."""

    def __init__(self, database: Path, identity: str) -> None:
        self.path = seals_path(database)
        self._connection = connect(self.path, mode="rwc")
        try:
            self._prepare(identity)
        except BaseException:
            self._connection.close()
            raise
        self._since_checkpoint = 0

    def _prepare(self, identity: str) -> None:
        self._connection.execute(f"PRAGMA busy_timeout = {int(_LOCK_WAIT_S * 1000)}")
        self._connection.execute("PRAGMA journal_mode = WAL")
        with transaction(self._connection):
            for statement in _TABLES:
                self._connection.execute(statement)
            row = self._connection.execute("SELECT identity FROM owner").fetchone()
            if row is None:
                self._connection.execute("INSERT INTO owner VALUES (?)", (identity,))
            self.owner: str = row[0] if row else identity

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

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

    def add(self, seal: Seal, newest: Seal) -> bool:
        """Add a seal if `newest` still is the newest; say whether it was."""
        self._since_checkpoint += 1
        return self._connection.execute(_ADD, (*seal, newest.scn)).rowcount == 1

    def forget(self, first_id: int) -> None:
        """Forget the windows that lack rows in a log that begins with `first_id`."""
        self._connection.execute(_FORGET, (first_id - 1,))

    def trim(self, last_scn: int, most: int) -> int:
        """Forget at most `most` seals up to an SCN; return how many."""
        return self._connection.execute(_TRIM, (last_scn, most)).rowcount

    def checkpoint(self) -> None:
        """Move the WAL into the file once in a while.

        SQLite would do it in the midst of a commit, and a window would wait.
        """
        if self._since_checkpoint >= _MOST_WAL_SEALS:
            self._connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
            self._since_checkpoint = 0
