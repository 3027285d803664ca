"""Finds the place of a first start in the server's log: by time, GTID, or place in a binlog.

A time is looked for along the whole log, since times need not increase along it. The file of a GTID
is found by a search by halves over the GTIDs before each. A place that the log does not have is an
error, never the nearest.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager

from pymysqlreplication.constants import BINLOG as B

from databus.conf.named_places import BinlogPlace, GtidPlace, TimePlace
from databus.relay.sources.mysql.binlog.events import EventReader
from databus.relay.sources.mysql.binlog.gtid_set import MysqlGtidSet, decode_gtid_set
from databus.relay.sources.mysql.replication.dump import BinlogDump, events_to_the_end
from databus.relay.sources.mysql.rows.columns import ByteReader
from databus.relay.sources.mysql.search.search_progress import SearchProgress
from databus.relay.sources.mysql.search.transaction_walk import (
    LoggedTransaction,
    TransactionWalk,
    transactions_of,
)
from databus.relay.sources.mysql.server.start_position import (
    FIRST_OFFSET,
    LogFile,
    SearchedPlace,
    Start,
    reach_of,
)
from databus.relay.sources.source import TellSearch
from databus.schemas.scn import MAX_OFFSET

_PURPOSE = "where `start` is"
_NEVER_NS = (1 << 63) - 1
Preceding = MysqlGtidSet | dict[int, int]  # of MariaDB: the last number of each domain


class StartSearch:
    """Searches in one server's log."""

    def __init__(
        self,
        files: Sequence[LogFile],
        open_dump: Callable[[Start], BinlogDump],
        tell: TellSearch,
    ) -> None:
        self._files = files
        self._open_dump = open_dump
        self._tell = tell

    def find(self, place: SearchedPlace) -> Start:
        """Return where reading begins; raises ValueError if the log does not have it."""
        match place:
            case TimePlace(time_ns):
                file, offset = self._at_time(place, time_ns)
            case GtidPlace(gtid):
                file, offset = self._after_gtid(place, gtid)
            case BinlogPlace():
                file, offset = place.file, self._at_offset(place)
        if offset > MAX_OFFSET:
            raise ValueError(f"{place} is at {file}:{offset}; none beyond 4 GiB can be asked for")
        return Start(file, offset)

    def _at_time(self, place: TimePlace, time_ns: int) -> tuple[str, int]:
        found = self._first_since(time_ns)
        if found is None:
            raise ValueError(
                f"start = {place} is after the newest transaction of the log; use latest, or an "
                "earlier time"
            )
        oldest = self._files[0]
        if oldest.number != 1 and found[:2] == next(self._transactions(0))[:2]:
            raise ValueError(
                f"start = {place} is before the oldest transaction of the log, in {oldest.name}: "
                "what was committed since then may have been purged; use earliest, or a later time"
            )
        return found.file, found.begin

    def _first_since(self, time_ns: int) -> LoggedTransaction | None:
        walk = TransactionWalk()
        with self._dump_from(0) as (dump, progress):
            for data in walk.events(dump, progress, time_ns):
                found = walk.take(data)
                if found is not None and found.time_ns >= time_ns:
                    return found
        newest = walk.newest()
        return newest if newest is not None and newest.time_ns >= time_ns else None

    def _after_gtid(self, place: GtidPlace, gtid: str) -> tuple[str, int]:
        number = bisect_left(self._files, True, key=lambda file: self._is_before(gtid, file))
        found = self._first_with(gtid, number - 1) if number else None
        if found is None and ":" not in gtid:
            # Numbers need not increase on a MariaDB without gtid_strict_mode.
            found = self._first_with(gtid, 0)
        if found is not None:
            return found.file, found.end
        missing = f"no transaction of the log, {reach_of(self._files)}, is {place}"
        if number == 0:
            missing += ": it was purged; use earliest, or gtid-set:… with all that is not wanted"
        raise ValueError(missing)

    def _first_with(self, gtid: str, number: int) -> LoggedTransaction | None:
        """Return the transaction with a GTID, from a file on."""
        return next((found for found in self._transactions(number) if found.gtid == gtid), None)

    def _is_before(self, gtid: str, file: LogFile) -> bool:
        with closing(self._open_dump(Start(file.name, FIRST_OFFSET))) as dump:
            return has_gtid(gtids_before(events_to_the_end(dump), file.name), gtid)

    def _at_offset(self, place: BinlogPlace) -> int:
        """Return the end of the transaction there, or the begin of the one that it lies in."""
        names = [file.name for file in self._files]
        number = names.index(place.file) if place.file in names else -1
        if number < 0 or not place.offset <= self._files[number].size_bytes:
            raise ValueError(f"{place} is not in the server's log, {reach_of(self._files)}")
        walk = TransactionWalk()
        with self._dump_from(number, 1) as (dump, progress):
            for data in walk.events(dump, progress, _NEVER_NS, place.offset):
                ended = walk.take(data)
                is_here = walk.cursor.file == place.file
                if is_here and walk.cursor.offset <= place.offset:
                    continue
                if ended is not None:
                    return ended.end
                if not is_here:
                    return FIRST_OFFSET  # there is no transaction in the file
                if walk.begin >= 0 and walk.end == walk.cursor.offset:
                    return walk.begin
        newest = walk.newest()
        return FIRST_OFFSET if newest is None else newest.end

    def _transactions(self, number: int) -> Iterator[LoggedTransaction]:
        with self._dump_from(number) as (dump, progress):
            yield from transactions_of(progress.of_events(events_to_the_end(dump)))

    @contextmanager
    def _dump_from(
        self, number: int, files: int | None = None
    ) -> Iterator[tuple[BinlogDump, SearchProgress]]:
        """Open a dump from the begin of a file; tell the progress over so many, None = all."""
        wanted = self._files[number:][:files]
        progress = SearchProgress(self._tell, _PURPOSE, sum(file.size_bytes for file in wanted))
        try:
            with closing(self._open_dump(Start(wanted[0].name, FIRST_OFFSET))) as dump:
                yield dump, progress
        finally:
            progress.end()


def gtids_before(stream: Iterable[bytes], file: str) -> Preceding:
    """Return the GTIDs of what was logged before a file, whose events these are."""
    reader = EventReader()
    for data in stream:
        event = reader.read(data)
        if event.type_code == B.PREVIOUS_GTIDS_LOG_EVENT:
            return decode_gtid_set(event.body)
        if event.type_code == B.MARIADB_GTID_GTID_LIST_EVENT:
            return _last_numbers(event.body)
    raise ValueError(f"{file} does not say which GTIDs were before it: use an SCN or earliest")


def _last_numbers(body: bytes) -> dict[int, int]:
    reader = ByteReader(body)
    found: dict[int, int] = {}
    for _ in range(reader.number(4) & 0x0FFFFFFF):  # flags are above
        domain, _, number = struct.unpack("<IIQ", reader.take(16))
        found[domain] = max(number, found.get(domain, 0))
    return found


def has_gtid(preceding: Preceding, gtid: str) -> bool:
    """Return whether a transaction is among those; raises ValueError for one of another server."""
    if isinstance(preceding, MysqlGtidSet):
        if ":" not in gtid:
            raise ValueError(f"{gtid} is not a GTID of MySQL")
        return not (MysqlGtidSet.parse(gtid) - preceding).intervals
    if ":" in gtid:
        raise ValueError(f"{gtid} is not a GTID of MariaDB")
    domain, _, number = (int(part) for part in gtid.split("-"))
    return preceding.get(domain, 0) >= number
