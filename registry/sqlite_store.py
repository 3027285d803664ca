"""Schema versions in an SQLite file and a copy of it. Both are verified when they are read.

Each row has the CRC-32 of its values, and the table `seal` has that of all rows in order:
the first detects a changed row, the second a missing one. SQLite's own check detects other
damage.

Each change is written to the copy first. So the copy has every version that was ever
returned, and replaces the file when that is damaged or missing. After a kill between the
two writes, the copy has a version that was never returned; it is found again when its
statement is read again. If neither file has all rows of the other, they belong to two
stores, and one was put here by mistake: nothing is served. (A copy without versions was
never used, and is made again.)

A file without checksums, from an older version, gets them when it is opened. So do schemas
in the form of a former version get that of this one.
"""

from __future__ import annotations

import logging
import os
import sqlite3
from bisect import insort
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple
from zlib import crc32

from databus.daemon.faults import as_sqlite_errors, is_transient
from databus.daemon.files import make_private, replace_file
from databus.daemon.sqlite_tables import Database
from databus.registry.former_schemas import rewritten
from databus.registry.seal import Key, Seal
from databus.registry.version import StoredVersion
from databus.schemas.errors import SchemaError

log = logging.getLogger(__name__)

_CREATE = """
create table if not exists sources (
    name text primary key,
    src_id integer not null unique
) without rowid;
create table if not exists schema_versions (
    source text not null,
    version integer not null,
    start_scn integer not null,
    text text not null,
    primary key (source, version)
) without rowid;
"""
# Migrates a file to `user_version` 2.
_WITH_CHECKSUMS = """
alter table sources add column crc integer not null default -1;
alter table schema_versions add column crc integer not null default -1;
create table seal (only integer primary key check (only = 1), crc integer not null);
insert into seal values (1, -1);
"""
_CHECKED = 1
_RENEWED = 2  # as `former_schemas` rewrites texts
_NO_CRC = -1  # of a row that a program without checksums has written
_HAS_CHECKSUMS = "select count(*) from sqlite_master where name = 'seal'"
_ALL_SOURCES = "select name, src_id, crc from sources order by 1"
_ALL_VERSIONS = """
select source, version, text, start_scn, crc from schema_versions order by 1, 2
"""
# Plain inserts: a second writer of the same version fails on the key instead of replacing
# the row.
_ADD_SOURCE = "insert into sources (name, src_id, crc) values (?, ?, ?)"
_ADD_VERSION = """
insert into schema_versions (source, version, text, start_scn, crc) values (?, ?, ?, ?, ?)
"""
_STAMP_SOURCE = "update sources set crc = ?2 where name = ?1"
_STAMP_VERSION = "update schema_versions set crc = ?3 where source = ?1 and version = ?2"
_RENEW_VERSION = """
update schema_versions set text = ?3, crc = ?4 where source = ?1 and version = ?2
"""
_SEAL = "update seal set crc = ?"
_READ_SEAL = "select crc from seal"
_HAS_ROWS_WITHOUT_CHECKSUM = f"""
select exists (select 1 from sources where crc = {_NO_CRC})
    or exists (select 1 from schema_versions where crc = {_NO_CRC})
"""
_DAMAGED = ("SQLITE_CORRUPT", "SQLITE_NOTADB")
_REMEDY = (
    "put a copy of the file back; without one, move it and its .copy away together with the "
    "rings, and give the sources their ids in the settings"
)


class _Content(NamedTuple):
    """The content of a file: its rows with their stored checksums."""

    sources: Sequence[Sequence[object]]
    versions: Sequence[Sequence[object]]

    def has_all_of(self, other: _Content) -> bool:
        """Return whether this content includes every row of another."""
        return {*map(tuple, other.sources)} <= {*map(tuple, self.sources)} and {
            *map(tuple, other.versions)
        } <= {*map(tuple, self.versions)}

    def seal(self) -> int:
        """Return the checksum over all rows."""
        return _checksum((*self.sources, *self.versions))

    def keyed(self) -> Iterator[tuple[Key, Sequence[object]]]:
        """Yield all rows in order, each with the key that they are ordered by."""
        yield from ((_key(_ADD_SOURCE, row), row) for row in self.sources)
        yield from ((_key(_ADD_VERSION, row), row) for row in self.versions)

    def with_checksums(self) -> _Content:
        """Return the content without the rows that have no checksum."""
        return _Content(
            [row for row in self.sources if row[-1] != _NO_CRC],
            [row for row in self.versions if row[-1] != _NO_CRC],
        )


class _Known:
    """What both files hold, and the checksum over it."""

    def __init__(self, content: _Content) -> None:
        self.content = content
        self.seal = Seal(content.keyed())

    def add(self, statement: str, rows: Sequence[Sequence[object]]) -> None:
        """Add rows that a statement inserts."""
        for row in rows:
            self.seal.add(_key(statement, row), row)
        sources, versions = list(self.content.sources), list(self.content.versions)
        for row in rows:
            insort(versions if statement == _ADD_VERSION else sources, row, key=_first_two)
        self.content = _Content(sources, versions)


class SqliteStore:
    """Schema versions in an SQLite file; one transaction for all that are made together.

    Opens the file for each call, because calls are rare (start, DDL). So it keeps no file
    open, and any thread may call.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.copy_path = path.with_name(path.name + ".copy")
        # What both files held when they were last read or written here.
        self._known: tuple[Sequence[object], _Known] | None = None

    def load_sources(self) -> dict[str, int]:
        """Return every source's id, by name."""
        return {str(row[0]): int(str(row[1])) for row in self._load().content.sources}

    def load_versions(self) -> list[StoredVersion]:
        """Return every version, ordered by source and version."""
        return [StoredVersion(*row[:4]) for row in self._load().content.versions]  # type: ignore[arg-type]

    def save_sources(self, ids: Mapping[str, int]) -> None:
        """Save new sources' ids, all or none."""
        self._save(_ADD_SOURCE, list(ids.items()))

    def save_versions(self, versions: Sequence[StoredVersion]) -> None:
        """Save new versions, all or none; on return they are on disk."""
        self._save(_ADD_VERSION, versions)

    def _save(self, statement: str, rows: Sequence[Sequence[object]]) -> None:
        if not rows:
            return
        known = self._load()
        self._known = None
        before = known.seal.value
        added = [(*row, _checksum(row)) for row in rows]
        known.add(statement, added)
        is_known = True
        for path in (self.copy_path, self.path):
            # Both were prepared when they were read.
            with self._database(path, is_prepared=True) as database, database.atomic():
                is_as_known = list(database.execute(_READ_SEAL)) == [(before,)]
                for row in added:
                    database.execute(statement, row)
                # Otherwise another process has written since the stamps were taken.
                now = known.seal.value if is_as_known else _rows_of(database).seal()
                database.execute(_SEAL, (now,))
                is_known = is_known and is_as_known
        self._known = (self._stamps(), known) if is_known else None

    def _load(self) -> _Known:
        """Return the content of both files; read them unless they are as they were left."""
        if self._known is None or self._known[0] != self._stamps():
            self._known = None
            known = _Known(self._read_both())
            self._known = self._stamps(), known
        return self._known[1]

    def _stamps(self) -> Sequence[object]:
        """Return what changes with the files: SQLite counts its transactions in their headers."""
        found: list[object] = []
        for path in (self.path, self.copy_path):
            try:
                with path.open("rb") as file:
                    stat = os.fstat(file.fileno())
                    found += [stat.st_ino, stat.st_size, stat.st_mtime_ns, file.read(100)]
            except OSError:
                found.append(None)
        return found

    def _read_both(self) -> _Content:
        """Return the file's content, after making the copy equal to it."""
        self._put_copy_back_for_one_that_is_lost()
        try:
            content = self._read(self.path)
        except SchemaError as error:
            if is_transient(error):
                raise
            content = self._read_copy(error)
        copy = self._copied()
        if copy == content:
            return content
        if copy is not None and copy.versions:
            if copy.has_all_of(content):
                _replace(self.path, self.copy_path)
                log.warning("schema store %s was behind its copy, which was put back", self.path)
                return copy
            if not content.has_all_of(copy):
                raise _of_two_histories(self.path, self.copy_path)
        _replace(self.copy_path, self.path)
        return content

    def _copied(self) -> _Content | None:
        """Return the copy's content, or None when there is no usable copy."""
        try:
            return self._read(self.copy_path) if self.copy_path.exists() else None
        except SchemaError:
            return None

    def _put_copy_back_for_one_that_is_lost(self) -> None:
        is_lost = not self.path.exists() or self.path.stat().st_size == 0
        if is_lost and self.copy_path.exists():
            self._read(self.copy_path)
            _replace(self.path, self.copy_path)
            log.warning("schema store %s was gone: its copy was put back", self.path)

    def _read_copy(self, error: SchemaError) -> _Content:
        """Replace a damaged file with its copy; raises `error` when there is no copy."""
        if not self.copy_path.exists():
            raise error
        try:
            content = self._read(self.copy_path)
        except SchemaError:
            raise error from error.__cause__
        damaged = self.path.with_name(self.path.name + ".damaged")
        self.path.replace(damaged)
        _replace(self.path, self.copy_path)
        log.warning("%s; its copy was put back, the damaged file is %s", error, damaged)
        return content

    def _read(self, path: Path) -> _Content:
        with self._database(path) as database:
            found = [str(row[0]) for row in database.execute("pragma integrity_check(3)")]
            if found != ["ok"]:
                raise _damaged(path, f"SQLite says {'; '.join(found)}")
            content = _rows_of(database)
            _check(path, content)
            if list(database.execute(_READ_SEAL)) != [(content.seal(),)]:
                raise _damaged(path, "a row is missing, or there is one too many")
        return content

    @contextmanager
    def _database(self, path: Path, *, is_prepared: bool = False) -> Iterator[Database]:
        try:
            make_private(path)
            database = Database(path)
            try:
                # Events in the ring refer to schemas, which must survive a power
                # cut, not only a kill.
                with as_sqlite_errors():
                    database.execute("pragma synchronous = full")
                    if not is_prepared:
                        _prepare(path, database)
                    yield database
            finally:
                database.close()
        except (sqlite3.Error, OSError) as error:
            name = getattr(error, "sqlite_errorname", "")
            # Invalid UTF-8 raises an error without an SQLite error code.
            is_damaged = name.startswith(_DAMAGED) or str(error).startswith("Could not decode")
            advice = f"; {_REMEDY}" if is_damaged else ""
            raise SchemaError(f"schema store {path}: {error}{advice}") from error


def _prepare(path: Path, database: Database) -> None:
    """Create the tables; add checksums to a file that has none, and rewrite former schemas."""
    (version,) = database.execute("pragma user_version").fetchone()
    (has_checksums,) = database.execute(_HAS_CHECKSUMS).fetchone()
    if version or has_checksums:
        _stamp_rows_of_an_earlier_program(path, database)
    else:
        _create(path, database)
    if version < _RENEWED:
        _renew(path, database)


def _create(path: Path, database: Database) -> None:
    with database.atomic():
        for statement in filter(None, map(str.strip, (_CREATE + _WITH_CHECKSUMS).split(";\n"))):
            database.execute(statement)
        before = _rows_of(database)
        _stamp(database, before)
        database.execute(f"pragma user_version = {_CHECKED}")
    if before.versions:
        log.info("schema store %s had no checksums: it has them now", path)


def _stamp_rows_of_an_earlier_program(path: Path, database: Database) -> None:
    """Add checksums to rows that a program without them has inserted since.

    Such a program leaves the default there, and does not seal. All other rows must be as they
    were sealed; if they are not, nothing is changed, and reading finds the damage.
    """
    (has_some,) = database.execute(_HAS_ROWS_WITHOUT_CHECKSUM).fetchone()
    if not has_some:
        return
    content = _rows_of(database)
    if list(database.execute(_READ_SEAL)) != [(content.with_checksums().seal(),)]:
        return
    with database.atomic():
        _stamp(database, content)
    log.info("schema store %s has rows of an earlier program: they have checksums now", path)


def _renew(path: Path, database: Database) -> None:
    """Rewrite the schemas of a former version; a damaged file is left for reading to find."""
    with database.atomic():
        content = _rows_of(database)
        is_sealed = list(database.execute(_READ_SEAL)) == [(content.seal(),)]
        if not is_sealed or any(crc != _checksum(values) for *values, crc in content.versions):
            return
        texts = rewritten(str(row[2]) for row in content.versions)
        for (source, version, text, start_scn, _), now in zip(content.versions, texts, strict=True):
            if now != text:
                crc = _checksum((source, version, now, start_scn))
                database.execute(_RENEW_VERSION, (source, version, now, crc))
        database.execute(_SEAL, (_rows_of(database).seal(),))
        database.execute(f"pragma user_version = {_RENEWED}")
    if any(now != row[2] for row, now in zip(content.versions, texts, strict=True)):
        log.info("schema store %s: its schemas were rewritten in the form of this version", path)


def _stamp(database: Database, content: _Content) -> None:
    """Write checksums to the rows that have none, and seal all."""
    for name, src_id, crc in content.sources:
        if crc == _NO_CRC:
            database.execute(_STAMP_SOURCE, (name, _checksum((name, src_id))))
    for *values, crc in content.versions:
        if crc == _NO_CRC:
            database.execute(_STAMP_VERSION, (*values[:2], _checksum(values)))
    database.execute(_SEAL, (_rows_of(database).seal(),))


def _rows_of(database: Database) -> _Content:
    return _Content(
        database.execute(_ALL_SOURCES).fetchall(), database.execute(_ALL_VERSIONS).fetchall()
    )


def _check(path: Path, content: _Content) -> None:
    """Raise SchemaError for a row whose checksum is wrong."""
    for *values, crc in content.versions:
        if crc != _checksum(values):
            source, version, _, start_scn = values
            raise _damaged(path, f"version {version} of {source}, from scn {start_scn} on")
    for *values, crc in content.sources:
        if crc != _checksum(values):
            raise _damaged(path, f"the id of {values[0]}, {values[1]}")


def _damaged(path: Path, what: str) -> SchemaError:
    return SchemaError(f"schema store {path} is not as it was written: {what}; {_REMEDY}")


def _of_two_histories(path: Path, copy: Path) -> SchemaError:
    return SchemaError(
        f"schema store {path} and its copy {copy} are of two different relays, or of two "
        "different times of one: each has what the other has not, so one of them was put here. "
        f"If {path.name} is the wrong one, move it away: the copy takes its place; if the copy "
        "is, move that one away"
    )


def _key(statement: str, row: Sequence[object]) -> Key:
    """Return the key by which the rows of both tables are ordered: sources first."""
    name, number = _first_two(row)
    return (1, name, number) if statement == _ADD_VERSION else (0, name, 0)


def _first_two(row: Sequence[object]) -> tuple[str, int]:
    return str(row[0]), int(str(row[1]))


def _checksum(values: Sequence[object]) -> int:
    return crc32(repr(tuple(values)).encode("utf-8", "surrogatepass"))


def _replace(path: Path, source: Path) -> None:
    try:
        replace_file(path, source.read_bytes())
    except OSError as error:
        raise SchemaError(f"schema store {path}: {error}") from error
