"""Searches the log ahead of the stream for statements that change definitions of tables.

Most of a log is rows. `binlog/_event_skipper.pyx` passes over them in compiled code, at the
rate at which the server sends them; everything else is read here.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from pymysqlreplication.constants import BINLOG as B

from databus.relay.sources.mysql.binlog.events import Event, parse_query
from databus.relay.sources.mysql.binlog.gtid import parse_mariadb_gtid
from databus.relay.sources.mysql.binlog.packets import StreamEnded
from databus.relay.sources.mysql.replication.dump import (
    BinlogDump,
    chunks_to_the_end,
    events_to_the_end,
)
from databus.relay.sources.mysql.search import skipping
from databus.relay.sources.mysql.search.placed_events import EventPlacer
from databus.relay.sources.mysql.search.search_progress import SearchProgress, bytes_between
from databus.relay.sources.mysql.search.skipping import IS_COMPILED, events_left
from databus.relay.sources.mysql.server.start_position import LogFile, Start, start_at_position
from databus.relay.sources.mysql.tables.captured_tables import ScanLog
from databus.relay.sources.mysql.tables.column_spec import Rules
from databus.relay.sources.mysql.tables.ddl_tokens import TableName
from databus.relay.sources.mysql.tables.names import Names
from databus.relay.sources.mysql.tables.schema_at import redefined_by
from databus.relay.sources.source import TellSearch, tell_nobody
from databus.schemas.scn import binlog_position

if TYPE_CHECKING:
    from databus.relay.sources.mysql.binlog import _event_skipper

_PURPOSE = "which statements alter tables before the first start of this relay"
# Beyond every offset of a file.
_NO_END = 1 << 62


class DefinitionScan:
    """Takes a log event by event, up to an SCN; `found` has the result.

    That is the SCN of the last statement that may have changed each table's definition.
    """

    def __init__(self, names: Names, rules: Rules, epoch: int, end: int) -> None:
        self.found: dict[TableName, int] = {}
        self.is_over = False
        # MariaDB 10.8 and later may log an ALTER in two halves; the first has no effect yet.
        self.is_unfinished = False
        self.placer = EventPlacer(epoch)
        self.end = end
        self._names = names
        self._rules = rules

    def take(self, data: bytes) -> None:
        """Take an event; raises ValueError on damage, and StreamBrokenError."""
        try:
            for scn, event in self.placer.place(data):
                if scn > self.end:
                    self.is_over = True
                    return
                self._take(scn, event)
        except (LookupError, struct.error) as error:
            raise ValueError(f"an event that ends too early: {error}") from error

    def _take(self, scn: int, event: Event) -> None:
        if event.type_code == B.MARIADB_GTID_EVENT:
            self.is_unfinished = parse_mariadb_gtid(event).is_unfinished_ddl
        elif event.type_code == B.QUERY_EVENT and not self.is_unfinished:
            query = parse_query(event, self._rules.dialect.collations)
            redefined = redefined_by(query, self._names, self._rules)
            self.found.update(dict.fromkeys(redefined, scn))


def read_events(scan: DefinitionScan, stream: Iterable[bytes]) -> None:
    """Let a search take the events of a stream, until it is over."""
    for data in stream:
        scan.take(data)
        if scan.is_over:
            return


def read_chunks(scan: DefinitionScan, chunks: Iterable[tuple[memoryview | bytes, int]]) -> None:
    """Let a search take the chunks of a connection, until it is over. Needs the compiled skipper.

    Raises as `DefinitionScan.take` does, and StreamEnded.
    """
    skipper = skipping.EventSkipper()
    read_events(scan, events_left(skipper, partial(_run, scan, skipper), chunks))


def _run(scan: DefinitionScan, skipper: _event_skipper.EventSkipper) -> int:
    cursor, end = scan.placer.cursor, binlog_position(scan.end)
    skipper.offset = cursor.offset
    skipper.has_checksum = scan.placer.reader.has_checksum
    skipper.is_unfinished = scan.is_unfinished
    skipper.end_offset = _NO_END if cursor.file_number < end.file_number else end.offset
    if cursor.file_number > end.file_number:
        skipper.end_offset = 0
    status = skipper.run()
    cursor.offset = skipper.offset
    scan.is_unfinished = skipper.is_unfinished
    return status


def last_definition_changes(
    stream: Iterable[bytes], names: Names, rules: Rules, epoch: int, end: int
) -> dict[TableName, int]:
    """Return the SCN of the last statement that may have changed each table's definition.

    Reads up to the SCN `end`; raises ValueError on damage.
    """
    scan = DefinitionScan(names, rules, epoch, end)
    read_events(scan, stream)
    return scan.found


def log_scanner(
    names: Names,
    rules: Rules,
    epoch: int,
    log_files: Callable[[], Sequence[LogFile]],
    open_dump: Callable[[Start], BinlogDump],
    tell: TellSearch = tell_nobody,
) -> ScanLog:
    """Return a function that finds the tables redefined in a range of the server's log.

    The function raises ValueError if the log does not have the range, and SourceError. A long
    search tells its progress.
    """

    def scan_range(begin: int, end: int) -> Mapping[TableName, int]:
        files, first, last = log_files(), binlog_position(begin), binlog_position(end)
        dump = open_dump(start_at_position(first, epoch, files))
        scan = DefinitionScan(names, rules, epoch, end)
        progress = SearchProgress(tell, _PURPOSE, bytes_between(files, first, last))
        try:
            _scan(scan, dump, progress)
        finally:
            dump.close()
            progress.end()
        return scan.found

    return scan_range


def _scan(scan: DefinitionScan, dump: BinlogDump, progress: SearchProgress) -> None:
    if not IS_COMPILED:
        read_events(scan, progress.of_events(events_to_the_end(dump)))
        return
    try:
        read_chunks(scan, progress.of_chunks(chunks_to_the_end(dump)))
    except StreamEnded as ended:
        if ended.code:
            raise dump.explain(ended) from ended
