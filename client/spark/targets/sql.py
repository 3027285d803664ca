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
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import sqlalchemy as sa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema
from sqlalchemy.engine import Connection, Engine, make_url
from sqlalchemy.exc import IntegrityError, NoSuchTableError
from sqlalchemy.schema import CreateColumn

from databus.client.spark.targets.book import Book
from databus.client.spark.targets.changes import (
    AS_OF,
    DELETE,
    SCN,
    SOURCE,
    Changes,
    Mark,
    put_changes,
    unified_schema,
)
from databus.client.spark.targets.decision import decide
from databus.client.spark.targets.sql_tables import own_tables, schema_of, table_of, text_of
from databus.client.spark.targets.target import (
    Applied,
    Put,
    check_same_keys,
    no_table,
    whole_key,
)

_FETCHED = 10_000
# The most values that a statement may have: SQLite's limit, the lowest there is, with room.
_VALUES = 30_000

Values = dict[str, sa.BindParameter[Any]]


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
        IncompatibleSchemaError for a column of another type, and what the
        database raises.
        """
        if changes.is_nothing():
            return Applied(positions=self.positions())
        schema = self._ready(changes)
        with self._engine.begin() as connection:
            self._lock(connection, schema)
            book = self._book(connection)
            if book.has(app_id, batch_id):
                return Applied(is_skipped=True, positions=book.positions())
            after = book.after(app_id, batch_id, changes.positions)
            counts = _Batch(self._table_of(schema), changes, schema, connection).run()
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
        schema = self._ready(changes)
        with self._engine.begin() as connection:
            self._lock(connection, schema)
            takes_new = self._book(connection).takes_new(physical_source, scn)
            batch = _Batch(self._table_of(schema), changes, schema, connection, takes_new)
            written, deleted = batch.run()
        return Put(written, deleted, takes_new)

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
        self._targets.metadata.create_all(self._engine)
        table = self._table_of(schema, changes.keys)
        table.create(self._engine, checkfirst=True)
        self._add_columns(table)
        self._add_line(changes.keys, schema)
        self._is_ready = True
        return schema

    def _add_columns(self, table: sa.Table) -> None:
        held = {column["name"] for column in sa.inspect(self._engine).get_columns(self.table)}
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

    def _lock(self, connection: Connection, schema: pa.Schema) -> None:
        """Be the only one who writes to the table, until the transaction ends."""
        targets = self._targets
        connection.execute(
            targets.update()
            .where(targets.c.target == self.table)
            .values(changes=targets.c.changes + 1, columns=text_of(schema))
        )

    def _line(self, connection: Connection) -> sa.Row[Any] | None:
        targets = self._targets
        if not sa.inspect(connection).has_table(targets.name):
            return None
        return connection.execute(
            targets.select().where(targets.c.target == self.table)
        ).one_or_none()

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


class _Batch:
    """One batch inside its transaction."""

    def __init__(
        self,
        table: sa.Table,
        changes: Changes,
        schema: pa.Schema,
        connection: Connection,
        takes_new: bool = True,
    ) -> None:
        self._changes = changes.in_types_of(schema)
        self._table = table
        self._connection = connection
        self._takes_new = takes_new
        self._is_key: Values = {
            name: sa.bindparam(f"_key_{n}") for n, name in enumerate(changes.keys)
        }
        self._of_key = sa.and_(
            *(table.c[name] == parameter for name, parameter in self._is_key.items())
        )

    def run(self) -> tuple[int, int]:
        """Do what the rules say; return how many rows were written and removed."""
        decision = decide(self._held(), self._changes, takes_new=self._takes_new)
        written = decision.replaces | decision.inserts | decision.touches
        names = self._changes.schema.names
        values: Values = {name: sa.bindparam(f"_{name}") for name in names}
        proof: Values = {AS_OF: values[AS_OF]}
        update = self._table.update().where(self._of_key)
        self._run(self._table.delete().where(self._of_key), decision.removes, [])
        self._run(update.values(proof), decision.touches, [AS_OF])
        self._run(update.values(values), decision.replaces, names)
        # What is written by now is newer than a truncate, or was there as of a snapshot's end.
        removed = sum(self._remove_covered(mark) for mark in self._changes.marks)
        self._run(self._table.insert().values(values), decision.inserts, names)
        return int(written.sum()), removed + int(decision.removes.sum())

    def _held(self) -> pa.Table:
        """Return key, SCN and as-of SCN of the rows that there are changes of."""
        keys = self._changes.keys
        rows = self._changes.rows
        names = [*keys, SCN, AS_OF]
        schema = pa.schema([rows.schema.field(name) for name in names])
        columns = [self._table.c[name] for name in names]
        asked = _values(rows.select(keys))
        size = max(1, _VALUES // len(keys) // 4)
        found: list[dict[str, Any]] = []
        for start in range(0, len(asked), size):
            part = asked[start : start + size]
            query = sa.select(*columns).where(self._is_one_of(part))
            found += [dict(zip(names, row, strict=True)) for row in self._connection.execute(query)]
        return _arrow(found, schema)

    def _is_one_of(self, asked: Sequence[Mapping[str, Any]]) -> sa.ColumnElement[bool]:
        columns = [self._table.c[name] for name in self._changes.keys]
        if len(columns) == 1:
            (column,) = columns
            return column.in_([row[column.name] for row in asked])
        return sa.tuple_(*columns).in_(
            [tuple(row[column.name] for column in columns) for row in asked]
        )

    def _remove_covered(self, mark: Mark) -> int:
        """Remove what a truncate or the end of a snapshot takes away."""
        columns = self._table.c
        conditions = [sa.func.coalesce(columns[SCN], -1) <= mark.scn]
        if not mark.is_truncate:
            conditions.append(sa.func.coalesce(columns[AS_OF], -1) < mark.scn)
        if self._changes.has_source:
            conditions.append(columns[SOURCE] == mark.source)
        rows = self._changes.rows
        follows = pc.and_(pc.equal(rows[SCN], mark.scn), pc.invert(rows[DELETE]))
        if mark.is_truncate and pc.any(follows).as_py():
            # Of the truncate's own window, and after it.
            kept = _values(rows.select(self._changes.keys).filter(follows))
            conditions.append(sa.not_(self._is_one_of(kept)))
        return self._connection.execute(self._table.delete().where(*conditions)).rowcount

    def _run(self, statement: sa.Executable, mask: Any, names: Sequence[str]) -> None:
        """Run a statement for each of some changes, with the key and some columns of each."""
        rows = _values(self._changes.rows.filter(pa.array(mask)))
        is_insert = isinstance(statement, sa.Insert)
        keys = {} if is_insert else {of.key: name for name, of in self._is_key.items()}
        parameters = {**keys, **{f"_{name}": name for name in names}}
        if rows:
            self._connection.execute(
                statement,
                [{given: row[name] for given, name in parameters.items()} for row in rows],
            )


def _values(rows: pa.Table) -> list[dict[str, Any]]:
    """Return rows for SQLAlchemy: instants in UTC, without a zone."""
    plain = pa.schema([(field.name, _without_zone(field.type)) for field in rows.schema])
    values: list[dict[str, Any]] = rows.cast(plain).to_pylist()
    return values


def _arrow(rows: list[dict[str, Any]], schema: pa.Schema) -> pa.Table:
    """Return what SQLAlchemy gave as Arrow has it."""
    plain = pa.schema([(field.name, _without_zone(field.type)) for field in schema])
    return pa.Table.from_pylist(rows, plain).cast(schema)


def _without_zone(kind: pa.DataType) -> pa.DataType:
    return pa.timestamp(kind.unit) if pa.types.is_timestamp(kind) else kind


def _selected(
    connection: Connection, table: sa.Table, schema: pa.Schema, condition: Any
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a table, as they come."""
    query = sa.select(*(table.c[name] for name in schema.names))
    if condition is not None:
        query = query.where(condition)
    result = connection.execution_options(stream_results=True).execute(query)
    for part in result.mappings().partitions(_FETCHED):
        yield from _arrow([dict(row) for row in part], schema).combine_chunks().to_batches()


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
