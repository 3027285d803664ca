"""One change of a row, and one statement, as callbacks and iterators get them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from databus.client.events.row_types import Made, into
from databus.client.group.deliveries import Move
from databus.schemas.columns.avro_columns import WriterSchema
from databus.schemas.errors import RowError, SchemaError
from databus.schemas.event.metadata import (
    METADATA_DIGEST as NOTED_METADATA_DIGEST,
    METADATA_DIGESTS,
    EventMetadata,
    Notes,
    Op,
    decode_metadata,
    may_have_notes,
)
from databus.schemas.stream.row_event import (
    IS_PLAIN,
    METADATA_DIGEST,
    NO_ROW_DIGEST,
    ROW_DIGEST,
    metadata_bytes,
    row_bytes,
    wire_bytes,
)

try:
    from databus.client.events._event_fields import (
        EventFields,
        LentEvents,
        make_rows,
        make_runs,
        track_kept,
    )
except ImportError:  # not built
    from databus.client.events.event_fields import (
        PythonEventFields as EventFields,
        PythonLentEvents as LentEvents,
        make_rows_in_python as make_rows,
        make_runs_in_python as make_runs,
        track_kept_in_python as track_kept,
    )

__all__ = [
    "DataEvent",
    "DdlEvent",
    "LentEvents",
    "Op",
    "StatementEvent",
    "make_rows",
    "make_runs",
    "track_kept",
]


class DataEvent(EventFields):
    """One row change, or the removal of all rows of a table (`is_truncate`).

    The row is decoded at the first access. `index` counts the events of the window from 0.
    An event may be kept after the callback and read from any thread.
    """

    __slots__ = ()

    @property
    def is_truncate(self) -> bool:
        """Whether all rows of the table were removed (TRUNCATE, DROP); `row` is then empty."""
        return self._event[ROW_DIGEST] == NO_ROW_DIGEST

    @property
    def key(self) -> dict[str, Any]:
        """The primary key, column → value, in the key's order; {} for a truncate.

        Of a table without one, the whole row. Raises RowError if a column of it was not logged, and
        SchemaError if the schema, of another project's relay, does not say what the key is.
        """
        if self.is_truncate:
            return {}
        columns, row = self._source.codecs[self._event[ROW_DIGEST]].key_columns, self.row
        if columns is None:
            raise SchemaError(
                f"the schema of {self.source} does not say which columns are its key; `wire_key` "
                "has the key as it was sent"
            )
        if not columns:
            return dict(row)
        try:
            return {column: row[column] for column in columns}
        except KeyError as error:
            problem = "is of the primary key and was not logged"
            raise RowError(self.source, error.args[0], problem) from None

    @property
    def has_primary_key(self) -> bool:
        """Whether the table has a primary key, and `key` is not the whole row."""
        return not self.is_truncate and bool(
            self._source.codecs[self._event[ROW_DIGEST]].key_columns
        )

    def into(self, row_type: type[Made]) -> Made:
        """Return the row as an object of a dataclass, a NamedTuple or a pydantic model.

        Columns without a field of their name are left out. Raises RowError if a field has no value
        or pydantic refuses one, TypeError for another class.
        """
        return into(row_type, self.row, self.source)

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
        return tuple(columns[position] for position in notes.absent if 0 <= position < len(columns))

    @property
    def known_columns(self) -> frozenset[str]:
        """The columns that the source has in any version of its schema that the server sent."""
        codecs = self._source.codecs.values()
        return frozenset(name for codec in codecs for name in codec.written_columns)

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

    @property
    def schema(self) -> WriterSchema | None:
        """The Avro schema of `row` and `before`; None without a row."""
        if self.is_truncate:
            return None
        return self._source.written[self._event[ROW_DIGEST]]

    @property
    def partitions(self) -> tuple[int, ...]:
        """The partitions of a group for which this process gets the event; () without a group.

        A truncate removes only the rows of these partitions.
        """
        share = self._source.share
        delivery = None if share is None else share.delivery(self)
        return () if delivery is None else delivery.partitions

    @property
    def move(self) -> Move | None:
        """Whether an update brought the row here from another process of the group, or took it.

        None for all other events. A row that has `LEFT` is to be removed here; another process
        gets the same update as `ENTERED`, and which of them gets it first is not known.
        """
        share = self._source.share
        delivery = None if share is None else share.delivery(self)
        return None if delivery is None else delivery.move

    def wire_bytes(self) -> bytes:
        """Return the event's version 2 bytes, as received; a version 1 event is encoded."""
        return wire_bytes(self._event)

    def __repr__(self) -> str:
        place = f"scn={self.scn} #{self.index}"
        return f"<DataEvent {self.op} {self.source} key={self.wire_key!r} {place}>"


class DdlEvent(NamedTuple):
    """A DDL statement, as the source logged it."""

    sources: tuple[str, ...]  # of the tables it concerns, other registrations' too
    database: str  # the default database of the statement, "" = none
    statement: str
    scn: int  # of its window
    timestamp_ns: int


class StatementEvent(NamedTuple):
    """A DML statement that the source logged instead of the rows that it changed.

    What it did to the rows of `sources` only the database knows.
    """

    sources: tuple[str, ...]  # of the tables that it names, other registrations' too
    database: str  # the default database of the statement, "" = none
    statement: str
    scn: int  # of its window
    timestamp_ns: int
