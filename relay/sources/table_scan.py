"""What reading a source's tables is to a bootstrap server: chunks of rows, in key order.

A scan is beside the change log and says how the two fit: `visible_scn` is an SCN
up to which every transaction is visible to whatever is read later. So a row that
was read is at least as new as that, and what changed after is in the log.

A scan never writes, takes no lock that a writer waits for, and holds no
transaction open for longer than a chunk; a table that cannot be read in chunks
is the exception, for it takes one consistent read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple, Protocol

from databus.relay.sources.source import Row
from databus.schemas.table import Table

NO_KEY_RANGES = (
    "{}: its primary key is not one integer (any more), so it cannot be read by ranges of it; "
    "begin the reading again"
)


class KeyRange(NamedTuple):
    """Values of a primary key that is one integer: from `first` to `last`, both of them in it."""

    first: int
    last: int

    def split(self, parts: int) -> list[KeyRange]:
        """Return up to so many ranges of about one size that together are this one."""
        width = self.last - self.first + 1
        parts = min(parts, width)
        bounds = [self.first + width * n // parts for n in range(parts + 1)]
        return [KeyRange(a, b - 1) for a, b in pairwise(bounds)]


@dataclass(frozen=True, slots=True)
class Chunk:
    """Rows that were read together.

    `rows` have the columns of `table`, in Avro's value space, exactly as a
    `RowChange.row` of the same source; `table` is a new object only when the
    definition has changed. `resume` is what `TableScan.chunks` takes to go on
    after these rows, and None when the table is at its end; "" = it goes on, but
    only in this read.
    """

    table: Table
    rows: Sequence[Row]
    resume: str | None


class TableScan(Protocol):
    """Reads the tables of one physical source; opened, used and closed by one thread.

    Every method raises SourceUnavailableError (close, wait, open again) or
    SourceStoppedError (somebody must do what the text says).
    """

    name: str

    def open(self) -> None:
        """Connect, and check that the tables can be read."""

    def close(self) -> None:
        """Let go of every connection; may be called twice."""

    def table(self, source: str) -> Table:
        """Return a source's table as it is now."""
        ...

    def is_chunked(self, source: str) -> bool:
        """Say whether reading can go on after a restart; if not, it is one consistent read."""
        ...

    def estimate_rows(self, source: str) -> int:
        """Return about how many rows the table has."""
        ...

    def visible_scn(self) -> int:
        """Return an SCN up to which every transaction is visible to later reads."""
        ...

    def newest_scn(self) -> int:
        """Return where the change log ends now."""
        ...

    def chunks(self, source: str, rows: int, resume: str | None = None) -> Iterator[Chunk]:
        """Read a table from its beginning, or after the chunk whose `resume` is given.

        A chunk has at most `rows` rows; the last has no `resume`. Reading begins
        anew, by itself, when the order of the rows is no longer what it was: then
        rows come twice, and none is left out.
        """
        ...

    def key_range(self, source: str) -> KeyRange | None:
        """Return the least and the greatest key there is now.

        None when the table is empty, or its key is not one integer by whose order it is read.
        """
        ...

    def chunks_within(self, source: str, rows: int, within: KeyRange) -> Iterator[Chunk]:
        """Read the rows whose keys are in a range, in chunks of at most `rows` rows.

        For several readers of one table. Raises SourceStoppedError when the key is not
        one integer (any more).
        """
        ...
