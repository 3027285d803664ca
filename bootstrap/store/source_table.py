"""The tables `store` and `sources`: the producer's position, its proof and term; sources' states.

This is the SQL of `Store`, which documents when and why it runs.

Each row has a checksum, because nothing else in the file would reveal a changed position
or floor. It does not cover `log_bytes`, which every window changes: that is only
displayed, and `check` counts it again.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import fields
from typing import Any, NamedTuple
from zlib import crc32

from databus.bootstrap.store.values import NOTHING_YET, Position, SourceState, SourceStatus
from databus.schemas.checkpoint import LogWindow
from databus.schemas.errors import StoreDamagedError
from databus.schemas.scn import MAX_SCN

_READ = """
select id, scn, timestamp_ns, term, log_scn, log_timestamp_ns, log_source, crc from store
"""
_WRITE = """
update store set scn = ?, timestamp_ns = ?, term = ?,
    log_scn = ?, log_timestamp_ns = ?, log_source = ?, crc = ?
"""
_TERM = "select term from store"
STATE_FIELDS = tuple(field.name for field in fields(SourceState))
NAME_OF = "select name from sources where src_id = ?"
STATES = f"select {', '.join(STATE_FIELDS)}, crc from sources"
_STAMP = "update sources set crc = ? where name = ?"
ADD_SOURCE = """
insert into sources (name, src_id, status, log_floor_scn, tombstone_floor_scn)
values (?, ?, 'new', ?, ?)
"""
# After an absence: the changes in between are neither in the log nor among the tombstones.
COME_BACK = """
update sources set status = 'new', floor_scn = -1, log_floor_scn = ?, tombstone_floor_scn = ?,
    seed_scn = -1, seed_resume = null, seed_until_scn = -1, problem = '', log_bytes = 0
where name = ?
"""
LEAVE = "update sources set status = 'inactive', problem = ? where name = ?"
COUNT_LOG_BYTES = """
update sources set log_bytes = log_bytes + ? where src_id = ? and status != 'inactive'
"""
COUNT_LOG_BYTES_GONE = "update sources set log_bytes = log_bytes - ? where src_id = ?"
SUM_LOG_BYTES = "select coalesce(sum(log_bytes), 0) from sources"
RAISE_LOG_FLOOR = "update sources set log_floor_scn = max(log_floor_scn, ?)"
RAISE_TOMBSTONE_FLOOR = """
update sources set tombstone_floor_scn = max(tombstone_floor_scn, ?) where name = ?
"""
ADD_SCHEMA = """
insert into schema_versions (src_id, version, digest, text, change_scn)
values (?1, case when exists (
    select 1 from schema_versions where src_id = ?1 and version = ?2
) then (select max(version) + 1 from schema_versions where src_id = ?1) else ?2 end, ?3, ?4, ?5)
on conflict (src_id, digest) do nothing
"""
ALTERED = """
select distinct sources.name, change_scn from schema_versions join sources using (src_id)
where change_scn > ? and change_scn <= ? order by change_scn
"""
SCHEMA_TEXT = "select text from schema_versions where digest = ?"
SCHEMAS = """
select src_id, version, text from schema_versions where src_id in ({}) order by src_id, version
"""
# Seeding compares the rows that were served before the producer lagged out with the
# table's. Only rows that were both inserted and deleted in the gap stay unknown.
BEGIN_LOG = """
update sources set
    floor_scn = -1, log_floor_scn = ?1,
    tombstone_floor_scn = case status when 'fell_off_relay' then tombstone_floor_scn
        else max(tombstone_floor_scn, ?1) end,
    hole_end_scn = case status when 'fell_off_relay' then ?1 else hole_end_scn end,
    status = case status when 'fell_off_relay' then 'new' else status end
where status != 'inactive'
"""
FALL_OFF = f"""
update sources set status = 'fell_off_relay', problem = ?1, log_bytes = 0,
    hole_begin_scn = case when status != 'active' then 0
        when hole_begin_scn = -1 then ?2 else hole_begin_scn end,
    floor_scn = {MAX_SCN}, log_floor_scn = {MAX_SCN},
    seed_scn = -1, seed_resume = null, seed_until_scn = -1
where status != 'inactive'
"""
BEGIN_SEEDING = """
update sources set status = 'seeding', seed_scn = ?, seed_resume = null, seed_rows = 0,
    seed_estimate = ?, seed_until_scn = -1
where name = ?
"""
PROGRESS = "update sources set seed_resume = ?, seed_rows = seed_rows + ? where name = ?"
READ_UNTIL = "update sources set seed_until_scn = ? where name = ?"
CATCH_UP = "update sources set status = 'seeding_catch_up' where name = ?"
CAUGHT_UP = """
select name, src_id, seed_scn, log_floor_scn, partial_scn from sources, store
where status = 'seeding_catch_up' and seed_until_scn <= store.scn
"""
# During seeding the log accepted events whose rows lack columns: a consumer that would
# need one of them is sent the snapshot instead.
ACTIVATE = """
update sources set status = 'active', floor_scn = max(seed_scn, partial_scn),
    seed_resume = null, problem = ''
where name = ?
"""
RESET = """
update sources set status = 'new', floor_scn = -1, seed_scn = -1, seed_resume = null,
    seed_rows = 0, seed_until_scn = -1, problem = ?
where name = ?
"""
END_PACKS = "delete from packing where src_id = ?"
NOTE_PARTIAL = "update sources set partial_scn = ? where src_id = ?"
SET_PROBLEM = "update sources set problem = ? where name = ?"


class _StoreRow(NamedTuple):
    """The row of `store`, in the order of its checksum."""

    id: str
    scn: int
    timestamp_ns: int
    term: int
    log_scn: int
    log_timestamp_ns: int
    log_source: str


def position_of(connection: sqlite3.Connection, path: object) -> Position:
    """Return the producer's position; raises StoreDamagedError when its checksum is wrong."""
    row = _verified(connection, path)
    return Position(row.scn, row.timestamp_ns)


def move(
    connection: sqlite3.Connection, scn: int, timestamp_ns: int, window: LogWindow | None = None
) -> None:
    """Write the producer's position, and a log window, as `prove` does.

    A log window after the position goes: the log begins anew.
    """
    row = _read(connection)[0]._replace(scn=scn, timestamp_ns=timestamp_ns)
    if row.log_scn > scn:
        row = row._replace(log_scn=NOTHING_YET, log_timestamp_ns=NOTHING_YET, log_source="")
    _write(connection, row if window is None else _proved(row, window))


def log_window_of(connection: sqlite3.Connection, path: object) -> LogWindow | None:
    """Return the newest log window; raises StoreDamagedError when its checksum is wrong."""
    row = _verified(connection, path)
    return row[4:] if row.log_scn > NOTHING_YET else None


def prove(connection: sqlite3.Connection, path: object, window: LogWindow) -> None:
    """Write a log window, unless a newer one is known or the position is before it."""
    row = _verified(connection, path)
    proved = _proved(row, window)
    if proved != row:
        _write(connection, proved)


def _proved(row: _StoreRow, window: LogWindow) -> _StoreRow:
    return _StoreRow(*row[:4], *window) if row.log_scn < window[0] <= row.scn else row


def term_of(connection: sqlite3.Connection) -> int:
    """Return the newest term that has begun; 0 = the store was never written under a lease."""
    (term,) = connection.execute(_TERM).fetchone()
    return int(term)


def begin_term(connection: sqlite3.Connection, path: object, term: int) -> None:
    """Write the term under which the store is written from now on."""
    _write(connection, _verified(connection, path)._replace(term=term))


def _verified(connection: sqlite3.Connection, path: object) -> _StoreRow:
    row, crc = _read(connection)
    if crc != _checksum(row):
        raise damaged(path, "the producer's position is not what was written")
    return row


def _read(connection: sqlite3.Connection) -> tuple[_StoreRow, int]:
    *values, crc = connection.execute(_READ).fetchone()
    return _StoreRow(*values), crc


def _write(connection: sqlite3.Connection, row: _StoreRow) -> None:
    connection.execute(_WRITE, (*row[1:], _checksum(row)))


def stamp(connection: sqlite3.Connection) -> None:
    """Update the checksums of all rows of `sources`."""
    for *values, crc in connection.execute(STATES).fetchall():
        if crc != (now := _checksum(values)):
            connection.execute(_STAMP, (now, values[0]))


def stamp_one(connection: sqlite3.Connection, name: str) -> None:
    """Update the checksum of one row of `sources`.

    For callers that have verified only that row: the others keep their checksums.
    """
    *values, _ = connection.execute(f"{STATES} where name = ?", (name,)).fetchone()
    connection.execute(_STAMP, (_checksum(values), name))


def stamp_all(connection: sqlite3.Connection) -> None:
    """Give every row its first checksum."""
    _write(connection, _read(connection)[0])
    stamp(connection)


def check(connection: sqlite3.Connection, path: object) -> None:
    """Raise StoreDamagedError when the checksum of a row is wrong, before any is changed."""
    position_of(connection, path)
    for row in connection.execute(STATES):
        state_of(row, path)


def state_of(row: Sequence[Any], path: object, *, is_stamped: bool = True) -> SourceState:
    """Return the state in a row of STATES; raises StoreDamagedError when it is damaged.

    Inside the transaction that changes the row its checksum is not updated yet.
    """
    *columns, crc = row
    if is_stamped and crc != _checksum(columns):
        raise damaged(path, f"the state of source {columns[0]} is not what was written")
    values = dict(zip(STATE_FIELDS, columns, strict=True))
    return SourceState(**{**values, "status": SourceStatus(values["status"])})


def _checksum(values: Sequence[Any]) -> int:
    return crc32(repr(tuple(values)).encode("utf-8", "surrogatepass"))


def damaged(path: object, what: str) -> StoreDamagedError:
    """Return the error for a damaged store."""
    return StoreDamagedError(
        f"store {path} is damaged: {what}; stop its processes and move the file away "
        "(with its -wal): all is seeded again"
    )
