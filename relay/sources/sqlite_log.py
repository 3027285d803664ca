"""The change log of a watched database: sealing, reading and trimming it.

Triggers cannot see commits, so the relay seals: what it has seen committed
becomes a window. Every "last id" that a poll sees is the end of a committed
transaction, for SQLite has one writer at a time and shows nobody half a
transaction; so windows are whole transactions, one or several, never a part
of one.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from databus.relay.sources.sqlite_catalog import table_from_json
from databus.relay.sources.sqlite_connection import is_busy, transaction
from databus.relay.sources.sqlite_install import (
    State,
    bring_up_to_date,
    create_tables,
    identity,
    inspect_all,
    is_installed,
)
from databus.relay.sources.sqlite_seals import Seal, SealStore
from databus.relay.sources.sqlite_triggers import LOG, values
from databus.schemas.table import Table

_LAST_LOGGED = f"SELECT coalesce(max(id), 0) FROM {LOG}"
_FIRST_AFTER = f"SELECT min(id) FROM {LOG} WHERE id > ?"
_TIME = f"SELECT at FROM {LOG} WHERE id = ?"
_GENERATIONS = "SELECT generation, name, columns FROM _databus_generation"
_ANY_BEFORE = f"SELECT 1 FROM {LOG} WHERE id < ? LIMIT 1"
_TRIM_ROWS = (
    f"DELETE FROM {LOG} WHERE id IN (SELECT id FROM {LOG} WHERE id < ? ORDER BY id LIMIT ?)"
)


class LogDamagedError(Exception):
    """Rows of the log are not there, or are not what they must be."""


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

    `watched` maps the names of tables to the names of sources; `flush` is called
    to have what is committed on disk. The change log has to be there (`install`).
    """

    def __init__(
        self,
        connection: sqlite3.Connection,
        seals: SealStore,
        watched: Mapping[str, str],
        flush: Callable[[], None] = lambda: None,
    ) -> None:
        self._connection = connection
        self._flush = flush
        self._seals = seals
        self._watched = {name.lower(): source for name, source in watched.items()}
        self._names = tuple(watched)
        self._schema_version = -1
        self._generations: dict[int, Generation] = {}
        self._rows_sql = ""
        self.is_outdated = True  # the triggers may not fit the tables

    def version(self) -> tuple[int, int]:
        """Return what changes when another connection has committed or sealed."""
        return self._number("PRAGMA data_version"), self._seals.version()

    def last_logged(self) -> int:
        """Return the id of the newest committed row: a boundary."""
        return self._number(_LAST_LOGGED)

    def check_owner(self) -> None:
        """Raise LogDamagedError when the seals are not this log's."""
        path = self._seals.path
        if self._seals.owner != identity(self._connection):
            raise LogDamagedError(
                f"{path} belongs to another database: one of the two was made again or copied "
                "without the other. Put back the one that belongs to it, or remove it to begin "
                "with new SCNs"
            )
        newest = self._seals.newest()
        row = self._connection.execute(_TIME, (newest.last_id,)).fetchone()
        if newest.scn and row != (newest.timestamp_ns,):
            raise LogDamagedError(
                f"log row {newest.last_id}, the last of window {newest.scn}, is not the one that "
                "was sealed: the database was restored to an earlier state. Bring consumers up to "
                f"date from the tables, then remove {path} and this source's ring and MaxSCN"
            )

    def check_schema(self) -> None:
        """Look whether the watched tables and their triggers still fit; raises CaptureGapError."""
        if self._schema_moved():
            with transaction(self._connection, "DEFERRED"):
                self._look_at_schema()

    def seal(self, boundaries: Sequence[int]) -> bool:
        """Seal up to each of `boundaries`; say whether it could be done now.

        False when another relay is sealing. When the database's schema has
        changed the triggers are renewed before, which needs the application's
        lock (False when it is held), and everything becomes one window.
        Raises CaptureGapError, and then seals nothing.
        """
        try:
            with self._seals.locked():
                self._seal(boundaries)
        except sqlite3.OperationalError as error:
            if not is_busy(error):
                raise
            return False
        self._seals.checkpoint()
        return True

    def seal_all(self) -> None:
        """Seal everything committed; waits for locks as the connections say."""
        with self._seals.locked():
            self._seal([self.last_logged()])

    def seal_rest(self) -> None:
        """Seal everything that the caller's transaction sees, triggers unchecked."""
        with self._seals.locked():
            self._add_seals([self.last_logged()])

    def read(self, after_scn: int, most_windows: int, most_rows: int) -> list[SealedWindow]:
        """Return the next windows, at least one when there is one.

        Raises CaptureGapError, and LogDamagedError when the window after
        `after_scn` is no longer held or lacks rows.
        """
        seals = self._seals.after(after_scn, most_windows)
        if not seals:
            return []
        if seals[0].scn != after_scn + 1:
            raise LogDamagedError(f"the oldest window held is {seals[0].scn}")
        first_id = seals[0].first_id
        within = [seal for seal in seals if seal.last_id - first_id < most_rows]
        with transaction(self._connection, "DEFERRED"):
            if self._schema_moved():
                self._look_at_schema()
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

        Small transactions; does nothing when another connection is writing.
        """
        newest = self._seals.newest()
        try:
            # Seals go first: a reader that finds a seal must find its rows. The
            # newest stays, for it says how far SCNs have come.
            seals = self._seals.trim(
                min(read_scn, newest.scn - 1), newest.last_id - retention_rows, most_rows
            )
            rows = self._trim_rows(self._seals.oldest().first_id, most_rows)
        except sqlite3.OperationalError as error:
            if not is_busy(error):
                raise
            return False
        return max(seals, rows) >= most_rows

    def _trim_rows(self, first_kept: int, most_rows: int) -> int:
        if self._connection.execute(_ANY_BEFORE, (first_kept,)).fetchone() is None:
            return 0
        with transaction(self._connection) as connection:
            return connection.execute(_TRIM_ROWS, (first_kept, most_rows)).rowcount

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

    def _seal(self, boundaries: Sequence[int]) -> None:
        if self._schema_moved():
            self._renew_triggers()
            boundaries = [self.last_logged()]
        self._flush()
        # One snapshot: what is sealed was logged under the schema that was checked.
        with transaction(self._connection, "DEFERRED"):
            if not self._schema_moved():
                self._add_seals(boundaries)

    def _renew_triggers(self) -> None:
        with transaction(self._connection, "DEFERRED"):
            self._look_at_schema()
        if self.is_outdated:
            with transaction(self._connection):
                bring_up_to_date(self._connection, self._names, self._seals.newest().last_id)
                version = self._number("PRAGMA main.schema_version")
            self._schema_version = version
            self.is_outdated = False

    def _add_seals(self, boundaries: Iterable[int]) -> None:
        sealed = self._seals.newest().last_id
        added = []
        for boundary in sorted(boundaries):
            if boundary > sealed:
                (first_id,) = self._connection.execute(_FIRST_AFTER, (sealed,)).fetchone()
                (at,) = self._connection.execute(_TIME, (boundary,)).fetchone()
                added.append((first_id, boundary, at))
                sealed = boundary
        self._seals.add(added)

    def _windows(self, seals: list[Seal]) -> list[SealedWindow]:
        rows = self._log_rows(seals[0].first_id, seals[-1].last_id)
        windows = []
        place = 0
        for scn, first_id, last_id, at in seals:
            start = place
            while place < len(rows) and rows[place].id <= last_id:
                place += 1
            if place == start or (rows[start].id, rows[place - 1].id) != (first_id, last_id):
                raise LogDamagedError(f"rows {first_id} to {last_id} of window {scn} are gone")
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
