"""What every physical source is to the relay: something that yields transactions.

A source reads one change log, in commit order, and never skips. It knows
nothing of rings, Avro bytes or HTTP; the capture loop encodes what it yields.
The rows it yields are already in Avro's value space (what fastavro takes for
the schema that `databus.schemas.table_schema` makes of the table).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, runtime_checkable

from databus.schemas.avro_rows import RowCodec
from databus.schemas.event.metadata import Notes, Op
from databus.schemas.log_mark import LogMark
from databus.schemas.table import Table
from databus.schemas.table_change import TableChange
from databus.schemas.windows import WindowBatch, WindowEnd, WindowPiece

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Origin:
    """Where in the source's log a transaction stands; goes into event metadata."""

    gtid: str | None = None
    server_id: int = 0
    file: str = ""
    offset: int = 0  # of the transaction's first byte
    epoch: int = 0
    # The lowest SCN behind every window before this one, where the source knows it as its
    # rows come; of others the window's own. Not in the metadata: it follows from the rest.
    first_scn: int | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class RowChange:
    """One row change.

    `row` is the row after the change (for a delete: before it); `before` is
    the row before an update, or None. `table` has the columns as they were at
    this SCN: a table object never seen before makes a new schema version.
    Columns that `notes` says are absent have no key in `row` (or `before`).
    """

    table: Table
    op: Op
    row: Row
    before: Row | None = None
    comment: str | None = None  # of the statement, when the server logs it
    notes: Notes | None = None


@dataclass(frozen=True, slots=True)
class TableEmptied:
    """All rows of a table are gone at once: TRUNCATE, DROP."""

    table: Table
    comment: str | None = None


@dataclass(frozen=True, slots=True)
class TableAltered:
    """What a statement made of a table, and of the rows in it that nobody has written since.

    `before` is what it was, None for one that was made. The version of `change` is
    not filled in, and its SCN is -1 where it is that of the window.
    """

    table: Table
    before: Table | None
    change: TableChange


@dataclass(frozen=True, slots=True)
class TableDefined:
    """A DDL statement on these sources, as the server logged it, and what it altered."""

    sources: tuple[str, ...]
    database: str
    statement: str
    altered: tuple[TableAltered, ...] = field(default=(), compare=False)


Change = RowChange | TableEmptied | TableDefined


@dataclass(frozen=True, slots=True)
class Transaction:
    """All changes of one committed transaction, in order.

    No changes = an empty window: it moves the SCN of an idle source.
    """

    scn: int
    timestamp_ns: int  # commit time
    # Of `Change`. Nearly all are row changes; only who writes windows must know the others.
    changes: Sequence[RowChange | Any]
    origin: Origin = Origin()


@dataclass(frozen=True, slots=True)
class Newest:
    """The newest transaction that a source has handed over, as far as anybody knows."""

    scn: int
    timestamp_ns: int


class TableEncoder(NamedTuple):
    """How the rows of one table version are written."""

    table: Table
    src_id: int
    digest: bytes  # the MD5 of the schema
    codec: RowCodec
    key_of: Callable[[Row], int | bytes]


class EventEncoder(Protocol):
    """What a source asks for that writes windows itself.

    Versions that a window makes are registered by `settle`, at its end: what is rolled
    back makes none. `revision` is another whenever a table's rows may be written otherwise.
    """

    before_images: bool
    revision: int

    def known_table(self, table: Table, origin: Origin, scn: int) -> TableEncoder | None:
        """Return how a table's rows are written at `scn`; None when it has no version yet."""
        ...

    def mark(self) -> int:
        """Return what `take_back` takes to come back to here."""
        ...

    def take_back(self, mark: int = 0) -> None:
        """Forget the versions that the window under way has made since `mark`."""

    def settle(self) -> None:
        """Register the versions that a window has made; before anybody can read it."""

    def encode_change(self, change: Change, origin: Origin, row_index: int, scn: int) -> bytes:
        """Return one change's event, unstamped; raises ValueError when it does not fit."""
        ...


# What a source hands over: transactions, or windows that it has written itself.
Captured = Transaction | WindowBatch | WindowPiece | WindowEnd


class Source(Protocol):
    """A physical source, opened, read and closed by one capture thread."""

    name: str

    def open(self, after_scn: int | None, newest: Newest | None = None) -> None:
        """Connect and start after `after_scn`; None = where the settings say.

        A log in which `newest` is not the transaction that it was is another
        log: a source that can tell stops.

        Raises SourceUnavailableError (the capture loop retries with back-off)
        or SourceStoppedError (it does not).
        """

    def tables(self) -> Sequence[Table]:
        """Return the watched tables as they are now, to publish their schemas."""
        ...

    def read(self) -> Sequence[Captured]:
        """Return the next transactions or windows; waits a while, [] when there were none.

        Must come back within about a second so that the loop can be stopped. [] says that
        nothing follows, unless the source has an `is_at_end` that is False.
        Raises as `open` does; after SourceUnavailableError the loop calls
        `close` and `open` again with the last SCN it appended.
        """
        ...

    def close(self) -> None:
        """Let go of every connection and file; may be called twice."""


@runtime_checkable
class MarkedSource(Source, Protocol):
    """A source that can say what its log is at an SCN, and know it again."""

    def expect(self, marks: Sequence[LogMark]) -> None:
        """Hear what was kept of the log, before `open`: a log that is not as they say is another.

        Then, and on each connection, nothing is yielded before that is proved.
        """

    def mark_of(self, scn: int) -> LogMark | None:
        """Return what the log is at an SCN that was handed over; None when that is not known.

        Those before it are forgotten.
        """
        ...


@runtime_checkable
class WindowSource(Source, Protocol):
    """A source that can write windows itself, and then does not yield transactions with changes."""

    def write_with(self, encoder: EventEncoder) -> None:
        """Write windows, with the schemas and keys that `encoder` knows; before `open`."""
