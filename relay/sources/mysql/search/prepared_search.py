"""Searches the binlog behind the stream for prepared XA transactions that are committed now."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from pymysqlreplication.constants import BINLOG as B

from databus.relay.sources.mysql.binlog import events
from databus.relay.sources.mysql.binlog.events import Event, parse_query
from databus.relay.sources.mysql.binlog.stopped import AssemblyStopped
from databus.relay.sources.mysql.binlog.xa import (
    PreparedTransactions,
    Xid,
    parse_xa_end,
    parse_xa_prepare,
)
from databus.relay.sources.mysql.replication.assembler import Assembler
from databus.relay.sources.mysql.replication.dump import BinlogDump, events_to_the_end
from databus.relay.sources.mysql.rows.layout import Dialect
from databus.relay.sources.mysql.search.placed_events import placed
from databus.relay.sources.mysql.server.start_position import (
    FIRST_OFFSET,
    LogFile,
    Start,
    start_at_position,
)
from databus.relay.sources.mysql.tables.captured_tables import WatchedTables
from databus.relay.sources.source import Change
from databus.schemas.scn import MAX_OFFSET, binlog_position

_GTIDS = frozenset(
    {
        B.MARIADB_GTID_EVENT,
        B.GTID_LOG_EVENT,
        B.ANONYMOUS_GTID_LOG_EVENT,
        events.GTID_TAGGED,
    }
)


def prepared_transactions(
    stream: Iterable[bytes], file_number: int, collations: Mapping[int, str], epoch: int, end: int
) -> dict[Xid, int | None]:
    """Return the xids in a file before the SCN `end`, each with the SCN where its group begins.

    An xid that was committed or rolled back has None instead. Raises ValueError on damage.
    """
    found: dict[Xid, int | None] = {}
    start = 0
    for scn, event in placed(stream, epoch):
        if scn > end or binlog_position(scn).file_number != file_number:
            break
        if event.type_code in _GTIDS:
            start = _start_scn(scn, event)
        elif event.type_code == B.XA_PREPARE_EVENT:
            xid = parse_xa_prepare(event.body)
            if xid is not None:
                found[xid] = start
        elif event.type_code == B.QUERY_EVENT:
            text = parse_query(event, collations).text
            # Servers log an xid as hexadecimal strings: X'…',X'…',1.
            if text[:11].upper() in ("XA COMMIT X", "XA ROLLBACK"):
                ended = parse_xa_end(text)
                if ended is not None:
                    found[ended] = None
    return found


def _start_scn(scn: int, event: Event) -> int:
    position = binlog_position(scn)
    return position._replace(offset=min(event.start_offset, MAX_OFFSET)).to_scn()


@dataclass(frozen=True, slots=True)
class PreparedInLog:
    """Finds prepared XA transactions in the server's log."""

    tables: WatchedTables
    dialect: Dialect
    epoch: int
    log_files: Callable[[], Sequence[LogFile]]
    open_dump: Callable[[Start], BinlogDump]

    def find(self, xid: Xid, before_scn: int) -> dict[Xid, int]:
        """Return the start SCNs of transactions prepared before an SCN, including this one.

        Searches file by file, the newest first. Raises ValueError or SourceError.
        """
        files = self.log_files()
        newest = binlog_position(before_scn).file_number
        for file in reversed([file for file in files if file.number <= newest]):
            found = self._prepared_in(file, before_scn)
            if xid in found:
                if found[xid] is None:
                    break  # ended before: an older XA PREPARE is of an earlier transaction
                return {other: start for other, start in found.items() if start is not None}
        oldest = files[0].name if files else "none"
        raise ValueError(f"its XA PREPARE is not in the log, whose oldest file is {oldest}")

    def rows(self, xid: Xid, start_scn: int) -> Sequence[Change]:
        """Return the changes of the prepared transaction that begins at an SCN."""
        # No limit: these are the rows that were too many to hold.
        kept = PreparedTransactions(most_rows=1 << 62)
        assembler = Assembler(
            self.tables, self.dialect, epoch=self.epoch, prepared=kept, has_gaps=False
        )
        position = binlog_position(start_scn)
        dump = self.open_dump(start_at_position(position, self.epoch, self.log_files()))
        try:
            for data in events_to_the_end(dump):
                assembler.receive(data)
                if xid in kept:
                    return kept.take(xid, start_scn)
        except AssemblyStopped as stop:
            raise ValueError(f"{stop.problem} ({stop.position})") from stop
        finally:
            dump.close()
        raise ValueError(f"there is no XA PREPARE after {position}")

    def _prepared_in(self, file: LogFile, before_scn: int) -> dict[Xid, int | None]:
        dump = self.open_dump(Start(file.name, FIRST_OFFSET))
        try:
            stream = events_to_the_end(dump)
            return prepared_transactions(
                stream, file.number, self.dialect.collations, self.epoch, before_scn
            )
        finally:
            dump.close()
