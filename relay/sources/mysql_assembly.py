"""Binlog events put together into whole transactions. No socket, no clock.

    GTID                     begins a group; MariaDB says whether one statement
                             or a group follows, in MySQL a QUERY `BEGIN` does
    TABLE_MAP, rows          its changes
    XID, QUERY `COMMIT`      ends it; its end offset makes the SCN
    QUERY of anything else   a statement: a group of its own, or inside one

Every other event is on a list: harmless, or one that stops capture. Nothing is
skipped because it is not known. Time, GTID and position are the server's, so
two readers of one server yield the same transactions. One without a watched
row is yielded only when it is the first of its second or nothing follows it,
to move the SCN of a quiet table without filling the ring.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from pymysqlreplication.constants import BINLOG as B

from databus.relay.sources import mysql_events as events
from databus.relay.sources.mysql_ddl import Effect, read_statement
from databus.relay.sources.mysql_events import Event, Gtid, event_name
from databus.relay.sources.mysql_layout import Dialect
from databus.relay.sources.mysql_position import file_number
from databus.relay.sources.mysql_rows import ROWS_EVENTS, RowLayout, row_changes, table_id
from databus.relay.sources.mysql_tables import WatchedTables
from databus.relay.sources.source import Origin, RowChange, Transaction
from databus.schemas.errors import ProtocolError
from databus.schemas.scn import BinlogPosition

_HARMLESS = frozenset(
    {
        B.STOP_EVENT,
        B.HEARTBEAT_LOG_EVENT,
        events.HEARTBEAT_V2,
        B.PREVIOUS_GTIDS_LOG_EVENT,
        events.TRANSACTION_CONTEXT,
        events.VIEW_CHANGE,
        B.MARIADB_BINLOG_CHECKPOINT_EVENT,
        B.MARIADB_GTID_GTID_LIST_EVENT,
        B.MARIADB_START_ENCRYPTION_EVENT,
        B.IGNORABLE_LOG_EVENT,
        # What a statement that follows is to use; the statement itself is looked at.
        B.INTVAR_EVENT,
        B.RAND_EVENT,
        B.USER_VAR_EVENT,
        B.BEGIN_LOAD_QUERY_EVENT,
        events.APPEND_BLOCK,
        events.DELETE_FILE,
    }
)

_OFF_COMPRESSION = "SET GLOBAL log_bin_compress = OFF"
_STOPPING = {
    B.INCIDENT_EVENT: "the server says that changes were lost from its log",
    B.PARTIAL_UPDATE_ROWS_EVENT: "parts of JSON values are logged instead of rows; "
    "SET GLOBAL binlog_row_value_options = '', and in every session",
    events.TRANSACTION_PAYLOAD: "a compressed transaction; "
    "SET GLOBAL binlog_transaction_compression = OFF, and in every session",
    events.GTID_TAGGED: "a tagged GTID, which is not supported; "
    "let applications use gtid_next = AUTOMATIC",
    events.QUERY_COMPRESSED: f"a compressed statement; {_OFF_COMPRESSION}",
    **dict.fromkeys(
        range(events.FIRST_ROWS_COMPRESSED, events.LAST_ROWS_COMPRESSED + 1),
        f"compressed rows; {_OFF_COMPRESSION}",
    ),
}

_COMMENT = re.compile(r"/\*(?![!M+])\s*(.*?)\s*\*/", re.DOTALL)
_END_OF_STATEMENT = 1
_XA_BEGIN = ("XA START", "XA BEGIN")
_XA_OTHER = ("XA END", "XA COMMIT", "XA ROLLBACK", "XA PREPARE")


class AssemblyStopped(Exception):  # noqa: N818 - becomes a SourceStoppedError with its place
    """An event that capture must not pass; `position` and `scn` say where it is."""

    def __init__(self, problem: str, position: str, scn: int) -> None:
        super().__init__(problem)
        self.problem = problem
        self.position = position
        self.scn = scn


@dataclass(slots=True)
class _Group:
    """A transaction under way."""

    start_offset: int
    gtid: Gtid
    is_begun: bool = False  # rows follow until a commit; else one statement does
    changes: list[RowChange] = field(default_factory=list)


class Assembler:
    """Takes events one by one and returns the transactions they complete."""

    def __init__(
        self,
        tables: WatchedTables,
        dialect: Dialect,
        *,
        epoch: int = 0,
        acknowledged: Collection[int] = (),
        announces_start: bool = False,
    ) -> None:
        self._tables = tables
        self._dialect = dialect
        self._epoch = epoch
        self._acknowledged = frozenset(acknowledged)
        self._announces_start = announces_start
        self._reader = events.EventReader()
        self._file = ""
        self._file_number = 0
        self._offset = 0
        self._group: _Group | None = None
        self._layouts: dict[int, RowLayout | None] = {}
        self._comment: str | None = None
        self._held: Transaction | None = None
        self._yielded_second = -1
        self._event: Event | None = None
        self._handlers = self._handler_table()

    @property
    def position(self) -> str:
        """Where the stream is, in the server's words."""
        return f"{self._file}:{self._offset}"

    @property
    def is_inside_transaction(self) -> bool:
        """Whether a transaction has begun and not ended."""
        return self._group is not None

    def receive(self, data: bytes) -> Transaction | None:
        """Take one event; return the transaction that it completes.

        Raises AssemblyStopped.
        """
        self._event = None
        try:
            event = self._event = self._reader.read(data)
            handler = self._handlers.get(event.type_code)
            if handler is not None:
                return handler(event)
            if event.type_code not in _HARMLESS:
                self._stop(_STOPPING.get(event.type_code, "an event that is not known"))
            return None
        except (ValueError, LookupError, struct.error, ProtocolError) as error:
            self._stop(str(error))
            return None

    def take_held(self) -> Transaction | None:
        """Return the last transaction that was kept back; call when nothing follows it."""
        held, self._held = self._held, None
        return held

    def _handler_table(self) -> dict[int, Callable[[Event], Transaction | None]]:
        return {
            **dict.fromkeys(ROWS_EVENTS, self._on_rows),
            B.TABLE_MAP_EVENT: self._on_table_map,
            B.MARIADB_GTID_EVENT: self._on_mariadb_gtid,
            B.GTID_LOG_EVENT: self._on_mysql_gtid,
            B.ANONYMOUS_GTID_LOG_EVENT: self._on_mysql_gtid,
            B.XID_EVENT: self._on_commit,
            B.QUERY_EVENT: self._on_query,
            B.EXECUTE_LOAD_QUERY_EVENT: self._on_load,
            B.XA_PREPARE_EVENT: self._on_xa_prepare,
            B.MARIADB_ANNOTATE_ROWS_EVENT: self._on_annotate,
            B.ROWS_QUERY_LOG_EVENT: self._on_rows_query,
            B.ROTATE_EVENT: self._on_rotate,
            B.FORMAT_DESCRIPTION_EVENT: self._on_format,
        }

    def _on_rotate(self, event: Event) -> None:
        self._file, self._offset = events.parse_rotate(event.body)
        self._file_number = file_number(self._file)
        self._forget()

    def _on_format(self, event: Event) -> Transaction | None:
        # A server that crashed in the middle of a transaction begins a new file
        # without having committed it.
        self._forget()
        if event.is_artificial:
            return self._announce_start(event)
        # A new file moves the SCN, so that it never points into one that is purged.
        return self._complete(event, Origin())

    def _announce_start(self, event: Event) -> Transaction | None:
        if not self._announces_start or not self._offset:
            return None
        self._announces_start = False
        return Transaction(self._scn_at(self._offset), event.timestamp_s * 1_000_000_000, ())

    def _forget(self) -> None:
        self._group = None
        self._comment = None
        self._layouts.clear()

    def _on_mariadb_gtid(self, event: Event) -> None:
        self._begin(event, events.parse_mariadb_gtid(event))

    def _on_mysql_gtid(self, event: Event) -> None:
        self._begin(event, events.parse_mysql_gtid(event))

    def _begin(self, event: Event, gtid: Gtid) -> None:
        self._check_has_position(event)
        if self._group is not None:
            raise ValueError("a transaction begins inside another")
        self._group = _Group(event.start_offset, gtid, gtid.is_standalone is False)
        self._comment = None

    def _on_table_map(self, event: Event) -> None:
        position = self._scn_at(event.end_offset or self._offset)
        self._layouts[table_id(event.body)] = None
        self._layouts[table_id(event.body)] = self._tables.layout(event.body, position)

    def _on_rows(self, event: Event) -> None:
        number = table_id(event.body)
        if number not in self._layouts:
            if number == 0xFFFFFF:  # a dummy that only ends a statement
                return
            raise ValueError(f"rows of table id {number}, which no TABLE_MAP has announced")
        layout = self._layouts[number]
        if layout is not None:
            if self._group is None:
                raise ValueError("rows outside a transaction")
            changes = row_changes(layout, event.type_code, event.body, self._comment)
            self._group.changes.extend(changes)
        if event.body[6] & _END_OF_STATEMENT:
            self._comment = None

    def _on_query(self, event: Event) -> Transaction | None:
        return self._statement(event, events.parse_query(event.body, self._dialect.collations))

    def _on_load(self, event: Event) -> Transaction | None:
        query = events.parse_query(event.body, self._dialect.collations, extra=13)
        return self._statement(event, query)

    def _statement(self, event: Event, query: events.Query) -> Transaction | None:
        head = query.text[:16].upper()
        if head == "BEGIN" or head.startswith(_XA_BEGIN):
            if self._group is None:
                self._begin(event, Gtid(None))
            assert self._group is not None
            self._group.is_begun = True
            return None
        if head == "COMMIT":
            return self._on_commit(event)
        if head.startswith("ROLLBACK"):
            return self._roll_back(event, head)
        if not head.startswith(("SAVEPOINT", *_XA_OTHER)):
            self._apply(event, query)
        if self._group is not None and self._group.is_begun:
            return None
        return self._on_commit(event)

    def _roll_back(self, event: Event, head: str) -> Transaction | None:
        if self._group is not None and self._group.changes:
            self._stop(
                "rows were rolled back after they were logged, which only tables without "
                "transactions cause; convert them to InnoDB"
            )
            self._group.changes.clear()
        return None if head.startswith("ROLLBACK TO") else self._on_commit(event)

    def _apply(self, event: Event, query: events.Query) -> None:
        """Notice what a statement does to the watched tables."""
        statement = read_statement(query.text, query.database, ansi_quotes=query.ansi_quotes)
        if statement.effect is Effect.NONE:
            return
        touched = self._tables.names.touched_by(statement)
        if not touched:
            return
        position = self._scn_at(event.end_offset)
        if statement.effect is Effect.DATA:
            self._stop(
                f"{statement.action} changed the rows of {', '.join(sorted(touched))} without "
                "logging them; bring the consumers in line (seed them again) and then let "
                "capture go on"
            )
        problems = self._tables.columns_may_change(position)
        if problems:
            self._stop("; ".join(problems))

    def _on_xa_prepare(self, event: Event) -> Transaction | None:
        # First byte 1: XA COMMIT … ONE PHASE, a commit like any other.
        if event.body[:1] != b"\x01" and self._group is not None and self._group.changes:
            self._stop(
                "XA PREPARE: whether these rows are committed is decided later, and that is not "
                "supported; keep watched tables out of XA transactions"
            )
            self._group.changes.clear()
        return self._on_commit(event)

    def _on_annotate(self, event: Event) -> None:
        self._note_comment(event.body)

    def _on_rows_query(self, event: Event) -> None:
        self._note_comment(event.body[1:])

    def _note_comment(self, statement: bytes) -> None:
        """Keep the comment that a statement begins or ends with."""
        self._comment = None
        if b"/*" in statement:
            text = statement.decode("utf-8", "replace").strip().rstrip(";").rstrip()
            found = _COMMENT.match(text)
            if found is None and text.endswith("*/"):
                found = _COMMENT.fullmatch(text, text.rfind("/*"))
            self._comment = found[1] if found else None

    def _on_commit(self, event: Event) -> Transaction | None:
        group = self._group or _Group(event.start_offset, Gtid(None))
        gtid = group.gtid
        origin = Origin(gtid.text, event.server_id, self._file, group.start_offset, self._epoch)
        timestamp_ns = gtid.commit_timestamp_ns or event.timestamp_s * 1_000_000_000
        return self._complete(event, origin, group.changes, timestamp_ns)

    def _complete(
        self,
        event: Event,
        origin: Origin,
        changes: Collection[RowChange] = (),
        timestamp_ns: int = 0,
    ) -> Transaction | None:
        self._check_has_position(event)
        self._forget()  # each statement announces its tables anew
        self._offset = event.end_offset
        timestamp_ns = timestamp_ns or event.timestamp_s * 1_000_000_000
        scn = self._scn_at(event.end_offset)
        transaction = Transaction(scn, timestamp_ns, tuple(changes), origin)
        second = timestamp_ns // 1_000_000_000
        if not changes and second <= self._yielded_second:
            self._held = transaction
            return None
        self._held = None
        self._yielded_second = second
        return transaction

    def _check_has_position(self, event: Event) -> None:
        if event.end_offset == 0:
            raise ValueError(
                "the event does not say where it ends; SET GLOBAL binlog_legacy_event_pos = ON"
            )
        if event.end_offset < self._offset:
            raise ValueError("the binlog file is larger than 4 GiB, beyond what a position can say")

    def _scn_at(self, offset: int) -> int:
        return BinlogPosition(self._epoch, self._file_number, offset).to_scn()

    def _stop(self, problem: str) -> None:
        """Raise AssemblyStopped, unless an operator has let this place pass."""
        event = self._event
        offset = event.end_offset if event is not None and event.end_offset else self._offset
        scn = self._scn_at(offset)
        if scn in self._acknowledged:
            return
        kind = event_name(event.type_code) if event is not None else "damaged event"
        raise AssemblyStopped(problem, f"{self._file}:{offset}, event {kind}", scn)
