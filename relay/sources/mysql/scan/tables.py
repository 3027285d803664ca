"""Reads the tables of a MySQL or MariaDB server in chunks, beside its binlog.

A chunk is one transaction. Its first statement uses the table, so that the server blocks
ALTER until the end; then the definition is read, then the rows. Rows come in the order of
the primary key, by its index. A table without such an order is read in one SELECT, whose
rows are streamed.

Only SELECT, SHOW, SET SESSION, START TRANSACTION and COMMIT are sent. An ALTER waits for
the end of a chunk, or of the whole read of a table without chunks; writers never wait.

**Which SCN is visible.** MariaDB reports, with a consistent snapshot, the binlog position
up to which the snapshot has every transaction. MySQL writes a transaction to the log before
it becomes visible, so there it is the end of the log, once every transaction that was open
at that moment has ended.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

from pymysql.constants.ER import BAD_DB_ERROR, NO_SUCH_TABLE, SPECIFIC_ACCESS_DENIED_ERROR
from pymysql.cursors import Cursor, SSCursor
from pymysql.err import MySQLError

from databus.conf.settings import PhysicalSourceSettings
from databus.relay.sources.mysql.rows.changes import NOT_SHOWN
from databus.relay.sources.mysql.rows.layout import Definition
from databus.relay.sources.mysql.scan.columns import (
    MisfitError,
    RawRow,
    SelectedColumn,
    rows_of,
    selected,
)
from databus.relay.sources.mysql.scan.key_order import KeyPart, order_of
from databus.relay.sources.mysql.scan.table_queries import TableQueries, sql_name
from databus.relay.sources.mysql.server.catalog import ServerCatalog
from databus.relay.sources.mysql.server.checks import table_problems
from databus.relay.sources.mysql.server.connection import address_of, connect, driver_errors
from databus.relay.sources.mysql.server.start_position import file_number
from databus.relay.sources.mysql.tables.names import Names, split_name
from databus.relay.sources.table_scan import NO_KEY_RANGES, Chunk, KeyRange
from databus.schemas.errors import DatabusError, SourceStoppedError, SourceUnavailableError
from databus.schemas.scn import BinlogPosition
from databus.schemas.table import Table

read_texts: Callable[[Any, str], Any] | None
try:
    from databus.relay.sources.mysql.scan import chunk_rows
except ImportError:  # not built: the driver reads every value
    read_texts = None
else:
    read_texts = chunk_rows.read_texts
    ChunkRows = chunk_rows.ChunkRows

# How long to wait for open transactions to end before an error is raised.
COMMIT_WAIT_S = 60.0
# MySQL refreshes its list of transactions at most ten times a second.
LISTING_S = 0.2
_PATIENCE_S = 28_800  # the server's default of `wait_timeout`

_SESSION = (
    "SET SESSION character_set_results = NULL, sql_mode = '', time_zone = '+00:00',"
    " sql_select_limit = 18446744073709551615, sql_big_selects = 1,"
    # The consumer of the rows may be slow.
    f" net_write_timeout = {_PATIENCE_S}, wait_timeout = {_PATIENCE_S}"
)
_ISOLATION = "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ"
_WAIT_TIMEOUT = f"SET SESSION wait_timeout = {_PATIENCE_S}"
_KEY = """
SELECT COLUMN_NAME, SUB_PART, COLLATION FROM information_schema.STATISTICS
WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s AND INDEX_NAME = 'PRIMARY' ORDER BY SEQ_IN_INDEX
"""
_COLLATIONS = """
SELECT COLUMN_NAME, COLLATION_NAME FROM information_schema.COLUMNS
WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s
"""
_ESTIMATE = """
SELECT TABLE_ROWS FROM information_schema.TABLES WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s
"""
# A transaction gets an id with its first change; larger ids are placeholders.
_WRITERS = """
SELECT trx_id, trx_mysql_thread_id FROM information_schema.innodb_trx
WHERE trx_id + 0 > 0 AND trx_id + 0 < 281474976710656
"""
_COUNTER = re.compile(rb" AUTO_INCREMENT=\d+")


class MysqlTableScan:
    """Reads the tables of one server; implements `TableScan`.

    `clock` is monotonic, in seconds; `pause` waits for a number of seconds.
    """

    def __init__(
        self,
        settings: PhysicalSourceSettings,
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self.name = settings.name
        self._settings = settings
        self._address = address_of(settings)
        self._sources, self._found = settings.source_names, settings.found
        for source in self._sources:
            split_name(source)
        self._clock = clock
        self._pause = pause
        self._stack = ExitStack()
        self._catalog: ServerCatalog | None = None
        self._rows: Any = None
        self._is_mariadb = True
        self._readings: dict[str, TableQueries] = {}

    def open(self) -> None:
        """Connect, and check that the tables can be captured."""
        self.close()
        catalog = ServerCatalog(self._address, self._settings, 0)
        try:
            self._query(self._stack.enter_context(catalog.session()), _ISOLATION, _WAIT_TIMEOUT)
            version = catalog.variables().get("version", "")
            self._is_mariadb = "mariadb" in version.lower()
            catalog.names = Names(self._sources)
            self._rows = self._connect()
            there = [source for source in self._sources if not self._is_gone(source)]
            self._stop_on(catalog.table_problems(there))
        except BaseException:
            self.close()
            raise
        self._catalog = catalog

    def close(self) -> None:
        """Close the connections without waiting for a response."""
        rows, self._rows = self._rows, None
        if rows is not None:
            _abandon(rows)
        self._catalog = None
        self._readings.clear()
        self._stack.close()

    def table(self, source: str) -> Table:
        """Return a source's current table."""
        return self._read_now(source).table

    def is_chunked(self, source: str) -> bool:
        """Return whether the table has a primary key in whose order a read can resume."""
        self._connected()
        return not self._is_gone(source) and self._read_now(source).order is not None

    def estimate_rows(self, source: str) -> int:
        """Return the server's estimate of the number of rows."""
        rows = self._opened().ask(_ESTIMATE, split_name(source))
        return int(rows[0][0] or 0) if rows else 0

    def visible_scn(self) -> int:
        """Return an SCN up to which every transaction is visible to later reads.

        On MySQL this may wait for open transactions; raises SourceUnavailableError if one
        stays open for a minute.
        """
        status = self._snapshot_status()
        # MariaDB has these variables; MySQL does not.
        file = status.get("binlog_snapshot_file")
        if file:
            return self._scn(file, int(status["binlog_snapshot_position"]))
        return self._end_of_what_is_visible()

    def newest_scn(self) -> int:
        """Return the SCN of the current end of the binlog."""
        try:
            return self._opened().end_scn()
        except ValueError as error:
            raise SourceStoppedError(self.name, 0, str(error)) from error

    def chunks(
        self, source: str, rows: int, resume: str | None = None
    ) -> Generator[Chunk, None, None]:
        """Read a table in chunks; see `TableScan`. Closing the iterator ends the read."""
        self._connected()
        if self._is_gone(source):
            return
        chunk = self._chunk(source, rows, resume)
        while chunk is not None:
            yield chunk
            if chunk.resume is None:
                return
            chunk = self._chunk(source, rows, chunk.resume)
        # The table has no order to read in, or has lost it.
        yield from self._whole(source, rows)

    def key_range(self, source: str) -> KeyRange | None:
        """Return the smallest and the largest key; see `TableScan`."""
        connection = self._connected()
        with self._transaction(connection, source) as reading:
            if reading.order is None or not reading.order.is_integer:
                return None
            ((first, last),) = self._query(connection, reading.select_extent())
        return None if first is None else KeyRange(int(first), int(last))

    def chunks_within(
        self, source: str, rows: int, within: KeyRange
    ) -> Generator[Chunk, None, None]:
        """Read a range of keys in chunks; see `TableScan`."""
        first: int | None = within.first
        while first is not None:
            connection = self._connected()
            with self._transaction(connection, source) as reading:
                if reading.order is None or not reading.order.is_integer:
                    raise SourceStoppedError(self.name, 0, NO_KEY_RANGES.format(source))
                condition = reading.order.within(first, within.last)
                found = self._select(connection, reading, condition, rows + 1)
            first = int(found[rows][reading.key[0]]) if len(found) > rows else None
            yield self._chunk_of(reading, found, rows, None if first is None else "")

    def _chunk(self, source: str, rows: int, resume: str | None) -> Chunk | None:
        connection = self._connected()
        with self._transaction(connection, source) as reading:
            if reading.order is None:
                return None
            condition = self._condition(reading, resume)
            # One row more than requested tells whether more follow.
            found = self._select(connection, reading, condition, rows + 1)
        following = None
        if len(found) > rows:
            last = found[rows - 1]
            following = reading.order.resume([last[at] for at in reading.key])
        return self._chunk_of(reading, found, rows, following)

    def _select(self, connection: Any, reading: TableQueries, condition: str, limit: int) -> Any:
        """Return the rows of a chunk, by number: of `TextRows` where it is built, else raw."""
        query = reading.select(condition, limit)
        if read_texts is None:
            return self._query(connection, query)
        with driver_errors(self.name, 0, f"reading rows of {self._address}"):
            return read_texts(connection, query)

    def _chunk_of(self, reading: TableQueries, found: Any, rows: int, resume: str | None) -> Chunk:
        """Return a chunk of the first `rows` rows that `_select` has returned."""
        if read_texts is None:
            return Chunk(reading.table, self._made(reading, found[:rows]), resume)
        count = min(len(found), rows)
        sent = ChunkRows(found, count, reading.columns, partial(self._made, reading))
        return Chunk(reading.table, sent, resume, sent.write_events)

    def _condition(self, reading: TableQueries, resume: str | None) -> str:
        assert reading.order is not None
        try:
            return reading.order.condition(resume)
        except (ValueError, LookupError, TypeError) as error:
            raise self._stopped(
                reading.source, f"cannot continue after {resume}: {error}"
            ) from error

    def _whole(self, source: str, rows: int) -> Iterator[Chunk]:
        # On a separate connection, which is busy until the last row of the unbuffered result.
        connection = self._connect()
        try:
            with self._transaction(connection, source) as reading:
                cursor = connection.cursor(SSCursor)
                found = self._fetch(connection, cursor, reading.select_all(), rows)
                while True:
                    following = self._fetch(connection, cursor, "", rows) if found else []
                    made = self._made(reading, found)
                    yield Chunk(reading.table, made, "" if following else None)
                    if not following:
                        break
                    found = following
        finally:
            _abandon(connection)

    def _made(self, reading: TableQueries, raw: Sequence[RawRow]) -> list[dict[str, Any]]:
        try:
            return rows_of(reading.columns, raw)
        except MisfitError as error:
            if self._settings.protects(reading.source):
                problem = f"column {error.column!r}: {NOT_SHOWN}"
                raise self._stopped(reading.source, problem) from None
            row = raw[error.row]
            key = ", ".join(_shown(row[place]) for place in reading.key) or "none"
            raise self._stopped(reading.source, f"key ({key}): {error}") from error

    def _read_now(self, source: str) -> TableQueries:
        with self._transaction(self._connected(), source) as reading:
            return reading

    @contextmanager
    def _transaction(self, connection: Any, source: str) -> Iterator[TableQueries]:
        """Run the block in a transaction that blocks ALTER of the table."""
        with self._committed(connection, "START TRANSACTION READ ONLY"):
            # From here to the commit, an ALTER of the table waits.
            self._query(connection, f"SELECT 1 FROM {sql_name(source)} LIMIT 0", source=source)
            yield self._reading_of(connection, source)

    @contextmanager
    def _committed(self, connection: Any, begin: str) -> Iterator[None]:
        """Run the block in a transaction; a failure closes the connection, which rolls back."""
        try:
            self._query(connection, begin)
            yield
            self._query(connection, "COMMIT")
        except BaseException:
            _abandon(connection)
            raise

    def _reading_of(self, connection: Any, source: str) -> TableQueries:
        shown = self._query(connection, f"SHOW CREATE TABLE {sql_name(source)}")
        # Inserts change the counter, which is no change of the definition.
        text = _COUNTER.sub(b"", shown[0][1])
        known = self._readings.get(source)
        if known is not None and known.text == text:
            return known
        catalog = self._opened()
        definition = catalog.definition(source)
        if definition is None:
            raise self._stopped_on_missing(source)
        table = definition.table(source)
        if known is not None and known.table == table:
            table = known.table  # caches are keyed by it
        found = self._readings[source] = TableQueries(
            text,
            source,
            table,
            self._selected(source, definition),
            order_of(_key_parts(catalog, source, definition)),
            tuple(column.position for column in table.key_columns),
        )
        return found

    def _selected(self, source: str, definition: Definition) -> tuple[SelectedColumn, ...]:
        is_null = self._settings.zero_dates == "null"
        try:
            return tuple(selected(c, zero_dates_are_null=is_null) for c in definition.columns)
        except ValueError as error:
            raise self._stopped(source, str(error)) from error

    def _snapshot_status(self) -> dict[str, str]:
        with self._opened().session() as connection:
            begin = "START TRANSACTION WITH CONSISTENT SNAPSHOT"
            with self._committed(connection, begin):
                rows = self._query(connection, "SHOW STATUS LIKE 'binlog_snapshot_%'")
        return {str(name).lower(): str(value) for name, value in rows}

    def _end_of_what_is_visible(self) -> int:
        scn = self.newest_scn()
        deadline = self._clock() + COMMIT_WAIT_S
        # The list may be older than the SCN: one that is read after a refresh is not.
        self._pause(LISTING_S)
        writers = self._writers()
        while writers:
            if self._clock() >= deadline:
                raise SourceUnavailableError(_open_too_long(self.name, writers))
            self._pause(LISTING_S)
            # Later transactions are not of interest: they end after the SCN.
            writers &= self._writers()
        return scn

    def _writers(self) -> set[tuple[int, int]]:
        """Return the open transactions with changes, with their connections."""
        with (
            self._opened().session() as connection,
            driver_errors(self.name, 0, f"asking {self._address} for open transactions"),
            connection.cursor() as cursor,
        ):
            try:
                cursor.execute(_WRITERS)
            except MySQLError as error:
                if error.args[0] != SPECIFIC_ACCESS_DENIED_ERROR:
                    raise
                problem = "GRANT PROCESS ON *.* TO the account: which transactions are open says"
                problem += " which of those in the binlog can be read already"
                raise SourceStoppedError(self.name, 0, f"{error.args[1]}; {problem}") from error
            return {(int(number), int(thread)) for number, thread in cursor.fetchall()}

    def _connect(self) -> Any:
        """Open a connection for rows, which come as undecoded bytes."""
        connection: Any = connect(self._address, source=self.name, use_unicode=False, conv={})
        try:
            limit = "max_statement_time" if self._is_mariadb else "max_execution_time"
            # Without the limit that a server may have for queries: a whole table may be one.
            self._query(connection, _SESSION, _ISOLATION, f"SET SESSION {limit} = 0")
        except BaseException:
            _abandon(connection)
            raise
        return connection

    def _connected(self) -> Any:
        self._opened()
        if self._rows is None or not self._rows.open:
            self._rows = self._connect()
        return self._rows

    def _opened(self) -> ServerCatalog:
        if self._catalog is None:
            raise SourceUnavailableError(f"source {self.name}: not open")
        return self._catalog

    def _query(self, connection: Any, *statements: str, source: str = "") -> Any:
        """Run statements; return the rows of the last one."""
        rows: Sequence[RawRow] = ()
        for statement in statements:
            words = " ".join(statement.split()[:3])
            with (
                driver_errors(self.name, 0, f"asking {self._address} ({words} …)"),
                connection.cursor(Cursor) as cursor,
            ):
                try:
                    cursor.execute(statement)
                except MySQLError as error:
                    if error.args[0] != NO_SUCH_TABLE or not source:
                        raise
                    raise self._stopped_on_missing(source) from error
                rows = cursor.fetchall()
        return rows

    def _fetch(self, connection: Any, cursor: Any, query: str, rows: int) -> list[RawRow]:
        """Return the next rows of a streaming cursor; `query` starts it."""
        assert cursor.connection is connection
        with driver_errors(self.name, 0, f"reading rows of {self._address}"):
            if query:
                cursor.execute(query)
            found: list[RawRow] = cursor.fetchmany(rows)
            return found

    def _scn(self, file: str, offset: int) -> int:
        return BinlogPosition(self._settings.epoch, file_number(file), offset).to_scn()

    def _is_gone(self, source: str) -> bool:
        """Whether the server says that a table which a pattern has found does not exist (any more).

        It says so only to who may read the table.
        """
        if source not in self._found:
            return False
        what = f"asking {self._address} for {source}"
        with driver_errors(self.name, 0, what), self._rows.cursor(Cursor) as cursor:
            try:
                cursor.execute(f"SELECT 1 FROM {sql_name(source)} LIMIT 0")
            except MySQLError as error:
                if error.args[0] not in (NO_SUCH_TABLE, BAD_DB_ERROR):
                    raise
                return True
        return False

    def _stopped_on_missing(self, source: str) -> DatabusError:
        if source in self._found:
            return SourceUnavailableError(
                f"source {self.name}: table {source} was dropped just now"
            )
        return SourceStoppedError(self.name, 0, "; ".join(table_problems([source], {})))

    def _stopped(self, source: str, problem: str) -> SourceStoppedError:
        return SourceStoppedError(self.name, 0, f"table {source}, {problem}")

    def _stop_on(self, problems: Sequence[str]) -> None:
        if problems:
            raise SourceStoppedError(self.name, 0, "; ".join(problems))


def _key_parts(catalog: ServerCatalog, source: str, definition: Definition) -> list[KeyPart]:
    name = split_name(source)
    collations = {str(column): str(found or "") for column, found in catalog.ask(_COLLATIONS, name)}
    defined = {column.name: column for column in definition.columns}
    parts = []
    for column, prefix, direction in catalog.ask(_KEY, name):
        found = defined[column]
        collation = collations[column]
        is_descending = direction == "D"
        parts.append(
            KeyPart(column, found.sql_type, found.charset, collation, bool(prefix), is_descending)
        )
    return parts


def _shown(raw: bytes | None) -> str:
    text = (raw or b"").decode("utf-8", "backslashreplace")
    return text if len(text) <= 80 else f"{text[:77]}..."


def _open_too_long(name: str, writers: set[tuple[int, int]]) -> str:
    threads = ", ".join(str(thread) for _, thread in sorted(writers)[:10])
    return (
        f"source {name}: transactions of the connections {threads} have been open for "
        f"{COMMIT_WAIT_S:.0f} s, and may be in the binlog without being visible; end them, or wait"
    )


def _abandon(connection: Any) -> None:
    """Close a connection at once, without reading what the server still sends."""
    result = connection._result
    if result is not None:
        result.unbuffered_active = False
    connection._force_close()
