"""The log tables, one for each source: every event since the log's floor, in commit order.

An event's place is (SCN, index in its window), the index counting all sources of the
store. A reader may request only the events of some rows, by the row ids in the snapshot
table.

All functions run inside the caller's transaction. Reading an event checks its CRCs, because
the file may have been damaged since the last check: ProtocolError.
"""

from __future__ import annotations

import heapq
import itertools
import sqlite3
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from operator import itemgetter
from typing import NamedTuple

from databus.bootstrap.store.file import joins_bytes
from databus.bootstrap.store.filter_sql import (
    EVERY_KEY,
    Condition,
    StoredFilter,
    check_range,
    condition_of,
    number_of,
)
from databus.bootstrap.store.values import (
    NOTHING_YET,
    WHOLE_WINDOW,
    LogBody,
    LogMeasure,
    LogPage,
    LogPlace,
    LogRow,
    StoredEvent,
)
from databus.schemas.event.v2 import SMALLEST_BYTES, peek
from databus.schemas.scn import MAX_SCN
from databus.schemas.stream.whole_events import check_events

CREATE = """
create table log_{src_id} (
    id integer primary key,
    scn integer not null,
    idx integer not null,
    key not null,
    number integer not null,
    is_hashed integer not null,
    at_ns integer not null,
    event blob not null
);
create unique index log_{src_id}_place on log_{src_id} (scn, idx);
"""
_APPEND = """
insert into log_{src_id} (scn, idx, key, number, is_hashed, at_ns, event)
values (?, ?, ?, ?, ?, ?, ?)
"""
_AFTER = """
select scn, idx, {src_id}, key, event, is_hashed from log_{src_id} indexed by log_{src_id}_place
where (scn, idx) > (?, ?) and scn <= ? and {condition}
order by scn, idx
"""
_WINDOWS_AFTER = """
select scn, count(*), sum(length(event)), max(is_hashed = 1)
from log_{src_id} indexed by log_{src_id}_place
where (scn, idx) > (?, ?) and scn <= ? and {condition}
group by scn order by scn
"""
_EVENTS = """
select scn, idx, event from log_{src_id} indexed by log_{src_id}_place
where (scn, idx) > (?, ?) and scn <= ? and {condition}
"""
# SQLite merges the tables by their indexes and keeps the order.
_BODY = "select cast(group_concat(event, '') as blob) from ({events} order by 1, 2)"
_TIMESTAMP = """
select substr(event, 1, ?) from log_{src_id} indexed by log_{src_id}_place where scn = ? limit 1
"""
_NEWEST_SCN = """
select max(scn) from log_{src_id} indexed by log_{src_id}_place where scn <= ?
"""
_COUNT_AFTER = """
select count(*) from (select 1 from log_{src_id} indexed by log_{src_id}_place
where scn > ? limit ?)
"""
_OLDEST = """
select scn, at_ns, length(event) from log_{src_id} indexed by log_{src_id}_place
where scn <= ? order by scn, idx
"""
_DELETE = "delete from log_{src_id} where scn <= ?"
_CLEAR = "delete from log_{src_id}"
_EXTENT = "select min(id), max(id) from log_{src_id}"
_OF_ROWS = """
(is_hashed = {every_key} or exists (
    select 1 from snapshot_{src_id} as rows
    where rows.key = log_{src_id}.key and rows.id > ? and rows.id <= ?
))
"""
_LAST_INDEX = MAX_SCN  # larger than any index in a window


class LogRange(NamedTuple):
    """A range of the log: the events of some sources after a place, up to window `target_scn`.

    Includes only keys that pass their source's filter, if there is one (by src_id), and
    rows with ids in (`after_id`, `until_id`]. Truncates, which are about every row, are included
    whatever the filter and the ids, but not without `with_truncates`.
    """

    src_ids: Sequence[int]
    after: LogPlace
    target_scn: int
    filters: Mapping[int, StoredFilter]
    after_id: int = 0
    until_id: int = MAX_SCN
    with_truncates: bool = True

    @property
    def is_of_some_rows(self) -> bool:
        """Whether the range is limited by row ids."""
        return (self.after_id, self.until_id) != (0, MAX_SCN)

    def condition_of(self, src_id: int) -> Condition:
        """Return the SQL condition on a row of the log."""
        wanted = condition_of(self.filters.get(src_id), with_truncates=self.with_truncates)
        if not self.is_of_some_rows:
            return wanted
        of_rows = _OF_ROWS.format(every_key=EVERY_KEY, src_id=src_id)
        parameters = (*wanted.parameters, self.after_id, self.until_id)
        return wanted._replace(sql=f"{wanted.sql} and {of_rows}", parameters=parameters)

    def begin(self) -> LogPlace:
        """Return the place where the range begins, as (SCN, index)."""
        scn, index = self.after
        return scn, _LAST_INDEX if index == WHOLE_WINDOW else index


class OldRow(NamedTuple):
    """The columns of a log row that retention needs."""

    scn: int
    at_ns: int  # when the store received it
    size_bytes: int
    src_id: int


def create(connection: sqlite3.Connection, src_id: int) -> None:
    """Create a source's table."""
    for statement in filter(None, map(str.strip, CREATE.split(";\n"))):
        connection.execute(statement.format(src_id=src_id))


def append(
    connection: sqlite3.Connection,
    src_id: int,
    events: Sequence[tuple[int, StoredEvent]],
    now_ns: int,
) -> None:
    """Append events of a window, each with its index in the window."""
    connection.executemany(_APPEND.format(src_id=src_id), _values(events, now_ns))


def _values(
    events: Sequence[tuple[int, StoredEvent]], now_ns: int
) -> Iterator[tuple[int, int, int | bytes, int, int, int, bytes]]:
    for index, (scn, key, _, event, is_truncate, _) in events:
        if is_truncate:
            yield scn, index, key, 0, EVERY_KEY, now_ns, event
        elif isinstance(key, int):
            yield scn, index, key, key, False, now_ns, event
        else:
            yield scn, index, key, *number_of(key), now_ns, event


def page(connection: sqlite3.Connection, log_range: LogRange, most_bytes: int) -> LogPage:
    """Return the first rows of a range: at least one if there is one."""
    with ExitStack() as opened:  # a traceback would keep the cursor, and it the file, open
        cursors = [
            opened.enter_context(closing(_rows_of(connection, src_id, log_range)))
            for src_id in log_range.src_ids
        ]
        return _page_of(cursors, log_range, most_bytes)


def _page_of(cursors: Sequence[Iterable[_Row]], log_range: LogRange, most_bytes: int) -> LogPage:
    found: list[_Row] = []
    size_bytes = 0
    last, is_last = (log_range.target_scn, WHOLE_WINDOW), True
    for row in cursors[0] if len(cursors) == 1 else heapq.merge(*cursors):
        check_events(row[4], 1)
        size_bytes += len(row[4])
        if found and size_bytes > most_bytes:
            scn, index, *_ = found[-1]
            # A window is cut only if the first row that is left out belongs to it.
            last, is_last = (scn, index if row[0] == scn else WHOLE_WINDOW), False
            break
        found.append(row)
    return LogPage([LogRow(*row[:5]) for row in found], last, is_last)


# SCN and index come first: they are unique, and the merge sorts by them.
_Row = tuple[int, int, int, int | bytes, bytes, int]


def _rows_of(
    connection: sqlite3.Connection, src_id: int, log_range: LogRange
) -> sqlite3.Cursor | Generator[_Row, None, None]:
    condition = log_range.condition_of(src_id)
    sql = _AFTER.format(src_id=src_id, condition=condition.sql)
    cursor = connection.execute(
        sql, (*log_range.begin(), log_range.target_scn, *condition.parameters)
    )
    wanted = log_range.filters.get(src_id)
    return _checked(cursor, condition, wanted) if condition.has_ranges else cursor


def _checked(
    rows: Iterator[_Row], condition: Condition, wanted: StoredFilter | None
) -> Generator[_Row, None, None]:
    """Let the filter refuse a key that is in no range; raises InvalidParameterError."""
    for row in rows:
        check_range(condition, wanted, row[5], row[3])
        yield row


def body(connection: sqlite3.Connection, log_range: LogRange, most_bytes: int) -> LogBody | None:
    """Return the events of whole windows that fit, joined by SQLite.

    None when they must be read row by row: the first window does not fit, or this
    SQLite cannot join bytes.
    """
    if not joins_bytes():
        return None
    found = measure(connection, log_range, MAX_SCN, most_bytes)
    if found.size_bytes > most_bytes:
        return None
    if not found.rows:
        return LogBody(b"", 0, found.scn)
    selects, parameters = [], []
    for src_id in log_range.src_ids:
        condition = log_range.condition_of(src_id)
        selects.append(_EVENTS.format(src_id=src_id, condition=condition.sql))
        parameters += [*log_range.begin(), found.scn, *condition.parameters]
    sql = _BODY.format(events=" union all ".join(selects))
    (events,) = connection.execute(sql, parameters).fetchone()
    check_events(events, found.rows)
    return LogBody(events, found.rows, found.scn)


def measure(
    connection: sqlite3.Connection, log_range: LogRange, most_rows: int, most_bytes: int
) -> LogMeasure:
    """Return how far a number of rows of a range reaches, in whole windows.

    The first window with rows is included, however large it is.
    """
    scn, rows, size_bytes = NOTHING_YET, 0, 0
    merged = heapq.merge(
        *(_windows_of(connection, src_id, log_range) for src_id in log_range.src_ids)
    )
    for window_scn, parts in itertools.groupby(merged, key=itemgetter(0)):
        counts = [(count, size) for _, count, size in parts]
        window_rows = sum(count for count, _ in counts)
        window_bytes = sum(size for _, size in counts)
        if rows and (rows + window_rows > most_rows or size_bytes + window_bytes > most_bytes):
            return LogMeasure(
                scn, rows, size_bytes, _timestamp_of(connection, log_range.src_ids, scn)
            )
        scn, rows, size_bytes = window_scn, rows + window_rows, size_bytes + window_bytes
    timestamp_ns = _timestamp_of(connection, log_range.src_ids, log_range.target_scn)
    return LogMeasure(log_range.target_scn, rows, size_bytes, timestamp_ns)


def _windows_of(
    connection: sqlite3.Connection, src_id: int, log_range: LogRange
) -> Iterator[tuple[int, int, int]]:
    """Yield SCN, rows and bytes of each window with rows of a source."""
    condition = log_range.condition_of(src_id)
    arguments = (*log_range.begin(), log_range.target_scn, *condition.parameters)
    sql = _WINDOWS_AFTER.format(src_id=src_id, condition=condition.sql)
    for scn, count, size, has_hashed in connection.execute(sql, arguments):
        if has_hashed and condition.has_ranges:
            for _ in _rows_of(connection, src_id, log_range._replace(target_scn=scn)):
                pass  # a row that the filter rejects with an error is reported when it is read
        yield scn, count, size


def _timestamp_of(connection: sqlite3.Connection, src_ids: Sequence[int], scn: int) -> int:
    """Return the commit time of a window; 0 when the log has no row of it."""
    for src_id in src_ids:
        sql = _TIMESTAMP.format(src_id=src_id)
        for (header,) in connection.execute(sql, (SMALLEST_BYTES, scn)):
            return peek(header).timestamp_ns
    return 0


def window_at(
    connection: sqlite3.Connection, src_ids: Sequence[int], scn: int
) -> tuple[int, int] | None:
    """Return SCN and timestamp of the newest window up to `scn` with rows, or None."""
    found = [
        newest
        for src_id in src_ids
        for (newest,) in connection.execute(_NEWEST_SCN.format(src_id=src_id), (scn,))
        if newest is not None
    ]
    return (max(found), _timestamp_of(connection, src_ids, max(found))) if found else None


def count_after(
    connection: sqlite3.Connection, src_ids: Sequence[int], after_scn: int, limit: int
) -> int:
    """Count the sources' rows after a window, up to `limit`."""
    count = 0
    for src_id in src_ids:
        sql = _COUNT_AFTER.format(src_id=src_id)
        count += connection.execute(sql, (after_scn, limit - count)).fetchone()[0]
    return count


def oldest(
    connection: sqlite3.Connection, src_ids: Sequence[int], until_scn: int
) -> Iterator[OldRow]:
    """Yield the sources' rows up to and including window `until_scn`, oldest first."""

    def rows_of(src_id: int) -> Iterator[OldRow]:
        sql = _OLDEST.format(src_id=src_id)
        for scn, at_ns, size_bytes in connection.execute(sql, (until_scn,)):
            yield OldRow(scn, at_ns, size_bytes, src_id)

    return heapq.merge(*map(rows_of, src_ids))


def delete_until(connection: sqlite3.Connection, src_id: int, scn: int) -> None:
    """Delete all rows up to and including a window."""
    connection.execute(_DELETE.format(src_id=src_id), (scn,))


def clear(connection: sqlite3.Connection, src_id: int) -> None:
    """Delete all rows."""
    connection.execute(_CLEAR.format(src_id=src_id))


def count(connection: sqlite3.Connection, src_id: int) -> int:
    """Return the number of rows. Ids have no gaps, because the oldest are deleted first."""
    first, last = connection.execute(_EXTENT.format(src_id=src_id)).fetchone()
    return 0 if first is None else last - first + 1
