"""Write one batch of changes inside its transaction, by the rules of `merge_plan`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import sqlalchemy as sa
from sqlalchemy.engine import Connection

from databus.client.spark.targets.changes import AS_OF, DELETE, SCN, SOURCE, Changes, Mark
from databus.client.spark.targets.merge_plan import decide
from databus.client.spark.targets.sql_values import mark_refused, refusal
from databus.client.sql.refusals import REFUSALS, first_refused

# The most parameters of a statement: below SQLite's limit of 32,766, the lowest of all databases.
_VALUES = 30_000

Values = dict[str, sa.BindParameter[Any]]


class Batch:
    """One batch inside its transaction."""

    def __init__(
        self,
        table: sa.Table,
        changes: Changes,
        schema: pa.Schema,
        connection: Connection,
        takes_new: bool = True,
        uri: str = "",
    ) -> None:
        self._uri = uri
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
        """Apply the changes; return how many rows were written and removed."""
        decision = decide(self._held(), self._changes, takes_new=self._takes_new)
        written = decision.replaces | decision.inserts | decision.touches
        names = self._changes.schema.names
        values: Values = {name: sa.bindparam(f"_{name}") for name in names}
        proof: Values = {AS_OF: values[AS_OF]}
        update = self._table.update().where(self._of_key)
        self._run(self._table.delete().where(self._of_key), decision.removes, [])
        self._run(update.values(proof), decision.touches, [AS_OF])
        self._run(update.values(values), decision.replaces, names)
        # After the updates: the rows they wrote are newer than a truncate, or proven as of a
        # snapshot's end. Before the inserts, which a mark must not remove.
        removed = sum(self._remove_covered(mark) for mark in self._changes.marks)
        self._run(self._table.insert().values(values), decision.inserts, names)
        return int(written.sum()), removed + int(decision.removes.sum())

    def _held(self) -> pa.Table:
        """Return key, SCN and as-of SCN of the table's rows whose keys have changes."""
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
        return arrow_of(found, schema)

    def _is_one_of(self, asked: Sequence[Mapping[str, Any]]) -> sa.ColumnElement[bool]:
        columns = [self._table.c[name] for name in self._changes.keys]
        if len(columns) == 1:
            (column,) = columns
            return column.in_([row[column.name] for row in asked])
        return sa.tuple_(*columns).in_(
            [tuple(row[column.name] for column in columns) for row in asked]
        )

    def _remove_covered(self, mark: Mark) -> int:
        """Remove the rows that a truncate or the end of a snapshot removes."""
        columns = self._table.c
        conditions = [sa.func.coalesce(columns[SCN], -1) <= mark.scn]
        if not mark.is_truncate:
            conditions.append(sa.func.coalesce(columns[AS_OF], -1) < mark.scn)
        if self._changes.has_source:
            conditions.append(columns[SOURCE] == mark.source)
        rows = self._changes.rows
        follows = pc.and_(pc.equal(rows[SCN], mark.scn), pc.invert(rows[DELETE]))
        if mark.is_truncate and pc.any(follows).as_py():
            # Rows that the truncate's own window wrote after it stay.
            kept = _values(rows.select(self._changes.keys).filter(follows))
            conditions.append(sa.not_(self._is_one_of(kept)))
        try:
            return self._connection.execute(self._table.delete().where(*conditions)).rowcount
        except REFUSALS as error:
            raise mark_refused(self._uri, mark.scn, error) from error

    def _run(self, statement: sa.Executable, mask: Any, names: Sequence[str]) -> None:
        """Run a statement for each selected change, with its key and the columns `names`."""
        rows = _values(self._changes.rows.filter(pa.array(mask)))
        is_insert = isinstance(statement, sa.Insert)
        keys = {} if is_insert else {of.key: name for name, of in self._is_key.items()}
        parameters = {**keys, **{f"_{name}": name for name in names}}
        lines = [{given: row[name] for given, name in parameters.items()} for row in rows]
        if not lines:
            return
        # A savepoint, so that after a failure the transaction can still search for the line.
        part = self._connection.begin_nested()
        try:
            self._connection.execute(statement, lines)
        except REFUSALS as error:
            part.rollback()
            row = rows[first_refused(self._connection, statement, lines)]
            raise refusal(self._uri, names, row, self._changes.keys, error) from error
        part.commit()


def _values(rows: pa.Table) -> list[dict[str, Any]]:
    """Return rows for SQLAlchemy; timestamps are in UTC, without a zone."""
    plain = pa.schema([(field.name, _without_zone(field.type)) for field in rows.schema])
    values: list[dict[str, Any]] = rows.cast(plain).to_pylist()
    return values


def arrow_of(rows: list[dict[str, Any]], schema: pa.Schema) -> pa.Table:
    """Return rows from SQLAlchemy as an Arrow table."""
    plain = pa.schema([(field.name, _without_zone(field.type)) for field in schema])
    return pa.Table.from_pylist(rows, plain).cast(schema)


def _without_zone(kind: pa.DataType) -> pa.DataType:
    return pa.timestamp(kind.unit) if pa.types.is_timestamp(kind) else kind
