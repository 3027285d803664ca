"""Assembles binlog events into whole transactions. No socket, no clock.

    GTID                     begins a group; in MariaDB a flag tells whether one statement
                             or several events follow, in MySQL a QUERY `BEGIN` does
    TABLE_MAP, rows          its changes
    XID, QUERY `COMMIT`      ends it; its end offset makes the SCN
    XA_PREPARE               ends it, but its changes wait for XA COMMIT
    QUERY of anything else   a statement: a group of its own, or part of one
    TRANSACTION_PAYLOAD      contains all of these but the GTID, at one offset

Some other events are harmless (`events.HARMLESS`). An unknown event stops capture, unless its
header has the flag that lets readers ignore it. Time, GTID and position are the server's, so two
readers of one server yield the same transactions. A transaction without watched rows is yielded
only if it is the first of its second or the last of the log: this moves the SCN of quiet tables
without filling the ring.

The SCN and the request for a dump have 32 bits for the offset, but a file may grow beyond 4 GiB
with the transaction that fills it. Transactions that end beyond it are joined into one at the
beginning of the next file, where reading can resume.

The identity of the log is recorded at the end of each transaction. Nothing is yielded before the
log was proved to be the same (`log_identity.py`).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection, Iterator
from hashlib import blake2b
from typing import NamedTuple
from zlib import crc32

from pymysqlreplication.constants import BINLOG as B

from databus.daemon.faults import is_transient
from databus.relay.sources.mysql.binlog import events
from databus.relay.sources.mysql.binlog.compressed import (
    COMPRESSED_ROWS,
    events_inside,
    plain_query,
    plain_rows,
)
from databus.relay.sources.mysql.binlog.events import Event, event_name
from databus.relay.sources.mysql.binlog.gtid import Gtid, parse_mariadb_gtid, parse_mysql_gtid
from databus.relay.sources.mysql.binlog.packets import StreamBrokenError
from databus.relay.sources.mysql.binlog.stopped import AssemblyStopped
from databus.relay.sources.mysql.binlog.xa import (
    PreparedTransactions,
    Xid,
    parse_xa_end,
    parse_xa_prepare,
)
from databus.relay.sources.mysql.replication.changes import (
    Changes,
    TransactionWindows,
    Windows,
    changes_of,
)
from databus.relay.sources.mysql.replication.log_cursor import LogCursor, is_made_up
from databus.relay.sources.mysql.replication.log_identities import Identities
from databus.relay.sources.mysql.replication.transaction import (
    Group,
    first_scn_of,
    savepoint_name,
    statement_comment,
)
from databus.relay.sources.mysql.rows.changes import ROWS_EVENTS, RowLayout, table_id
from databus.relay.sources.mysql.rows.layout import Dialect
from databus.relay.sources.mysql.server.start_position import FIRST_OFFSET
from databus.relay.sources.mysql.tables.captured_tables import ChangeKind, WatchedTables
from databus.relay.sources.source import Change, Origin, TableError, Transaction
from databus.schemas.errors import ProtocolError
from databus.schemas.scn import MAX_OFFSET, BinlogPosition

_END_OF_STATEMENT = 1
_NOWHERE = Origin()
_NS = 1_000_000_000
_NOT_UNDERSTOOD = (ValueError, LookupError, struct.error, ProtocolError)


class _Beyond(NamedTuple):
    """The transactions that end beyond 4 GiB in one file, joined."""

    timestamp_ns: int
    changes: Changes
    origin: Origin


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
        prepared: PreparedTransactions | None = None,
        windows: Windows | None = None,
        has_gaps: bool = True,
        identities: Identities | None = None,
    ) -> None:
        self._tables = tables
        self._windows = windows if windows is not None else TransactionWindows()
        self._dialect = dialect
        self._epoch = epoch
        self._acknowledged = frozenset(acknowledged)
        self._announces_start = announces_start
        self._prepared = prepared if prepared is not None else PreparedTransactions()
        self._reader = events.EventReader()
        self._cursor = LogCursor(has_gaps=has_gaps)
        self._has_gaps = has_gaps
        self.identities = identities if identities is not None else Identities()
        self._group: Group | None = None
        self._layouts: dict[int, RowLayout | None] = {}
        self._comment: str | None = None
        self._held: Transaction | None = None
        self._beyond: _Beyond | None = None
        self._heartbeat = ("", 0)
        self._newest_ns = 0
        self._yielded_second = -1
        self._event: Event | None = None
        self._data = b""  # of the event in hand
        self._handlers = self._handler_table()

    @property
    def position(self) -> str:
        """The position of the stream as `file:offset`."""
        return f"{self._cursor.file}:{self._cursor.offset}"

    @property
    def is_at_end(self) -> bool:
        """Whether everything was read and proved, and the server waits at the log's end."""
        is_behind = self._group is None and self._cursor.is_at(*self._heartbeat)
        return is_behind and self.identities.is_proved

    def receive(self, data: bytes) -> Transaction | None:
        """Take one event; return the transaction that it completes. Raises AssemblyStopped."""
        found = [one for one in self.receive_parts(data) if one is not None]
        return found[-1] if found else None

    def receive_parts(self, data: bytes) -> Iterator[Transaction | None]:
        """Take an event or the events inside it; yield the result of each.

        Raises AssemblyStopped, StreamBrokenError, AnotherLogError.
        """
        self._event, self._data = None, data
        if self.identities.is_proving:
            yield from self._prove(data)
            return
        try:
            self._event = self._reader.read(data)
            event = self._place(self._event, data)
            if event.type_code == events.TRANSACTION_PAYLOAD:
                yield from self._take_payload(event)
            else:
                yield self._handle(event)
        except _NOT_UNDERSTOOD as error:
            if is_transient(error):
                raise
            self._stop(error)

    def _place(self, event: Event, data: bytes) -> Event:
        """Find an event's position and add the event to the identity of the log."""
        is_inside = self._group is not None
        # During a proof the events are not assembled, so any of them may be inside a transaction.
        event = self._cursor.place(event, is_inside=is_inside or self.identities.is_proving)
        has_sum = self._reader.has_checksum
        self.identities.follow(event, data, self._cursor, is_inside=is_inside, has_checksum=has_sum)
        return event

    def _prove(self, data: bytes) -> Iterator[Transaction | None]:
        """Compare an event of the stored transaction, from which the stream begins."""
        try:
            event = self._place(self._reader.read(data), data)
        except (ValueError, StreamBrokenError) as error:
            raise self.identities.refuted(f"{error} (CRC {crc32(data):08x})") from error
        self.identities.prove(event, data, self._cursor)
        yield None

    def take_held(self) -> Transaction | None:
        """Return the empty transaction that was held back; call this when no event follows it.

        None inside a transaction: a part of it may have been handed over already.
        """
        if self._group is not None or self._beyond is not None:
            return None
        held, self._held = self._held, None
        return held

    def _handle(self, event: Event) -> Transaction | None:
        self._event = event
        handler = self._handlers.get(event.type_code)
        if handler is not None:
            return handler(event)
        if event.type_code == B.INCIDENT_EVENT:
            self._stop(events.LOST)
        elif event.type_code not in events.HARMLESS and not event.is_ignorable:
            self._stop("an unknown event that is not marked as ignorable")
        return None

    def _handler_table(self) -> dict[int, Callable[[Event], Transaction | None]]:
        return {
            **dict.fromkeys((*ROWS_EVENTS, *COMPRESSED_ROWS), self._on_rows),
            B.TABLE_MAP_EVENT: self._on_table_map,
            B.MARIADB_GTID_EVENT: self._on_mariadb_gtid,
            B.GTID_LOG_EVENT: self._on_mysql_gtid,
            B.ANONYMOUS_GTID_LOG_EVENT: self._on_mysql_gtid,
            events.GTID_TAGGED: self._on_mysql_gtid,
            B.XID_EVENT: self._on_commit,
            B.QUERY_EVENT: self._on_query,
            events.QUERY_COMPRESSED: self._on_compressed_query,
            B.EXECUTE_LOAD_QUERY_EVENT: self._on_load,
            B.XA_PREPARE_EVENT: self._on_xa_prepare,
            B.MARIADB_ANNOTATE_ROWS_EVENT: self._on_annotate,
            B.ROWS_QUERY_LOG_EVENT: self._on_rows_query,
            B.HEARTBEAT_LOG_EVENT: self._on_heartbeat,
            events.HEARTBEAT_V2: self._on_heartbeat,
            B.ROTATE_EVENT: self._on_rotate,
            B.FORMAT_DESCRIPTION_EVENT: self._on_format,
        }

    def _on_rotate(self, event: Event) -> Transaction | None:  # noqa: ARG002 - the cursor read it
        self._abandon()
        beyond, self._beyond = self._beyond, None
        if beyond is None:
            return None
        scn = self._scn_at(FIRST_OFFSET)
        return self._yield(scn, beyond.timestamp_ns, beyond.changes, beyond.origin)

    def _on_format(self, event: Event) -> Transaction | None:
        # A server that crashed inside a transaction begins a new file without its commit.
        self._abandon()
        if is_made_up(event):
            return self._announce_start(event)
        # A new file moves the SCN, so that it never points into one that is purged.
        return self._complete(event, self._open_group(event, Gtid(None)))

    def _announce_start(self, event: Event) -> Transaction | None:
        offset = self._cursor.offset
        if not self._announces_start or not offset:
            return None  # else a reconnect before the first change would look for `start` again
        self._announces_start = False
        self.identities.note_point(self._scn_at(offset), self._cursor)
        return Transaction(self._scn_at(offset), event.timestamp_s * _NS, ())

    def _on_heartbeat(self, event: Event) -> Transaction | None:
        """Get to the end of the log, at the second heartbeat of one position.

        The first one may come from inside a transaction that the GTIDs exclude. The second one
        comes from a server that waits: behind events that it does not send, or that are harmless.
        """
        place = file, offset = events.parse_heartbeat(event)
        is_again, self._heartbeat = place == self._heartbeat, place
        at = self._cursor
        if self._group is not None or not is_again or file != at.file:
            return None
        if not at.offset <= offset <= MAX_OFFSET or self.identities.has_reached(at, offset):
            return None
        if at.offset < offset and not self._has_gaps:
            raise StreamBrokenError(
                f"the server waits at {file}:{offset} but sent nothing after {at.offset}"
            )
        at.offset = offset
        self.identities.note_point(self._scn_at(offset), at)
        return self._yield(self._scn_at(offset), self._newest_ns)

    def _abandon(self) -> None:
        """Drop the current transaction, which has no end in the log."""
        if self._group is not None:
            self._group.roll_back()
        self._forget()

    def _forget(self) -> None:
        self._group = None
        self._comment = None
        self._layouts.clear()

    def _on_mariadb_gtid(self, event: Event) -> None:
        self._begin(event, parse_mariadb_gtid(event))

    def _on_mysql_gtid(self, event: Event) -> None:
        self._begin(event, parse_mysql_gtid(event))

    def _begin(self, event: Event, gtid: Gtid) -> Group:
        if self._group is not None:
            raise ValueError("a transaction begins inside another")
        self._comment = None
        self._group = self._open_group(event, gtid)
        self._group.is_begun = gtid.is_standalone is False
        return self._group

    def _open_group(self, event: Event, gtid: Gtid) -> Group:
        beyond = self._beyond
        if beyond is not None and beyond.changes:
            origin = beyond.origin  # the two are joined
        else:
            file, offset = self._cursor.file, event.start_offset
            first_scn = first_scn_of(self._scn_at(offset))
            origin = Origin(gtid.text, event.server_id, file, offset, self._epoch, first_scn)
        changes = self._windows.begin(origin)
        group = Group(event.start_offset, gtid, origin, changes, changes.mark())
        if gtid.is_prepared_xa:
            group.prepare()
        return group

    def _take_payload(self, event: Event) -> Iterator[Transaction | None]:
        is_ended = False
        for inner in events_inside(event):
            if is_ended:
                raise ValueError("events behind the end of a compressed transaction")
            found = self._handle(inner)
            is_ended = self._group is None
            yield found
        self._event = event
        if not is_ended:
            raise ValueError("a compressed transaction without its end")

    def _on_table_map(self, event: Event) -> None:
        number = table_id(event.body)
        scn = self._scn_at(event.end_offset)
        self._layouts[number] = None
        layout = self._layouts[number] = self._tables.layout(event.body, scn)
        self._windows.announce(number, event.body[8:], layout, scn)

    def _on_rows(self, event: Event) -> None:
        number = table_id(event.body)
        if number not in self._layouts:
            if number == 0xFFFFFF:  # the server's dummy id: the event only ends a statement
                return
            raise ValueError(f"rows of table id {number}, which no TABLE_MAP has announced")
        layout = self._layouts[number]
        if layout is not None:
            if self._group is None:
                raise ValueError("rows outside a transaction")
            self._add_rows(event, layout, self._group)
        if event.body[6] & _END_OF_STATEMENT:
            self._comment = None  # the next statement has its own, or none

    def _add_rows(self, event: Event, layout: RowLayout, group: Group) -> None:
        scn = self._scn_at(event.end_offset)
        try:
            plain = plain_rows(event) if event.type_code in COMPRESSED_ROWS else event
            group.changes.add_rows(layout, plain.type_code, plain.body, self._comment, scn)
        except _NOT_UNDERSTOOD as error:
            remedy = getattr(error, "remedy", "")
            raise TableError(str(error), [layout.table.source], remedy) from error

    def _on_compressed_query(self, event: Event) -> Transaction | None:
        return self._on_query(plain_query(event))

    def _on_query(self, event: Event) -> Transaction | None:
        return self._statement(event, events.parse_query(event, self._dialect.collations))

    def _on_load(self, event: Event) -> Transaction | None:
        query = events.parse_query(event, self._dialect.collations, extra=13)
        return self._statement(event, query)

    def _statement(self, event: Event, query: events.Query) -> Transaction | None:
        head = query.text[:16].upper()
        if head == "BEGIN" or head.startswith(("XA START", "XA BEGIN")):
            group = self._group if self._group is not None else self._begin(event, Gtid(None))
            group.is_begun = True
            if head != "BEGIN":
                group.prepare()
            return None
        if head == "COMMIT":
            return self._on_commit(event)
        if head.startswith(("XA COMMIT", "XA ROLLBACK")):
            return self._end_xa(event, query.text, is_commit=head.startswith("XA COMMIT"))
        if head.startswith("ROLLBACK"):
            return self._roll_back(event, query.text)
        if head.startswith("SAVEPOINT") and self._group is not None:
            self._group.mark(savepoint_name(query.text))
        elif not head.startswith(("XA END", "RELEASE ")):
            self._apply(event, query)
        if self._group is not None and self._group.is_begun:
            return None
        return self._on_commit(event)

    def _roll_back(self, event: Event, text: str) -> Transaction | None:
        is_partial = " TO " in text[:24].upper()
        if self._group is not None and self._group.changes:
            self._group.roll_back(savepoint_name(text) if is_partial else None)
        return None if is_partial else self._on_commit(event)

    def _apply(self, event: Event, query: events.Query) -> None:
        """Apply a statement to the tables, and add what consumers must know of it."""
        if self._group is not None and self._group.gtid.is_unfinished_ddl:
            return
        scn = self._scn_at(event.end_offset)
        try:
            found = self._tables.apply(query, scn)
        except ValueError as error:
            if is_transient(error):  # such as a full disk when the history is written
                raise
            self._stop(error)
            return  # acknowledged: the statement is skipped, its transaction ends as usual
        lost = [change for change in found if change.kind is ChangeKind.LOST]
        if lost:
            self._stop(TableError("; ".join(c.text for c in lost), [c.source for c in lost]))
        begun = self._group if self._group is not None and self._group.is_begun else None
        # Rows may follow in the transaction (CREATE TABLE … SELECT). The change is valid from
        # its beginning, because its end is not known yet.
        first_scn = None if begun is None else begun.origin.first_scn
        changes = changes_of(found, query, scn if first_scn is None else first_scn)
        if changes:
            group = self._group or self._begin(event, Gtid(None))
            group.changes.add(changes, scn)

    def _on_xa_prepare(self, event: Event) -> Transaction | None:
        xid = parse_xa_prepare(event.body)
        group = self._group
        if xid is not None and group is not None:
            self._prepared.hold(xid, self._scn_at(group.start_offset), group.take_prepared())
        elif xid is not None:
            self._prepared.hold(xid, self._scn_at(event.start_offset), ())
        return self._on_commit(event)

    def _end_xa(self, event: Event, text: str, *, is_commit: bool) -> Transaction | None:
        xid = parse_xa_end(text)
        group = self._group or self._begin(event, Gtid(None))
        if xid is not None and is_commit:
            changes = self._prepared_changes(xid, group)
            group.changes.add(changes, self._scn_at(event.end_offset))
        elif xid is not None:
            self._prepared.drop(xid)
        return self._on_commit(event)

    def _prepared_changes(self, xid: Xid, group: Group) -> Collection[Change]:
        try:
            return self._prepared.take(xid, self._scn_at(group.start_offset))
        except ValueError as error:
            self._stop(
                f"XA COMMIT {xid} commits rows that cannot be read: {error}; seed the consumers "
                "again, and then let capture continue"
            )
            return ()

    def _on_annotate(self, event: Event) -> None:
        self._comment = statement_comment(event.body)

    def _on_rows_query(self, event: Event) -> None:
        self._comment = statement_comment(event.body[1:])

    def _on_commit(self, event: Event) -> Transaction | None:
        return self._complete(event, self._group or self._open_group(event, Gtid(None)))

    def _complete(self, event: Event, group: Group) -> Transaction | None:
        self._forget()  # every statement sends its TABLE_MAP events again
        self._newest_ns = group.gtid.commit_timestamp_ns or event.timestamp_s * _NS
        self.identities.note(
            self._scn_at(event.end_offset), self._cursor, group.gtid.text or "", self._newest_ns
        )
        if event.end_offset > MAX_OFFSET:
            self._keep_beyond(group)
            return None
        scn = self._scn_at(event.end_offset)
        return self._yield(scn, self._newest_ns, group.changes, group.origin)

    def _keep_beyond(self, group: Group) -> None:
        earlier = None if self._beyond is None else self._beyond.changes
        changes = self._windows.join(earlier, group.changes, group.origin)
        self._beyond = _Beyond(self._newest_ns, changes, group.origin)

    def _yield(
        self,
        scn: int,
        timestamp_ns: int,
        changes: Changes | None = None,
        origin: Origin = _NOWHERE,
    ) -> Transaction | None:
        second = timestamp_ns // _NS
        if not changes and second <= self._yielded_second:
            self._held = Transaction(scn, timestamp_ns, (), origin)
            return None
        self._held = None
        self._yielded_second = second
        if not changes:
            return Transaction(scn, timestamp_ns, (), origin)
        return self._windows.finish(scn, timestamp_ns, changes, origin)

    def _scn_at(self, offset: int) -> int:
        """Return the SCN of an offset; offsets beyond 4 GiB share the highest SCN of the file."""
        number = self._cursor.file_number
        return BinlogPosition(self._epoch, number, min(offset, MAX_OFFSET)).to_scn()

    def _stop(self, problem: Exception | str) -> None:
        """Raise AssemblyStopped, unless an operator has acknowledged this SCN."""
        event = self._event
        offset = (event.end_offset if event is not None else 0) or self._cursor.offset
        scn = self._scn_at(offset)
        if scn in self._acknowledged:
            return
        kind = event_name(event.type_code) if event is not None else "damaged event"
        place = f"{self._cursor.file}:{offset}, event {kind}"
        facts = getattr(problem, "remedy", ""), getattr(problem, "tables", ())
        raise AssemblyStopped(str(problem), place, scn, blake2b(self._data).digest(), *facts)
