"""The schema of a bootstrap store, as numbered migrations.

The number of the last applied migration is the file's `user_version`. A file with a
higher number was written by a newer version of this project and is refused.

The tables of a source, `snapshot_<src_id>` and `log_<src_id>`, are created when the
source is added; their SQL is in `snapshot_table` and `log_table`. A migration that
changes them changes the tables of every source in `sources`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from sqlite_utils import Database

from databus.schemas.errors import BootstrapError

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

MIGRATIONS: Final[Sequence[str]] = (_FIRST, _SECOND, _THIRD, _FOURTH)


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


def migrate(database: Database) -> int:
    """Apply the missing migrations; return the version before, 0 for a new file.

    Runs inside the caller's exclusive transaction.
    """
    (version,) = database.execute("pragma user_version").fetchone()
    for migration in MIGRATIONS[version:]:
        for statement in filter(None, map(str.strip, migration.split(";\n"))):
            database.execute(statement)
    database.execute(f"pragma application_id = {APPLICATION_ID}")
    database.execute(f"pragma user_version = {len(MIGRATIONS)}")
    return int(version)
