"""The table that checksums of chunks are written to, in the source's own database.

The checksum of a chunk is computed in the transaction that writes it, with locks under
which nobody else changes the chunk until that transaction is committed. So the row
arrives in the change stream at the very place for which its checksum holds: all changes
of the chunk before it are in the checksum, and none after it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import NamedTuple

from databus.schemas.errors import SettingsError

NAME = "databus_checksums"
COLUMNS = ("run", "number", "source", "after_key", "last_key", "chunk_rows", "digest")
# One definition for every kind of database. Keys are in it for whoever reads the table.
CREATE = (
    "CREATE TABLE {} (run VARCHAR(32) NOT NULL, number INTEGER NOT NULL, "
    "source VARCHAR(200) NOT NULL, after_key BIGINT, last_key BIGINT, "
    "chunk_rows BIGINT NOT NULL, digest BIGINT NOT NULL, PRIMARY KEY (run, number))"
)


class ChunkQuery(NamedTuple):
    """The query that digests the first `rows` rows behind the key `after`.

    `select` returns its SQL, given the clause that locks the rows. It has one row, with
    columns `last` (the greatest key), `found` (the row count) and `digest`.
    """

    select: Callable[[str], str]
    after: int | None
    rows: int


class ChecksumPlace(NamedTuple):
    """Where the checksums of one comparison are: table, source, compared table, run.

    `table` and `compared` are names in the database. `source` is the table's name in the
    stream, and `run` that of the comparison.
    """

    table: str
    source: str
    compared: str
    run: str


class Written(NamedTuple):
    """A checksum row: the chunk's last key, None for a table's last chunk, and its row count."""

    last: int | None
    rows: int


class ChecksumTable(ABC):
    """The checksum rows of one comparison, on a connection of their own; for one thread.

    Methods raise SourceError, whose text says what to do.
    """

    def __init__(self, place: ChecksumPlace) -> None:
        self.table, self.source, self._compared, self.run = place

    @abstractmethod
    def create(self) -> None:
        """Create the table if it is not there."""

    @abstractmethod
    def check(self) -> None:
        """Raise SettingsError unless checksums can be written that hold at their place."""

    @abstractmethod
    def write(self, number: int, query: ChunkQuery) -> Written:
        """Compute the checksum of a chunk and write its row, in one transaction."""

    @abstractmethod
    def delete(self) -> None:
        """Delete the rows of this comparison."""

    @abstractmethod
    def close(self) -> None:
        """Close the connection; may be called twice."""

    def _missing(self) -> SettingsError:
        return SettingsError(
            f"table {self.table} is not there: --create-table creates it, or do it yourself: "
            f"{CREATE.format(self.table)}"
        )

    def _insert(self, number: int, query: ChunkQuery, lock: str = "") -> str:
        """Return the statement that digests a chunk and writes its row.

        A chunk with fewer rows than were asked for is the table's last one.
        """
        after = "NULL" if query.after is None else str(query.after)
        last = f"CASE WHEN found < {query.rows} THEN NULL ELSE last END"
        return (
            f"INSERT INTO {self._quoted} ({', '.join(COLUMNS)}) SELECT '{self.run}', {number}, "
            f"{self._literal}, {after}, {last}, found, digest "
            f"FROM ({query.select(lock)}) AS digested"
        )

    def _row(self, number: int) -> str:
        """Return the query of a row that was written."""
        return (
            f"SELECT last_key, chunk_rows FROM {self._quoted} "
            f"WHERE run = '{self.run}' AND number = {number}"
        )

    def _delete(self) -> str:
        return f"DELETE FROM {self._quoted} WHERE run = '{self.run}'"

    @property
    @abstractmethod
    def _quoted(self) -> str:
        """The table's name in SQL."""

    @property
    @abstractmethod
    def _literal(self) -> str:
        """The compared table's name as text in SQL."""
