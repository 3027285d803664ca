"""The interface to read a source's tables: chunks of rows, in key order.

Bootstrap servers and Spark combine a scan with the change log. `visible_scn` is an SCN up to
which every transaction is visible to later reads. So a row that is read after it is at least as
new as that SCN, and later changes are in the log.

A scan never writes, takes no lock that a writer waits for, and keeps no transaction open for
longer than a chunk. The exception is a table that cannot be read in chunks: it takes one
consistent read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple, Protocol

from databus.relay.sources.source import Row, TableEncoder
from databus.schemas.table import Table

NO_KEY_RANGES = (
    "{}: its primary key is not one integer (any more), so it cannot be read by ranges of it; "
    "begin the reading again"
)


class KeyRange(NamedTuple):
    """A range of integer primary keys, from `first` to `last` inclusive."""

    first: int
    last: int

    def split(self, parts: int) -> list[KeyRange]:
        """Split the range into at most `parts` ranges of about the same size."""
        width = self.last - self.first + 1
        parts = min(parts, width)
        bounds = [self.first + width * n // parts for n in range(parts + 1)]
        return [KeyRange(a, b - 1) for a, b in pairwise(bounds)]


class SnapshotForm(NamedTuple):
    """What the snapshot events of one scan have in common.

    `metadata` is the part of that name without its length, up to the row's index; what follows
    the index is `metadata_end`.
    """

    encoder: TableEncoder
    scn: int
    timestamp_ns: int
    metadata: bytes
    metadata_end: bytes


Key = int | bytes
# Writes the key and the snapshot event of each row of a chunk, in order; the index of a row is
# its number. Returns None where only Python can.
WriteEvents = Callable[[SnapshotForm], list[tuple[Key, bytes]] | None]


@dataclass(frozen=True, slots=True)
class Chunk:
    """Rows that were read together.

    `rows` have the columns of `table`, in Avro's value space, like a `RowChange.row` of the same
    source; `table` is a new object only if the definition has changed. `resume` continues after
    these rows in `TableScan.chunks`. It is None at the end of the table, and "" if more rows
    follow but only this read can continue. `write_events` is faster than the encoding of `rows`;
    it is None for a scan that cannot do it. Reading `rows` may raise what the scan raises.
    """

    table: Table
    rows: Sequence[Row]
    resume: str | None
    write_events: WriteEvents | None = None


class TableScan(Protocol):
    """Reads the tables of one physical source; opened, used and closed by one thread.

    Every method raises SourceUnavailableError (close, wait, open again) or
    SourceStoppedError (a person must do what the text says).
    """

    name: str

    def open(self) -> None:
        """Connect, and check that the tables can be read."""

    def close(self) -> None:
        """Close every connection; may be called twice."""

    def table(self, source: str) -> Table:
        """Return a source's current table."""
        ...

    def is_chunked(self, source: str) -> bool:
        """Return whether reading can resume after a restart; if not, it is one consistent read."""
        ...

    def estimate_rows(self, source: str) -> int:
        """Return an estimate of the table's number of rows."""
        ...

    def visible_scn(self) -> int:
        """Return an SCN up to which every transaction is visible to later reads."""
        ...

    def newest_scn(self) -> int:
        """Return the SCN at which the change log ends now."""
        ...

    def chunks(self, source: str, rows: int, resume: str | None = None) -> Iterator[Chunk]:
        """Read a table from its beginning, or after the chunk with this `resume`.

        A chunk has at most `rows` rows; the last has no `resume`. If the order of the rows has
        changed, reading starts over by itself: then rows are read twice, and none is missed.
        """
        ...

    def key_range(self, source: str) -> KeyRange | None:
        """Return the range of the current keys.

        None if the table is empty, or is not read in the order of one integer key.
        """
        ...

    def chunks_within(self, source: str, rows: int, within: KeyRange) -> Iterator[Chunk]:
        """Read the rows whose keys are in a range, in chunks of at most `rows` rows.

        For several readers of one table. Raises SourceStoppedError if the key is not one
        integer (any more).
        """
        ...
