"""Queries the server's catalogue: variables, log files, definitions, replicas.

The connection is separate from the one that streams the log, and is closed after the
queries.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from typing import Any

from pymysql.connections import Connection
from pymysql.constants.ER import PARSE_ERROR
from pymysql.cursors import Cursor, DictCursor
from pymysql.err import MySQLError

from databus.conf.column_settings import unnamed
from databus.conf.settings import PhysicalSourceSettings
from databus.relay.sources.generated_columns import shown_text
from databus.relay.sources.mysql.rows.columns import clean_sql_type
from databus.relay.sources.mysql.rows.layout import (
    OWN_PERIOD,
    ROW_ID,
    DefinedColumn,
    Definition,
    Dialect,
    current_key,
)
from databus.relay.sources.mysql.server.checks import (
    VARIABLES,
    VERSIONED,
    VERSIONED_BY_TRANSACTION,
    Cascade,
    cascade_problems,
    table_problems,
)
from databus.relay.sources.mysql.server.connection import MysqlAddress, connect, driver_errors
from databus.relay.sources.mysql.server.enum_members import with_members
from databus.relay.sources.mysql.server.foreign_keys import SESSION, cascades_of
from databus.relay.sources.mysql.server.start_position import LogFile, file_number
from databus.relay.sources.mysql.tables.ddl_tokens import TableName, quote
from databus.relay.sources.mysql.tables.names import Names, split_name
from databus.schemas.scn import MAX_OFFSET, BinlogPosition

_COLUMNS = """
SELECT TABLE_SCHEMA, TABLE_NAME, COLUMN_NAME, COLUMN_TYPE, IS_NULLABLE, CHARACTER_SET_NAME, EXTRA
FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s
ORDER BY ORDINAL_POSITION
"""
_KEYS = """
SELECT COLUMN_NAME FROM information_schema.STATISTICS
WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s AND INDEX_NAME = 'PRIMARY' ORDER BY SEQ_IN_INDEX
"""
_KINDS = """
SELECT TABLE_TYPE FROM information_schema.TABLES WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s
"""
_TABLES = """
SELECT TABLE_SCHEMA, TABLE_NAME FROM information_schema.TABLES
WHERE TABLE_TYPE IN ('BASE TABLE', 'SYSTEM VERSIONED')
AND TABLE_SCHEMA NOT IN ('information_schema', 'mysql', 'performance_schema', 'sys')
ORDER BY TABLE_SCHEMA, TABLE_NAME
"""
# Row start and row end of a system-versioned table, in this order.
_PERIODS = """
SELECT COLUMN_NAME, DATA_TYPE FROM information_schema.COLUMNS
WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s AND GENERATION_EXPRESSION IN ('ROW START', 'ROW END')
ORDER BY GENERATION_EXPRESSION DESC
"""
_GENERATED = """
SELECT COLUMN_NAME FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s
AND (EXTRA LIKE '%%VIRTUAL GENERATED%%' OR EXTRA LIKE '%%STORED GENERATED%%')
AND COALESCE(GENERATION_EXPRESSION, '') NOT IN ('ROW START', 'ROW END')
"""
_COLLATIONS = "SELECT ID, CHARACTER_SET_NAME FROM information_schema.COLLATIONS"
# MariaDB ≥ 10.10: a collation that several character sets share has an id for each.
_SHARED_COLLATIONS = """
SELECT ID, CHARACTER_SET_NAME FROM information_schema.COLLATION_CHARACTER_SET_APPLICABILITY
"""
_CHARACTER_SETS = "SELECT CHARACTER_SET_NAME, MAXLEN FROM information_schema.CHARACTER_SETS"
_WITH_KEYS = ("BASE TABLE", VERSIONED)
_LOG_STATUS = ("SHOW BINARY LOG STATUS", "SHOW MASTER STATUS")
# For MariaDB with several primaries, for MySQL, and for older versions of either.
_REPLICA_STATUS = ("SHOW ALL SLAVES STATUS", "SHOW REPLICA STATUS", "SHOW SLAVE STATUS")
_REPLICAS = ("SHOW SLAVE HOSTS", "SHOW REPLICAS")

Rows = Sequence[tuple[Any, ...]]


class ServerCatalog:
    """The catalogue of one server, for the watched tables."""

    def __init__(
        self,
        address: MysqlAddress,
        settings: PhysicalSourceSettings,
        scn: int,
        left_out: Collection[str] = (),
    ) -> None:
        """Ask about all tables of the settings but those that are left out."""
        self._address = address
        self._source = settings.name
        self._scn = scn
        self.epoch = settings.epoch
        self._allow_cascades = settings.allow_cascades
        self._left_out, self._settings = left_out, settings
        self._held: Connection[Any] | None = None
        self.names = Names(())

    @contextmanager
    def session(self, connection: Connection[Any] | None = None) -> Iterator[Connection[Any]]:
        """Use one connection, new or given, for all queries in a `with`; nested ones share it.

        The connection is closed at the end.
        """
        if self._held is not None:
            yield self._held
            return
        if connection is None:
            connection = connect(self._address, source=self._source, scn=self._scn)
        with closing(connection):
            self._held = connection
            try:
                yield connection
            finally:
                self._held = None

    def variables(self, names: Sequence[str] = VARIABLES) -> dict[str, str]:
        """Return global variables: the named ones, or all that are checked or used."""
        marks = ", ".join(["%s"] * len(names))
        rows = self._ask(f"SHOW GLOBAL VARIABLES WHERE Variable_name IN ({marks})", names)
        return {str(name).lower(): str(value) for name, value in rows}

    def log_status(self) -> Mapping[str, Any]:
        """Return the server's log status by column name; empty without the privilege."""
        rows = self._answers_by_name(_LOG_STATUS) or [{}]
        return rows[0]

    def replica_status(self) -> Sequence[Mapping[str, Any]] | None:
        """Return the status of the server as a replica, one for each primary.

        None without the privilege.
        """
        return self._answers_by_name(_REPLICA_STATUS)

    def log_files(self) -> list[LogFile]:
        """Return the binlog files; the size of the last is what is written so far."""
        with self.session() as connection:
            files = [
                LogFile(str(row[0]), int(row[1]))
                for row in self._query(connection, "SHOW BINARY LOGS")
            ]
            name, offset = self._log_end(connection)
        # The log may have been rotated between the two queries.
        if files and file_number(name) > files[-1].number:
            files.append(LogFile(name, offset))
        return [LogFile(f.name, offset) if f.name == name else f for f in files]

    def needed_log_files(self) -> list[LogFile]:
        """Return the binlog files, the oldest first; raises ValueError if there are none."""
        files = self.log_files()
        if not files:
            raise ValueError("the server has no binlog files")
        return files

    def dialect(self, *, is_mariadb: bool, zero_dates_are_null: bool) -> Dialect:
        """Return the properties of the server on which the reading of types depends."""
        with self.session() as connection:
            rows = list(self._query(connection, _COLLATIONS))
            rows += self._first_answer(connection, (_SHARED_COLLATIONS,)) or []
            sizes = self._query(connection, _CHARACTER_SETS)
        return Dialect(
            is_mariadb,
            {
                int(number): charset_name(name)
                for number, name in rows
                if number is not None and name
            },
            {charset_name(name): int(most) for name, most in sizes},
            zero_dates_are_null,
        )

    def table_problems(self, sources: Collection[str]) -> list[str]:
        """Return the problems of tables that cannot be captured."""
        with self.session():
            kinds, shown = self.kinds(sources), self.shown_unnamed(sources)
            problems = table_problems(sources, kinds) + cascade_problems(self._cascades(kinds))
            return problems + list(shown.values())

    def tables(self) -> list[TableName]:
        """Return all tables that the account may read, but for the server's own."""
        return [(str(row[0]), str(row[1])) for row in self._ask(_TABLES, ())]

    def kinds(self, sources: Collection[str] | None = None) -> dict[str, str]:
        """Return TABLE_TYPE by source name, for tables that exist; of all, or of some."""
        with self.session() as connection:
            found = {
                source: self._query(connection, _KINDS, split_name(source))
                for source in (self.names.sources if sources is None else sources)
            }
            kinds = {source: str(rows[0][0]) for source, rows in found.items() if rows}
            for source in kinds:
                if kinds[source] == VERSIONED and self._is_by_transaction(connection, source):
                    kinds[source] = VERSIONED_BY_TRANSACTION
        return kinds

    def replicas(self) -> list[tuple[int, str]]:
        """Return (server id, host) of the registered replicas; empty without the privilege."""
        with self.session() as connection:
            rows = self._first_answer(connection, _REPLICAS) or []
        return [(int(row[0]), str(row[1])) for row in rows]

    def definition(self, source: str) -> Definition | None:
        """Read one table's current definition; None when there is no such table."""
        with self.session() as connection:
            return self._definition(connection, source)

    def end_scn(self) -> int:
        """Return the SCN of the log's end; raises ValueError when the server writes no log."""
        with self.session() as connection:
            return self._end_scn(connection)

    def ask(self, query: str, arguments: Sequence[Any] = ()) -> Rows:
        """Return the server's response to one query."""
        return self._ask(query, arguments)

    def with_members(self, column: DefinedColumn, database: str, table: str) -> DefinedColumn:
        """Return a column with the members that information_schema cannot show."""

        def ask(query: str) -> str | None:
            with self.session() as connection:
                rows = self._first_answer(connection, (query,))
            return str(rows[0][0]) if rows and rows[0][0] is not None else None

        return with_members(column, database, table, ask)

    def cascades(self, sources: Collection[str]) -> list[Cascade]:
        """Return the foreign keys that change rows of some tables; none if that is allowed."""
        with self.session():
            return [] if self._allow_cascades else self._cascades(self.kinds(sources))

    def _cascades(self, kinds: Mapping[str, str]) -> list[Cascade]:
        found: list[Cascade] = []
        if self._allow_cascades or not kinds:
            return found
        with self.session() as connection:
            self._query(connection, SESSION)
            for source, kind in kinds.items():
                if kind in _WITH_KEYS and source not in self._left_out:
                    query = f"SHOW CREATE TABLE {quote(*split_name(source))}"
                    found += cascades_of(source, str(self._query(connection, query)[0][1]))
        return found

    def shown_unnamed(self, sources: Collection[str]) -> dict[str, str]:
        """Return, by table, that generated columns of it might show protected ones."""
        found = {}
        with self.session() as connection:
            for source in sources:
                if source not in self._left_out and self._settings.protects(source):
                    rows = self._query(connection, _GENERATED, split_name(source))
                    shown = unnamed(self._settings.columns, source, [str(row[0]) for row in rows])
                    found.update({source: shown_text(shown, source)} if shown else {})
        return found

    def _definition(self, connection: Connection[Any], source: str) -> Definition | None:
        name = split_name(source)
        rows = self._query(connection, _COLUMNS, name)
        columns = tuple(
            self.with_members(
                DefinedColumn(
                    str(row[2]),
                    clean_sql_type(str(row[3])),
                    row[4] == "YES",
                    charset_name(row[5]) or None,
                ),
                *name,
            )
            for row in rows
        )
        if not columns:
            return None
        period = self._period(connection, name)
        key = current_key([str(row[0]) for row in self._query(connection, _KEYS, name)], period)
        return Definition(columns, key, period, hides_row_id((row[2], row[6]) for row in rows))

    def _period(self, connection: Connection[Any], name: tuple[str, str]) -> tuple[str, str] | None:
        kinds = self._query(connection, _KINDS, name)
        if not kinds or kinds[0][0] != VERSIONED:
            return None
        found = [str(row[0]) for row in self._query(connection, _PERIODS, name)]
        return (found[0], found[1]) if len(found) == 2 else OWN_PERIOD

    def _is_by_transaction(self, connection: Connection[Any], source: str) -> bool:
        rows = self._query(connection, _PERIODS, split_name(source))
        # Transaction-precise versioning has transaction ids instead of timestamps.
        return any(str(row[1]).lower() == "bigint" for row in rows)

    def _end_scn(self, connection: Connection[Any]) -> int:
        name, offset = self._log_end(connection)
        # SCNs have 32 bits for the offset; all offsets beyond 4 GiB share the last one.
        return BinlogPosition(self.epoch, file_number(name), min(offset, MAX_OFFSET)).to_scn()

    def _log_end(self, connection: Connection[Any]) -> tuple[str, int]:
        rows = self._first_answer(connection, _LOG_STATUS, is_needed=True)
        if not rows:
            raise ValueError("the server writes no binlog: start it with --log-bin")
        return str(rows[0][0]), int(rows[0][1])

    def _answers_by_name(self, queries: Sequence[str]) -> Sequence[Mapping[str, Any]] | None:
        with self.session() as connection:
            rows: Sequence[Any] | None = self._first_answer(connection, queries, DictCursor)
        return rows

    def _first_answer(
        self,
        connection: Connection[Any],
        queries: Sequence[str],
        cursor_class: type[Cursor] = Cursor,
        *,
        is_needed: bool = False,
    ) -> Rows | None:
        """Return the response to the first query that this server knows and allows.

        None when there is none; with `is_needed` that is an error.
        """
        refused: MySQLError | None = None
        for query in queries:
            with driver_errors(self._source, self._scn, f"asking {self._address}"):
                try:
                    with connection.cursor(cursor_class) as cursor:
                        cursor.execute(query)
                        return list(cursor.fetchall())
                except MySQLError as error:
                    if not connection.open:
                        raise
                    # A refusal tells more than a statement that this version does not know.
                    if error.args[0] != PARSE_ERROR or refused is None:
                        refused = error
        if refused is not None and is_needed:
            with driver_errors(self._source, self._scn, f"asking {self._address}"):
                raise refused
        return None

    def _ask(self, query: str, arguments: Sequence[Any]) -> Rows:
        with self.session() as connection:
            return self._query(connection, query, arguments)

    def _query(
        self, connection: Connection[Any], query: str, arguments: Sequence[Any] = ()
    ) -> Rows:
        words = " ".join(query.split()[:3])
        with (
            driver_errors(self._source, self._scn, f"asking {self._address} ({words} …)"),
            connection.cursor() as cursor,
        ):
            # None: without arguments, a % in the query is not a placeholder.
            cursor.execute(query, tuple(arguments) or None)
            return list(cursor.fetchall())


def hides_row_id(columns: Iterable[tuple[Any, Any]]) -> bool:
    """Return whether `my_row_id` is an invisible column (MySQL); columns come with EXTRA."""
    return any(name == ROW_ID and "INVISIBLE" in str(extra).split() for name, extra in columns)


def charset_name(name: Any) -> str:
    """Return a character set's name in newer servers; empty for none."""
    # Two names of one set, depending on version and variable.
    return {"utf8": "utf8mb3"}.get(str(name), str(name)) if name else ""
