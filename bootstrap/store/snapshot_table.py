"""The snapshot table of a source: each row's newest event, under a stable id.

Consumers page by `id`; an update keeps it. A deleted row stays with its delete event as a
tombstone until retention removes it: `deleted_ns` is when the store learned of the
deletion, 0 = not deleted, -1 = the row lacks columns that the seeder has yet to read (no
source that is served has such rows). A newer event is never replaced by an older one,
whatever the order in which log and seeder write: each write has its SCN.

A TRUNCATE deletes all rows up to its SCN, with their tombstones, and leaves one tombstone
for all: the event itself, under a key that no row has and an id below all others. So a
consumer that may have rows from before it receives it first, the seeder sees that the rows
it read before are void, and retention deletes it like any other tombstone.

`snapshot_pages` reads ranges of the table.

All functions run inside the caller's transaction.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Iterable, Iterator
from itertools import chain, islice
from typing import NamedTuple

from databus.bootstrap.store.filter_sql import EVERY_KEY, number_of
from databus.bootstrap.store.values import StoredEvent, StoreRow
from databus.schemas.event.event import WHOLE_TABLE_KEY, Opcode, Part
from databus.schemas.event.metadata import (
    METADATA_DIGESTS,
    EventMetadata,
    Notes,
    Op,
    decode_metadata,
    encode_metadata,
    metadata_part,
)
from databus.schemas.event.v2 import decode, encode
from databus.schemas.stream.whole_events import check_events

CREATE = """
create table snapshot_{src_id} (
    id integer primary key,
    key not null unique,
    number integer not null,
    is_hashed integer not null,
    scn integer not null,
    deleted_ns integer not null,
    event blob not null
);
create index snapshot_{src_id}_scn on snapshot_{src_id} (scn);
create index snapshot_{src_id}_deleted on snapshot_{src_id} (scn) where deleted_ns > 0;
"""
_MERGE = """
insert into snapshot_{src_id} (key, number, is_hashed, scn, deleted_ns, event)
values {rows}
on conflict (key) do update
set scn = excluded.scn, deleted_ns = excluded.deleted_ns, event = excluded.event
where excluded.scn >= scn
"""
_ROW = "(?, ?, ?, ?, ?, ?)"
# A statement costs as much as the row it stores. More rows than these save nothing more.
_ROWS_AT_ONCE = 20
_ROWS = ", ".join([_ROW] * _ROWS_AT_ONCE)
_HAS_OLDER = """
select 1 from snapshot_{src_id} indexed by snapshot_{src_id}_scn where scn < ? limit 1
"""
_COUNT_CHANGED = """
select count(*) from (select 1 from snapshot_{src_id} indexed by snapshot_{src_id}_scn
where scn > ? limit ?)
"""
_BY_KEY = "select id, scn, key, deleted_ns > 0, event from snapshot_{src_id} where key = ?"
_LEFTOVERS = """
select id, scn, event from snapshot_{src_id} indexed by snapshot_{src_id}_scn
where (scn, id) > (?, ?) and scn < ? and deleted_ns <= 0
order by scn, id limit ?
"""
_BURY = "update snapshot_{src_id} set scn = ?, deleted_ns = ?, event = ? where id = ?"
_TOMBSTONES = """
select id, scn, deleted_ns from snapshot_{src_id} indexed by snapshot_{src_id}_deleted
where deleted_ns > 0 order by scn limit ?
"""
_DELETE = "delete from snapshot_{src_id} where id = ?"
_HAS_NEWER = """
select 1 from snapshot_{src_id} indexed by snapshot_{src_id}_scn where scn > ? limit 1
"""
# Without a condition SQLite frees whole pages and reads no row: a hundred times faster.
_DELETE_ALL = "delete from snapshot_{src_id}"
_DELETE_UNTIL = "delete from snapshot_{src_id} where scn <= ?"
_MOVE = """
update snapshot_{src_id} set id = (select max(id) + 1 from snapshot_{src_id}) where id = ?
"""
_MARK_EMPTIED = """
insert into snapshot_{src_id} (id, key, number, is_hashed, scn, deleted_ns, event)
values (?, ?, 0, ?, ?, ?, ?)
"""
_EMPTIED = "select scn, event from snapshot_{src_id} where key = ?"
_HAS_PARTIAL = "select 1 from snapshot_{src_id} not indexed where deleted_ns < 0 limit 1"
_COUNT = "select count(*) from snapshot_{src_id}"
_COUNT_TOMBSTONES = "select count(*) from snapshot_{src_id} where deleted_ns > 0"

_EVERY_ROW = "every row"  # a text: the keys of rows are numbers and bytes
_FIRST_ID = 1
_PARTIAL_NS = -1  # `deleted_ns` of a row that lacks columns


class Leftover(NamedTuple):
    """A stored row that the seeder did not find in the database."""

    id: int
    scn: int
    event: bytes


def create(connection: sqlite3.Connection, src_id: int) -> None:
    """Create a source's table."""
    for statement in filter(None, map(str.strip, CREATE.split(";\n"))):
        connection.execute(statement.format(src_id=src_id))


def merge(
    connection: sqlite3.Connection, src_id: int, events: Iterable[StoredEvent], now_ns: int
) -> int:
    """Store each event unless its row has a newer one; return how many were stored."""
    before = connection.total_changes
    values, many = _values(events, now_ns), _MERGE.format(src_id=src_id, rows=_ROWS)
    while len(taken := list(islice(values, _ROWS_AT_ONCE))) == _ROWS_AT_ONCE:
        connection.execute(many, list(chain.from_iterable(taken)))
    connection.executemany(_MERGE.format(src_id=src_id, rows=_ROW), taken)
    return connection.total_changes - before


def _values(
    events: Iterable[StoredEvent], now_ns: int
) -> Iterator[tuple[int | bytes, int, int, int, int, bytes]]:
    for scn, key, is_deleted, event, _, is_partial in events:
        deleted_ns = now_ns if is_deleted else _PARTIAL_NS if is_partial else 0
        if isinstance(key, int):
            yield key, key, False, scn, deleted_ns, event
        else:
            yield key, *number_of(key), scn, deleted_ns, event


def empty(connection: sqlite3.Connection, src_id: int, truncate: StoredEvent, now_ns: int) -> None:
    """Delete every row up to the SCN of a TRUNCATE, and store its event in their place.

    Rows with later SCNs exist only when the seeder read them after it and the log is
    behind. The source is not served then, so an id may change.
    """
    execute, scn = connection.execute, truncate.scn
    if execute(_HAS_NEWER.format(src_id=src_id), (scn,)).fetchone() is None:
        execute(_DELETE_ALL.format(src_id=src_id))
    else:
        execute(_DELETE_UNTIL.format(src_id=src_id), (scn,))
        # The first id is the tombstone's.
        execute(_MOVE.format(src_id=src_id), (_FIRST_ID,))
    execute(
        _MARK_EMPTIED.format(src_id=src_id),
        (_FIRST_ID, _EVERY_ROW, EVERY_KEY, scn, now_ns, truncate.event),
    )


def emptied(connection: sqlite3.Connection, src_id: int) -> StoreRow | None:
    """Return the tombstone of the last TRUNCATE, if it is still kept."""
    found = connection.execute(_EMPTIED.format(src_id=src_id), (_EVERY_ROW,)).fetchone()
    return None if found is None else StoreRow(_FIRST_ID, found[0], WHOLE_TABLE_KEY, True, found[1])


def has_older(connection: sqlite3.Connection, src_id: int, scn: int) -> bool:
    """Return whether a row or tombstone has an SCN below this one."""
    return connection.execute(_HAS_OLDER.format(src_id=src_id), (scn,)).fetchone() is not None


def count_changed(connection: sqlite3.Connection, src_id: int, since_scn: int, limit: int) -> int:
    """Count rows and tombstones with an SCN above `since_scn`, up to `limit`."""
    sql = _COUNT_CHANGED.format(src_id=src_id)
    count: int = connection.execute(sql, (since_scn, limit)).fetchone()[0]
    return count


def by_key(
    connection: sqlite3.Connection, src_id: int, keys: Collection[int | bytes]
) -> dict[int | bytes, StoreRow]:
    """Return the existing rows and tombstones with these keys.

    A key without one gets the tombstone of the last TRUNCATE, if there is one. Raises
    ProtocolError for a damaged event.
    """
    sql = _BY_KEY.format(src_id=src_id)
    for_all = emptied(connection, src_id)
    found = {} if for_all is None else {key: for_all._replace(key=key) for key in keys}
    for key in keys:
        row = connection.execute(sql, (key,)).fetchone()
        if row is not None:
            row_id, scn, _, is_deleted, event = row
            check_events(event, 1)
            found[key] = StoreRow(row_id, scn, key, bool(is_deleted), event)
    return found


def has_partial(connection: sqlite3.Connection, src_id: int) -> bool:
    """Return whether a row lacks columns; reads the whole table."""
    found = connection.execute(_HAS_PARTIAL.format(src_id=src_id)).fetchone()
    return found is not None


def leftovers(
    connection: sqlite3.Connection, src_id: int, after: tuple[int, int], below_scn: int, limit: int
) -> list[Leftover]:
    """Return live rows with SCNs below `below_scn`, from (SCN, id) `after` on."""
    sql = _LEFTOVERS.format(src_id=src_id)
    return [Leftover(*row) for row in connection.execute(sql, (*after, below_scn, limit))]


def bury(
    connection: sqlite3.Connection,
    src_id: int,
    scn: int,
    now_ns: int,
    events: Iterable[tuple[int, bytes]],
) -> None:
    """Turn rows, given as (id, delete event), into tombstones."""
    values = ((scn, now_ns, event, row_id) for row_id, event in events)
    connection.executemany(_BURY.format(src_id=src_id), values)


def forget_deleted(
    connection: sqlite3.Connection, src_id: int, before_ns: int, limit: int
) -> tuple[int, int]:
    """Delete tombstones older than `before_ns`, lowest SCNs first.

    Returns their number and the SCN of the last (-1 for none).
    """
    found = connection.execute(_TOMBSTONES.format(src_id=src_id), (limit,)).fetchall()
    old: list[tuple[int, int]] = []
    for row_id, scn, deleted_ns in found:
        if deleted_ns >= before_ns:
            break
        old.append((row_id, scn))
    connection.executemany(_DELETE.format(src_id=src_id), ((row_id,) for row_id, _ in old))
    return len(old), old[-1][1] if old else -1


def count(connection: sqlite3.Connection, src_id: int) -> tuple[int, int]:
    """Return the numbers of rows and tombstones; reads a whole index."""
    (rows,) = connection.execute(_COUNT.format(src_id=src_id)).fetchone()
    (dead,) = connection.execute(_COUNT_TOMBSTONES.format(src_id=src_id)).fetchone()
    return rows - dead, dead


def make_tombstone(event: bytes, scn: int, timestamp_ns: int) -> bytes:
    """Return a delete event at `scn` for a row that is given by its last event.

    It has the last known values and no position in the change log. Raises ProtocolError
    for a damaged event.
    """
    last, _ = decode(event)
    deleted = last._replace(
        scn=scn, timestamp_ns=timestamp_ns, opcode=Opcode.DELETE, metadata=_metadata(last.metadata)
    )
    return encode(deleted)


def _metadata(last: Part | None) -> Part | None:
    """Return metadata that says `delete`, or none when the relay sends no metadata."""
    if last is None or last.digest not in METADATA_DIGESTS:
        return None
    notes = decode_metadata(last.data, last.digest).notes
    if notes is not None:
        notes = Notes(notes.absent, (), notes.raw)
    return metadata_part(encode_metadata(EventMetadata(Op.DELETE, notes=notes)))
