"""Canal's entries, built from the events of windows.

A window with rows becomes TRANSACTIONBEGIN, its rows, TRANSACTIONEND. Consecutive rows of one
table and one kind of change share an entry, up to the size of MySQL's own rows events. A DDL
statement is an entry of its own; without rows in its window it has no begin and no end. An empty
window becomes a begin and an end, so that a client's cursor can move.

Positions are those of the server's log as far as events have them: a transaction's begin, and the
end of its commit, which is in the SCN. What lies between has places in between: they grow.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, tzinfo
from enum import Enum
from typing import Any, NamedTuple

from databus.conf.source_names import SourceNames
from databus.relay.ring.event_selector import WINDOW_DONE
from databus.relay.serving.canal.ddl_types import ddl_event_type, renamed_to
from databus.relay.serving.canal.messages import (
    EventType,
    Place,
    begin_entry,
    end_entry,
    query_entry,
    rows_entry,
    split_table,
    statement_entry,
    table_fields,
)
from databus.relay.serving.canal.row_runs import MOST_RUN_BYTES, take_run
from databus.relay.serving.columns.column_writer import ColumnWriter, column_writer
from databus.schemas.avro_rows import captured_table
from databus.schemas.errors import ProtocolError
from databus.schemas.event.control import LoggedStatement, statement_of
from databus.schemas.event.event import Event
from databus.schemas.event.layout import HAS_PAYLOAD
from databus.schemas.event.metadata import EventMetadata, Op
from databus.schemas.event.v2 import decode, peek
from databus.schemas.rendering import SchemaText
from databus.schemas.scn import binlog_position

try:
    from databus.relay.serving.canal._plain_windows import WindowWriter
except ImportError:  # not built: Python takes every window
    is_compiled = False
else:
    is_compiled = True

# Of the events in MySQL's log that begin and end a transaction.
_BEGIN_BYTES, _END_BYTES = 75, 31
_STATEMENT_BYTES = 33  # at least, beside its texts
_SAME_NAMES = SourceNames()
_FILES = "mysql-bin."  # where no event names the file
_FILE = re.compile(r"(.*\.)([0-9]+)")
_KINDS = {
    **{Op.INSERT: EventType.INSERT, Op.SNAPSHOT: EventType.INSERT},
    **{Op.UPDATE: EventType.UPDATE, Op.DELETE: EventType.DELETE},
}


class Kind(Enum):
    """What an entry is to a session."""

    BEGIN = "begin"
    ROWS = "rows"
    END = "end"
    DDL = "ddl"
    STATEMENT = "statement"


class Entry(NamedTuple):
    """One entry.

    `size_bytes` is what MEMSIZE counts. `tables` are its tables as `schema.table`: one of rows,
    any number of a statement. (`scn`, `offset`) is the place after it, counted in the events that
    were given of the window; WINDOW_DONE = the window ends with it.
    """

    data: bytes
    size_bytes: int
    kind: Kind
    tables: tuple[str, ...]
    scn: int
    offset: int


class EntryWriter:
    """Builds the entries of one physical source's events, given in order. Used by one thread."""

    def __init__(
        self,
        schema_text: SchemaText,
        name_of: Callable[[int], str],
        zone: tzinfo = UTC,
        names: SourceNames = _SAME_NAMES,
    ) -> None:
        """`name_of` returns the name of a source id, `names` its table; `zone` is TIMESTAMPs'."""
        self._schema_text, self._name_of, self._zone = schema_text, name_of, zone
        self._names = names
        self._tables: dict[bytes, str] = {}  # by the id of a schema
        self._files, self._server_id = _FILES, 0
        self._plain = self._window_writer() if is_compiled else None
        self.forget()

    def forget(self) -> None:
        """Begin anew: the next events begin a window, whatever came before."""
        self._scn, self._taken = -1, 0  # the open window, and how many of its events were taken
        self._is_begun = self._has_statement = False
        self._gtid: str | None = None
        self._emptied: list[str] = []  # sources, of whose statements none came yet
        self._offset = 0  # of the last entry

    def entries(self, body: bytes) -> list[Entry]:
        """Return the entries of the next events: whole windows, or a part of one.

        Raises ProtocolError, and SchemaNotFoundError for rows of an unknown schema.
        """
        found: list[Entry] = []
        at = 0
        while at < len(body):
            if self._scn < 0 and self._plain is not None:
                begin, at = at, self._plain.take(body, at, found)
                if at > begin:
                    self._files, self._server_id = self._plain.files, self._plain.server_id
                    continue
            event = peek(body, at)
            if event.src_id < 0:
                control, at = decode(body, at)
                self._take_control(control, found)
            elif event.attributes & HAS_PAYLOAD:
                at = self._take_rows(body, at, event.scn, found)
            else:
                emptied, at = decode(body, at)
                self._open(emptied.scn)
                self._taken += 1
                self._emptied.append(self._name_of(emptied.src_id))
        return found

    def _open(self, scn: int) -> None:
        if scn != self._scn:
            self.forget()
            self._scn = scn

    def _take_rows(self, body: bytes, at: int, scn: int, found: list[Entry]) -> int:
        run = take_run(body, at, self._writer)
        self._open(scn)
        if not self._is_begun:
            self._begin(run.timestamp_ns, run.metadata, found)
        self._taken += run.row_count
        self._offset = max(self._offset, run.metadata.offset + 1 + run.metadata.row_index)
        size_bytes, table = run.end - at, self._tables[run.schema_id]
        data = rows_entry(
            self._place(run.timestamp_ns, self._offset),
            size_bytes,
            table,
            _KINDS[run.metadata.op],
            run.rows,
            run.row_count,
        )
        found.append(self._entry(data, size_bytes, Kind.ROWS, (table,)))
        return run.end

    def _window_writer(self) -> WindowWriter:
        kinds, sizes = (Kind.BEGIN, Kind.ROWS, Kind.END), (MOST_RUN_BYTES, _BEGIN_BYTES, _END_BYTES)
        return WindowWriter(self._know, Entry, kinds, table_fields(""), sizes)

    def _know(self, schema_id: bytes) -> tuple[Any, bytes, tuple[str]]:
        writer = self._writer(schema_id)
        table = self._tables[schema_id]
        return writer.compiled, table_fields(table), (table,)

    def _writer(self, schema_id: bytes) -> ColumnWriter:
        text = self._schema_text(schema_id)
        if schema_id not in self._tables:
            self._tables[schema_id] = captured_table(text) or ""
        return column_writer(text, self._zone)

    def _begin(self, timestamp_ns: int, metadata: EventMetadata | None, found: list[Entry]) -> None:
        self._is_begun = True
        if metadata is not None:
            named = _FILE.fullmatch(metadata.file)
            self._files = named[1] if named else f"{metadata.file}." if metadata.file else _FILES
            self._server_id, self._gtid = metadata.server_id, metadata.gtid
            self._offset = max(self._offset, metadata.offset)
        else:
            self._offset = max(self._offset, self._end - _BEGIN_BYTES - _END_BYTES)
        data = begin_entry(self._place(timestamp_ns, self._offset), _BEGIN_BYTES)
        found.append(self._entry(data, _BEGIN_BYTES, Kind.BEGIN, ()))

    def _take_control(self, event: Event, found: list[Entry]) -> None:
        if event.is_statement:
            self._open(event.scn)
            self._taken += 1
            self._take_statement(event.timestamp_ns, statement_of(event), found)
        elif event.is_eop:
            self._open(event.scn)
            self._end_window(event.timestamp_ns, found)
        elif event.is_error or event.is_scn_regress:
            raise ProtocolError(f"no entry can be made of an event of src_id {event.src_id}")

    def _take_statement(self, timestamp_ns: int, told: LoggedStatement, found: list[Entry]) -> None:
        if told.is_dml and not self._is_begun:
            self._begin(timestamp_ns, None, found)
        self._has_statement = True
        self._emptied = [one for one in self._emptied if one not in told.sources]
        size_bytes = _STATEMENT_BYTES + len(told.database) + len(told.statement.encode())
        self._offset = max(self._offset, self._end - size_bytes)
        tables = tuple(map(self._names.table_of, told.sources))
        place, kind = self._place(timestamp_ns, self._offset), Kind.STATEMENT
        if told.is_dml:
            data = query_entry(place, size_bytes, told.statement, told.database)
        else:
            kind, event_type = Kind.DDL, ddl_event_type(told.statement)
            new_name = renamed_to(told.statement, told.database)
            tables = tables if new_name is None else (new_name, *tables)
            table = tables[0] if tables else f"{told.database}." if told.database else ""
            data = statement_entry(
                place, size_bytes, table, event_type, told.statement, told.database
            )
        found.append(self._entry(data, size_bytes, kind, tables))

    def _end_window(self, timestamp_ns: int, found: list[Entry]) -> None:
        for source in list(self._emptied):
            database, name = split_table(self._names.table_of(source))
            statement = LoggedStatement((source,), database, f"TRUNCATE TABLE `{name}`")
            self._take_statement(timestamp_ns, statement, found)
        if self._is_begun or not self._has_statement:
            if not self._is_begun:
                self._begin(timestamp_ns, None, found)
            self._offset = max(self._offset, self._end - _END_BYTES)
            place = self._place(timestamp_ns, self._offset)
            data = end_entry(place, _END_BYTES, str(self._scn))
            found.append(self._entry(data, _END_BYTES, Kind.END, ()))
        if found:
            found[-1] = found[-1]._replace(offset=WINDOW_DONE)
        self.forget()

    @property
    def _end(self) -> int:
        """Where the open window ends in its log."""
        return binlog_position(self._scn).offset

    def _place(self, timestamp_ns: int, offset: int) -> Place:
        file = f"{self._files}{binlog_position(self._scn).file_number:06}"
        return Place(file, offset, self._server_id, timestamp_ns // 1_000_000, self._gtid)

    def _entry(self, data: bytes, size_bytes: int, kind: Kind, tables: tuple[str, ...]) -> Entry:
        return Entry(data, size_bytes, kind, tables, self._scn, self._taken)
