"""The schema of a bootstrap store, as numbered migrations.

The number of the last applied migration is the file's `user_version`. A file with a
higher number was written by a newer version of this project and is refused.

The tables of a source, `snapshot_<src_id>` and `log_<src_id>`, are created when the
source is added; their SQL is in `snapshot_table` and `log_table`. A migration that
changes them changes the tables of every source in `sources`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from databus.daemon.sqlite_tables import Database
from databus.registry.former_schemas import former_schema_id, rewritten
from databus.schemas.avro_rows import schema_id
from databus.schemas.errors import BootstrapError, ProtocolError
from databus.schemas.event.layout import V2
from databus.schemas.event.restamping import restamped
from databus.schemas.event.v2 import decode

log = logging.getLogger(__name__)

APPLICATION_ID: Final = 0xDB05  # marks an SQLite file as a bootstrap store

_FIRST = """
create table store (
    only integer primary key check (only = 1),
    id text not null,
    scn integer not null,
    timestamp_ns integer not null
);
insert into store values (1, lower(hex(randomblob(16))), -1, 0);
create table sources (
    name text primary key,
    src_id integer not null unique,
    status text not null,
    floor_scn integer not null default -1,
    log_floor_scn integer not null default -1,
    tombstone_floor_scn integer not null default -1,
    hole_begin_scn integer not null default -1,
    hole_end_scn integer not null default -1,
    seed_scn integer not null default -1,
    seed_resume text,
    seed_rows integer not null default 0,
    seed_estimate integer not null default 0,
    seed_until_scn integer not null default -1,
    problem text not null default '',
    log_bytes integer not null default 0
) without rowid;
create table schema_versions (
    src_id integer not null,
    version integer not null,
    digest blob not null,
    text text not null,
    primary key (src_id, digest),
    unique (src_id, version)
) without rowid;
"""

# From here on a snapshot may hold the tombstone of a TRUNCATE and rows that lack
# columns, which older programs do not understand.
_SECOND = "alter table sources add column partial_scn integer not null default -1"

# Values that cannot be verified against other data get a checksum; -1 = none yet.
_THIRD = """
alter table store add column crc integer not null default -1;
alter table sources add column crc integer not null default -1;
"""

# The SCN of the statement that made a version. Older programs served rows of older
# versions unconverted. The index is for the look-up that each window makes.
_FOURTH = """
alter table schema_versions add column change_scn integer not null default -1;
create index schema_versions_change_scn on schema_versions (change_scn);
update sources set status = 'new', floor_scn = -1, seed_scn = -1, seed_resume = null,
    seed_rows = 0, seed_until_scn = -1, crc = -1,
    problem = 'an earlier version kept rows as they were before ALTER TABLE: seeded again'
where status in ('active', 'seeding', 'seeding_catch_up')
    and (select count(*) from schema_versions known where known.src_id = sources.src_id) > 1
"""

# Until the fifth, events had zlib's CRCs, and schemas the MD5 of their text as id, which had a JSON
# object as `meta`. Each event is checked by the CRCs that it has. A damaged one stays damaged, so
# that its readers find that.
_AT_A_TIME = 20_000  # rows of a table between two looks at the clock
_REPORT_S = 10.0
_Value = bytes | str | int | float | None  # what a column may have

_TABLES = """
select name from sqlite_schema
where type = 'table' and (name glob 'snapshot_[0-9]*' or name glob 'log_[0-9]*') order by name
"""
_TEXTS = "select src_id, version, text from schema_versions order by 1, 2"
# Two versions may have one id now: then their bytes read the same, and the newer one stays.
_RENAME = """
update or replace schema_versions set digest = ?, text = ?
where src_id = ? and version = ? and digest = ?
"""
_END = "select id from {table} where id > ? order by id limit 1 offset ?"
_LAST = "select max(id) from {table}"
_RESTAMP = "update {table} set event = restamped(event) where id > ? and id <= ?"


def _restamp_store(database: Database) -> None:
    """Bring every event, every schema and its digest up to date."""
    versions = database.execute(_TEXTS).fetchall()
    texts = rewritten(text for _, _, text in versions)
    ids = {}
    for (src_id, version, former_text), text in zip(versions, texts, strict=True):
        former, ids[former] = former_schema_id(former_text), schema_id(text)
        database.execute(_RENAME, (ids[former], text, src_id, version, former))
    _Restamping(database, ids).run()


class _Restamping:
    """The work on one store, with what it counts."""

    def __init__(self, database: Database, ids: Mapping[bytes, bytes]) -> None:
        self._database = database
        self._ids = ids
        self._rows = self._damaged = 0
        self._reported_s = time.monotonic()

    def run(self) -> None:
        self._database.conn.create_function("restamped", 1, self._restamped, deterministic=True)
        for (table,) in self._database.execute(_TABLES).fetchall():
            self._restamp(table)
        if self._damaged:
            log.warning(
                "%d of %d stored events are damaged and stay damaged: whatever reads them says so",
                self._damaged,
                self._rows,
            )

    def _restamp(self, table: str) -> None:
        execute = self._database.execute
        (last,) = execute(_LAST.format(table=table)).fetchone()
        at = -1
        while last is not None and at < last:
            after = execute(_END.format(table=table), (at, _AT_A_TIME - 1)).fetchone()
            end = last if after is None else after[0]
            execute(_RESTAMP.format(table=table), (at, end))
            at = end
            self._report(table)

    def _restamped(self, event: _Value) -> _Value:
        self._rows += 1
        if not isinstance(event, bytes):
            return event  # its readers say so
        try:
            return restamped(event, self._ids)
        except ProtocolError:
            if _is_of_now(event):
                return event
            self._damaged += 1
            # A CRC of 0: with its own it might be taken for the event of an earlier server.
            return event[: V2.header_crc.offset] + bytes(4) + event[V2.header_crc.end :]

    def _report(self, table: str) -> None:
        if time.monotonic() - self._reported_s >= _REPORT_S:
            self._reported_s = time.monotonic()
            log.warning("%d stored events have new CRCs; now table %s", self._rows, table)


def _is_of_now(event: bytes) -> bool:
    try:
        return decode(event)[1] == len(event)
    except ProtocolError:
        return False


# The newest term under which the store was written. Older programs would not heed it.
_SIXTH = "alter table store add column term integer not null default 0"

# Rows packed as columns (`store.packs`). A source that is not served any more, or seeded again, has
# none. Each statement is one line or more, and only its end is a semicolon at the end of a line.
_SEVENTH = """
create table packing (
    src_id integer primary key,
    epoch text not null,
    scn integer not null,
    version text not null,
    crc integer not null
);
create table packs (
    src_id integer not null,
    until_id integer not null,
    after_id integer not null,
    epoch text not null,
    row_count integer not null,
    size_bytes integer not null,
    place_crc integer not null,
    columns_id integer not null,
    head blob not null,
    changed blob not null,
    crc integer not null,
    primary key (src_id, until_id)
) without rowid;
create table pack_columns (
    id integer primary key,
    ids blob not null,
    data blob not null
);
create trigger no_packs after update of status, seed_scn on sources
begin delete from packing where src_id = new.src_id; end;
"""

# Packs are compressed since. The packer makes them anew.
_EIGHTH = """
delete from packing;
delete from packs;
delete from pack_columns;
"""

# The newest window with rows of any source that the relay had, up to the position; -1 = none is
# known. By it a relay of another log refuses the position; the checksum covers it.
_NINTH = """
alter table store add column log_scn integer not null default -1;
alter table store add column log_timestamp_ns integer not null default -1;
alter table store add column log_source text not null default '';
"""

Migration = str | Callable[[Database], None]
MIGRATIONS: Final[Sequence[Migration]] = (
    _FIRST,
    _SECOND,
    _THIRD,
    _FOURTH,
    _restamp_store,
    _SIXTH,
    _SEVENTH,
    _EIGHTH,
    _NINTH,
)
_WITH_TERM: Final = MIGRATIONS.index(_SIXTH) + 1


def is_current(database: Database, path: Path) -> bool:
    """Return whether the file needs no migration; raises BootstrapError if it is no store."""
    (version,) = database.execute("pragma user_version").fetchone()
    (application_id,) = database.execute("pragma application_id").fetchone()
    if version > len(MIGRATIONS):
        raise BootstrapError(
            f"store {path} has schema version {version}, this program knows {len(MIGRATIONS)}: "
            "it was made by a newer version; use that one, or move the file away to seed anew"
        )
    if application_id not in (0, APPLICATION_ID) or (version and application_id == 0):
        raise BootstrapError(f"{path} is an SQLite file, but no bootstrap store; see data_dir")
    return int(version) == len(MIGRATIONS)


def is_unmade(database: Database) -> bool:
    """Return whether the file is new and has no tables yet."""
    (version,) = database.execute("pragma user_version").fetchone()
    return not version


def has_term(database: Database) -> bool:
    """Return whether the file has a place for terms."""
    (version,) = database.execute("pragma user_version").fetchone()
    return int(version) >= _WITH_TERM


def migrate(database: Database) -> int:
    """Apply the missing migrations; return the version before, 0 for a new file.

    Runs inside the caller's exclusive transaction.
    """
    (version,) = database.execute("pragma user_version").fetchone()
    for migration in MIGRATIONS[version:]:
        if not isinstance(migration, str):
            migration(database)
            continue
        for statement in filter(None, map(str.strip, migration.split(";\n"))):
            database.execute(statement)
    database.execute(f"pragma application_id = {APPLICATION_ID}")
    database.execute(f"pragma user_version = {len(MIGRATIONS)}")
    return int(version)
