"""Write one batch of changes inside its transaction, by the rules of `merge_plan`; read rows."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from operator import itemgetter
from typing import Any

import pyarrow as pa
import sqlalchemy as sa
from sqlalchemy.engine import Connection
from sqlalchemy.exc import DBAPIError

from databus.client.spark.targets.changes import AS_OF, SCN, SOURCE, Changes, Mark
from databus.client.spark.targets.merge_plan import Comparison, Condition, Mask, decide, numbers
from databus.client.spark.targets.sql_tables import table_of
from databus.client.spark.targets.sql_values import mark_refused, refusal
from databus.client.sql.engines import make_engine
from databus.client.sql.refusals import first_refused, is_refusal
from databus.client.sql.statements import SqlRow, Statements
from databus.client.sql.values import to_driver

_FETCHED = 10_000

_Write = Callable[[Sequence[SqlRow]], object]


class Batch:
    """One batch inside its transaction.

    `required`: the columns that an upsert must have; None = an upsert may do something else than
    an UPDATE (`existing.required_columns`).
    """

    def __init__(
        self,
        table: sa.Table,
        changes: Changes,
        schema: pa.Schema,
        connection: Connection,
        takes_new: bool = True,
        uri: str = "",
        required: Collection[str] | None = None,
    ) -> None:
        self._uri = uri
        self._changes = changes.in_types_of(schema)
        self._table = table
        self._connection = connection
        self._takes_new = takes_new
        self._statements = Statements(connection, table, is_typed=True)
        names = set(changes.schema.names)
        self._may_upsert = required is not None and names.issuperset(required)

    def run(self) -> tuple[int, int]:
        """Apply the changes; return how many rows were written and removed."""
        decision = decide(self._held(), self._changes, takes_new=self._takes_new)
        written = decision.replaces | decision.inserts | decision.touches
        keys, names = self._changes.keys, self._changes.schema.names
        statements = self._statements
        self._run(partial(statements.delete, keys), decision.removes, keys, ())
        self._run(self._touch, decision.touches, (AS_OF, *keys), (AS_OF,))
        self._run(self._replace, decision.replaces, names, names)
        # After the updates: the rows they wrote are newer than a truncate, or proven as of a
        # snapshot's end. Before the inserts, which a mark must not remove.
        removed = sum(self._remove_covered(mark, decision.replaces) for mark in self._changes.marks)
        self._run(partial(statements.insert, names), decision.inserts, names, names)
        return int(written.sum()), removed + int(decision.removes.sum())

    def _held(self) -> pa.Table:
        """Return key, SCN and as-of SCN of the table's rows whose keys have changes."""
        keys, rows = self._changes.keys, self._changes.rows
        names = list(dict.fromkeys([*keys, SCN, AS_OF]))
        types = [self._table.c[name].type for name in names]
        asked = self._rows(rows, keys)
        found = list(self._statements.select(names, keys, asked, types=types))
        return arrow_of(found, pa.schema([rows.schema.field(name) for name in names]))

    def _touch(self, rows: Sequence[SqlRow]) -> None:
        """Set the as-of SCN, which is the first value of each row, by the key behind it."""
        keys: dict[Any, list[SqlRow]] = {}
        for as_of, *key in rows:
            keys.setdefault(as_of, []).append(tuple(key))
        for as_of, group in keys.items():
            self._statements.set_rows((AS_OF,), (as_of,), self._changes.keys, group)

    def _replace(self, rows: Sequence[SqlRow]) -> None:
        """Write rows over those that are there; other columns keep their values."""
        keys, names = self._changes.keys, self._changes.schema.names
        if self._may_upsert:
            self._statements.upsert(names, keys, rows)
            return
        others = [name for name in names if name not in keys]
        # There are two columns at least: both SCNs.
        in_order = itemgetter(*map(names.index, [*others, *keys]))
        self._statements.update(others, keys, list(map(in_order, rows)))

    def _remove_covered(self, mark: Mark, replaces: Mask) -> int:
        """Remove the rows that a truncate or the end of a snapshot removes."""
        columns = self._table.c
        conditions = [sa.func.coalesce(columns[SCN], -1) <= mark.scn]
        if not mark.is_truncate:
            conditions.append(sa.func.coalesce(columns[AS_OF], -1) < mark.scn)
        if self._changes.has_source:
            conditions.append(columns[SOURCE] == mark.source)
        rows, keys = self._changes.rows, self._changes.keys
        follows = replaces & (numbers(rows[SCN]) == mark.scn) & mark.is_truncate
        kept = self._rows(rows.filter(pa.array(follows)), keys)
        # Rows that the truncate's own window wrote after it stay, which are as old as the others:
        # they are newer meanwhile, as they may be too many for a condition.
        self._statements.set_rows((SCN,), (mark.scn + 1,), keys, kept)
        try:
            found = self._connection.execute(self._table.delete().where(*conditions)).rowcount
        except DBAPIError as error:
            if not is_refusal(error):
                raise
            raise mark_refused(self._uri, mark.scn, error) from error
        self._statements.set_rows((SCN,), (mark.scn,), keys, kept)
        return found

    def _run(self, write: _Write, mask: Any, names: Sequence[str], blamed: Sequence[str]) -> None:
        """Write the columns `names` of the selected changes; a refusal is of those `blamed`."""
        changes = self._changes.rows.filter(pa.array(mask))
        if not changes.num_rows:
            return
        rows = self._rows(changes, names)
        # A savepoint, so that after a failure the transaction can still search for the row.
        part = self._connection.begin_nested()
        try:
            write(rows)
        except DBAPIError as error:
            if not is_refusal(error):
                raise
            part.rollback()
            at, alone = first_refused(self._connection, write, rows)
            (row,) = _values(changes.slice(at, 1)).to_pylist()
            raise refusal(self._uri, blamed, row, self._changes.keys, alone or error) from error
        part.commit()

    def _rows(self, changes: pa.Table, names: Sequence[str]) -> list[SqlRow]:
        return _driver_rows(changes.select(names), self._table, self._connection.dialect)


def _driver_rows(rows: pa.Table, table: sa.Table, dialect: sa.Dialect) -> list[SqlRow]:
    """Return rows of columns of a table as the driver takes them."""
    columns = []
    for name, column in zip(rows.column_names, _values(rows).columns, strict=True):
        convert = to_driver(table.c[name].type, dialect)
        values = column.to_pylist()
        columns.append(values if convert is None else list(map(convert, values)))
    return list(zip(*columns, strict=True))


def found_rows(
    connection: Connection,
    table: sa.Table,
    schema: pa.Schema,
    keys: pa.Table,
    others: Sequence[Condition],
) -> pa.Table:
    """Return the rows with some keys, and those that fulfil other conditions; see `Target.find`."""
    statements = Statements(connection, table, is_typed=True)
    types = [table.c[name].type for name in schema.names]
    asked = keys.cast(pa.schema([schema.field(name) for name in keys.column_names]))
    lines = _driver_rows(asked, table, connection.dialect)
    found = list(statements.select(schema.names, keys.column_names, lines, types=types))
    if others:
        columns = [table.c[name] for name in schema.names]
        wanted = sa.or_(*(sa.and_(*(_clause(table, one) for one in tests)) for tests in others))
        found += map(tuple, connection.execute(sa.select(*columns).where(wanted)))
        found = list(dict.fromkeys(found))
    return arrow_of(found, schema)


def selected(
    connection: Connection, table: sa.Table, schema: pa.Schema, condition: Any
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a table as the database sends them."""
    query = sa.select(*(table.c[name] for name in schema.names))
    if condition is not None:
        query = query.where(condition)
    # A cursor of the server: the table need not fit into memory.
    result = connection.execution_options(stream_results=True).execute(query)
    for part in result.partitions(_FETCHED):
        yield from arrow_of(part, schema).combine_chunks().to_batches()


def read_parts(
    url: str,
    engine_options: Mapping[str, Any],
    name: str,
    keys: Sequence[str],
    schema_bytes: bytes,
    limits: Sequence[tuple[int | None, int | None]],
    parts: Iterator[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of the ranges whose numbers are in `parts`; runs in a Spark worker."""
    schema = pa.ipc.read_schema(pa.py_buffer(schema_bytes))
    engine = make_engine(url, **engine_options)
    try:
        with engine.connect() as connection:
            table = table_of(name, schema, keys, engine.dialect)
            for part in parts:
                for number in part.column(0).to_pylist():
                    yield from selected(
                        connection, table, schema, _in_range(table, keys, *limits[number])
                    )
    finally:
        engine.dispose()


def _in_range(table: sa.Table, keys: Sequence[str], after: int | None, last: int | None) -> Any:
    """Return the condition of a range of an integer key; None for the whole table."""
    if after is None and last is None:
        return None
    column = next(table.c[key] for key in keys if key != SOURCE)
    return sa.and_(
        *([] if after is None else [column > after]), *([] if last is None else [column <= last])
    )


def _clause(table: sa.Table, test: Comparison) -> sa.ColumnElement[bool]:
    column = table.c[test.column]
    if test.operator == "null":
        return column.is_(None)
    compared = column.op(test.operator)(sa.literal(test.value, column.type))
    return sa.or_(compared, column.is_(None)) if test.or_null else compared


def _values(rows: pa.Table) -> pa.Table:
    """Return rows as a database has them: timestamps are in UTC, without a zone."""
    return rows.cast(_plain(rows.schema))


def arrow_of(rows: Sequence[Sequence[Any]], schema: pa.Schema) -> pa.Table:
    """Return rows from SQLAlchemy, which have the columns of the schema, as an Arrow table."""
    plain = _plain(schema)
    columns = list(zip(*rows, strict=True)) or [()] * len(plain)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, plain, strict=True)]
    return pa.Table.from_arrays(arrays, schema=plain).cast(schema)


def _plain(schema: pa.Schema) -> pa.Schema:
    return pa.schema([(field.name, _without_zone(field.type)) for field in schema])


def _without_zone(kind: pa.DataType) -> pa.DataType:
    return pa.timestamp(kind.unit) if pa.types.is_timestamp(kind) else kind
