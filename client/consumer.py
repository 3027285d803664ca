"""What a consumer is: callbacks, their results, and the event that they are given.

Per window:

    on_start_data_event_sequence(scn)
      on_start_source(source) → on_data_event(event)… → on_end_source(source)
                                                per run of events of one source
    on_end_data_event_sequence(scn)
    on_checkpoint(scn)

Before the first event of another version of a table's schema comes
`on_schema_change(source, before, after, needs_reload)`.

A DDL statement on one of the registration's tables gives `on_ddl(event)` in its
place among the rows, between the sources' runs, to who overrides it.

An empty window (other tables' changes) gives `on_checkpoint` alone. Events come
at least once, in commit order, whole windows; after `on_rollback(scn)` every
window after `scn` comes again. All callbacks of one registration are made on
one thread, its dispatcher's.

A client that no relay can serve any more, or that starts from nothing, reads
from a bootstrap server first:

    on_start_bootstrap()
      per page:
        on_start_bootstrap_sequence(scn)
          on_start_bootstrap_source(source) → on_bootstrap_event(event)…
            → on_end_bootstrap_source(source)
        on_end_bootstrap_sequence(scn)
        on_bootstrap_checkpoint(scn)
    on_stop_bootstrap()

First the rows as they stand (the snapshot; `scn` is the one it is consistent
from), then the changes since (the catch-up; `scn` is how far the page leads).
A page is no transaction: while a snapshot is read, rows may be older or newer
than each other, and only at `on_stop_bootstrap` they are those of one moment.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import TYPE_CHECKING, Any, NamedTuple

from databus.schemas.event.event import Opcode
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
    BODY,
    IS_PLAIN,
    KEY,
    MD5_PART_BYTES,
    METADATA_DIGEST,
    NO_ROW_DIGEST,
    OPCODE,
    PLACE,
    ROW_DIGEST,
    SCN,
    TIMESTAMP_NS,
    RowEvent,
    metadata_bytes,
    row_bytes,
    wire_bytes,
)

if TYPE_CHECKING:
    from databus.client.subscription import SourceBinding

__all__ = ["Consumer", "DataEvent", "DdlEvent", "Op", "Result"]


class Result(Enum):
    """What a callback says; None is SUCCESS."""

    SUCCESS = "success"
    # Write a checkpoint at the end of this window, without waiting for the usual time.
    CHECKPOINT = "checkpoint"
    # Write none at the end of this window: what it brought is not safe yet. A
    # later window's checkpoint covers it.
    SKIP_CHECKPOINT = "skip_checkpoint"
    ERROR = "error"  # roll back to the last window that succeeded, and come again
    ERROR_FATAL = "error_fatal"  # stop the client


class DataEvent:
    """One row change, or that all rows of a table are gone (`is_truncate`).

    Decodes the row when it is first asked for.

    `index` counts the events of the window from 0. May be kept after the
    callback, and read from any thread.
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
        """The source's id at the server that sent it."""
        return self._source.src_id

    @property
    def scn(self) -> int:
        """The window's SCN."""
        return self._event[SCN]

    @property
    def key(self) -> int | bytes:
        """The row's key: a number, or the text form of the key columns; empty for all rows."""
        return self._event[KEY]

    @property
    def timestamp_ns(self) -> int:
        """The commit time, nanoseconds since the epoch."""
        return self._event[TIMESTAMP_NS]

    @property
    def is_delete(self) -> bool:
        """Whether the row is gone, `row` is then how it was; or all rows, see `is_truncate`."""
        return self._event[OPCODE] == Opcode.DELETE

    @property
    def is_truncate(self) -> bool:
        """Whether all rows of the table are gone (TRUNCATE, DROP); `row` is then empty."""
        return self._event[ROW_DIGEST] == NO_ROW_DIGEST

    @property
    def row(self) -> dict[str, Any]:
        """The row after the change (of a delete: before it), column → value.

        A column that the source did not log has no key: see `absent`. Raises
        ProtocolError or IncompatibleSchemaError when it cannot be decoded.
        """
        row = self._row
        if row is None:
            event = self._event
            if event[IS_PLAIN]:
                row = self._row = self._source.codecs[event[ROW_DIGEST]].decode(
                    event[BODY][event[PLACE] + MD5_PART_BYTES :]  # row_bytes(event), in line
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
        """Whether a column of the row, or of the row before, was not logged."""
        notes = self._notes
        return notes is not None and bool(notes.absent or notes.before_absent)

    @property
    def absent(self) -> tuple[str, ...]:
        """The columns that `row` lacks because the source did not log their values.

        That is not null: they are as they were.
        """
        notes = self._notes
        if notes is None or not notes.absent:
            return ()
        columns = self._source.codecs[self._event[ROW_DIGEST]].written_columns
        return tuple(columns[position] for position in notes.absent if position < len(columns))

    @property
    def raw(self) -> Mapping[str, str]:
        """By column: the server's own text of a value that has no place in `row`, as zero dates."""
        notes = self._notes
        return {} if notes is None else notes.raw

    @property
    def metadata(self) -> EventMetadata | None:
        """What the relay says beyond the row; None from a relay that is not of this project."""
        if self._metadata is None:
            digest = self._event[METADATA_DIGEST]
            if digest not in METADATA_DIGESTS:
                return None
            self._metadata = decode_metadata(metadata_bytes(self._event), digest)
        return self._metadata

    @property
    def op(self) -> Op:
        """What happened. Without metadata an insert cannot be told from an update: update."""
        metadata = self.metadata
        if metadata is not None:
            return metadata.op
        if self.is_truncate:
            return Op.TRUNCATE
        return Op.DELETE if self.is_delete else Op.UPDATE

    @property
    def before(self) -> dict[str, Any] | None:
        """The row before an update, or None where the relay does not send it."""
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
        """Return the event as it came: its version 2 bytes."""
        return wire_bytes(self._event)

    def __repr__(self) -> str:
        kind = "truncate" if self.is_truncate else "delete" if self.is_delete else "upsert"
        return f"<DataEvent {kind} {self.source} key={self.key!r} scn={self.scn} #{self.index}>"


class DdlEvent(NamedTuple):
    """A DDL statement, as the source logged it."""

    sources: tuple[str, ...]  # whose tables it is about; others than the registration's too
    database: str  # the default one where it was executed, "" = none
    statement: str
    scn: int  # of its window
    timestamp_ns: int


class Consumer:
    """A consumer: inherit, and override the callbacks you want.

    Each returns a `Result`, or None for SUCCESS. An exception, or coming back
    after `callback_budget_s`, counts as ERROR.
    """

    def on_start_consumption(self) -> Result | None:
        """Called once, before anything else."""

    def on_stop_consumption(self) -> Result | None:
        """Called once, after everything else."""

    def on_start_data_event_sequence(self, scn: int) -> Result | None:
        """A window with events begins."""

    def on_start_source(self, source: str) -> Result | None:
        """Events of this source follow."""

    def on_data_event(self, event: DataEvent) -> Result | None:
        """A row has changed."""

    def on_ddl(self, event: DdlEvent) -> Result | None:
        """A table of the registration's was altered, created, dropped or emptied."""

    def on_schema_change(
        self, source: str, before: str, after: str, needs_reload: bool
    ) -> Result | None:
        """A table was altered, and rows that were not written since are others by that.

        Called once for each version, before the first event of it; `before` and
        `after` are the schemas' texts. What rows of before are now says
        `databus.schemas.table_change.step(before, after).row(row)`, unless
        `needs_reload`: then only the database knows, and a bootstrap brings them.
        """

    def on_end_source(self, source: str) -> Result | None:
        """No more events of this source for now."""

    def on_end_data_event_sequence(self, scn: int) -> Result | None:
        """The window is whole."""

    def on_checkpoint(self, scn: int) -> Result | None:
        """A checkpoint may be written here: nothing up to `scn` will have to come again."""

    def on_rollback(self, scn: int) -> Result | None:
        """Every window after `scn` comes again (-1: all)."""

    def on_error(self, error: BaseException) -> Result | None:
        """The client stops because of this error."""

    # A bootstrap makes the same calls under other names. One who does not tell
    # old rows from new ones need not override them.

    def on_start_bootstrap(self) -> Result | None:
        """Pages follow: rows as they stand, then changes; after a restart, the rest of them."""

    def on_stop_bootstrap(self) -> Result | None:
        """What was read is now the source as of one SCN; windows follow again."""

    def on_start_bootstrap_sequence(self, scn: int) -> Result | None:
        """As `on_start_data_event_sequence`."""
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
        """As `on_rollback`; -1: the bootstrap begins anew, so empty the target.

        For a row that was delivered and deleted since may not come again. With
        another `scn` only what came since the last `on_bootstrap_checkpoint`,
        or after `scn`, comes again.
        """
        return self.on_rollback(scn)
