"""The sink `sql`: copies of tables in PostgreSQL, MariaDB, MySQL and SQLite.

A flush is one transaction with the rows and the position behind them, so a change is there once,
whatever is killed when.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import groupby
from operator import attrgetter

from databus.client.sinks.contract import Change, ChangeOp, Opening, Position
from databus.client.sinks.errors import SinkError, SinkRefusedError, SinkUnavailableError
from databus.conf.extras import how_to_install

try:
    from sqlalchemy.engine import Connection, Engine
    from sqlalchemy.exc import DBAPIError, IntegrityError, SQLAlchemyError

    from databus.client.sinks.ready.following import may_truncate
    from databus.client.sinks.ready.sql.options import SqlOptions
    from databus.client.sinks.ready.sql.positions import StoredPosition
    from databus.client.sinks.ready.sql.tables import Tables
    from databus.client.sinks.ready.sql.writing import TableWriter
    from databus.client.sql.names import MYSQL
    from databus.client.sql.refusals import is_away, is_refusal, said
except ImportError as error:
    raise ImportError(f"{error}: {how_to_install('sql')}") from error

_WITHOUT_ROWS = frozenset({ChangeOp.DDL, ChangeOp.STATEMENT})


class SqlSink:
    """Writes transactions; exactly once with one lane, else upserts that may come again."""

    keeps_position = True  # unless `exactly_once = false`
    has_position_per_source = True
    follows_schemas = True

    Options = SqlOptions

    def __init__(self, options: SqlOptions) -> None:
        """Raises SettingsError for the password file, and a driver that is not there."""
        self._options = options
        self._engine: Engine = options.make_engine()
        self._connection: Connection | None = None
        self._tables: Tables | None = None
        self._stored: StoredPosition | None = None
        self._held: list[Change] = []
        self._is_claimed = False  # in the transaction that is open
        self._reached: Position | None = None  # with what it has written

    def open(self, opening: Opening) -> Position | None:
        """Connect, and return the position that the database has."""
        with self._told(), self._racing():
            connection = self._connection = self._engine.connect()
            own = None
            if self._options.exactly_once:
                self._stored = StoredPosition(self._options, opening)
                own = self._stored.read(connection)
            self._tables = Tables(self._options, connection, opening)
            self._tables.begin(is_first=own is None and opening.is_first)
            return own

    def write(self, changes: Sequence[Change]) -> None:
        """Hold the changes until `flush`."""
        self._held += changes

    def flush(self) -> Position | None:
        """Write what is held, and the position, in one transaction.

        In MySQL and MariaDB an ALTER commits, so there the changes before it are one of their own.
        """
        held, self._held = self._held, []
        waiting: list[Change] = []
        connection, tables = self._open_connection(), self._open_tables()
        with self._told(held):
            for schema, run in groupby(held, attrgetter("schema")):
                changes = list(run)
                if schema is not None and tables.is_news(changes[0].source, schema):
                    self._end(waiting, is_last=connection.dialect.name in MYSQL)
                    waiting = []
                    with self._racing():
                        tables.follow(changes[0].source, schema)
                waiting += changes
            self._end(waiting, is_last=True)
        return None if self._stored is None else self._stored.position

    def close(self) -> None:
        """Roll back what was not committed, and disconnect."""
        connection, self._connection, self._held = self._connection, None, []
        with suppress(SQLAlchemyError):
            if connection is not None:
                connection.close()
        self._engine.dispose()

    def unique_keys(self, source: str) -> Sequence[Sequence[str]]:
        """Return the unique keys of a source's table besides the primary key."""
        with self._told():
            found = self._open_tables().unique_keys(source)
            self._open_connection().rollback()
            return found

    def _end(self, changes: Sequence[Change], *, is_last: bool) -> None:
        """Write changes; commit if they are the last of the transaction."""
        connection, stored = self._open_connection(), self._stored
        if changes:
            self._claim()
            self._write(changes)
            positions = (one.position for one in reversed(changes) if one.position is not None)
            self._reached = next(positions, self._reached)
        if not is_last:
            # The claim comes first: it keeps another process from writing meanwhile.
            self._claim()
            return
        if stored is not None and self._reached is not None:
            stored.store(connection, self._reached)
        connection.commit()
        if stored is not None and self._is_claimed:
            stored.committed()
        self._is_claimed, self._reached = False, None

    def _claim(self) -> None:
        if self._stored is not None and not self._is_claimed:
            self._stored.claim(self._open_connection())
            self._is_claimed = True

    def _write(self, changes: Sequence[Change]) -> None:
        """Write changes, those of each table together: their order matters within it only."""
        by_source: dict[str, list[Change]] = {}
        last, found = None, []
        for change in changes:
            if change.op in _WITHOUT_ROWS:
                continue
            if change.source is not last:
                last = change.source
                found = by_source.setdefault(last, [])
            found.append(change)
        tables = self._open_tables()
        for source, group in by_source.items():
            target = tables.of(source)
            if target is None:
                continue
            tables.filled.check_rows(target.table, source)
            may_repeat = not self._options.exactly_once
            writer = TableWriter(self._open_connection(), target, may_repeat=may_repeat)
            for part in _between_truncates(group):
                if part[0].op is not ChangeOp.TRUNCATE:
                    writer.write(part)
                elif may_truncate(part[0], self._options.ddl):
                    writer.truncate(part[0])
            tables.filled.wrote(target.table, source, group)

    @contextmanager
    def _told(self, changes: Sequence[Change] = ()) -> Iterator[None]:
        """Raise the errors of a sink for those of the database."""
        try:
            yield
        except DBAPIError as error:
            raise self._error(error, changes) from error
        except (UnicodeError, OverflowError) as error:
            raise SinkRefusedError(f"{self._options.shown_url}: {error}", _only(changes)) from error

    @contextmanager
    def _racing(self) -> Iterator[None]:
        """Let a lane wait that finds a table being made by another one."""
        try:
            yield
        except IntegrityError as error:
            raise SinkUnavailableError(f"{self._options.shown_url}: {said(error)}") from error

    def _error(self, error: DBAPIError, changes: Sequence[Change]) -> SinkError:
        problem = f"{self._options.shown_url}: {said(error)}"
        if is_refusal(error):
            return SinkRefusedError(problem, _only(changes))
        return SinkUnavailableError(problem) if is_away(error) else SinkError(problem)

    def _open_connection(self) -> Connection:
        assert self._connection is not None
        return self._connection

    def _open_tables(self) -> Tables:
        assert self._tables is not None
        return self._tables


def _only(changes: Sequence[Change]) -> Change | None:
    return changes[0] if len(changes) == 1 else None


def _between_truncates(changes: Sequence[Change]) -> Iterator[Sequence[Change]]:
    """Yield the changes before, between and after each TRUNCATE, and each of them alone."""
    if ChangeOp.TRUNCATE not in map(attrgetter("op"), changes):
        yield changes
        return
    start = 0
    for at, change in enumerate(changes):
        if change.op is ChangeOp.TRUNCATE:
            if at > start:
                yield changes[start:at]
            yield [change]
            start = at + 1
    if start < len(changes):
        yield changes[start:]
