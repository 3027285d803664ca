"""The log of the torture's client, and the rows that it applied: one SQLite file.

The applied rows and the log of deliveries change in one transaction a window,
so that after `kill -9` the log never says less or more than the tables show.
The consumer's checkpoint is not in here: that is the library's own file, so
windows really come again.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from benchmarks.torture.workload import BY_SOURCE, TABLES, TortureTable

# page and mode: of a bootstrap, see `benchmarks.bootstrap_torture.log`.
Kind = Literal["start", "window", "rollback", "problem", "page", "mode"]
LOG = """CREATE TABLE IF NOT EXISTS deliveries (
    seq INTEGER PRIMARY KEY, run INTEGER, kind TEXT, scn INTEGER, detail TEXT)"""


class Change(NamedTuple):
    """One row change as it was delivered."""

    source: str
    is_delete: bool
    row: Mapping[str, Any]
    before: Mapping[str, Any] | None
    scn: int = -1
    key: int | bytes = 0  # the wire's
    is_truncate: bool = False  # all rows of the source are gone; then without a row

    @property
    def stamp(self) -> tuple[int, int, int]:
        """Transaction, which of its changes, of how many (see the workload's docstring)."""
        row = self.row
        return row["tx"], row["tx_row"] + self.is_delete, row["tx_rows"]


class Delivery(NamedTuple):
    """One line of the log.

    `scn` is the window's; of a start: the checkpoint's on disk, -1 without one;
    of a rollback: what was rolled back to. `stamps` are a window's changes.
    """

    run: int
    kind: Kind
    scn: int
    stamps: list[tuple[int, int, int]]
    text: str = ""


class Log:
    """The file, opened by the client to write and by the checks to read."""

    def __init__(self, path: Path) -> None:
        # Deliveries come in the dispatcher's thread; one thread at a time uses it.
        self._db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        self._db.execute("PRAGMA journal_mode = WAL")
        self._db.execute("PRAGMA synchronous = OFF")  # the machine is not what gets killed
        self._db.execute(LOG)
        for table in TABLES:
            create = table.create("sqlite").replace("CREATE TABLE", "CREATE TABLE IF NOT EXISTS")
            self._db.execute(create)
        self._run = 0

    def start(self, checkpoint_scn: int, detail: str = "") -> None:
        """Start a run: a client process started with this checkpoint on disk."""
        self._run = 1 + self._db.execute("SELECT count(*) FROM deliveries").fetchone()[0]
        self._write("start", checkpoint_scn, detail)

    def rollback(self, scn: int) -> None:
        """Record a rollback."""
        self._write("rollback", scn)

    def problem(self, scn: int, text: str) -> None:
        """Record a problem that the client itself found."""
        self._write("problem", scn, text)

    def apply(self, scn: int, changes: Sequence[Change]) -> None:
        """Apply one window and log it, in one transaction."""
        self._apply_all("window", scn, changes, json.dumps(stamps_of(changes)))

    def deliveries(self) -> Iterator[Delivery]:
        """Yield the log from its beginning."""
        sql = "SELECT run, kind, scn, detail FROM deliveries ORDER BY seq"
        for run, kind, scn, detail in self._db.execute(sql):
            is_window = kind == "window"
            stamps = [tuple(stamp) for stamp in json.loads(detail)] if is_window else []
            yield Delivery(run, kind, scn, stamps, "" if is_window else detail)

    def rows(self, table: TortureTable, where: str = "") -> list[tuple[Any, ...]]:
        """Return a table as applied, in key order."""
        return self._db.execute(table.select(where)).fetchall()

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    def _apply_all(self, kind: Kind, scn: int, changes: Sequence[Change], detail: str) -> None:
        self._db.execute("BEGIN IMMEDIATE")
        for change in changes:
            self._apply(change)
        self._write(kind, scn, detail)
        self._db.execute("COMMIT")

    def _write(self, kind: Kind, scn: int, detail: str = "") -> None:
        sql = "INSERT INTO deliveries (run, kind, scn, detail) VALUES (?, ?, ?, ?)"
        self._db.execute(sql, (self._run, kind, scn, detail))

    def _apply(self, change: Change) -> None:
        table = BY_SOURCE[change.source]
        if change.is_truncate:
            self._db.execute(f"DELETE FROM {table.name}")
            return
        key = key_of(table, change.row)
        if change.is_delete:
            self._delete(table, key)
            return
        if change.before is not None and key_of(table, change.before) != key:
            self._delete(table, key_of(table, change.before))
        marks = ", ".join("?" * len(table.columns))
        values = [change.row[column] for column in table.columns]
        self._db.execute(f"INSERT OR REPLACE INTO {table.name} VALUES ({marks})", values)

    def _delete(self, table: TortureTable, key: Sequence[Any]) -> None:
        where = " AND ".join(f"{column} = ?" for column in table.key)
        self._db.execute(f"DELETE FROM {table.name} WHERE {where}", key)


def stamps_of(changes: Sequence[Change]) -> list[tuple[int, int, int]]:
    """Return the stamps of a window's changes.

    A source may say a changed key as a deletion and an insertion: the workload
    counts that as the one change that it was. The deleted row then has the
    stamp of the update before, as every deleted row has.
    """
    found: list[tuple[int, int, int]] = []
    was_delete = False
    for change in changes:
        if change.is_truncate:
            continue
        stamp = change.stamp
        if not (was_delete and not change.is_delete and found[-1] == stamp):
            found.append(stamp)
        was_delete = change.is_delete
    return found


def key_of(table: TortureTable, row: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return a row's key."""
    return tuple(row[column] for column in table.key)
