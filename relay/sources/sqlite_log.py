"""The change log of a watched database: sealing, reading and trimming it.

Triggers cannot see commits, so the relay seals: what it has seen committed
becomes a window, in a transaction so short that writers hardly notice. Every
"last id" that a poll sees is the end of a committed transaction, for SQLite has
one writer at a time and shows nobody half a transaction; so windows are whole
transactions, one or several, never a part of one.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from databus.relay.sources.sqlite_catalog import table_from_json
from databus.relay.sources.sqlite_connection import is_busy, transaction
from databus.relay.sources.sqlite_install import (
    LAST_SEALED,
    State,
    bring_up_to_date,
    create_tables,
    inspect_all,
    is_installed,
)
from databus.relay.sources.sqlite_triggers import CANDIDATE, LOG, values
from databus.schemas.table import Table

_LAST_LOGGED = f"SELECT coalesce(max(id), 0) FROM {LOG}"
_POSITION = (
    f"SELECT coalesce((SELECT max(id) FROM {LOG}), 0),"
    " coalesce((SELECT max(last_id) FROM _databus_commit), 0),"
    " coalesce((SELECT max(scn) FROM _databus_commit), 0)"
)
_SEAL = (
    "INSERT INTO _databus_commit(first_id, last_id, at)"
    f" SELECT (SELECT min(id) FROM {LOG} WHERE id > ?), id, at FROM {LOG} WHERE id = ?"
)
_WINDOWS = (
    "SELECT scn, first_id, last_id, at FROM _databus_commit WHERE scn > ? ORDER BY scn LIMIT ?"
)
_RANGE = "SELECT coalesce(min(scn), 1), coalesce(max(scn), 0) FROM _databus_commit"
_FIRST_KEPT = "SELECT coalesce(min(first_id), 0) FROM _databus_commit"
_GENERATIONS = "SELECT generation, name, columns FROM _databus_generation"
# Seals go first: a reader that finds one must find its rows.
_TRIM_SEALS = (
    "DELETE FROM _databus_commit WHERE scn IN"
    " (SELECT scn FROM _databus_commit WHERE scn <= ? AND last_id <= ? ORDER BY scn LIMIT ?)"
)
_TRIM_ROWS = (
    f"DELETE FROM {LOG} WHERE id IN (SELECT id FROM {LOG} WHERE id < ? ORDER BY id LIMIT ?)"
)


class LogDamagedError(Exception):
    """Rows of the log are not there, or are not what they must be."""


class Generation(NamedTuple):
    """What the positions of a log row stand for; `table` is None when nobody here watches it."""

    table: Table | None
    names: tuple[str, ...]


class LogRow(NamedTuple):
    """One row of the log: `op` is a letter, `images` the values of both images."""

    id: int
    generation: Generation
    op: str
    images: tuple[Any, ...]


@dataclass(slots=True)
class SealedWindow:
    """One seal with its rows, those of tables that nobody here watches left out."""

    scn: int
    first_id: int
    timestamp_ns: int
    rows: list[LogRow]


class ChangeLog:
    """The change log, seen by one relay through one connection. Not thread-safe.

    `watched` maps the names of tables to the names of sources.
    """

    def __init__(self, connection: sqlite3.Connection, watched: Mapping[str, str]) -> None:
        self._connection = connection
        self._watched = {name.lower(): source for name, source in watched.items()}
        self._names = tuple(watched)
        self._schema_version = -1
        self._generations: dict[int, Generation] = {}
        self._rows_sql = ""
        self.is_outdated = True  # the triggers may not fit the tables

    def data_version(self) -> int:
        """Return a number that moves when another connection has committed."""
        return self._number("PRAGMA data_version")

    def position(self) -> tuple[int, int, int]:
        """Return the newest committed log id (a boundary), the last sealed one, the newest SCN."""
        logged, sealed, scn = self._connection.execute(_POSITION).fetchone()
        return logged, sealed, scn

    def check_schema(self) -> None:
        """Look whether the watched tables and their triggers still fit; raises CaptureGapError."""
        if self._schema_moved():
            with transaction(self._connection, "DEFERRED"):
                self._look_at_schema()

    def scn_range(self) -> tuple[int, int]:
        """Return the oldest and the newest SCN held; (1, 0) when there is none."""
        oldest, newest = self._connection.execute(_RANGE).fetchone()
        return oldest, newest

    def install(self) -> None:
        """Install what is missing, and seal what is committed; takes the write lock if needed.

        Raises CaptureGapError.
        """
        with transaction(self._connection, "DEFERRED"):
            is_ready = is_installed(self._connection)
            if is_ready:
                self._look_at_schema()
        if not is_ready or self.is_outdated:
            with transaction(self._connection):
                if not is_installed(self._connection):
                    create_tables(self._connection)
                self._seal_all()

    def seal(self, boundaries: Sequence[int]) -> bool:
        """Seal up to each of `boundaries`; say whether it could be done now.

        False when another connection is writing. When the database's schema has
        changed, the triggers are renewed in the same transaction and everything
        becomes one window. Raises CaptureGapError, and then seals nothing.
        """
        try:
            with transaction(self._connection):
                if self._schema_moved():
                    self._seal_all()
                else:
                    self._seal(boundaries)
        except sqlite3.OperationalError as error:
            if not is_busy(error):
                raise
            return False
        return True

    def seal_all(self) -> None:
        """Seal everything committed, waiting for the lock as the connection says."""
        with transaction(self._connection):
            self._seal_all()

    def seal_rest(self) -> None:
        """Seal everything committed, inside the caller's transaction, triggers unchecked."""
        self._seal([self._number(_LAST_LOGGED)])

    def read(self, after_scn: int, most_windows: int, most_rows: int) -> list[SealedWindow]:
        """Return the next windows, at least one when there is one, all from one snapshot.

        Raises CaptureGapError, and LogDamagedError when the window after
        `after_scn` is no longer held or lacks rows.
        """
        with transaction(self._connection, "DEFERRED"):
            if self._schema_moved():
                self._look_at_schema()
            seals = self._connection.execute(_WINDOWS, (after_scn, most_windows)).fetchall()
            if not seals:
                return []
            if seals[0][0] != after_scn + 1:
                raise LogDamagedError(f"the oldest window held is {seals[0][0]}")
            first_id = seals[0][1]
            within = [seal for seal in seals if seal[2] - first_id < most_rows]
            return self._windows(within or seals[:1])

    def tables(self) -> list[Table]:
        """Return the watched tables as their current generations have them."""
        self._load_generations()
        rows = self._connection.execute("SELECT name, generation FROM _databus_table")
        current = {name.lower(): generation for name, generation in rows}
        found = (self._generations[current[name.lower()]].table for name in self._names)
        return [table for table in found if table is not None]

    def trim(self, read_scn: int, retention_rows: int, most_rows: int) -> bool:
        """Forget windows read and older than `retention_rows` rows; say whether there is more.

        One small transaction; does nothing when another connection is writing.
        """
        horizon = self._number(LAST_SEALED) - retention_rows
        # The newest seal stays: it is what says how far SCNs have come.
        newest = self.scn_range()[1]
        last_scn = min(read_scn, newest - 1)
        try:
            with transaction(self._connection) as connection:
                seals = connection.execute(_TRIM_SEALS, (last_scn, horizon, most_rows)).rowcount
                kept = self._number(_FIRST_KEPT)
                rows = connection.execute(_TRIM_ROWS, (kept, most_rows)).rowcount
        except sqlite3.OperationalError as error:
            if not is_busy(error):
                raise
            return False
        return max(seals, rows) >= most_rows

    def _number(self, sql: str) -> int:
        (number,) = self._connection.execute(sql).fetchone()
        return int(number)

    def _schema_moved(self) -> bool:
        return self._number("PRAGMA main.schema_version") != self._schema_version

    def _look_at_schema(self) -> None:
        """Check the watched tables without writing.

        What is sealed may be read even if a table has changed since: whoever
        sealed it had checked.
        """
        findings = inspect_all(self._connection, self._names)
        self.is_outdated = any(finding.state is not State.INTACT for finding in findings)
        if not self.is_outdated:
            self._schema_version = self._number("PRAGMA main.schema_version")

    def _seal_all(self) -> None:
        bring_up_to_date(self._connection, self._names)
        self._seal([self._number(_LAST_LOGGED)])
        # If the transaction fails now, the number is of no version that will ever be.
        self._schema_version = self._number("PRAGMA main.schema_version")
        self.is_outdated = False

    def _seal(self, boundaries: Iterable[int]) -> None:
        sealed = self._number(LAST_SEALED)
        for boundary in sorted(boundaries):
            if boundary > sealed:
                self._connection.execute(_SEAL, (sealed, boundary))
                sealed = boundary
        # Nobody else is in a transaction now, so no candidate is waiting for its trigger.
        self._connection.execute(f"DELETE FROM {CANDIDATE} WHERE id > 0")

    def _windows(self, seals: list[tuple[int, int, int, int]]) -> list[SealedWindow]:
        rows = self._log_rows(seals[0][1], seals[-1][2])
        windows = []
        place = 0
        for scn, first_id, last_id, at in seals:
            start = place
            while place < len(rows) and rows[place].id <= last_id:
                place += 1
            if place == start or rows[place - 1].id != last_id:
                raise LogDamagedError(f"row {last_id} of {LOG}, the last of window {scn}, is gone")
            watched = [row for row in rows[start:place] if row.generation.table is not None]
            windows.append(SealedWindow(scn, first_id, at, watched))
        return windows

    def _log_rows(self, first_id: int, last_id: int) -> list[LogRow]:
        raw = self._raw_rows(first_id, last_id)
        if any(row[1] not in self._generations for row in raw):
            self._load_generations()
            raw = self._raw_rows(first_id, last_id)
        known = self._generations
        try:
            return [LogRow(row[0], known[row[1]], row[2], row[3:]) for row in raw]
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
            f"SELECT id, generation, op{images} FROM {LOG} WHERE id BETWEEN ? AND ? ORDER BY id"
        )
