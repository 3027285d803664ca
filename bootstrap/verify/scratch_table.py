"""The working data of a comparison, in a temporary file: a table may exceed the memory."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

_TABLES = """
PRAGMA journal_mode = OFF;
PRAGMA synchronous = OFF;
CREATE TABLE seen (id INTEGER PRIMARY KEY);
CREATE TABLE candidate (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    key NOT NULL, payload BLOB, digest BLOB, scn INTEGER, resume TEXT
);
"""
_ADD = "INSERT INTO candidate (key, payload, digest, scn, resume) VALUES (?, ?, ?, ?, ?)"
_PAGE = "SELECT * FROM candidate WHERE id <= ? ORDER BY id LIMIT ?"
_PLACES = "SELECT resume FROM candidate GROUP BY resume ORDER BY min(id)"
_KEYS_AT = "SELECT key FROM candidate WHERE resume IS ?"
_UNSEEN = "SELECT value FROM json_each(?) WHERE value NOT IN (SELECT id FROM seen)"
_PAGE_ROWS = 1000


class Candidate(NamedTuple):
    """A row that was not equal in store and database.

    `payload` is None when the database did not have the row. The read saw every
    transaction up to `scn`; `resume` is where its chunk began.
    """

    key: int | bytes
    payload: bytes | None
    digest: bytes
    scn: int
    resume: str | None


class ScratchTable:
    """The ids of the rows that were found, and the candidates for a difference.

    SQLite creates the file, and removes it when the process ends, however it ends.
    """

    def __init__(self) -> None:
        # An empty name: SQLite keeps the database in a temporary file of its own.
        self._db = sqlite3.connect("", isolation_level=None)
        self._db.executescript(_TABLES)

    def close(self) -> None:
        """Close and remove the file."""
        self._db.close()

    def see(self, ids: Iterable[int]) -> None:
        """Record that the database has these rows of the store."""
        self._db.execute("BEGIN")
        self._db.executemany("INSERT OR IGNORE INTO seen VALUES (?)", ((id_,) for id_ in ids))
        self._db.execute("COMMIT")

    def unseen(self, ids: Sequence[int]) -> set[int]:
        """Return those of the ids that were not recorded."""
        return {id_ for (id_,) in self._db.execute(_UNSEEN, (json.dumps(ids),))}

    def add(self, candidates: Iterable[Candidate]) -> None:
        """Add rows to be compared again."""
        self._db.execute("BEGIN")
        self._db.executemany(_ADD, candidates)
        self._db.execute("COMMIT")

    def take(self) -> Iterator[list[Candidate]]:
        """Yield all current candidates in batches, and remove them."""
        last = self._db.execute("SELECT max(id) FROM candidate").fetchone()[0]
        while page := self._db.execute(_PAGE, (last, _PAGE_ROWS)).fetchall():
            self._db.execute("DELETE FROM candidate WHERE id <= ?", (page[-1][0],))
            yield [Candidate(*row[1:]) for row in page]

    def take_places(self) -> list[tuple[str | None, set[int | bytes]]]:
        """Return where the candidates' chunks began, with the keys, and remove the candidates."""
        places = [place for (place,) in self._db.execute(_PLACES)]
        found = [
            (place, {key for (key,) in self._db.execute(_KEYS_AT, (place,))}) for place in places
        ]
        self._db.execute("DELETE FROM candidate")
        return found
