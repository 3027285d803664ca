"""Sinks of an "application" that copy tables into SQLite files: for processes of tests."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from pathlib import Path

from databus.client.sinks.contract import Change, ChangeOp, Opening, Position
from databus.client.sinks.errors import SinkRefusedError
from tests import PATIENCE_S

_ROWS = "CREATE TABLE IF NOT EXISTS copy (source, id, row, PRIMARY KEY (source, id))"


class UpsertCopy:
    """Holds the rows by key; at least once, with any number of lanes."""

    def __init__(self, path: str) -> None:
        self._path = path

    def open(self, opening: Opening) -> Position | None:
        self._copy = sqlite3.connect(self._path, timeout=PATIENCE_S, isolation_level=None)
        self._copy.execute("PRAGMA journal_mode = WAL")
        self._copy.execute("PRAGMA synchronous = OFF")
        self._copy.execute(_ROWS)
        self._copy.execute("BEGIN IMMEDIATE")
        self._copy.execute("COMMIT")
        return None

    def write(self, changes: Sequence[Change]) -> None:
        self._copy.execute("BEGIN IMMEDIATE")
        for change in changes:
            self._apply(change)

    def flush(self) -> Position | None:
        self._copy.execute("COMMIT")
        return None

    def close(self) -> None:
        self._copy.close()

    def _apply(self, change: Change) -> None:
        if change.op is ChangeOp.TRUNCATE:
            self._copy.execute("DELETE FROM copy WHERE source = ?", [change.source])
            return
        place = [change.source, change.key["id"]]
        if change.after is None:
            self._copy.execute("DELETE FROM copy WHERE source = ? AND id = ?", place)
        else:
            row = [*place, json.dumps(dict(change.after), sort_keys=True)]
            self._copy.execute("INSERT OR REPLACE INTO copy VALUES (?, ?, ?)", row)


class ExactCopy(UpsertCopy):
    """Keeps its position with the rows, and refuses a change that it has already."""

    def open(self, opening: Opening) -> Position | None:
        super().open(opening)
        self._copy.execute("CREATE TABLE IF NOT EXISTS seen (id PRIMARY KEY)")
        self._copy.execute("CREATE TABLE IF NOT EXISTS position (one PRIMARY KEY, at)")
        found = self._copy.execute("SELECT at FROM position").fetchone()
        return Position.from_json(found[0]) if found else None

    def _apply(self, change: Change) -> None:
        super()._apply(change)
        self._copy.execute("INSERT INTO seen VALUES (?)", [change.id])
        if change.position is not None:
            at = change.position.to_json()
            self._copy.execute("INSERT OR REPLACE INTO position VALUES (1, ?)", [at])


class PickyCopy(UpsertCopy):
    """Refuses rows whose `id` is in the file beside it, `PATH.refused`, as JSON."""

    def _apply(self, change: Change) -> None:
        if change.key["id"] in json.loads(Path(f"{self._path}.refused").read_text()):
            raise SinkRefusedError("not wanted", change)
        super()._apply(change)
