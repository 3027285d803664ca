"""Checksum rows in SQLite: digest and row in one `BEGIN IMMEDIATE` transaction.

SQLite has one writer at a time. The transaction has the write lock before it reads, so the
rows are those of the commit before it; the trigger writes the checksum's row into the change
log, behind everything that was read.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path

from databus.client.spark.verify.checksums.checksum_table import (
    CREATE,
    ChecksumPlace,
    ChecksumTable,
    ChunkQuery,
    Written,
)
from databus.relay.sources.sqlite.catalog import quote
from databus.relay.sources.sqlite.connection import transaction, translated

_IS_THERE = "SELECT 1 FROM main.sqlite_master WHERE type = 'table' AND name = ? COLLATE NOCASE"


class SqliteChecksums(ChecksumTable):
    """Checksum rows on one connection, which has the functions of digests; see `SqliteTable`."""

    def __init__(self, place: ChecksumPlace, connection: sqlite3.Connection, path: Path) -> None:
        super().__init__(place)
        self._connection = connection
        self._path = path
        self._own_name = self.table.partition(".")[2] or self.table

    @property
    def _quoted(self) -> str:
        return quote(self._own_name)

    @property
    def _literal(self) -> str:
        return "'{}'".format(self._compared.replace("'", "''"))

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def create(self) -> None:
        """Create the table if it is not there."""
        if not self._is_there():
            self._run_all(CREATE.format(self._quoted))

    def check(self) -> None:
        """Raise SettingsError if the table is not there."""
        if not self._is_there():
            raise self._missing()

    def write(self, number: int, query: ChunkQuery) -> Written:
        """Compute the checksum of a chunk and write its row, in one transaction."""
        with translated(self._compared, self._path, lambda: 0), transaction(self._connection) as db:
            db.execute(self._insert(number, query))
            last, rows = db.execute(self._row(number)).fetchone()
        return Written(last, rows)

    def delete(self) -> None:
        """Delete the rows of this comparison."""
        self._run_all(self._delete())

    def _is_there(self) -> bool:
        with translated(self._compared, self._path, lambda: 0):
            return self._connection.execute(_IS_THERE, (self._own_name,)).fetchone() is not None

    def _run_all(self, statement: str) -> None:
        with translated(self._compared, self._path, lambda: 0), transaction(self._connection) as db:
            db.execute(statement)
