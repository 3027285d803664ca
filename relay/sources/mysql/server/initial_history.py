"""Begins a server's history of table definitions, and decides when to begin it again.

The history begins with the server's current definitions, read at the first start. They
are read between two positions of the log. A statement between them may have run before or
after its table was read, so then everything is read again.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from databus.conf.named_places import Word
from databus.relay.sources.mysql.rows.columns import clean_sql_type
from databus.relay.sources.mysql.rows.layout import (
    OWN_PERIOD,
    DefinedColumn,
    Definition,
    Dialect,
    current_key,
)
from databus.relay.sources.mysql.server.catalog import ServerCatalog, charset_name, hides_row_id
from databus.relay.sources.mysql.server.start_position import FIRST_OFFSET, LogFile, Start
from databus.relay.sources.mysql.tables.alter import TableVersion
from databus.relay.sources.mysql.tables.captured_tables import ScanLog
from databus.relay.sources.mysql.tables.column_spec import Rules
from databus.relay.sources.mysql.tables.ddl_tokens import TableName, quote
from databus.relay.sources.mysql.tables.history import History, Record
from databus.relay.sources.mysql.tables.names import Names, split_name
from databus.schemas.scn import MAX_OFFSET, BinlogPosition, binlog_position

_TABLES = """
SELECT TABLE_NAME, TABLE_TYPE, COALESCE(CHARACTER_SET_NAME, '') FROM information_schema.TABLES t
LEFT JOIN information_schema.COLLATION_CHARACTER_SET_APPLICABILITY a
ON {collation} = t.TABLE_COLLATION
WHERE TABLE_SCHEMA = %s AND TABLE_TYPE IN ('BASE TABLE', 'SYSTEM VERSIONED')
"""
_COLUMNS = """
SELECT TABLE_NAME, COLUMN_NAME, COLUMN_TYPE, IS_NULLABLE, CHARACTER_SET_NAME, GENERATION_EXPRESSION,
EXTRA FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = %s ORDER BY TABLE_NAME, ORDINAL_POSITION
"""
_KEYS = """
SELECT TABLE_NAME, COLUMN_NAME FROM information_schema.STATISTICS
WHERE TABLE_SCHEMA = %s AND INDEX_NAME = 'PRIMARY' ORDER BY TABLE_NAME, SEQ_IN_INDEX
"""
_SCHEMA = """
SELECT SCHEMA_NAME, DEFAULT_CHARACTER_SET_NAME FROM information_schema.SCHEMATA
WHERE SCHEMA_NAME = %s
"""
_TRIES = 10
# The most bytes of the log that are searched while capture waits.
_NEAR_BYTES = 64 << 20
_VERSION = re.compile(r"(\d+)\.(\d+)\.(\d+)")


def rules_of(variables: Mapping[str, str], dialect: Dialect) -> Rules:
    """Return a server's rules for DDL statements, from its variables."""
    found = _VERSION.match(variables.get("version", ""))
    major, minor, patch = (int(part) for part in found.groups()) if found else (0, 0, 0)
    old_mode = variables.get("old_mode")
    return Rules(
        dialect,
        major * 10000 + minor * 100 + patch,
        variables.get("explicit_defaults_for_timestamp", "ON").upper() in ("ON", "1"),
        "utf8mb3" if old_mode is None or "UTF8_IS_UTF8MB3" in old_mode else "utf8mb4",
    )


class HistoryOfServer:
    """The history of one physical source, across all its connections.

    `known_scn` is that of the epoch before up to which all was delivered, where an epoch begins by
    GTIDs: then definitions that are of that SCN, and were not changed since, hold before the first
    transaction that is read.
    """

    def __init__(self, path: Path | None, epoch: int) -> None:
        self._path = path
        self.epoch = epoch
        self.known_scn: int | None = None
        self._history: History | None = None

    def asked_for(self, names: Names) -> list[str]:
        """Return the sources that must exist now: those that the history does not have."""
        history = self._load()
        return [source for source, key in names.keys.items() if not history.knows(key)]

    def open(
        self,
        catalog: ServerCatalog,
        names: Names,
        scan: ScanLog,
        *,
        first: str | None,
        oldest: LogFile,
    ) -> History:
        """Return the history, begun again where it cannot continue.

        `first` is the setting `start` if the log is read for the first time.

        It cannot continue when capture starts at the position in the settings, which may
        differ from where the history ends; nor on another server, or with another database.
        Raises ValueError or SourceError.
        """
        history = self._load()
        begin = history.begin_scn
        if (
            first is not None
            or begin is None
            or binlog_position(begin).epoch != self.epoch
            or not all(history.follows(database) for database in names.databases)
        ):
            known = self._known_before(history)
            record = first_record(catalog, names, scan)
            history.begin(replace(record, is_start=first == Word.LATEST), known)
        else:
            history.forget_before(BinlogPosition(self.epoch, oldest.number, FIRST_OFFSET).to_scn())
        return history

    def start_of(self, start: Start, first: str | None, catalog: ServerCatalog) -> Start:
        """Return where a first reading begins: for `latest` where the definitions were read.

        So no row is read that comes before them, now or in a second reading.
        """
        begin = self._load().begin_scn
        if first != Word.LATEST or begin is None:
            return start
        place = binlog_position(begin)
        names = {file.number: file.name for file in catalog.log_files()}
        # The largest offset stands for all places beyond.
        if place.offset >= MAX_OFFSET or place.file_number not in names:
            return start
        return Start(names[place.file_number], place.offset)

    def _known_before(self, history: History) -> Record | None:
        """Return the definitions before the first transaction of an epoch; None if unknown."""
        if self.known_scn is None:
            return None
        first_scn = BinlogPosition(self.epoch, 0, 0).to_scn()
        # It was begun before, and nothing was delivered.
        kept = history.record(first_scn)
        return kept or history.unchanged_since(self.known_scn, first_scn)

    def _load(self) -> History:
        if self._history is None:
            self._history = History(self._path)
        return self._history


def first_record(catalog: ServerCatalog, names: Names, scan: ScanLog) -> Record:
    """Return the tables of the watched tables' databases, as they are at an SCN.

    Raises ValueError or SourceError.
    """
    for _ in range(_TRIES):
        before = catalog.end_scn()
        # After this, the catalogue has the results of all statements before `before`.
        _wait_for_ddl(catalog)
        versions = {
            names.key(name): version
            for database in sorted(names.databases)
            for name, version in table_versions(catalog, database).items()
        }
        charsets = {d: _charset(catalog, d) for d in sorted(names.databases)}
        after = catalog.end_scn()
        # The scan is skipped if nothing was logged meanwhile, which is the usual case.
        if before == after or not _between(scan(before, after), names.databases):
            return Record(after, versions, charsets, is_beginning=True)
    raise ValueError("tables are altered faster than their definitions can be read; start later")


def versions_after(
    catalog: ServerCatalog, names: Names, scan: ScanLog, tables: Collection[TableName], scn: int
) -> dict[TableName, TableVersion | None] | None:
    """Return the server's current tables, if they are those after the statement at an SCN.

    None when that is not certain: too much of the log follows, or it has another
    statement that may have changed one of them. Raises ValueError or SourceError.
    """
    with catalog.session():
        _wait_for_ddl(catalog)
        found = {
            names.key(name): version
            for database in sorted({name[0] for name in tables} & names.databases)
            for name, version in table_versions(catalog, database).items()
        }
        # Read last, so that statements between the queries are searched too.
        end = catalog.end_scn()
        if not _is_near(scn, end) or any(name in tables for name in scan(scn, end)):
            return None
    return {name: found.get(name) for name in tables if name[0] in names.databases}


def _is_near(scn: int, end: int) -> bool:
    here, there = binlog_position(scn), binlog_position(end)
    is_one_file = (here.epoch, here.file_number) == (there.epoch, there.file_number)
    return is_one_file and there.offset - here.offset <= _NEAR_BYTES


def _wait_for_ddl(catalog: ServerCatalog) -> None:
    """Wait until no statement is altering a watched table.

    MySQL writes the statement to the log before the catalogue has its result, and
    locks the table in the meantime.
    """
    for source in catalog.kinds():
        catalog.ask(f"SELECT 1 FROM {quote(*split_name(source))} LIMIT 0")


def _between(changed: Mapping[TableName, int], databases: Collection[str]) -> bool:
    return any(name[0] in databases for name in changed)


def _charset(catalog: ServerCatalog, database: str) -> str | None:
    rows = catalog.ask(_SCHEMA, (database,))
    return charset_name(rows[0][1]) if rows else None


def table_versions(catalog: ServerCatalog, database: str) -> dict[TableName, TableVersion]:
    """Return the current tables of a database."""
    full = catalog.ask("SHOW COLUMNS FROM information_schema.COLLATION_CHARACTER_SET_APPLICABILITY")
    # MariaDB ≥ 10.10 has collations that several character sets share.
    column = "FULL_COLLATION_NAME" if "FULL_COLLATION_NAME" in {str(row[0]) for row in full} else ""
    query = _TABLES.format(collation=f"a.{column or 'COLLATION_NAME'}")
    columns: dict[str, list[tuple[Any, ...]]] = defaultdict(list)
    for row in catalog.ask(_COLUMNS, (database,)):
        columns[str(row[0])].append(row)
    keys: dict[str, list[str]] = defaultdict(list)
    for table, name in catalog.ask(_KEYS, (database,)):
        keys[str(table)].append(str(name))
    return {
        (database, str(table)): TableVersion(
            _with_members(
                catalog,
                (database, str(table)),
                _definition(
                    columns[str(table)], keys[str(table)], is_versioned=kind != "BASE TABLE"
                ),
            ),
            charset_name(charset),
        )
        for table, kind, charset in catalog.ask(query, (database,))
        if columns[str(table)]
    }


def _with_members(catalog: ServerCatalog, name: TableName, definition: Definition) -> Definition:
    found = (catalog.with_members(column, *name) for column in definition.columns)
    return replace(definition, columns=tuple(found))


def _definition(
    rows: Collection[tuple[Any, ...]], key: Collection[str], *, is_versioned: bool
) -> Definition:
    columns = tuple(
        DefinedColumn(
            str(row[1]), clean_sql_type(str(row[2])), row[3] == "YES", charset_name(row[4]) or None
        )
        for row in rows
    )
    ends = {str(row[5]): str(row[1]) for row in rows if str(row[5]) in ("ROW START", "ROW END")}
    own = (ends["ROW START"], ends["ROW END"]) if len(ends) == 2 else OWN_PERIOD
    period = own if is_versioned else None
    is_hidden = hides_row_id((row[1], row[6]) for row in rows)
    return Definition(columns, current_key(list(key), period), period, is_hidden)
