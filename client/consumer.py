"""The consumer interface: callbacks, their results, and the events passed to them.

Per window:

    on_start_data_event_sequence(scn)
      on_start_source(source) → on_data_event(event)… → on_end_source(source)
                                                per run of events of one source
    on_end_data_event_sequence(scn)
    on_checkpoint(scn)

`on_schema_change(source, before, after, needs_reload)` comes before the first event of a
new version of a table's schema.

A DDL statement on one of the registration's tables makes the call `on_ddl(event)` at its
position among the rows, between the sources' runs, if that callback is overridden.

An empty window (changes of other tables only) calls `on_checkpoint` alone. Events are
delivered at least once, in commit order, in whole windows; after `on_rollback(scn)` every
window after `scn` is delivered again. All callbacks of one registration run on one thread,
its dispatcher's.

A client without a checkpoint, or whose position no relay holds any more, first reads from a
bootstrap server:

    on_start_bootstrap()
      per page:
        on_start_bootstrap_sequence(scn)
          on_start_bootstrap_source(source) → on_bootstrap_event(event)…
            → on_end_bootstrap_source(source)
        on_end_bootstrap_sequence(scn)
        on_bootstrap_checkpoint(scn)
    on_stop_bootstrap()

First come the current rows (the snapshot; it is consistent from `scn` on), then the changes
since then (the catch-up; a page reaches up to `scn`). A page is not a transaction: during a
snapshot some rows may be newer than others, and only at `on_stop_bootstrap` are all rows as
of one moment.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import TYPE_CHECKING, Any, NamedTuple

from databus.schemas.event.event import Opcode
from databus.schemas.event.layout import MD5_PART_BYTES
from databus.schemas.event.metadata import (
    METADATA_DIGEST as NOTED_METADATA_DIGEST,
    METADATA_DIGESTS,
    EventMetadata,
    Notes,
    Op,
    decode_metadata,
    may_have_notes,
)
from databus.schemas.stream.row_reader import (
    IS_PLAIN,
    KEY,
    METADATA_DIGEST,
    NO_ROW_DIGEST,
    OPCODE,
    PLACE,
    ROW_DIGEST,
    SCN,
    TIMESTAMP_NS,
    WIRE,
    RowEvent,
    metadata_bytes,
    row_bytes,
    wire_bytes,
)

if TYPE_CHECKING:
    from databus.client.subscription import SourceBinding

__all__ = ["Consumer", "DataEvent", "DdlEvent", "Op", "Result"]


class Result(Enum):
    """The result of a callback; None means SUCCESS."""

    SUCCESS = "success"
    # Write a checkpoint at the end of this window, whether one is due or not.
    CHECKPOINT = "checkpoint"
    # Write no checkpoint at the end of this window: its data is not safe yet. The
    # checkpoint of a later window covers it.
    SKIP_CHECKPOINT = "skip_checkpoint"
    ERROR = "error"  # roll back to the last successful window, and deliver this one again
    ERROR_FATAL = "error_fatal"  # stop the client


class DataEvent:
    """One row change, or the removal of all rows of a table (`is_truncate`).

    The row is decoded at the first access. `index` counts the events of the window from 0.
    An event may be kept after the callback and read from any thread.
    """

    __slots__ = ("_event", "_metadata", "_row", "_source", "index")

    def __init__(self, event: RowEvent, source: SourceBinding, index: int) -> None:
        self._event = event
        self._source = source
        self.index = index
        self._row: dict[str, Any] | None = None
        self._metadata: EventMetadata | None = None

    @property
    def source(self) -> str:
        """The source's name, e.g. `shop.orders`."""
        return self._source.name

    @property
    def src_id(self) -> int:
        """The source's id at the server that sent the event."""
        return self._source.src_id

    @property
    def scn(self) -> int:
        """The window's SCN."""
        return self._event[SCN]

    @property
    def key(self) -> int | bytes:
        """The row's key: a number, or the key columns as text; empty for a truncate."""
        return self._event[KEY]

    @property
    def timestamp_ns(self) -> int:
        """The commit time, nanoseconds since the epoch."""
        return self._event[TIMESTAMP_NS]

    @property
    def is_delete(self) -> bool:
        """Whether the row was deleted; `row` is then the old row. True for a truncate too."""
        return self._event[OPCODE] == Opcode.DELETE

    @property
    def is_truncate(self) -> bool:
        """Whether all rows of the table were removed (TRUNCATE, DROP); `row` is then empty."""
        return self._event[ROW_DIGEST] == NO_ROW_DIGEST

    @property
    def row(self) -> dict[str, Any]:
        """The row after the change (before it, for a delete), column → value.

        Columns that the source did not log are missing: see `absent`. Raises ProtocolError
        or IncompatibleSchemaError if the row cannot be decoded.
        """
        row = self._row
        if row is None:
            event = self._event
            if event[IS_PLAIN]:
                row = self._row = self._source.codecs[event[ROW_DIGEST]].decode(
                    event[WIRE][event[PLACE] + MD5_PART_BYTES :]  # row_bytes(event), in line
                )
            else:
                row = self._row = self._read_row()
        return row

    def _read_row(self) -> dict[str, Any]:
        if self.is_truncate:
            return {}
        codec, notes = self._source.codecs[self._event[ROW_DIGEST]], self._notes
        return codec.decode(row_bytes(self._event), () if notes is None else notes.absent)

    @property
    def _notes(self) -> Notes | None:
        event = self._event
        if event[IS_PLAIN] or event[METADATA_DIGEST] != NOTED_METADATA_DIGEST:
            return None
        if self._metadata is None and not may_have_notes(metadata_bytes(event)):
            return None
        metadata = self.metadata
        return None if metadata is None else metadata.notes

    @property
    def has_absent(self) -> bool:
        """Whether a column of `row` or `before` was not logged."""
        notes = self._notes
        return notes is not None and bool(notes.absent or notes.before_absent)

    @property
    def absent(self) -> tuple[str, ...]:
        """The columns missing from `row` because the source did not log their values.

        This does not mean null: their values have not changed.
        """
        notes = self._notes
        if notes is None or not notes.absent:
            return ()
        columns = self._source.codecs[self._event[ROW_DIGEST]].written_columns
        return tuple(columns[position] for position in notes.absent if position < len(columns))

    @property
    def raw(self) -> Mapping[str, str]:
        """Column → the server's text of a value that `row` cannot hold, such as a zero date."""
        notes = self._notes
        return {} if notes is None else notes.raw

    @property
    def metadata(self) -> EventMetadata | None:
        """The metadata that the relay adds to the row; None from relays of other projects."""
        if self._metadata is None:
            digest = self._event[METADATA_DIGEST]
            if digest not in METADATA_DIGESTS:
                return None
            self._metadata = decode_metadata(metadata_bytes(self._event), digest)
        return self._metadata

    @property
    def op(self) -> Op:
        """The kind of change. Without metadata an insert is reported as an update."""
        metadata = self.metadata
        if metadata is not None:
            return metadata.op
        if self.is_truncate:
            return Op.TRUNCATE
        return Op.DELETE if self.is_delete else Op.UPDATE

    @property
    def before(self) -> dict[str, Any] | None:
        """The row before an update, or None if the relay does not send it."""
        metadata = self.metadata
        if metadata is None or metadata.before is None:
            return None
        absent = () if metadata.notes is None else metadata.notes.before_absent
        return self._source.codecs[self._event[ROW_DIGEST]].decode(metadata.before, absent)

    @property
    def gtid(self) -> str | None:
        """The transaction's GTID in the server's text form, or None."""
        return None if self.metadata is None else self.metadata.gtid

    @property
    def schema_version(self) -> int:
        """The version of the source's schema that the row was written with; 0 without a row."""
        return 0 if self.is_truncate else self._source.versions[self._event[ROW_DIGEST]]

    def wire_bytes(self) -> bytes:
        """Return the event's version 2 bytes, as received; a version 1 event is encoded."""
        return wire_bytes(self._event)

    def __repr__(self) -> str:
        kind = "truncate" if self.is_truncate else "delete" if self.is_delete else "upsert"
        return f"<DataEvent {kind} {self.source} key={self.key!r} scn={self.scn} #{self.index}>"


class DdlEvent(NamedTuple):
    """A DDL statement, as the source logged it."""

    sources: tuple[str, ...]  # of the tables it concerns, other registrations' too
    database: str  # the default database of the statement, "" = none
    statement: str
    scn: int  # of its window
    timestamp_ns: int


class Consumer:
    """Base class of consumers: override the callbacks you need.

    Each returns a `Result`, or None for SUCCESS. An exception counts as ERROR, and so does
    a callback that takes longer than `callback_budget_s`.
    """

    def on_start_consumption(self) -> Result | None:
        """Consumption starts; called once, before all other callbacks."""

    def on_stop_consumption(self) -> Result | None:
        """Consumption has ended; called once, after all other callbacks."""

    def on_start_data_event_sequence(self, scn: int) -> Result | None:
        """A window with events begins."""

    def on_start_source(self, source: str) -> Result | None:
        """Events of this source follow."""

    def on_data_event(self, event: DataEvent) -> Result | None:
        """A row has changed."""

    def on_ddl(self, event: DdlEvent) -> Result | None:
        """A table of the registration was altered, created, dropped or truncated."""

    def on_schema_change(
        self, source: str, before: str, after: str, needs_reload: bool
    ) -> Result | None:
        """A table was altered, which also changes rows that were not written since.

        Called once per version, before its first event; `before` and `after` are the
        schema texts. `databus.schemas.table_change.step(before, after).row(row)` converts
        a row of the old version, unless `needs_reload`: then only the database knows the
        new values, and a bootstrap delivers them.
        """

    def on_end_source(self, source: str) -> Result | None:
        """This run of events of the source has ended."""

    def on_end_data_event_sequence(self, scn: int) -> Result | None:
        """All events of the window have been delivered."""

    def on_checkpoint(self, scn: int) -> Result | None:
        """A checkpoint may be written here: a restart continues after `scn`."""

    def on_rollback(self, scn: int) -> Result | None:
        """Every window after `scn` is delivered again (-1: all windows)."""

    def on_error(self, error: BaseException) -> Result | None:
        """An error stops the client."""

    # A bootstrap makes the same calls under other names. A consumer that treats snapshot
    # rows like changes need not override them.

    def on_start_bootstrap(self) -> Result | None:
        """Pages follow: current rows, then changes; after a restart, the remaining pages."""

    def on_stop_bootstrap(self) -> Result | None:
        """All rows are now as of one SCN; windows follow again."""

    def on_start_bootstrap_sequence(self, scn: int) -> Result | None:
        """As `on_start_data_event_sequence`, for a page."""
        return self.on_start_data_event_sequence(scn)

    def on_start_bootstrap_source(self, source: str) -> Result | None:
        """As `on_start_source`."""
        return self.on_start_source(source)

    def on_bootstrap_event(self, event: DataEvent) -> Result | None:
        """As `on_data_event`."""
        return self.on_data_event(event)

    def on_end_bootstrap_source(self, source: str) -> Result | None:
        """As `on_end_source`."""
        return self.on_end_source(source)

    def on_end_bootstrap_sequence(self, scn: int) -> Result | None:
        """As `on_end_data_event_sequence`."""
        return self.on_end_data_event_sequence(scn)

    def on_bootstrap_checkpoint(self, scn: int) -> Result | None:
        """As `on_checkpoint`."""
        return self.on_checkpoint(scn)

    def on_bootstrap_rollback(self, scn: int) -> Result | None:
        """As `on_rollback`; -1 = the bootstrap restarts, so empty the target.

        A row that was delivered and has been deleted since may not come again. With another
        `scn` only the events after the last `on_bootstrap_checkpoint`, or after `scn`, are
        delivered again.
        """
        return self.on_rollback(scn)
