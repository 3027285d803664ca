"""Finds the place of a first start in the server's log: by time, GTID, or place in a binlog.

The file is found by a search by halves over what each begins with: its time, and the GTIDs before
it. Then that file is read from its begin, and later ones if need be. A place that the log does not
have is an error, never the nearest.
"""

from __future__ import annotations

import struct
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from typing import NamedTuple

from pymysqlreplication.constants import BINLOG as B

from databus.conf.named_places import BinlogPlace, GtidPlace, TimePlace
from databus.relay.sources.mysql.binlog.events import GTID_TAGGED, HARMLESS, Event, EventReader
from databus.relay.sources.mysql.binlog.gtid import Gtid, parse_mariadb_gtid, parse_mysql_gtid
from databus.relay.sources.mysql.binlog.gtid_set import MysqlGtidSet, decode_gtid_set
from databus.relay.sources.mysql.replication.dump import BinlogDump, events_to_the_end
from databus.relay.sources.mysql.replication.log_cursor import LogCursor, is_made_up
from databus.relay.sources.mysql.replication.search_progress import SearchProgress
from databus.relay.sources.mysql.server.start_position import (
    FIRST_OFFSET,
    LogFile,
    SearchedPlace,
    Start,
    reach_of,
)
from databus.relay.sources.source import TellSearch
from databus.schemas.scn import MAX_OFFSET

_NS = 1_000_000_000
_MYSQL_GTIDS = frozenset({B.GTID_LOG_EVENT, B.ANONYMOUS_GTID_LOG_EVENT, GTID_TAGGED})
# A file that was not closed has no ROTATE.
_ENDS_OF_FILES = frozenset({B.ROTATE_EVENT, B.FORMAT_DESCRIPTION_EVENT})
_PURPOSE = "where `start` is"


class LoggedTransaction(NamedTuple):
    """A transaction in the log: from `begin` to `end`, offsets in the file."""

    file: str
    begin: int
    end: int
    gtid: str | None
    time_ns: int


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
                file, offset = self._at_offset(place)
        if offset > MAX_OFFSET:
            raise ValueError(
                f"{place} is at {file}:{offset}, and none beyond 4 GiB can be asked for"
            )
        return Start(file, offset)

    def _at_time(self, place: TimePlace, time_ns: int) -> tuple[str, int]:
        # A file's time is in whole seconds: what the one before it has may be of the same second.
        number = bisect_right(
            self._files, time_ns, key=lambda file: (self._head_of(file).time_s + 1) * _NS
        )
        if number == 0 and self._files[0].number != 1:
            raise ValueError(
                f"start = {place} is before the oldest binlog, {self._files[0].name}: what was "
                "committed since then may have been purged; use earliest, or a later time"
            )
        for found in self._transactions(max(number - 1, 0)):
            if found.time_ns >= time_ns:
                return found.file, found.begin
        raise ValueError(
            f"start = {place} is after the newest transaction of the log; use latest, or an "
            "earlier time"
        )

    def _after_gtid(self, place: GtidPlace, gtid: str) -> tuple[str, int]:
        number = bisect_left(
            self._files, True, key=lambda file: _has(self._head_of(file).preceding, gtid)
        )
        missing = f"no transaction of the log, {reach_of(self._files)}, is {place}"
        if number == 0:
            raise ValueError(
                f"{missing}: it was purged; use earliest, or gtid-set:… with all that is not wanted"
            )
        for found in self._transactions(number - 1):
            if found.gtid == gtid:
                return found.file, found.end
        raise ValueError(missing)

    def _at_offset(self, place: BinlogPlace) -> tuple[str, int]:
        names = [file.name for file in self._files]
        number = names.index(place.file) if place.file in names else -1
        if number < 0 or not place.offset <= self._files[number].size_bytes:
            raise ValueError(f"{place} is not in the server's log, {reach_of(self._files)}")
        begin = FIRST_OFFSET
        for found in self._transactions(number):
            if found.file != place.file or found.begin > place.offset:
                break
            begin = found.end if found.end <= place.offset else found.begin
        return place.file, begin

    def _head_of(self, file: LogFile) -> FileHead:
        with closing(self._open_dump(Start(file.name, FIRST_OFFSET))) as dump:
            return read_head(events_to_the_end(dump), file.name)

    def _transactions(self, number: int) -> Iterator[LoggedTransaction]:
        """Yield the transactions from the begin of a file on, and tell the progress."""
        total = sum(file.size_bytes for file in self._files[number:])
        progress = SearchProgress(self._tell, _PURPOSE, total)
        start = Start(self._files[number].name, FIRST_OFFSET)
        try:
            with closing(self._open_dump(start)) as dump:
                yield from transactions_of(progress.of_events(events_to_the_end(dump)))
        finally:
            progress.end()


class FileHead(NamedTuple):
    """What a file begins with: its time, and the GTIDs of what was logged before it."""

    time_s: int
    preceding: MysqlGtidSet | dict[int, int]  # of MariaDB: the last number of each domain


def read_head(stream: Iterable[bytes], file: str) -> FileHead:
    """Read the first events of a file; raises ValueError on damage."""
    reader = EventReader()
    time_s = 0
    for data in stream:
        event = reader.read(data)
        if event.type_code == B.FORMAT_DESCRIPTION_EVENT:
            time_s = event.timestamp_s or time_s
        elif event.type_code == B.PREVIOUS_GTIDS_LOG_EVENT:
            return FileHead(time_s, decode_gtid_set(event.body))
        elif event.type_code == B.MARIADB_GTID_GTID_LIST_EVENT:
            return FileHead(time_s, _mariadb_list(event.body))
    raise ValueError(f"{file} does not say which GTIDs were before it: use an SCN or earliest")


def transactions_of(stream: Iterable[bytes]) -> Iterator[LoggedTransaction]:
    """Yield the transactions of a stream that begins with a file; raises ValueError on damage."""
    reader, cursor = EventReader(), LogCursor(has_gaps=False)
    file, begin, end, gtid, time_s = "", -1, 0, Gtid(None), 0
    for data in stream:
        event = cursor.place(reader.read(data), is_inside=True)
        if is_made_up(event) or event.type_code in HARMLESS:
            continue
        opened = _gtid_of(event)
        if begin >= 0 and (opened is not None or event.type_code in _ENDS_OF_FILES):
            yield LoggedTransaction(file, begin, end, gtid.text, _time_ns(gtid, time_s))
            begin = -1
        if opened is not None:
            file, begin, end, gtid = cursor.file, event.start_offset, cursor.offset, opened
        elif begin >= 0:
            # The time of the event that ends it, the last one.
            end, time_s = cursor.offset, event.timestamp_s
    if begin >= 0:
        yield LoggedTransaction(file, begin, end, gtid.text, _time_ns(gtid, time_s))


def _gtid_of(event: Event) -> Gtid | None:
    if event.type_code == B.MARIADB_GTID_EVENT:
        return parse_mariadb_gtid(event)
    return parse_mysql_gtid(event) if event.type_code in _MYSQL_GTIDS else None


def _time_ns(gtid: Gtid, time_s: int) -> int:
    return gtid.commit_timestamp_ns or time_s * _NS


def _mariadb_list(body: bytes) -> dict[int, int]:
    (count,) = struct.unpack_from("<I", body)
    found: dict[int, int] = {}
    for domain, _server, number in struct.iter_unpack(
        "<IIQ", body[4 : 4 + (count & 0xFFFFFFF) * 16]
    ):
        found[domain] = max(number, found.get(domain, 0))
    return found


def _has(preceding: MysqlGtidSet | dict[int, int], gtid: str) -> bool:
    if isinstance(preceding, MysqlGtidSet):
        if "-" not in gtid.partition(":")[0] or ":" not in gtid:
            raise ValueError(f"{gtid} is not a GTID of MySQL")
        return not (MysqlGtidSet.parse(gtid) - preceding).intervals
    if ":" in gtid:
        raise ValueError(f"{gtid} is not a GTID of MariaDB")
    domain, _, number = (int(part) for part in gtid.split("-"))
    return preceding.get(domain, 0) >= number
