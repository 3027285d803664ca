"""The change log of a watched database: closing its windows, reading and trimming it.

Triggers cannot see commits, so the relay closes windows: it writes a window bound behind the
rows that it has seen committed. Every "last id" that a poll sees is the end of a committed
transaction, because SQLite has one writer at a time and shows nobody half a transaction. So a
window is one or several whole transactions, never a part of one.

A poll that finds a new transaction runs a handful of statements: the rows after the newest
bound, the schema version, the new bound. At each of them another thread may take the
interpreter, so there is none without need.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from databus.relay.sources.sqlite.catalog import SqliteTable, quote, table_from_json
from databus.relay.sources.sqlite.connection import is_busy, transaction
from databus.relay.sources.sqlite.install import (
    State,
    bring_up_to_date,
    create_tables,
    identity,
    inspect_all,
    is_installed,
)
from databus.relay.sources.sqlite.matched_tables import NONE_MATCHED, MatchedTables
from databus.relay.sources.sqlite.triggers import LOG, NOW, values
from databus.relay.sources.sqlite.window_bounds import NO_BOUND, WindowBound, WindowBounds
from databus.schemas.table import Table

_VERSION = "PRAGMA data_version"  # moves when another connection has committed
_SCHEMA_VERSION = "PRAGMA main.schema_version"
_LAST_LOGGED = f"SELECT coalesce(max(id), 0) FROM {LOG}"
_FIRST_LOGGED = f"SELECT coalesce(min(id), 0) FROM {LOG}"
_TIME = f"SELECT at FROM {LOG} WHERE id = ?"
_GENERATIONS = "SELECT generation, name, columns FROM _databus_generation"
_ANY_BEFORE = f"SELECT 1 FROM {LOG} WHERE id < ? LIMIT 1"
_TRIM_ROWS = (
    f"DELETE FROM {LOG} WHERE id IN (SELECT id FROM {LOG} WHERE id < ? ORDER BY id LIMIT ?)"
)
# Of no table, so it makes an empty window.
_MARK_BEGINNING = (
    f"INSERT INTO {LOG}(generation, op, at) SELECT 0, 'n', {NOW}"
    f" WHERE NOT EXISTS (SELECT 1 FROM {LOG})"
)
_END = (1 << 63) - 1
_MOST_WINDOWS = 500
_MOST_ROWS = 5_000
_MOST_TRIMMED_ROWS = 1_000


class LogDamagedError(Exception):
    """Rows of the log are missing, or differ from the rows that were read before."""


def install(connection: sqlite3.Connection, names: Iterable[str]) -> str:
    """Create the change log if there is none; return the database's identity.

    Takes the write lock only to create. Raises CaptureGapError for another
    layout, and, leaving nothing behind, for tables that cannot be captured.
    """
    if not is_installed(connection):
        with transaction(connection):
            if not is_installed(connection):
                create_tables(connection)
            inspect_all(connection, names)
    return identity(connection)


class Generation(NamedTuple):
    """The columns of a log row's values; `table` is None if this relay does not watch it."""

    table: Table | None
    names: tuple[str, ...]


NO_TABLE = Generation(None, ())


class LogRow(NamedTuple):
    """One row of the log: `op` is a letter, `images` the values of both images."""

    id: int
    generation: Generation
    op: str
    timestamp_ns: int
    images: tuple[Any, ...]


class LoggedWindow(NamedTuple):
    """One window: its bound, and its rows of tables that this relay watches."""

    bound: WindowBound
    rows: list[LogRow]


class ChangeLog:
    """The change log of one relay, through one connection. Not thread-safe.

    `watched` maps the names of tables to the names of sources; `flush` is called
    before a window is closed or handed over. The change log must exist
    (`install`). Where the schema has changed, `matched` looks for tables of patterns.
    """

    def __init__(
        self,
        connection: sqlite3.Connection,
        bounds: WindowBounds,
        watched: Mapping[str, str],
        flush: Callable[[], None] = lambda: None,
        matched: MatchedTables = NONE_MATCHED,
        check: Callable[[SqliteTable], None] = lambda _: None,
    ) -> None:
        """`check` raises CaptureGapError for a table that may not be captured as it is now."""
        self._connection = connection
        self._flush = flush
        self._bounds = bounds
        self._watched = {name.lower(): source for name, source in watched.items()}
        self._names = self._all_names = tuple(watched)
        self._matched, self._check = matched, check
        self._version = -1  # the data version up to which all windows are closed
        self._schema_version = -1
        self._generations = {0: NO_TABLE}
        self._rows_sql = ""
        self._trim_from = 0
        self.is_all_read = True  # False if a lock prevented the last `read` from closing windows
        self.newest = NO_BOUND  # the newest closed window that this relay has seen

    def last_logged(self) -> int:
        """Return the id of the newest committed row."""
        return self._number(_LAST_LOGGED)

    def check_bounds(self) -> None:
        """Read the newest bound; raise LogDamagedError when the bounds are not this log's.

        Bounds of rows that are gone are deleted: the trimming of the log may survive a power
        failure that the trimming of the bounds does not.
        """
        path = self._bounds.path
        if self._bounds.owner != identity(self._connection):
            raise LogDamagedError(
                f"{path} belongs to another database: one of the two was made again or copied "
                "without the other. Put back the one that belongs to it; or remove it, this "
                "source's ring and MaxSCN, and bring consumers up to date from the tables"
            )
        self._bounds.forget(self._number(_FIRST_LOGGED))
        self.newest = self._bounds.newest()
        row = self._connection.execute(_TIME, (self.newest.scn,)).fetchone()
        if self.newest.scn and row != (self.newest.timestamp_ns,):
            raise self._other_log()

    def check_time(self, scn: int, timestamp_ns: int) -> None:
        """Raise LogDamagedError when log row `scn` has another time; a trimmed row has none."""
        row = self._connection.execute(_TIME, (scn,)).fetchone()
        if row not in (None, (timestamp_ns,)):
            raise LogDamagedError(
                f"log row {scn}, the last of a window that was handed over, is another one now: "
                "the database was made again or restored, or lost its last commits in a power "
                "failure, and has changed since; bring consumers up to date from the tables, then "
                "remove this source's ring and MaxSCN"
            )

    def restore_bound(self, scn: int) -> None:
        """Write the bound of the window that ended at `scn` again, if it was lost."""
        row = self._connection.execute(_TIME, (scn,)).fetchone()
        while row and self.newest.scn < scn:
            self._add(WindowBound(scn, self._prev_scn(self._number(_FIRST_LOGGED)), *row))

    def mark_beginning(self) -> None:
        """Begin an empty log with an empty window if tables have rows already.

        The log never contains those rows. With the window there is an SCN as of which they can be
        read, even without any change. Takes the application's lock.
        """
        if self.last_logged() == 0 and any(self._has_rows(name) for name in self._names):
            self._mark_beginning()

    def begin_while_quiet(self) -> None:
        """Begin an empty log with an empty window, also for empty tables, if the lock is free.

        Empty tables are read as of an SCN, too. Takes the application's lock for a moment.
        """
        try:
            if self.last_logged() == 0:
                self._mark_beginning()
        except sqlite3.OperationalError as error:
            if not is_busy(error):
                raise

    def _mark_beginning(self) -> None:
        with transaction(self._connection):
            self._connection.execute(_MARK_BEGINNING)
        self._version = -1  # data_version does not move for commits of this connection

    def close_all_windows(self) -> None:
        """Close the windows of all committed rows; waits for locks as the connection is set."""
        while self._close_window() is None:
            pass

    def follow_schema(self) -> None:
        """Renew the triggers if they no longer fit the tables; raises CaptureGapError.

        That takes the application's lock.
        """
        if not self._is_up_to_date():
            with transaction(self._connection):
                bring_up_to_date(self._connection, self._names, self.newest.scn)
                version = self._number(_SCHEMA_VERSION)
            self._schema_version = version

    def read(self, after_scn: int) -> list[LoggedWindow]:
        """Close the windows of what was committed, and return the next windows.

        Raises CaptureGapError, and LogDamagedError when rows after `after_scn`
        are gone. A window that cannot be closed now, because another connection holds
        a lock, is left to the next call.
        """
        version = self._number(_VERSION)
        fresh: list[LoggedWindow] | None = []
        if version != self._version:
            fresh = self._close_window_if_free()
            self.is_all_read = fresh is not None
            if fresh is not None:
                # What was committed after the version was read moves it again.
                self._version = version
        if self.newest.scn <= after_scn:
            return []
        if fresh and fresh[0].bound.prev_scn <= after_scn:
            return fresh
        return self._read_closed(after_scn)

    def tables(self) -> list[Table]:
        """Return the watched tables in their current generations."""
        self._load_generations()
        rows = self._connection.execute("SELECT name, generation FROM _databus_table")
        current = {name.lower(): generation for name, generation in rows}
        found = (self._generations[current[name.lower()]].table for name in self._names)
        return [table for table in found if table is not None]

    def tidy(self, read_scn: int, retention_rows: int) -> None:
        """Delete a part of the rows that were read and are older than `retention_rows` rows.

        Small transactions; does nothing when another connection is writing.
        """
        self._bounds.checkpoint()
        if self.newest.scn < self._trim_from:
            return
        try:
            is_done = not self._trim(min(read_scn, self.newest.scn - retention_rows))
        except sqlite3.OperationalError as error:
            if not is_busy(error):
                raise
            is_done = True
        if is_done:
            self._trim_from = self.newest.scn + _MOST_TRIMMED_ROWS

    def _trim(self, last_scn: int) -> bool:
        """Trim up to a window; return whether there is more to trim."""
        # Bounds go first: a reader that finds a bound must find its rows.
        bounds = self._bounds.trim(last_scn, _MOST_TRIMMED_ROWS)
        # The row before the oldest window stays, to show that none of the window's is gone.
        rows = self._trim_rows(self._bounds.oldest().prev_scn)
        return max(bounds, rows) >= _MOST_TRIMMED_ROWS

    def _trim_rows(self, first_kept: int) -> int:
        if self._connection.execute(_ANY_BEFORE, (first_kept,)).fetchone() is None:
            return 0
        with transaction(self._connection) as connection:
            return connection.execute(_TRIM_ROWS, (first_kept, _MOST_TRIMMED_ROWS)).rowcount

    def _has_rows(self, name: str) -> bool:
        return bool(self._number(f"SELECT EXISTS (SELECT 1 FROM {quote(name)})"))

    def _number(self, sql: str) -> int:
        (number,) = self._connection.execute(sql).fetchone()
        return int(number)

    def _schema_moved(self) -> bool:
        return self._number(_SCHEMA_VERSION) != self._schema_version

    def _is_up_to_date(self) -> bool:
        """Check the watched tables and their triggers; raise CaptureGapError, TablesFoundError."""
        self._names = self._matched.present(self._connection, self._all_names)
        with transaction(self._connection, "DEFERRED"):
            findings = inspect_all(self._connection, self._names)
            for finding in findings:
                self._check(finding.table)
            if any(finding.state is not State.INTACT for finding in findings):
                return False
            self._schema_version = self._number(_SCHEMA_VERSION)
            return True

    def _close_window_if_free(self) -> list[LoggedWindow] | None:
        try:
            return self._close_window()
        except sqlite3.OperationalError as error:
            if not is_busy(error):
                raise
            return None

    def _close_window(self) -> list[LoggedWindow] | None:
        """Close one window of what is committed, and return it; None means try again.

        Raises CaptureGapError, and then closes nothing.
        """
        newest = self.newest
        rows = self._rows(newest.scn, _END)
        # Checked after reading: if the schema is still the known one, it was during the read too.
        if self._schema_moved():
            self.follow_schema()
            return None
        if newest.scn:
            self._check_newest(rows)
            rows = rows[1:]
        if not rows:
            return []
        self._flush()
        last = rows[-1]
        bound = WindowBound(last.id, self._prev_scn(rows[0].id), last.timestamp_ns)
        return [_window(bound, rows)] if self._add(bound) else None

    def _add(self, bound: WindowBound) -> bool:
        is_added = self._bounds.add(bound, self.newest)
        # Otherwise another relay has closed a window, and these rows may be in it.
        self.newest = bound if is_added else self._bounds.newest()
        return is_added

    def _prev_scn(self, first_id: int) -> int:
        # Without any bound, a reader that has not seen what was before the first row has a gap.
        return self.newest.scn or first_id - 1

    def _check_newest(self, rows: list[LogRow]) -> None:
        """Check that the log still begins with the last row of the newest window."""
        scn, _, timestamp_ns = self.newest
        if rows and rows[0].id > scn:
            raise _gone(scn, rows[0].id)
        if not rows or rows[0].timestamp_ns != timestamp_ns:
            raise self._other_log()

    def _other_log(self) -> LogDamagedError:
        return LogDamagedError(
            f"log row {self.newest.scn}, the last of the newest window, is not there or is another "
            f"one (the log ends with row {self.last_logged()}): the database was restored to an "
            "earlier state, or lost its last commits in a power failure. Bring consumers up to "
            f"date from the tables, then remove {self._bounds.path} and this source's ring and "
            "MaxSCN"
        )

    def _read_closed(self, after_scn: int) -> list[LoggedWindow]:
        bounds = self._bounds.after(after_scn, _MOST_WINDOWS)
        if not bounds or bounds[0].prev_scn > after_scn:
            raise _gone(after_scn, self._number(_FIRST_LOGGED))
        begin = bounds[0].prev_scn
        within = [bound for bound in bounds if bound.scn - begin <= _MOST_ROWS] or bounds[:1]
        rows = self._rows(begin, within[-1].scn)
        if self._schema_moved():
            # Only for CaptureGapError: the relay that closed these may not watch our tables.
            self._is_up_to_date()
        self._flush()
        return _windows(within, rows)

    def _rows(self, first_id: int, last_id: int) -> list[LogRow]:
        raw = self._raw_rows(first_id, last_id)
        if any(row[1] not in self._generations for row in raw):
            self._load_generations()
            raw = self._raw_rows(first_id, last_id)
        known = self._generations
        try:
            return [LogRow(row[0], known[row[1]], row[2], row[3], row[4:]) for row in raw]
        except KeyError as error:
            raise LogDamagedError(f"generation {error} is gone from _databus_generation") from None

    def _raw_rows(self, first_id: int, last_id: int) -> list[tuple[Any, ...]]:
        if not self._rows_sql:
            self._load_generations()
        try:
            return self._connection.execute(self._rows_sql, (first_id, last_id)).fetchall()
        except sqlite3.OperationalError as error:
            if "decode to UTF-8" not in str(error):
                raise
        # Text that is not UTF-8 has no place in an Avro string: the encoder will
        # refuse the row and name the column, which is better than not naming it.
        self._connection.text_factory = lambda text: text.decode("utf-8", "surrogateescape")
        try:
            return self._connection.execute(self._rows_sql, (first_id, last_id)).fetchall()
        finally:
            self._connection.text_factory = str

    def _load_generations(self) -> None:
        for number, name, columns in self._connection.execute(_GENERATIONS).fetchall():
            if number in self._generations:
                continue
            source = self._watched.get(name.lower())
            table = table_from_json(source, columns) if source else None
            names = tuple(column.name for column in table.columns) if table else ()
            self._generations[number] = Generation(table, names)
        width = 2 * max((len(g.names) for g in self._generations.values()), default=0)
        images = f", {values(width)}" if width else ""
        self._rows_sql = (
            f"SELECT id, generation, op, at{images} FROM {LOG} WHERE id BETWEEN ? AND ? ORDER BY id"
        )


def _windows(bounds: Sequence[WindowBound], rows: list[LogRow]) -> list[LoggedWindow]:
    """Distribute the rows over windows; the first row may be the last of an earlier window."""
    begin = bounds[0].prev_scn
    if not rows or rows[0].id > begin + 1:
        raise _gone(begin, rows[0].id if rows else 0)
    windows = []
    place = int(rows[0].id == begin)
    for bound in bounds:
        start = place
        while place < len(rows) and rows[place].id <= bound.scn:
            place += 1
        if place == start or rows[place - 1].id != bound.scn:
            raise _gone(bound.prev_scn, rows[place].id if place < len(rows) else 0)
        windows.append(_window(bound, rows[start:place]))
    return windows


def _window(bound: WindowBound, rows: list[LogRow]) -> LoggedWindow:
    return LoggedWindow(bound, [row for row in rows if row.generation.table is not None])


def _gone(after_scn: int, first_id: int) -> LogDamagedError:
    return LogDamagedError(
        f"log rows after {after_scn} are gone, the next one is {first_id or 'not there'}: raise "
        "retention_rows, and bring consumers up to date from the tables"
    )
