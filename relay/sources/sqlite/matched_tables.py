"""Finds the tables of a file that the patterns of a source match, whenever its schema changes.

A table is captured from the moment on at which its triggers are installed. What was committed
before, since its CREATE TABLE, is in no log.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Iterator

from databus.conf.patterns import NO_PATTERNS, NamePatterns, head, unescaped
from databus.relay.sources.source import TablesFoundError
from databus.relay.sources.sqlite.catalog import read_table, table_names, table_of
from databus.relay.sources.sqlite.connection import transaction
from databus.relay.sources.sqlite.install import install_triggers, is_installed

_HAS_RECORDS = "SELECT 1 FROM main.sqlite_master WHERE name = '_databus_table'"
_RECORDED = "SELECT name FROM _databus_table"
_FORGET = "DELETE FROM _databus_table WHERE name = ?"


class MatchedTables:
    """The patterns of a source, and the sources that they have found before."""

    def __init__(
        self,
        patterns: NamePatterns = NO_PATTERNS,
        found: Collection[str] = (),
    ) -> None:
        # Names of tables do not differ by their case in SQLite.
        self._patterns = patterns.folding_case()
        self._labels = list(dict.fromkeys(map(_label, patterns.texts)))
        self._found = frozenset(table_of(name).lower() for name in found)
        self.warnings: tuple[str, ...] = ()

    def present(self, connection: sqlite3.Connection, watched: Collection[str]) -> tuple[str, ...]:
        """Return the watched tables without those that a pattern has found and that are gone.

        Such a table may come back: then it is captured anew. Raises TablesFoundError for tables
        that are not watched yet.
        """
        if not self._patterns:
            return tuple(watched)
        found, self.warnings = self.look(connection, watched)
        if found:
            _install(connection, found)
            raise TablesFoundError(found)
        tables = {name.lower() for name in table_names(connection)}
        gone = self._found - tables
        self._forget(connection, gone)
        return tuple(name for name in watched if name.lower() not in gone)

    def look(
        self, connection: sqlite3.Connection, watched: Collection[str]
    ) -> tuple[list[str], tuple[str, ...]]:
        """Return the sources that patterns make of tables that are not watched, and warnings."""
        tables, known = table_names(connection), {name.lower() for name in watched}
        named = [(one, self._name_of(one)) for one in tables if one.lower() not in known]
        unusable = dict(_unusable(connection, [table for table, name in named if name]))
        warnings = [
            f"{problem}; a pattern of `sources` matches it, and it is left out"
            for problem in unusable.values()
        ]
        unmatched = self._patterns.unmatched(n for table in tables for n in self._names_of(table))
        if unmatched:
            warnings.append(f"no table matches {', '.join(unmatched)} yet (sources)")
        found = [name for table, name in named if name and table not in unusable]
        return found, tuple(warnings)

    def _name_of(self, table: str) -> str:
        """Return the name of the source that a pattern makes of a table; "" without any."""
        return next((name for name in self._names_of(table) if self._patterns.match(name)), "")

    def _names_of(self, table: str) -> Iterator[str]:
        return (f"{label}{table}" for label in self._labels)

    def _forget(self, connection: sqlite3.Connection, gone: Collection[str]) -> None:
        """Delete the records of tables that are gone, so that one that comes back is a new one."""
        if not gone or connection.execute(_HAS_RECORDS).fetchone() is None:
            return
        recorded = [name for (name,) in connection.execute(_RECORDED) if name.lower() in gone]
        if recorded:
            with transaction(connection):
                connection.executemany(_FORGET, [(name,) for name in recorded])


def _install(connection: sqlite3.Connection, sources: Collection[str]) -> None:
    """Make the triggers of new tables, so that a source that is listed misses nothing.

    Where there is no change log yet, capture has not begun.
    """
    if is_installed(connection):
        with transaction(connection):
            for table in (read_table(connection, table_of(name)) for name in sources):
                if table is not None:
                    install_triggers(connection, table)


def _label(pattern: str) -> str:
    """Return what a pattern has before the name of the table."""
    return f"{unescaped(head(pattern))}." if "." in pattern else ""


def _unusable(connection: sqlite3.Connection, tables: list[str]) -> Iterator[tuple[str, str]]:
    for table in tables:
        try:
            read_table(connection, table)
        except ValueError as error:
            yield table, str(error)


NONE_MATCHED = MatchedTables()
