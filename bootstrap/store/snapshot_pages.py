"""Reads a snapshot table in the order of its ids: pages of rows, and measuring.

There are two ways. Row by row, when each row must be examined. When only the events are
needed, SQLite joins those of one range of ids after another until the page is nearly
full; the width of a range is estimated from the ranges before. Then no row becomes a
Python object, and other threads can run. A range that turns out too large is abandoned,
so memory stays within the page size. Both ways check each event's CRCs: the file may have
been damaged since the last check.

All functions run inside the caller's transaction. ProtocolError means damage.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import NamedTuple

from databus.bootstrap.store.file import joins_bytes
from databus.bootstrap.store.filter_sql import (
    EVERY_KEY,
    Condition,
    StoredFilter,
    check_range,
    condition_of,
)
from databus.bootstrap.store.snapshot_table import count_changed
from databus.bootstrap.store.values import (
    NOTHING_YET,
    SnapshotBody,
    SnapshotMeasure,
    SnapshotPage,
    StoreRow,
)
from databus.schemas.event.event import WHOLE_TABLE_KEY
from databus.schemas.scn import MAX_SCN
from databus.schemas.stream.whole_events import check_events

_BY_ID = """
from snapshot_{src_id} not indexed
where id > ? and id <= ? and scn > ? and scn <= ? and (deleted_ns = 0 or scn > ?) and {condition}
"""
_BY_SCN = """
from snapshot_{src_id}
where id in (
    select id from snapshot_{src_id} indexed by snapshot_{src_id}_scn
    where id > ? and id <= ? and scn > ? and scn <= ?
) and (deleted_ns = 0 or scn > ?) and {condition}
"""
_ROWS = "select id, scn, key, deleted_ns > 0, event, is_hashed {rows} order by id"
_SIZES = "select id, length(event), key, is_hashed {rows} order by id"
_SUMS = "select {hashed}, count(*), max(id), sum(length(event)) {rows}"
# SQLite joins the bytes unchanged, zeros included, in the order of its scan.
_JOINED = "select {hashed}, count(*), max(id), cast(group_concat(event, '') as blob) {rows}"
_ANY = "select 1 {rows} limit 1"
_MAX_ID = "select max(id) from snapshot_{src_id}"

# With no more changed rows than this, a page reads only them and sorts their ids each
# time. With more, the pages together scan the whole table once.
FEW_CHANGED = 20_000

_FIRST_IDS = 64  # the first range, before the size of rows is known
_SPARSER = 4  # factor for the next range after one without rows
_PART_BYTES = 256 << 10  # joined at once: small enough that the memory is reused
_FULL = 0.95  # a page is full at this share of its size
_ROW_BYTES = 4096  # for a row beside its event, including SQLite's overhead
_LARGEST_LIMIT = (1 << 31) - 1
_SHARE = 0.9  # of the rows that should fit are read in one go


class SnapshotRange(NamedTuple):
    """A selection of a source's rows.

    Rows with `after_id` < id <= `until_id` and `since_scn` < SCN <= `start_scn` that pass
    the filter; tombstones only with SCNs above `deleted_after_scn`, and that of a truncate
    only `with_truncates`. Above `deleted_after_scn` a row passes a filter by columns, too.
    """

    since_scn: int
    start_scn: int
    after_id: int
    wanted: StoredFilter | None = None
    until_id: int = MAX_SCN
    deleted_after_scn: int = MAX_SCN
    with_truncates: bool = True


def needed_rows(
    since_scn: int,
    start_scn: int,
    after_id: int,
    wanted: StoredFilter | None,
    seen_scn: int = NOTHING_YET,
    until_id: int = MAX_SCN,
    *,
    with_truncates: bool = True,
) -> SnapshotRange:
    """Return which rows a consumer needs that has everything up to `since_scn`.

    Those with ids in (`after_id`, `until_id`] and SCNs in (`since_scn`, `start_scn`].
    Tombstones only when the consumer may have the row: with `since_scn` > 0 all of them,
    otherwise those after `seen_scn`, the SCN of an earlier attempt that may have
    delivered rows (-1: none).
    """
    known_scn = since_scn if since_scn > 0 else seen_scn
    deleted_after_scn = MAX_SCN if known_scn == NOTHING_YET else known_scn
    return SnapshotRange(
        since_scn, start_scn, after_id, wanted, until_id, deleted_after_scn, with_truncates
    )


class _Found(NamedTuple):
    """The totals of a range of ids; `last_id` has no meaning without rows."""

    rows: int
    last_id: int
    size_bytes: int


class _Rows:
    """Reads the rows of a `SnapshotRange` by SQL."""

    def __init__(
        self, connection: sqlite3.Connection, src_id: int, snapshot_range: SnapshotRange
    ) -> None:
        self._connection = connection
        self._src_id = src_id
        self._range = snapshot_range
        self.condition: Condition = condition_of(
            snapshot_range.wanted,
            with_truncates=snapshot_range.with_truncates,
            known_scn=snapshot_range.deleted_after_scn,
        )
        is_whole = snapshot_range.since_scn <= 0
        self.are_few = (
            not is_whole
            and count_changed(connection, src_id, snapshot_range.since_scn, FEW_CHANGED)
            < FEW_CHANGED
        )
        self._rows = (_BY_SCN if self.are_few else _BY_ID).format(
            src_id=src_id, condition=self.condition.sql
        )
        # Every SCN is positive; rows seeded from an empty log may have 0.
        since = -1 if is_whole else snapshot_range.since_scn
        scns = since, snapshot_range.start_scn, snapshot_range.deleted_after_scn
        self._parameters = (*scns, *self.condition.parameters)

    def ask(
        self, sql: str, after_id: int | None = None, until_id: int | None = None
    ) -> sqlite3.Cursor:
        """Run a statement over the rows, or over a narrower range of ids."""
        begin = self._range.after_id if after_id is None else after_id
        end = self._range.until_id if until_id is None else until_id
        hashed = "max(is_hashed = 1)" if self.condition.has_ranges else "0"
        text = sql.format(rows=self._rows, hashed=hashed)
        return self._connection.execute(text, (begin, end, *self._parameters))

    def sums(self, after_id: int, until_id: int) -> _Found:
        """Count the rows of a range of ids, and the bytes of their events."""
        has_hashed, count, last_id, size = self.ask(_SUMS, after_id, until_id).fetchone()
        self._check_hashed(has_hashed, after_id, until_id)
        return _Found(count, last_id, size or 0)

    def joined(self, after_id: int, until_id: int, most_bytes: int) -> tuple[_Found, bytes] | None:
        """Return the events of a range of ids joined in one; None when they are too large."""
        most = min(most_bytes + _ROW_BYTES, _LARGEST_LIMIT)
        # SQLite gives up on a range that is too large before it takes the memory.
        limit = self._connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, most)
        try:
            row = self.ask(_JOINED, after_id, until_id).fetchone()
        except sqlite3.DataError:
            return None
        finally:
            self._connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, limit)
        has_hashed, count, last_id, events = row
        self._check_hashed(has_hashed, after_id, until_id)
        events = events or b""
        if len(events) > most_bytes:
            return None
        check_events(events, count)
        return _Found(count, last_id, len(events)), events

    def _check_hashed(self, has_hashed: int, after_id: int, until_id: int) -> None:
        if has_hashed:
            for _, _, key, is_hashed in self.ask(_SIZES, after_id, until_id):
                self.check(is_hashed, key)

    def last_id(self) -> int:
        """Return the highest id that a row can have."""
        return min(self._range.until_id, max_id(self._connection, self._src_id))

    def check(self, is_hashed: int, key: int | bytes) -> None:
        """Raise the filter's InvalidParameterError for a key that can be in no range."""
        check_range(self.condition, self._range.wanted, is_hashed, key)


def page(
    connection: sqlite3.Connection, src_id: int, snapshot_range: SnapshotRange, most_bytes: int
) -> SnapshotPage:
    """Return the first selected rows: at least one if there is one."""
    asked = _Rows(connection, src_id, snapshot_range)
    rows: list[StoreRow] = []
    size_bytes = 0
    # Closed at once: a traceback would keep the cursor, and with it the file, open.
    with closing(asked.ask(_ROWS)) as cursor:
        for row_id, scn, key, is_deleted, event, is_hashed in cursor:
            if is_hashed == EVERY_KEY:
                key = WHOLE_TABLE_KEY
            asked.check(is_hashed, key)
            check_events(event, 1)
            size_bytes += len(event)
            if rows and size_bytes > most_bytes:
                return SnapshotPage(rows, rows[-1].id, is_last=False)
            rows.append(StoreRow(row_id, scn, key, bool(is_deleted), event))
    return SnapshotPage(rows, rows[-1].id if rows else snapshot_range.after_id, is_last=True)


def body(
    connection: sqlite3.Connection, src_id: int, snapshot_range: SnapshotRange, most_bytes: int
) -> SnapshotBody:
    """Return the events of the first selected rows, which fill a page or nearly so.

    When the first event does not fit, return its size instead.
    """
    asked = _Rows(connection, src_id, snapshot_range)
    if asked.are_few or not joins_bytes():
        read = page(connection, src_id, snapshot_range, most_bytes)
        events = b"".join([row.event for row in read.rows])
        measure = SnapshotMeasure(read.last_id, len(read.rows), len(events), read.is_last)
        return SnapshotBody([events], measure)
    return _join_ranges(asked, snapshot_range.after_id, most_bytes)


def measure(
    connection: sqlite3.Connection,
    src_id: int,
    snapshot_range: SnapshotRange,
    most_rows: int,
    most_bytes: int,
) -> SnapshotMeasure:
    """Return how far a number of rows and bytes reaches: at least one row if there is one."""
    asked = _Rows(connection, src_id, snapshot_range)
    if not asked.are_few:
        return _measure_ranges(asked, snapshot_range.after_id, most_rows, most_bytes)
    found = SnapshotMeasure(snapshot_range.after_id, 0, 0, is_last=True)
    for row_id, length, key, is_hashed in asked.ask(_SIZES):
        asked.check(is_hashed, key)
        fits = found.rows < most_rows and found.size_bytes + length <= most_bytes
        if found.rows and not fits:
            return found._replace(is_last=False)
        found = SnapshotMeasure(row_id, found.rows + 1, found.size_bytes + length, is_last=True)
    return found


def max_id(connection: sqlite3.Connection, src_id: int) -> int:
    """Return the highest id of a source's rows and tombstones; 0 when there are none."""
    (found,) = connection.execute(_MAX_ID.format(src_id=src_id)).fetchone()
    return 0 if found is None else found


def _measure_ranges(
    asked: _Rows, after_id: int, most_rows: int, most_bytes: int
) -> SnapshotMeasure:
    """Count ranges of ids, narrower ones where a range has too many rows."""
    at, last_id, rows, size_bytes = after_id, after_id, 0, 0
    end_id, width = asked.last_id(), _FIRST_IDS
    is_over = False  # not all rows up to `end_id` fit
    while at < end_id:
        until = min(at + width, end_id)
        found = asked.sums(at, until)
        count = found.rows
        fits = rows + count <= most_rows and size_bytes + found.size_bytes <= most_bytes
        if count and not fits and (rows or count > 1):
            # The limit lies within this range: search it with narrower ones.
            end_id, is_over = until, True
            if until - at == 1:
                break
        elif count:
            last_id, rows, size_bytes = found.last_id, rows + count, size_bytes + found.size_bytes
            at = until
            if not fits or rows == most_rows:
                is_over = asked.ask(_ANY, at).fetchone() is not None
                break
        else:
            at = until
        if not count:
            width *= _SPARSER
        elif rows:
            expected = min((most_rows - rows) / rows, (most_bytes - size_bytes) / size_bytes)
            width = max(1, int((at - after_id) * expected * _SHARE))
        if is_over:
            width = max(1, min(width, (end_id - at) // 2))
    return SnapshotMeasure(last_id, rows, size_bytes, is_last=not is_over)


def _join_ranges(asked: _Rows, after_id: int, most_bytes: int) -> SnapshotBody:
    """Join ranges of ids until a page is nearly full: at least one row if there is one."""
    parts: list[bytes] = []
    at, last_id, rows, size_bytes = after_id, after_id, 0, 0
    end_id, width = asked.last_id(), _FIRST_IDS
    while at < end_id and size_bytes < _FULL * most_bytes:
        until = min(at + width, end_id)
        read = asked.joined(at, until, most_bytes - size_bytes)
        if read is None:
            if until - at > 1:
                # The range has more than the page's room: try half of it.
                width = (until - at) // 2
                continue
            if rows:
                break
            found = asked.sums(at, until)  # a row that fits in no page is reported by its size
            return SnapshotBody([], SnapshotMeasure(found.last_id, 1, found.size_bytes, False))
        found, events = read
        if found.rows:
            parts.append(events)
            last_id, rows = found.last_id, rows + found.rows
            size_bytes += found.size_bytes
            wanted = min(_PART_BYTES, _SHARE * (most_bytes - size_bytes))
            width = max(1, int((until - at) * wanted / found.size_bytes))
        else:
            width *= _SPARSER
        at = until
    is_last = at >= end_id or asked.ask(_ANY, at).fetchone() is None
    return SnapshotBody(parts, SnapshotMeasure(last_id, rows, size_bytes, is_last))
