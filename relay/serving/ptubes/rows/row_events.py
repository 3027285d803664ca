"""The events of windows as those of Ptubes, for one session. Pure.

What a client is not to get is passed by: rows of other tables and partitions, and those that it
has. Statements, DDL or DML without rows, and the ends of transactions are told to every partition,
so that each instance of a client gets them, in the order of its rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import tzinfo
from typing import NamedTuple

from databus.relay.serving.protobuf import number_field, text_field
from databus.relay.serving.ptubes import packets
from databus.relay.serving.ptubes.marks import Mark, members_of_mark, members_of_row
from databus.relay.serving.ptubes.places import (
    BEFORE_ROWS,
    Place,
    PlaceTimes,
    SkippedRows,
    split_scn,
)
from databus.relay.serving.ptubes.reader_tasks import ReaderTask
from databus.relay.serving.ptubes.requests import Subscription
from databus.relay.serving.ptubes.rows.columns import RowColumns
from databus.relay.serving.ptubes.rows.java_hashes import key_of_value, partition_id, skip_unowned
from databus.relay.serving.ptubes.rows.row_metadata import row_metadata
from databus.schemas.errors import ProtocolError
from databus.schemas.event.control import LoggedStatement, statement_of
from databus.schemas.event.event import Event
from databus.schemas.event.keys import text_key
from databus.schemas.event.metadata import EventMetadata, Notes, Op
from databus.schemas.event.v2 import decode
from databus.schemas.rendering import SchemaText

_NO_NOTES = Notes()
EVERY = -1  # partition of an event that is told to each of them
_MOST_SRC_IDS = 1 << 15
_TYPES = {
    Op.INSERT: packets.INSERT,
    Op.SNAPSHOT: packets.INSERT,
    Op.UPDATE: packets.UPDATE,
    Op.DELETE: packets.DELETE,
}


class PtubesEvent(NamedTuple):
    """One event: its partition, its RdsEvent, and the checkpoint of who has it."""

    partition: int
    data: bytes
    checkpoint: bytes


class _Schema(NamedTuple):
    columns: RowColumns
    header: bytes
    key: tuple[str, ...]  # columns of the partition; () = the event's own key says it


class RowEvents:
    """Makes the events of one subscription."""

    def __init__(
        self,
        wanted: Subscription,
        task: ReaderTask,
        schema_text: SchemaText,
        server_of: Callable[[int], int],
        zone: tzinfo | None,
        times: PlaceTimes,
        skipped: SkippedRows | None = None,
        mark: Mark | None = None,
    ) -> None:
        """`server_of` returns the server number of an epoch.

        `mark` is a window with rows that the client has.
        """
        self._wanted, self._task = wanted, task
        self._tables = task.tables
        self._schema_text, self._server_of, self._zone = schema_text, server_of, zone
        self._times, self._skipped = times, skipped
        self._schemas: dict[bytes, _Schema] = {}
        self._owned = bytes(one in wanted.owned for one in range(wanted.partitions))
        keyed = bytearray(_MOST_SRC_IDS)
        for src_id in self._tables:
            keyed[src_id] = src_id not in task.key_columns
        self._long_keyed = bytes(keyed)
        self._scn = -1
        self._last_index = BEFORE_ROWS
        self._window = b""  # the checkpoint's fields of the window `_scn`
        self._has_rows = False  # since the last end of a transaction
        self._mark = mark  # the last window with rows of the client's tables
        self._is_mark = False  # the window being read has such rows
        self.last_ms = -1  # commit time of the last window that ended

    def read(self, body: bytes) -> Iterator[PtubesEvent]:
        """Yield what the client gets of whole version 2 events; raise ProtocolError."""
        at, end = 0, len(body)
        while at < end:
            begin, at = at, skip_unowned(body, at, self._owned, self._long_keyed)
            self._is_mark = self._is_mark or at > begin
            if at >= end:
                return
            event, at = decode(body, at)
            if event.is_eop:
                yield from self._end(event)
            elif event.is_statement:
                yield from self._statement(event)
            elif not event.is_control:
                yield from self._row(event)

    def place_after(self, scn: int, timestamp_ms: int) -> Place:
        """Return the place of who has a window whole."""
        epoch, file, offset = split_scn(scn)
        time_ms = self._times.of(epoch, timestamp_ms)
        members = members_of_mark(self._mark, epoch)
        return Place(file, offset, BEFORE_ROWS, self._server_of(epoch), time_ms, *members)

    def _end(self, event: Event) -> Iterator[PtubesEvent]:
        self.last_ms = event.timestamp_ns // 1_000_000
        self._scn, self._last_index = -1, BEFORE_ROWS
        if self._is_mark:
            self._mark, self._is_mark = (event.scn, event.timestamp_ns), False
        self._times.of(split_scn(event.scn)[0], self.last_ms)  # of every window
        if self._has_rows and self._wanted.wants_commits:
            self._has_rows = False
            place = packets.checkpoint_message(self.place_after(event.scn, self.last_ms))
            yield PtubesEvent(EVERY, packets.commit_event(place, self.last_ms), place)

    def _statement(self, event: Event) -> Iterator[PtubesEvent]:
        if not self._wanted.wants_ddl or self._has(event.scn, self._last_index + 1):
            return
        logged = statement_of(event)
        names = self._tables_of(logged)
        if not names:
            return
        self._enter(event)
        place = self._window + number_field(3, self._last_index)
        time_ms = event.timestamp_ns // 1_000_000
        data = packets.statement_event(names[0], logged, place, time_ms)
        yield PtubesEvent(EVERY, data, place)

    def _row(self, event: Event) -> Iterator[PtubesEvent]:
        table = self._tables.get(event.src_id)
        if table not in self._wanted.tables or event.payload is None:
            return
        metadata = row_metadata(event)
        if metadata is None:
            raise ProtocolError(f"a row of {table} in window {event.scn} has no metadata")
        self._is_mark = True
        self._enter(event, metadata)
        self._last_index = metadata.row_index
        if self._has(event.scn, metadata.row_index):
            self._has_rows = True  # the client had it, and not the end of its transaction
            return
        schema = self._schema(event.schema_id, event.src_id, table)
        partition = partition_id(self._key(event, schema, metadata, table))
        partition %= self._wanted.partitions
        if partition not in self._wanted.owned:
            return
        self._has_rows = True
        place = self._window + number_field(3, metadata.row_index)
        data = packets.row_event(
            schema.header,
            place,
            event.timestamp_ns // 1_000_000,
            _TYPES[metadata.op],
            _row_data(schema.columns, metadata, event.value),
            text_field(8, metadata.comment) if metadata.comment else b"",
        )
        yield PtubesEvent(partition, data, place)

    def _key(
        self, event: Event, schema: _Schema, metadata: EventMetadata, table: str
    ) -> int | str | bytes:
        """Return the key of a row's partition: of the row after the change."""
        if isinstance(event.key, int) and self._long_keyed[event.src_id]:
            return event.key  # the primary key of one integer
        row: Mapping[str, object] = {}
        if schema.key:
            absent = metadata.notes.absent if metadata.notes else ()
            row = schema.columns.codec.decode(event.value, absent)
        return _key(event, schema, row, table)

    def _tables_of(self, logged: LoggedStatement) -> list[str]:
        tables = (self._task.table_of(source) for source in logged.sources)
        return [table for table in tables if table in self._wanted.tables]

    def _has(self, scn: int, index: int) -> bool:
        skipped = self._skipped
        return skipped is not None and skipped.scn == scn and index <= skipped.last_index

    def _enter(self, event: Event, row: EventMetadata | None = None) -> None:
        """Make the checkpoint's fields of an event's window, where it is the first of it."""
        if self._scn == event.scn:
            return
        self._scn = event.scn
        epoch, file, offset = split_scn(event.scn - 1)
        if row is None:
            members = members_of_mark(self._mark, epoch)
        else:
            members = members_of_row(row.gtid, (event.scn, event.timestamp_ns), epoch)
        time_ms = self._times.of(epoch, event.timestamp_ns // 1_000_000)
        server = self._server_of(epoch)
        place = Place(file, offset, BEFORE_ROWS, server, time_ms, *members)
        self._window = packets.window_of_checkpoint(place)

    def _schema(self, schema_id: bytes, src_id: int, table: str) -> _Schema:
        found = self._schemas.get(schema_id)
        if found is None:
            key = self._task.key_columns.get(src_id, ())
            columns = RowColumns(self._schema_text(schema_id), self._zone, key)
            by = ",".join(columns.partition_key)
            header = packets.header_of_table(table, by, ",".join(columns.primary_key))
            own = key or (columns.primary_key if len(columns.primary_key) == 1 else ())
            found = self._schemas[schema_id] = _Schema(columns, header, own)
        return found


def _key(event: Event, schema: _Schema, row: Mapping[str, object], table: str) -> int | str | bytes:
    """Return the key of a row's partition: of the row after the change."""
    if not schema.key:
        # A composite key is text; the digest of a row of a table without a key is bytes.
        key = event.key
        is_text = isinstance(key, bytes) and bool(schema.columns.primary_key)
        return key.decode("utf-8", "replace") if is_text and isinstance(key, bytes) else key
    if len(schema.key) == 1:
        return key_of_value(row.get(schema.key[0]))
    return text_key(table, schema.key, row).decode("utf-8", "replace")


def _row_data(columns: RowColumns, metadata: EventMetadata, row: bytes) -> bytes:
    notes = metadata.notes or _NO_NOTES
    if metadata.op is Op.DELETE:
        return columns.row_fields(1, row, notes.absent, notes.raw)
    after = columns.row_fields(2, row, notes.absent, notes.raw)
    if metadata.before is None:
        return after
    before = columns.row_fields(1, metadata.before, notes.before_absent, notes.before_raw)
    return before + after
