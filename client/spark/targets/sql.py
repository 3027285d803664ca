"""A table of any database that SQLAlchemy speaks to.

One batch is one transaction. It begins by writing the table's line in
`databus_targets`, so whoever else applies to the table waits; then the rows
that the batch has changes of are asked for their SCN, and what the rules say is
inserted, updated and deleted. In the same transaction the book's entries go to
`databus_book`.

    databus_targets   target, changes (how many transactions), keys, columns
    databus_book      target, name, value

`columns` is the table's schema as Arrow has it: the database's own types do not
say it all. What a table that was there before does with a value is its own
affair.

New columns are added before the transaction: MySQL would commit half of it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import pyarrow as pa
import sqlalchemy as sa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema
from sqlalchemy.engine import Connection, Engine, make_url
from sqlalchemy.exc import IntegrityError, NoSuchTableError
from sqlalchemy.schema import CreateColumn

from databus.client.spark.targets.changes import (
    AS_OF,
    SOURCE,
    Changes,
    put_changes,
    unified_schema,
)
from databus.client.spark.targets.commit_log import Book
from databus.client.spark.targets.reshaping import Reshaping
from databus.client.spark.targets.sql_batch import Batch, arrow_of
from databus.client.spark.targets.sql_reshaping import (
    Altering,
    comment_of,
    has_mark,
    marked,
    quoted,
    quoted_text,
    run,
    swap,
)
from databus.client.spark.targets.sql_tables import (
    MYSQL,
    own_tables,
    schema_of,
    table_of,
    text_of,
)
from databus.client.spark.targets.sql_values import storable
from databus.client.spark.targets.target import (
    Applied,
    Put,
    check_same_keys,
    no_table,
    whole_key,
)

_FETCHED = 10_000


class SqlTarget:
    """A table of a database: `<SQLAlchemy URL>#<table>`.

    Options: `key_length`, the length of a string in the key of a table that is
    made; `partitions`, in how many parts Spark reads a table with an integer
    key; `engine_options`, those of SQLAlchemy's `create_engine`.
    """

    OPTIONS = ("key_length", "partitions", "engine_options")

    def __init__(
        self,
        uri: str,
        keys: Sequence[str] | None = None,
        *,
        source_column: bool = False,
        key_length: int = 255,
        partitions: int = 4,
        engine_options: Mapping[str, Any] | None = None,
    ) -> None:
        self._url, _, self.table = uri.rpartition("#")
        self.uri = f"{make_url(self._url).render_as_string(hide_password=True)}#{self.table}"
        self.source_column = source_column
        self._given_keys = whole_key(keys, source_column)
        self._key_length = key_length
        self._partitions = partitions
        self._engine_options = dict(engine_options or {})
        self._engine: Engine = sa.create_engine(self._url, **self._engine_options)
        self._is_ready = False
        self._targets, self._entries = own_tables()

    @property
    def keys(self) -> tuple[str, ...]:
        """Name the columns that make a row unique; () while nobody has said so."""
        if self._given_keys:
            return self._given_keys
        with self._engine.connect() as connection:
            line = self._line(connection)
            if line is not None:
                return tuple(json.loads(line.keys))
        return tuple(self._inspected_keys())

    def applied(self, app_id: str) -> int | None:
        """Return the last batch of an app that is applied, or None."""
        return self._read_book().applied(app_id)

    def positions(self) -> dict[str, int]:
        """Return the SCN per physical source up to which everything is applied."""
        return self._read_book().positions()

    def sources(self) -> list[str]:
        """Name the source that the rows are of, as far as it was noted."""
        return self._read_book().sources()

    def schema(self) -> pa.Schema | None:
        """Return the columns that batches have brought, bookkeeping included; None before one."""
        with self._engine.connect() as connection:
            line = self._line(connection)
        return None if line is None else schema_of(line)

    def version(self) -> int | None:
        """Return None: a database's table has no numbered states."""
        return None

    def apply(self, app_id: str, batch_id: int, changes: Changes) -> Applied:
        """Apply a batch in one transaction, with the note that it is applied.

        Raises SettingsError for another key than the table's,
        IncompatibleSchemaError for a column of another type, RowError for a value
        that the database cannot have, and what else the database raises.
        """
        if changes.is_nothing():
            return Applied(positions=self.positions())
        changes = storable(changes, self._engine.dialect, self.uri)
        schema = self._ready(changes)
        with self._engine.begin() as connection:
            self._lock(connection, schema)
            book = self._book(connection)
            if book.has(app_id, batch_id):
                return Applied(is_skipped=True, positions=book.positions())
            after = book.after(app_id, batch_id, changes.positions, changes.source)
            counts = Batch(self._table_of(schema), changes, schema, connection, uri=self.uri).run()
            self._write(connection, after.changed_since(book))
        return Applied(*counts, positions=after.positions())

    def put(
        self,
        rows: pa.Table | None = None,
        deletes: pa.Table | None = None,
        *,
        physical_source: str,
        scn: int,
        source: str | None = None,
    ) -> Put:
        """Make rows, and keys to delete, what the source had at an SCN; see `Target.put`."""
        keys = self.keys
        changes = put_changes(rows, deletes, keys, scn, source)
        changes = storable(changes, self._engine.dialect, self.uri)
        schema = self._ready(changes)
        with self._engine.begin() as connection:
            self._lock(connection, schema)
            takes_new = self._book(connection).takes_new(physical_source, scn)
            batch = Batch(self._table_of(schema), changes, schema, connection, takes_new, self.uri)
            written, deleted = batch.run()
        return Put(written, deleted, takes_new)

    def reshape(self, plan: Reshaping, app_id: str | None, batch_id: int) -> None:
        """Alter the table; see `Target.reshape`. Columns of one's own in it stay."""
        held = self._known_schema()
        dialect = self._engine.dialect
        altering = Altering(self.table, plan, held, dialect, self._key_length)
        book = self._read_book()
        if app_id and book.has(app_id, batch_id):
            return
        if dialect.name in MYSQL:
            self._once(f"{app_id}@{batch_id}" if app_id else "", altering.in_one)
        with self._engine.begin() as connection:
            self._lock(connection, plan.schema, plan.keys)
            if dialect.name not in MYSQL:
                for statement in altering.one_by_one():
                    run(connection, statement)
            if plan.is_emptied:
                connection.execute(self._table_of(plan.schema, plan.keys).delete())
            if app_id:
                self._write(connection, book.after(app_id, batch_id, {}).changed_since(book))
        self._is_ready = False
        self._given_keys = plan.keys if self._given_keys else ()

    def take_over(self, uri: str, app_id: str, batch_id: int, positions: Mapping[str, int]) -> None:
        """Put the other table in the place of this one, at once; see `Target.take_over`.

        It is another table then: indexes of one's own are to be made again.
        """
        other, old = uri.rpartition("#")[2], f"{self.table}__databus_old"
        dialect, targets, entries = self._engine.dialect, self._targets, self._entries
        with self._engine.begin() as connection:
            book = self._book(connection)
            theirs = self._line(connection, other)
        if book.has(app_id, batch_id) or theirs is None:
            return
        statements = swap(dialect, self.table, other, old)
        if dialect.name in MYSQL:
            mark = f"{app_id}@{batch_id}"
            with self._engine.connect() as connection:
                is_done = has_mark(comment_of(connection, self.table), mark)
                if not is_done:
                    text = quoted_text(dialect, marked("", mark))
                    run(connection, f"ALTER TABLE {quoted(dialect, other)} COMMENT = {text}")
                    run(connection, f"DROP TABLE IF EXISTS {quoted(dialect, old)}")
                    run(connection, statements[0])
        with self._engine.begin() as connection:
            self._lock(connection, schema_of(theirs), json.loads(theirs.keys))
            if dialect.name not in MYSQL:
                for statement in statements:
                    run(connection, statement)
            changed = book.after(app_id, batch_id, positions).changed_since(book)
            self._write(connection, changed)
            connection.execute(entries.delete().where(entries.c.target == other))
            connection.execute(targets.delete().where(targets.c.target == other))
        with self._engine.begin() as connection:
            run(connection, f"DROP TABLE IF EXISTS {quoted(dialect, old)}")
        self._is_ready = False

    def _once(self, mark: str, statement: Callable[[str], str]) -> None:
        """Alter the table in MySQL, unless its comment says that it has been done."""
        with self._engine.connect() as connection:
            comment = comment_of(connection, self.table)
            if not mark:
                run(connection, statement(comment))
            elif not has_mark(comment, mark):
                run(connection, statement(marked(comment, mark)))

    def forget_as_of(self, source: str | None = None) -> None:
        """Take no row of a source for known to be there; see `Target.forget_as_of`."""
        schema = self.schema()
        if schema is None:
            return
        table = self._table_of(schema)
        update = table.update().values({AS_OF: None})
        if source is not None and SOURCE in schema.names:
            update = update.where(table.c[SOURCE] == source)
        with self._engine.begin() as connection:
            self._lock(connection, schema)
            connection.execute(update)

    def rows(self, spark: SparkSession) -> DataFrame:
        """Return the table as it is when Spark reads it, by ranges of an integer key.

        The parts are read in transactions of their own: what is written
        meanwhile may be in one and not yet in another.
        """
        schema = self._known_schema()
        limits = self._limits(schema)
        reader = partial(
            _read_parts, self._url, self._engine_options, self.table, self.keys,
            schema.serialize().to_pybytes(), limits,
        )  # fmt: skip
        parts = spark.range(0, len(limits), 1, len(limits))
        return parts.mapInArrow(reader, from_arrow_schema(schema, prefer_timestamp_ntz=True))

    def read(self) -> pa.Table:
        """Return the table as it is now, read without Spark."""
        schema = self._known_schema()
        with self._engine.connect() as connection:
            batches = _selected(connection, self._table_of(schema), schema, None)
            return pa.Table.from_batches(batches, schema)

    def close(self) -> None:
        """Close all connections."""
        self._engine.dispose()

    def _known_schema(self) -> pa.Schema:
        schema = self.schema()
        if schema is None:
            raise no_table(self.uri)
        return schema

    def _ready(self, changes: Changes) -> pa.Schema:
        """See that the table and its columns are there; return its schema.

        Not in the batch's transaction, for some databases commit when a table changes.
        """
        known = self.schema()
        if known is not None:
            check_same_keys(self.uri, self.keys, changes.keys)
            schema = unified_schema(known, changes.schema, self.uri)
            if schema == known and self._is_ready:
                return schema
        else:
            check_same_keys(self.uri, self._given_keys, changes.keys)
            schema = changes.schema
            self._forget_dropped()
        self._targets.metadata.create_all(self._engine)
        table = self._table_of(schema, changes.keys)
        table.create(self._engine, checkfirst=True)
        self._add_columns(table)
        self._add_line(changes.keys, schema)
        self._is_ready = True
        return schema

    def _add_columns(self, table: sa.Table) -> None:
        # Of a result, not of SQLAlchemy's inspection, which takes MySQL's "``" for two.
        nothing = sa.select(sa.text("*")).select_from(table).where(sa.false())
        with self._engine.connect() as connection:
            held = set(connection.execute(nothing).keys())
        for column in table.columns:
            if column.name not in held:
                dialect = self._engine.dialect
                words = CreateColumn(column).compile(dialect=dialect)
                name = dialect.identifier_preparer.format_table(table)
                with self._engine.begin() as connection:
                    connection.exec_driver_sql(f"ALTER TABLE {name} ADD COLUMN {words}")

    def _add_line(self, keys: Sequence[str], schema: pa.Schema) -> None:
        """Write the table's line, unless it is there."""
        line = {
            "target": self.table,
            "changes": 0,
            "keys": json.dumps(keys),
            "columns": text_of(schema),
        }
        try:
            with self._engine.begin() as connection:
                if self._line(connection) is None:
                    connection.execute(self._targets.insert(), line)
        except IntegrityError:
            # Another writer has made it since we looked.
            return

    def _lock(
        self, connection: Connection, schema: pa.Schema, keys: Sequence[str] | None = None
    ) -> None:
        """Be the only one who writes to the table, until the transaction ends."""
        targets = self._targets
        named = {} if keys is None else {"keys": json.dumps(keys)}
        connection.execute(
            targets.update()
            .where(targets.c.target == self.table)
            .values(changes=targets.c.changes + 1, columns=text_of(schema), **named)
        )

    def _line(self, connection: Connection, name: str | None = None) -> sa.Row[Any] | None:
        """Return a table's line; None of a table that somebody has dropped: its rows are gone."""
        line = self._noted_line(connection, name or self.table)
        # The line is read first: it is written when the table is there.
        is_there = line is not None and sa.inspect(connection).has_table(name or self.table)
        return line if is_there else None

    def _noted_line(self, connection: Connection, name: str) -> sa.Row[Any] | None:
        targets = self._targets
        if not sa.inspect(connection).has_table(targets.name):
            return None
        return connection.execute(targets.select().where(targets.c.target == name)).one_or_none()

    def _forget_dropped(self) -> None:
        """Forget what was noted of a table of this name that is not there any more."""
        with self._engine.begin() as connection:
            is_dropped = (
                self._noted_line(connection, self.table) is not None
                and self._line(connection) is None
            )
            if is_dropped:
                for table in (self._entries, self._targets):
                    connection.execute(table.delete().where(table.c.target == self.table))

    def _read_book(self) -> Book:
        with self._engine.connect() as connection:
            return Book() if self._line(connection) is None else self._book(connection)

    def _book(self, connection: Connection) -> Book:
        entries = self._entries
        mine = sa.select(entries.c.name, entries.c.value).where(entries.c.target == self.table)
        return Book({row.name: row.value for row in connection.execute(mine)})

    def _write(self, connection: Connection, changed: Mapping[str, int]) -> None:
        """Write entries of the book."""
        entries = self._entries
        lines = [
            {"target": self.table, "name": name, "value": value} for name, value in changed.items()
        ]
        mine = entries.c.target == self.table
        connection.execute(entries.delete().where(mine, entries.c.name.in_(list(changed))))
        connection.execute(entries.insert(), lines)

    def _inspected_keys(self) -> list[str]:
        try:
            return sa.inspect(self._engine).get_pk_constraint(self.table)["constrained_columns"]
        except NoSuchTableError:
            return []

    def _table_of(self, schema: pa.Schema, keys: Sequence[str] | None = None) -> sa.Table:
        return table_of(
            self.table, schema, keys or self.keys, self._engine.dialect, self._key_length
        )

    def _limits(self, schema: pa.Schema) -> list[tuple[int | None, int | None]]:
        """Return ranges (from, to] of the key in which the table is read; one of None is open."""
        keys = [key for key in self.keys if key != SOURCE]
        if len(keys) != 1 or not pa.types.is_integer(schema.field(keys[0]).type):
            return [(None, None)]
        column = self._table_of(schema).c[keys[0]]
        with self._engine.connect() as connection:
            ends = sa.select(sa.func.min(column), sa.func.max(column))
            low, high = connection.execute(ends).one()
        if low is None or self._partitions < 2:
            return [(None, None)]
        step = (high - low) // self._partitions + 1
        cuts = [low + step * n for n in range(1, self._partitions)]
        return list(zip([None, *cuts], [*cuts, None], strict=True))


def _selected(
    connection: Connection, table: sa.Table, schema: pa.Schema, condition: Any
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a table, as they come."""
    query = sa.select(*(table.c[name] for name in schema.names))
    if condition is not None:
        query = query.where(condition)
    result = connection.execution_options(stream_results=True).execute(query)
    for part in result.mappings().partitions(_FETCHED):
        yield from arrow_of([dict(row) for row in part], schema).combine_chunks().to_batches()


def _read_parts(
    url: str,
    engine_options: Mapping[str, Any],
    name: str,
    keys: Sequence[str],
    schema_bytes: bytes,
    limits: Sequence[tuple[int | None, int | None]],
    parts: Iterator[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    """Read the ranges of a table whose numbers come in; runs in a worker of Spark."""
    schema = pa.ipc.read_schema(pa.py_buffer(schema_bytes))
    engine = sa.create_engine(url, **engine_options)
    try:
        with engine.connect() as connection:
            table = table_of(name, schema, keys, engine.dialect)
            for part in parts:
                for number in part.column(0).to_pylist():
                    yield from _selected(
                        connection, table, schema, _in_range(table, keys, *limits[number])
                    )
    finally:
        engine.dispose()


def _in_range(table: sa.Table, keys: Sequence[str], after: int | None, last: int | None) -> Any:
    """Return the condition of a range of an integer key; None of the whole table."""
    if after is None and last is None:
        return None
    column = next(table.c[key] for key in keys if key != SOURCE)
    return sa.and_(
        *([] if after is None else [column > after]), *([] if last is None else [column <= last])
    )
