"""The watched tables: which they are, and how the rows behind a TABLE_MAP are read.

Definitions are read from the database at one moment, and rows were written at
others. Where the log carries full metadata (`binlog_row_metadata=FULL`), the
log alone decides. Where it does not, a definition stands for the rows between
the last change of that table's columns and the next: the changes that follow
are seen in the stream, and those that lie between a lagging stream and the
reading of the definitions are looked for ahead of it. A row from before such a
change stops capture, for its columns are not known to anybody.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from databus.relay.sources.mysql_columns import parse_table_map
from databus.relay.sources.mysql_ddl import Statement
from databus.relay.sources.mysql_layout import Definition, Dialect, layout_of
from databus.relay.sources.mysql_rows import RowLayout
from databus.schemas.errors import SettingsError
from databus.schemas.table import Table

_MOST_LAYOUTS = 4096


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Definitions by source name, read between two positions of the log (as SCNs).

    `problems` say why some of them cannot be captured as they are now.
    """

    definitions: Mapping[str, Definition]
    before: int
    after: int
    problems: Sequence[str] = ()


class Catalog(Protocol):
    """What is asked of the server while the stream is read."""

    def read(self) -> Snapshot:
        """Read the definitions of the watched tables as they are now."""

    def column_changes(self, begin: int, end: int) -> Mapping[str, int]:
        """Return where, in a stretch of the log, columns were last changed, by source name."""


class Names:
    """The watched tables' names, compared as the server compares them."""

    def __init__(self, sources: Sequence[str], *, fold_case: bool = False) -> None:
        self._fold_case = fold_case
        self.sources = tuple(sources)
        self._known = {self._key(*split_name(source)): source for source in sources}

    def find(self, database: str, table: str) -> str | None:
        """Return a table's source name, or None when it is not watched."""
        return self._known.get(self._key(database, table))

    def touched_by(self, statement: Statement) -> frozenset[str]:
        """Return the watched tables that a statement names."""
        found = {self.find(*name) for name in statement.tables}
        databases = {self._key(name, "")[0] for name in statement.databases}
        found |= {source for key, source in self._known.items() if key[0] in databases}
        return frozenset(source for source in found if source is not None)

    def _key(self, database: str, table: str) -> tuple[str, str]:
        return (database.lower(), table.lower()) if self._fold_case else (database, table)


def split_name(source: str) -> tuple[str, str]:
    """Return a source's database and table; raises SettingsError."""
    database, dot, table = source.partition(".")
    if not database or not dot or not table:
        raise SettingsError(f"source {source!r}: write database.table")
    return database, table


class WatchedTables:
    """Finds row layouts, and keeps definitions up to date."""

    def __init__(self, names: Names, dialect: Dialect, catalog: Catalog) -> None:
        self.names = names
        self._dialect = dialect
        self._catalog = catalog
        self._snapshot = catalog.read()
        self._layouts: dict[bytes, RowLayout | None] = {}
        # Equal tables are one object: the relay's caches are keyed by them.
        self._tables: dict[Table, Table] = {}
        self._changes_ahead: Mapping[str, int] | None = None

    def tables(self) -> list[Table]:
        """Return the watched tables as they were when last read."""
        found = self._snapshot.definitions
        return [self._one(found[s].table(s)) for s in self.names.sources if s in found]

    def layout(self, body: bytes, position: int) -> RowLayout | None:
        """Return how rows behind a TABLE_MAP at a position are read; None when not watched.

        Raises ValueError when that cannot be known.
        """
        content = body[8:]  # behind table id and flags
        try:
            return self._layouts[content]
        except KeyError:
            if len(self._layouts) >= _MOST_LAYOUTS:
                self._layouts.clear()  # tables come and go; those in use are back at once
            layout = self._layouts[content] = self._find_layout(body, position)
            return layout

    def columns_may_change(self, position: int) -> Sequence[str]:
        """Read the definitions again, for a statement that may change them; return problems."""
        if position <= self._snapshot.before:
            return ()
        self._snapshot = self._catalog.read()
        self._layouts.clear()
        self._changes_ahead = None
        return self._snapshot.problems

    def _find_layout(self, body: bytes, position: int) -> RowLayout | None:
        logged = parse_table_map(body, is_mariadb=self._dialect.is_mariadb)
        source = self.names.find(logged.database, logged.name)
        if source is None:
            return None
        if not logged.has_names:
            self._check_is_current(source, position)
        definition = self._snapshot.definitions.get(source)
        try:
            layout = layout_of(source, logged, definition, self._dialect)
        except ValueError as error:
            raise ValueError(f"table {source}: {error}") from error
        return replace(layout, table=self._one(layout.table))

    def _check_is_current(self, source: str, position: int) -> None:
        if position >= self._snapshot.after:
            return
        if self._changes_ahead is None:
            self._changes_ahead = self._catalog.column_changes(position, self._snapshot.after)
        changed_at = self._changes_ahead.get(source, 0)
        if position < changed_at:
            raise ValueError(
                f"table {source} was altered later, at scn {changed_at}, and its columns as they "
                "were here are not known: the log does not name them; SET GLOBAL "
                "binlog_row_metadata = FULL, so that it does from then on"
            )

    def _one(self, table: Table) -> Table:
        return self._tables.setdefault(table, table)
