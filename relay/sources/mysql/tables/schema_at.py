"""The schema that a statement finds: what the history has, and what it does not reach.

The history begins with the definitions that the server has at a first start. Where the log is
read from an earlier position, only statements of the log say something about tables before that.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from databus.relay.sources.mysql.binlog.events import Query
from databus.relay.sources.mysql.tables.alter import TableVersion
from databus.relay.sources.mysql.tables.column_spec import Rules
from databus.relay.sources.mysql.tables.ddl import Prepared, apply_ddl, named_by, prepare
from databus.relay.sources.mysql.tables.ddl_tokens import TableName
from databus.relay.sources.mysql.tables.history import History
from databus.relay.sources.mysql.tables.names import Names


class NotReachedError(Exception):
    """The history begins later, and only a search of the log can tell what was there."""


class SchemaAt:
    """The tables at an SCN, from the history."""

    def __init__(self, history: History, names: Names, scn: int) -> None:
        self._history = history
        self._names = names
        self._scn = scn
        self.is_reached = history.reaches(scn)

    def table(self, name: TableName) -> TableVersion | None:
        """Return a table; None when there is none of the name.

        A table from before the history began is one of unknown columns, if it existed.
        """
        if name[0] not in self._names.databases:
            return TableVersion(None, problem=f"no table of database {name[0]} is watched")
        if self._history.is_known(name, self._scn):
            return self._history.table(name, self._scn)
        begin = self._history.begin_scn
        return TableVersion(None, problem=f"it was first read later, at scn {begin}")

    def tables_of(self, database: str) -> Collection[TableName]:
        """Return the tables of a database; before the history began, those that may be there."""
        found = self._history.tables_of(database, self._scn)
        if self.is_reached:
            return found
        watched = [key for key in self._names.keys.values() if key[0] == database]
        return [*found, *(k for k in watched if not self._history.is_known(k, self._scn))]

    def charset(self, database: str) -> str:
        """Return a database's default character set; raises ValueError or NotReachedError."""
        if database not in self._names.databases:
            return "utf8mb4"  # of tables that are not captured
        if not self._history.is_charset_known(database, self._scn):
            raise NotReachedError
        charset = self._history.charset(database, self._scn)
        if charset is None:
            raise ValueError(f"the character set of database {database} is not known")
        return charset

    def key(self, name: TableName) -> TableName:
        """Return a name as the server compares it."""
        return self._names.key(name)


class _AnySchema:
    """A schema with unknown tables."""

    def __init__(self, names: Names) -> None:
        self._names = names

    def table(self, name: TableName) -> TableVersion | None:  # noqa: ARG002
        """Return a table."""
        return TableVersion(None, problem="it was not read")

    def tables_of(self, database: str) -> Collection[TableName]:
        """Return the tables of a database that matter."""
        return [key for key in self._names.keys.values() if key[0] == database]

    def charset(self, database: str) -> str:  # noqa: ARG002
        """Return any character set: the result is not used for columns."""
        return "utf8mb4"

    def key(self, name: TableName) -> TableName:
        """Return a name as the server compares it."""
        return self._names.key(name)


def redefined_by(query: Query, names: Names, rules: Rules) -> Collection[TableName]:
    """Return the tables whose definition a statement may change, whatever they were before.

    An empty table name stands for the database's default character set.
    """
    rules = replace(rules, sql_mode=query.sql_mode)
    try:
        statement = prepare(query.text, rules)
        if not statement.is_ddl:
            return ()
        schema = _AnySchema(names)
        outcome = apply_ddl(statement, query.database, query.server_charset, schema, rules)
        return outcome.redefined | {(database, "") for database in outcome.charsets}
    except ValueError:
        named = named_by(Prepared("?", query.text, rules.sql_mode), query.database)
        return {names.key(name) for name in named}
