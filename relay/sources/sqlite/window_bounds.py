"""The window bounds of a change log: where its windows end.

They are in a small database of their own beside the watched one, `<file>-databus`. SQLite lets
one connection write at a time. A relay that wrote each window into the application's file would
wait for long transactions, starve behind busy writers and make them wait. So writing a bound
takes no lock that an application needs.

The SCN of a bound is the id of the window's last log row, so bounds may be lost: a reader that
has everything up to an SCN still gets every row after it, at worst some rows twice, when windows
are closed again at other rows. So a commit here waits for no disk (`synchronous = NORMAL`: a
power failure may undo the last commits). With OFF, checkpoints would not be flushed either, and
a power failure could mix old and new pages, with a bound in the middle of a transaction; saving
one flush in thousands of windows is not worth that.

The two files belong together, like a database and its WAL: both contain the identity of the
database. The table has the name `seal`, as in the first files.
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
_SINCE = "SELECT scn, prev_scn, at FROM seal WHERE at >= ? ORDER BY scn LIMIT 1"
_ADD = "INSERT INTO seal SELECT ?, ?, ? WHERE (SELECT coalesce(max(scn), 0) FROM seal) = ?"
_FORGET = "DELETE FROM seal WHERE prev_scn < ?"
_TRIM = "DELETE FROM seal WHERE scn IN (SELECT scn FROM seal WHERE scn <= ? ORDER BY scn LIMIT ?)"
_MOST_WAL_BOUNDS = 5_000
_LOCK_WAIT_S = 0.1  # for another relay, which holds the lock for a moment only


class WindowBound(NamedTuple):
    """One window: the log rows after `prev_scn` up to `scn`, and the time of the last one."""

    scn: int
    prev_scn: int
    timestamp_ns: int


NO_BOUND = WindowBound(0, 0, 0)


def bounds_path(database: Path) -> Path:
    """Return the file of a database's window bounds."""
    return database.with_name(f"{database.name}-databus")


class WindowBounds:
    """The bounds, through one connection. Not thread-safe."""

    def __init__(self, database: Path, identity: str) -> None:
        self.path = bounds_path(database)
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

    def newest(self) -> WindowBound:
        """Return the newest bound, or NO_BOUND."""
        row = self._connection.execute(_NEWEST).fetchone()
        return WindowBound(*row) if row else NO_BOUND

    def oldest(self) -> WindowBound:
        """Return the oldest bound, or NO_BOUND."""
        row = self._connection.execute(_OLDEST).fetchone()
        return WindowBound(*row) if row else NO_BOUND

    def after(self, scn: int, most: int) -> list[WindowBound]:
        """Return the next bounds, oldest first."""
        return [WindowBound(*row) for row in self._connection.execute(_AFTER, (scn, most))]

    def since(self, timestamp_ns: int) -> WindowBound:
        """Return the first bound of a time or later, in the order of the log, or NO_BOUND."""
        row = self._connection.execute(_SINCE, (timestamp_ns,)).fetchone()
        return WindowBound(*row) if row else NO_BOUND

    def add(self, bound: WindowBound, newest: WindowBound) -> bool:
        """Add a bound if `newest` still is the newest; return whether it was."""
        self._since_checkpoint += 1
        return self._connection.execute(_ADD, (*bound, newest.scn)).rowcount == 1

    def forget(self, first_id: int) -> None:
        """Delete the bounds of windows that lack rows in a log that begins with `first_id`."""
        self._connection.execute(_FORGET, (first_id - 1,))

    def trim(self, last_scn: int, most: int) -> int:
        """Delete at most `most` bounds up to an SCN; return how many."""
        return self._connection.execute(_TRIM, (last_scn, most)).rowcount

    def checkpoint(self) -> None:
        """Move the WAL into the file once in a while.

        Otherwise SQLite does it during a commit, and a window waits.
        """
        if self._since_checkpoint >= _MOST_WAL_BOUNDS:
            self._connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
            self._since_checkpoint = 0
