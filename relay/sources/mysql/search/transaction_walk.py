"""Walks along the log from transaction to transaction, wherever its rows are not of interest.

`binlog/_event_skipper.pyx` goes ahead in compiled code over transactions before a time.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from pymysqlreplication.constants import BINLOG as B

from databus.relay.sources.mysql.binlog.events import GTID_TAGGED, HARMLESS, Event, EventReader
from databus.relay.sources.mysql.binlog.gtid import Gtid, parse_mariadb_gtid, parse_mysql_gtid
from databus.relay.sources.mysql.binlog.packets import StreamEnded
from databus.relay.sources.mysql.replication.dump import (
    BinlogDump,
    chunks_to_the_end,
    events_to_the_end,
)
from databus.relay.sources.mysql.replication.log_cursor import LogCursor, is_made_up
from databus.relay.sources.mysql.search import skipping
from databus.relay.sources.mysql.search.search_progress import SearchProgress
from databus.relay.sources.mysql.search.skipping import IS_COMPILED, events_left

if TYPE_CHECKING:
    from databus.relay.sources.mysql.binlog import _event_skipper

_NS = 1_000_000_000
_MYSQL_GTIDS = frozenset({B.GTID_LOG_EVENT, B.ANONYMOUS_GTID_LOG_EVENT, GTID_TAGGED})
# A file that was not closed has no ROTATE.
_ENDS_OF_FILES = frozenset({B.ROTATE_EVENT, B.FORMAT_DESCRIPTION_EVENT})
NO_END = 1 << 62  # beyond every offset of a file


class LoggedTransaction(NamedTuple):
    """A transaction in the log: from `begin` to `end`, offsets in the file."""

    file: str
    begin: int
    end: int
    gtid: str | None  # None: it has none, or it was not looked at
    time_ns: int


class TransactionWalk:
    """Takes the events of a stream that begins with a file; has the newest transaction."""

    def __init__(self) -> None:
        self.cursor = LogCursor(has_gaps=False)
        self.file = ""
        self.begin = -1
        self.end = 0
        self._reader = EventReader()
        self._gtid = Gtid(None)
        self._time_s = 0

    def take(self, data: bytes) -> LoggedTransaction | None:
        """Take an event; return the transaction that ends before it.

        Raises ValueError on damage, and StreamBrokenError.
        """
        try:
            event = self.cursor.place(self._reader.read(data), is_inside=True)
            opened = gtid_of(event)
        except (LookupError, struct.error) as error:
            raise ValueError(f"an event that ends too early: {error}") from error
        if is_made_up(event) or event.type_code in HARMLESS:
            return None
        ended = None
        if opened is not None or event.type_code in _ENDS_OF_FILES:
            ended = self.newest()
            self.begin = -1
        if opened is not None:
            self.file, self.begin, self.end = (
                self.cursor.file,
                event.start_offset,
                self.cursor.offset,
            )
            self._gtid = opened
        elif self.begin >= 0:
            # Its time is that of the event that ends it, the last one.
            self.end, self._time_s = self.cursor.offset, event.timestamp_s
        return ended

    def newest(self) -> LoggedTransaction | None:
        """Return the transaction of the newest event, which may go on; None = none in this file."""
        if self.begin < 0:
            return None
        time_ns = self._gtid.commit_timestamp_ns or self._time_s * _NS
        return LoggedTransaction(self.file, self.begin, self.end, self._gtid.text, time_ns)

    def events(
        self, dump: BinlogDump, progress: SearchProgress, until_ns: int, end_offset: int = NO_END
    ) -> Iterator[bytes]:
        """Yield the events of a dump that are to be taken; others were taken in compiled code.

        Those are of transactions before `until_ns` and end at `end_offset` at most.
        """
        if not IS_COMPILED:
            yield from progress.of_events(events_to_the_end(dump))
            return
        try:
            yield from self.events_left(
                progress.of_chunks(chunks_to_the_end(dump)), until_ns, end_offset
            )
        except StreamEnded as ended:
            if ended.code:
                raise dump.explain(ended) from ended

    def events_left(
        self,
        chunks: Iterable[tuple[memoryview | bytes, int]],
        until_ns: int,
        end_offset: int = NO_END,
    ) -> Iterator[bytes]:
        """As `events`, of the chunks of a connection. Needs the compiled skipper."""
        skipper = skipping.TransactionSkipper()
        skipper.until_ns, skipper.end_offset = until_ns, end_offset
        yield from events_left(skipper, partial(self._run, skipper), chunks)

    def _run(self, skipper: _event_skipper.TransactionSkipper) -> int:
        skipper.offset, skipper.has_checksum = self.cursor.offset, self._reader.has_checksum
        skipper.begin, skipper.end, skipper.time_s = self.begin, self.end, self._time_s
        skipper.commit_ns = self._gtid.commit_timestamp_ns
        status = skipper.run()
        self.cursor.offset = skipper.offset
        if skipper.begin != self.begin:
            self.file, self._gtid = (
                self.cursor.file,
                Gtid(None, commit_timestamp_ns=skipper.commit_ns),
            )
        self.begin, self.end, self._time_s = skipper.begin, skipper.end, skipper.time_s
        return status


def transactions_of(stream: Iterable[bytes]) -> Iterator[LoggedTransaction]:
    """Yield the transactions of a stream that begins with a file; raises ValueError on damage."""
    walk = TransactionWalk()
    for data in stream:
        ended = walk.take(data)
        if ended is not None:
            yield ended
    newest = walk.newest()
    if newest is not None:
        yield newest


def gtid_of(event: Event) -> Gtid | None:
    """Return the GTID with which an event begins a transaction; None for other events."""
    if event.type_code == B.MARIADB_GTID_EVENT:
        return parse_mariadb_gtid(event)
    return parse_mysql_gtid(event) if event.type_code in _MYSQL_GTIDS else None
