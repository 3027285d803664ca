"""The target's tables: made, checked, and altered as the source's are.

    databus_tables   name, source, version, columns: the schema of the rows that were written last,
                     filled_by: the sink that left rows in it

An ALTER commits in MySQL. It is made before `databus_tables` tells of it, and leaves a mark in the
table's comment: after a crash in between it is not made again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from databus.client.sinks.contract import Opening
from databus.client.sinks.errors import SinkError
from databus.client.sinks.formats.sql_texts import time_text
from databus.client.sinks.ready.following import (
    PlannedColumn,
    Step,
    check_has_key,
    may_make,
    renamed_since,
    versions_after,
)
from databus.client.sinks.ready.sql.definitions import Shape, definition
from databus.client.sinks.ready.sql.existing import check_columns, make_once
from databus.client.sinks.ready.sql.filled import FilledTables, filled_by_column
from databus.client.sinks.ready.sql.options import SqlOptions
from databus.client.sinks.ready.sql.values import checked_columns, converters
from databus.client.sinks.ready.templates import Template
from databus.client.sql.altering import Altering, comment_of, marked, was_done
from databus.client.sql.column_types import binary_text, moment, text
from databus.client.sql.existing import held_columns, unique_keys
from databus.client.sql.names import MYSQL, in_schema, run
from databus.client.sql.statements import Statements
from databus.client.sql.values import Convert, to_driver
from databus.schemas.columns.avro_columns import AvroColumn, WriterSchema, columns_of, key_names

_NO_NAMES: Mapping[str, str] = {}

_TABLES = sa.Table(
    "databus_tables",
    sa.MetaData(),
    sa.Column("name", binary_text(128), primary_key=True),
    sa.Column("source", binary_text(255), primary_key=True),
    sa.Column("version", sa.BigInteger, nullable=False),
    sa.Column("columns", text(), nullable=False),
    filled_by_column(),
)
_SCHEMA_COLUMNS = ("name", "source", "version", "columns")


@dataclass(frozen=True, slots=True)
class TargetTable:
    """A table as rows of one schema are written to it."""

    source: str
    table: sa.Table
    shape: Shape
    columns: tuple[str, ...]  # of the source's rows, those that are written
    names: tuple[str, ...]  # … in the table
    converts: tuple[Convert | None, ...]
    checked: frozenset[str]  # columns with numbers that may be none of the database's
    width: int  # so many columns have rows of which all were logged
    keys: tuple[str, ...]  # of the source's rows
    key_names: tuple[str, ...]  # of the table, all of them
    unique: tuple[tuple[str, ...], ...]  # more unique keys of the table
    others: tuple[str, ...]  # columns of the table that rows do not have


class Tables:
    """The tables of one sink, on one connection."""

    def __init__(self, options: SqlOptions, connection: Connection, opening: Opening) -> None:
        self._options, self._connection = options, connection
        self._versions = opening.versions
        self._dialect = connection.dialect
        self._name = Template(options.table)
        to_moment = to_driver(moment(), self._dialect)
        self._shape = Shape(options.mode, options.source_column, to_moment)
        self._schema = options.target_schema or None
        self._noted = in_schema(_TABLES, options.target_schema)
        self.filled = FilledTables(
            opening.sink, self._noted, self._shape, connection, is_alone=options.exactly_once
        )
        self._known: dict[str, TargetTable | None] = {}  # None: its rows are left out
        self._schemas: dict[str, WriterSchema] = {}
        self._sources: dict[str, str] = {}  # by table

    def begin(self, *, is_first: bool) -> None:
        """Make the table of tables, if it is not there; raise SinkError if it has been."""
        if not is_first and not self._is_there(self._noted.name):
            raise SinkError(
                f"{self._noted.fullname} is not there any more, and tables may be gone with it: "
                "begin anew with another name of the sink and a bootstrap"
            )
        make_once(self._connection, self._noted)

    def is_news(self, source: str, schema: WriterSchema) -> bool:
        """Return whether rows of this schema have not been seen yet."""
        return self._schemas.get(source) != schema

    def of(self, source: str) -> TargetTable | None:
        """Return the table of a source; None: there is none, and its rows are left out."""
        if source not in self._known:
            # A TRUNCATE before all rows.
            noted = self._noted_schema(self._name.of_source(source), source)
            if noted is None:
                return None
            self.follow(source, noted)
        return self._known[source]

    def unique_keys(self, source: str) -> Sequence[Sequence[str]]:
        """Return the unique keys of a source's table besides the primary key, if it is there."""
        name, mine = self._name.of_source(source), self._options.mode.has_keys
        if not mine or not self._is_there(name):
            return ()
        noted = self._noted_schema(name, source)
        key: tuple[str, ...] = ()
        if noted is not None:
            extras, versions = self._shape.key_extras, self._shape.versions
            key = (*extras, *key_names(columns_of(noted)), *versions)
        found = unique_keys(self._connection, name, self._schema, key)
        # Of a table that was never written to, the first key is taken for the source's.
        return found if key else found[1:]

    def follow(self, source: str, schema: WriterSchema) -> None:
        """Let the table have the columns of a schema; raise SinkError, SettingsError."""
        name = self._name.of_source(source)
        if self._sources.setdefault(name, source) != source and not self._options.source_column:
            raise SinkError(
                f"{self._sources[name]} and {source} would both be written to the table {name}: "
                'let `table` have "{schema}_{table}", or set source_column'
            )
        columns = columns_of(schema)
        check_has_key(source, columns, self._options.mode)
        self._known[source] = self._ready(source, name, schema, columns)
        self._schemas[source] = schema

    def _ready(
        self, source: str, name: str, schema: WriterSchema, columns: Sequence[AvroColumn]
    ) -> TargetTable | None:
        table = self._definition(name, columns)
        if not self._is_there(name):
            if not may_make(source, name, self._options.ddl):
                return None
            self.filled.check_there(name, source)
            table.create(self._connection)
            self._note(name, schema)
            return self._target(source, table, columns)
        noted = self._noted_schema(name, source)
        if noted is None:
            check_columns(self._connection, source, table, held_columns(self._connection, table))
            self._note(name, schema)
        elif noted.version > schema.version and not self._options.exactly_once:
            # Rows that come again, or another lane was faster.
            return self._target(source, table, columns, renamed_since(noted))
        elif noted.text != schema.text:
            for version in versions_after(noted, schema, self._versions):
                self._alter(source, noted, version)
                noted = version
        return self._target(source, table, columns, left_out=self._left_out(table, columns))

    def _left_out(self, table: sa.Table, columns: Sequence[AvroColumn]) -> Collection[str]:
        """Return the columns that are not written, because new ones are not added."""
        if self._options.ddl.add_column != "ignore":
            return ()
        held = {one.casefold() for one in held_columns(self._connection, table)}
        return {one.name for one in columns if one.name.casefold() not in held}

    def _target(
        self,
        source: str,
        table: sa.Table,
        columns: Sequence[AvroColumn],
        renamed: Mapping[str, str] = _NO_NAMES,
        left_out: Collection[str] = (),
    ) -> TargetTable:
        held = held_columns(self._connection, table)
        names = {one.name: renamed.get(one.name, one.name) for one in columns}
        columns = [one for one in columns if one.name not in left_out]
        if renamed:
            columns = [one for one in columns if names[one.name] in held]
        written = {names[one.name].casefold() for one in columns}
        written |= {one.casefold() for one in self._shape.extras}
        keys = key_names(columns) if self._options.mode.has_keys else ()
        key = (*self._shape.key_extras, *(names[one] for one in keys))
        whole = (*key, *self._shape.versions)
        more = unique_keys(self._connection, table.name, self._schema, whole) if keys else ()
        if more and self._shape.marked:
            raise SinkError(
                f"the table {table.name} has another unique key ({', '.join(more[0])}), and rows "
                f"that stay in mode = {self._options.mode.value!r} would keep its values: remove it"
            )
        return TargetTable(
            source,
            table,
            self._shape,
            tuple(one.name for one in columns),
            tuple(names[one.name] for one in columns),
            tuple(converters(columns, self._dialect)),
            checked_columns(columns, self._dialect),
            len(names),
            keys,
            key,
            more,
            tuple(one for one in held if one.casefold() not in written),
        )

    def _alter(self, source: str, noted: WriterSchema, schema: WriterSchema) -> None:
        """Alter the table from one version of the schema to the next one."""
        new = self._definition(self._name.of_source(source), columns_of(schema))
        was = {one.name: one for one in columns_of(noted)}
        now = {one.name: one for one in columns_of(schema)}
        held = held_columns(self._connection, new)
        step = Step(source, noted, schema, self._options.ddl)
        before = self._definition(new.name, tuple(was.values()))
        plan = step.plan(held, self._types(before), self._types(new))
        for name, one in plan.same_types.items():
            new.c[name].type = before.c[one].type
        # After a crash some columns may be the new ones already.
        both = {one: known for one in held if (known := was.get(one) or now.get(one)) is not None}
        old = self._definition(new.name, [both[one] for one in both if one not in plan.kept])
        extras = [PlannedColumn(one, one) for one in self._shape.extras]
        altering = Altering(old, new, [*extras, *map(_with_text, plan.columns)], self._dialect)
        if self._dialect.name in MYSQL:
            self._alter_once(altering, new.name, _mark(noted, schema))
        else:
            for statement in altering.one_by_one():
                run(self._connection, statement)
        for column in plan.filled:
            self._fill(source, new, now[column.name], column.value)
        self._note(new.name, schema)

    def _alter_once(self, altering: Altering, name: str, mark: str) -> None:
        """Alter the table in MySQL, unless that was done before a crash.

        Its columns do not tell: two of them may have changed their names with each other.
        """
        if altering.in_one() and not was_done(self._connection, name, mark, self._schema):
            comment = comment_of(self._connection, name, self._schema)
            run(self._connection, altering.in_one(marked(comment, mark)))

    def _fill(self, source: str, table: sa.Table, column: AvroColumn, value: object) -> None:
        """Give a column that was there the value that the source's rows have in the new one."""
        (convert,) = converters([column], self._dialect)
        given = value if value is None or convert is None else convert(value)
        where = self._shape.key_extras if self._options.source_column else ()
        equals = (source,) if where else ()
        Statements(self._connection, table).set_all((column.name,), (given,), where, equals)

    def _definition(self, name: str, columns: Sequence[AvroColumn]) -> sa.Table:
        return definition(
            name,
            columns,
            self._shape,
            self._dialect,
            key_length=self._options.key_length,
            schema=self._schema,
        )

    def _types(self, table: sa.Table) -> dict[str, str]:
        return {one.name: str(one.type.compile(self._dialect)) for one in table.columns}

    def _is_there(self, name: str) -> bool:
        return sa.inspect(self._connection).has_table(name, schema=self._schema)

    def _noted_schema(self, name: str, source: str) -> WriterSchema | None:
        is_it = sa.and_(self._noted.c.name == name, self._noted.c.source == source)
        found = self._connection.execute(self._noted.select().where(is_it)).first()
        return None if found is None else WriterSchema(source, 0, found.version, found.columns)

    def _note(self, name: str, schema: WriterSchema) -> None:
        row = (name, schema.source, schema.version, schema.text)
        keys = _SCHEMA_COLUMNS[:2]
        Statements(self._connection, self._noted).upsert(_SCHEMA_COLUMNS, keys, [row])


def _mark(noted: WriterSchema, schema: WriterSchema) -> str:
    """Return the mark of an ALTER from one version of a source's columns to another one."""
    told = json.dumps([noted.source, noted.text, schema.version, schema.text])
    return f"sink@{hashlib.blake2b(told.encode(), digest_size=8).hexdigest()}"


def _with_text(column: PlannedColumn) -> PlannedColumn:
    """Return a column whose value can be written into a statement: of a TIME its text."""
    is_time = isinstance(column.value, timedelta)
    return column._replace(value=time_text(column.value)) if is_time else column
