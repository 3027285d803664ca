"""The interface of a physical source, which yields windows, and the values it works with.

A source reads one change log, in commit order, and never skips a change. It has no knowledge of
rings and HTTP. It writes windows with the relay's encoder; a source that reads whole transactions
uses `WindowWriter` for that (`window_writer.py`). The rows of a transaction are in Avro's value
space: what fastavro accepts for the schema that `databus.schemas.table_schema` makes of the
table.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from databus.conf.named_places import NamedPlace, ScnPlace
from databus.conf.units import size_text
from databus.relay.sources.epochs import Epoch, Lineage, Serving
from databus.schemas.avro_rows import RowCodec
from databus.schemas.errors import DatabusError, SettingsError
from databus.schemas.event.metadata import Notes, Op
from databus.schemas.log_mark import LogMark
from databus.schemas.table import Table
from databus.schemas.table_change import TableChange
from databus.schemas.windows import (
    EmptyWindow,
    EncodedWindow,
    WindowBatch,
    WindowEnd,
    WindowPiece,
)

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Origin:
    """The position of a transaction in the source's log, for event metadata."""

    gtid: str | None = None
    server_id: int = 0
    file: str = ""
    offset: int = 0  # of the transaction's first byte
    epoch: int = 0
    # The lowest SCN after all earlier windows, if the source knows it before the end of the
    # transaction; None means the window's own SCN. Not in the metadata: it follows from the rest.
    first_scn: int | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class RowChange:
    """One row change.

    `row` is the row after the change (for a delete: before it); `before` is
    the row before an update, or None. `table` has the columns as they were at
    this SCN: a table object never seen before makes a new schema version.
    Columns that `notes` says are absent have no key in `row` (or `before`).
    `scn` is the row's own position, if the log has one for each row; errors name it.
    """

    table: Table
    op: Op
    row: Row
    before: Row | None = None
    comment: str | None = None  # of the statement, when the server logs it
    notes: Notes | None = None
    scn: int | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class TableEmptied:
    """All rows of a table were removed at once: TRUNCATE, DROP."""

    table: Table
    comment: str | None = None


@dataclass(frozen=True, slots=True)
class TableAltered:
    """The effect of a statement on a table and on its existing rows.

    `before` is the table before it, None for a new one. The version of `change` is not set yet;
    its SCN is -1 for the SCN of the window.
    """

    table: Table
    before: Table | None
    change: TableChange


@dataclass(frozen=True, slots=True)
class TableDefined:
    """A DDL statement on sources, as the server logged it, and the altered tables.

    With `is_dml` it is a DML statement that the log has instead of its rows: it altered the values
    of the tables' rows.
    """

    sources: tuple[str, ...]
    database: str
    statement: str
    altered: tuple[TableAltered, ...] = field(default=(), compare=False)
    is_dml: bool = False


Change = RowChange | TableEmptied | TableDefined


@dataclass(frozen=True, slots=True)
class Transaction:
    """All changes of one committed transaction, in order.

    No changes = an empty window: it moves the SCN of an idle source.
    """

    scn: int
    timestamp_ns: int  # commit time
    # Items of `Change`. Nearly all are row changes; only an encoder must know the others.
    changes: Sequence[RowChange | Any]
    origin: Origin = Origin()


@dataclass(frozen=True, slots=True)
class Newest:
    """The newest transaction of a source in the ring, or passed since: SCN and commit time."""

    scn: int
    timestamp_ns: int


@dataclass(frozen=True, slots=True)
class Findings:
    """What a source found when it was opened: a line for the log, and warnings to act on."""

    summary: str = ""
    warnings: tuple[str, ...] = ()


class LogSearch(NamedTuple):
    """A search of the log for which `open` or `read` waits."""

    purpose: str
    done_bytes: int
    total_bytes: int

    def __str__(self) -> str:
        done, total = size_text(self.done_bytes), size_text(self.total_bytes)
        return f"searching {done} of {total} of the log: {self.purpose}"


TellSearch = Callable[[LogSearch | None], None]


def tell_nobody(_search: LogSearch | None) -> None:
    """Do nothing with the progress of a search."""


class TableError(ValueError):
    """Rows or a statement of `tables` cannot be understood; others can. Never leaves the relay."""

    def __init__(self, text: str, tables: Sequence[str], remedy: str = "") -> None:
        super().__init__(text)
        self.tables, self.remedy = tuple(dict.fromkeys(tables)), remedy


class TablesFoundError(Exception):
    """Patterns match tables that are not captured; read again with them. Never leaves the relay."""

    def __init__(self, tables: Iterable[str], *, are_whole: bool = False) -> None:
        """`are_whole`: all rows that the tables ever had are in the log that follows.

        Without tables: one was made that cannot be captured, and the next opening warns of it.
        """
        self.tables, self.are_whole = tuple(tables), are_whole
        super().__init__(f"new tables: {', '.join(self.tables)}")


class UnfitRowError(TableError):
    """A row cannot be encoded with its table's schema. Never leaves the relay."""

    def __init__(
        self, scn: int, row_index: int, error: DatabusError, tables: Sequence[str]
    ) -> None:
        super().__init__(
            f"row {row_index} of the transaction at scn {scn} cannot be captured: {error}",
            tables,
            f"to continue without this row: acknowledged_scns = [{scn}]",
        )


class TableEncoder(NamedTuple):
    """How the rows of one table version are written."""

    table: Table
    src_id: int
    digest: bytes  # the id of the schema
    codec: RowCodec
    key_of: Callable[[Row], int | bytes]


class SourceSchema(NamedTuple):
    """A version of a source's schema, which is in force from `start_scn` on."""

    source: str
    text: str
    start_scn: int
    schema_id: bytes


class EventEncoder(Protocol):
    """Writes the events of one physical source, with the schemas and keys that the relay knows.

    `encode` writes a whole transaction. The other methods write a window event by event:
    versions that it makes are registered by `settle`, at its end, so that a window that is
    rolled back makes none. `revision` changes whenever a table's rows may be written otherwise.
    """

    before_images: bool
    revision: int

    def encode(self, transaction: Transaction) -> EncodedWindow:
        """Return a transaction's window; raises UnfitRowError for a row that does not fit."""
        ...

    @property
    def src_ids(self) -> Mapping[str, int]:
        """The ids of the sources, by name."""
        ...

    def schemas(self) -> Mapping[str, Sequence[SourceSchema]]:
        """Return all schema versions of each source, the oldest first, by name."""
        ...

    def adopt(self, schemas: Sequence[SourceSchema]) -> None:
        """Register versions as another relay has them, in order; raises SchemaError."""

    def known_table(self, table: Table, origin: Origin, scn: int) -> TableEncoder | None:
        """Return how a table's rows are written at `scn`; None when it has no version yet."""
        ...

    def mark(self) -> int:
        """Return the current state of the window, as `take_back` takes it."""
        ...

    def take_back(self, mark: int = 0) -> None:
        """Forget the versions that the current window has made since `mark`."""

    def settle(self) -> None:
        """Register the versions that a window has made, before it can be read."""

    def encode_change(self, change: Change, origin: Origin, row_index: int, scn: int) -> bytes:
        """Return one change's event, unstamped; raises UnfitRowError when it does not fit."""
        ...


class WindowRoom(Protocol):
    """Room for windows in a ring, behind those that it has."""

    def reserve(self, size_bytes: int) -> tuple[int, memoryview] | None:
        """Return the position of room for windows, and its bytes to write to; None without any.

        What is written there counts once it is handed over as a placed batch, before any other.
        """
        ...


# What a source hands over.
Captured = WindowBatch | WindowPiece | WindowEnd | EmptyWindow
# What it reads: transactions yet to be written, or windows that its decoder has written.
ReadItem = Transaction | WindowBatch | WindowPiece | WindowEnd


class Source(ABC):
    """A physical source, opened, read and closed by one capture thread.

    A subclass implements `open`, `tables`, `read` and `close`; the other members have
    defaults for a source that cannot say more.
    """

    name: str
    _encoder: EventEncoder | None = None
    _tell_search: TellSearch = staticmethod(tell_nobody)
    _room: WindowRoom | None = None
    _left_out: frozenset[str] = frozenset()

    def leave_out(self, tables: Collection[str]) -> None:
        """Read from the next `open` on without the rows of some tables, whatever they are.

        The encoder leaves out what it is given of them. A source whose log has rows that cannot
        be read without their definition must not read those.
        """
        self._left_out = frozenset(tables)

    def write_with(self, encoder: EventEncoder) -> None:
        """Write windows with `encoder` from the next `open` on.

        Without an encoder, `read` says how far the log was read, by empty windows.
        """
        self._encoder = encoder

    def tell_searches(self, tell: TellSearch) -> None:
        """Call `tell` with the progress of long searches of the log, and None at their ends.

        It is called on the capture thread, and may raise an error to end the search.
        """
        self._tell_search = tell

    def write_into(self, room: WindowRoom) -> None:
        """Write windows into `room` from the next `open` on, where a source can do that.

        Their batches are placed; all others are handed over with their data.
        """
        self._room = room

    def expect(self, marks: Sequence[LogMark]) -> None:  # noqa: B027 - not every source can tell
        """Take what was kept of the log, before `open`.

        A source that can tell then yields nothing, on any connection, before it has proved
        that its log is the one of these marks.
        """

    def follow(self, lineage: Lineage) -> None:  # noqa: B027 - not every source has several servers
        """Take what must be known to go on at another server, before `open`."""

    @property
    def serving(self) -> Serving | None:
        """The epoch that is read, once open; None for a source without epochs."""
        return None

    @property
    def epochs(self) -> Sequence[Epoch] | None:
        """The epochs of what is read, the oldest first, from where it comes; None = made here."""
        return None

    @property
    def executed(self) -> str | None:
        """GTIDs of all that was handed over, as `Lineage` takes them; None if they are unknown."""
        return None

    @abstractmethod
    def open(self, after_scn: int | None, newest: Newest | None = None) -> None:
        """Connect and start after `after_scn`; None = where the settings say.

        `newest` is the newest window that the relay holds. A log in which it is not the
        transaction that it was is another log: a source that can tell stops.

        Raises SourceUnavailableError (the capture loop retries with back-off)
        or SourceStoppedError (it does not).
        """

    def scn_at(self, place: NamedPlace) -> int:
        """Return the SCN after which the log goes on at a named place, without `open`.

        Raises as `open` does, and SettingsError for a form that the source does not know. Whether
        the log still has what follows is for `open` and `read` to find out.
        """
        if isinstance(place, ScnPlace):
            return place.scn
        raise SettingsError(f"{place}: this kind of source is read again after an SCN only")

    @property
    def findings(self) -> Findings:
        """What the source found when it was opened."""
        return Findings()

    @abstractmethod
    def tables(self) -> Sequence[Table]:
        """Return the watched tables as they are now, to publish their schemas."""

    @abstractmethod
    def read(self) -> Sequence[Captured]:
        """Return the next windows; waits a while, [] when there were none.

        Must come back within about a second so that the loop can be stopped.
        Raises as `open` does; after SourceUnavailableError the loop calls
        `close` and `open` again with the last SCN it appended.
        """

    @property
    def is_at_end(self) -> bool:
        """Whether nothing follows in the log when `read` has returned []."""
        return True

    @property
    def silence_s(self) -> float:
        """For how long the database has not been heard of, as of the last `read`."""
        return 0.0

    @property
    def relays(self) -> tuple[str, ...]:
        """The ids of the relays through which the database is read, as of the last `read`."""
        return ()

    def mark_of(self, scn: int) -> LogMark | None:  # noqa: ARG002
        """Return what the log is at an SCN that was handed over; None when that is not known.

        Marks of lower SCNs are forgotten.
        """
        return None

    @abstractmethod
    def close(self) -> None:
        """Close every connection and file; may be called twice."""
