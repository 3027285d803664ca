"""The target's tables: made, checked, and altered as the source's are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from databus.client.sinks.contract import Opening
from databus.client.sinks.errors import SinkError
from databus.client.sinks.ready.clickhouse.altering import PASSING, Altering
from databus.client.sinks.ready.clickhouse.definitions import Shape
from databus.client.sinks.ready.clickhouse.existing import Existing, check_fits
from databus.client.sinks.ready.clickhouse.names import identifier
from databus.client.sinks.ready.clickhouse.noted import Notes
from databus.client.sinks.ready.clickhouse.options import ClickHouseOptions
from databus.client.sinks.ready.clickhouse.row_binary import Encode, encoder, nothing
from databus.client.sinks.ready.clickhouse.server import Server
from databus.client.sinks.ready.clickhouse.types import column_type, held_type
from databus.client.sinks.ready.following import (
    Step,
    check_has_key,
    may_make,
    renamed_since,
    versions_after,
)
from databus.client.sinks.ready.templates import Template
from databus.schemas.columns.avro_columns import AvroColumn, WriterSchema, columns_of


@dataclass(frozen=True, slots=True)
class TargetColumn:
    """A column as values are written to it."""

    name: str  # of the source's rows
    held_name: str  # of the table
    encode: Encode
    nothing: bytes  # for a row that is deleted


@dataclass(frozen=True, slots=True)
class TargetTable:
    """A table as rows of one schema are written to it."""

    name: str
    place: str
    shape: Shape
    columns: tuple[TargetColumn, ...]
    keys: tuple[str, ...]  # of the table
    width: int  # so many columns have rows of which all were logged

    @property
    def insert(self) -> str:
        """The statement that inserts rows, up to their format."""
        names = [*(one.held_name for one in self.columns), *self.shape.extras]
        return f"INSERT INTO {self.place} ({', '.join(map(identifier, names))})"


class Tables:
    """The tables of one sink, on one server."""

    def __init__(self, options: ClickHouseOptions, server: Server, opening: Opening) -> None:
        self._options, self._server = options, server
        self._versions = opening.versions
        self._name = Template(options.table)
        self._shape = Shape(options.mode)
        self._existing = Existing(server)
        self.notes = Notes(server, opening.sink)
        self._known: dict[str, TargetTable | None] = {}  # None: its rows are left out
        self._schemas: dict[str, WriterSchema] = {}
        self._sources: dict[str, str] = {}  # by table

    def of(self, source: str, schema: WriterSchema | None) -> TargetTable | None:
        """Return the table for rows of a schema, None = they are left out; raise SinkError.

        A TRUNCATE has no schema.
        """
        if schema is not None and self._schemas.get(source) != schema:
            self._follow(source, schema)
        elif source not in self._known:
            # A TRUNCATE before all rows.
            note = self.notes.read(self._name.of_source(source), source)
            if note is None:
                return None
            self._follow(source, note.schema)
        return self._known[source]

    def _follow(self, source: str, schema: WriterSchema) -> None:
        """Let the table have the columns of a schema; raise SinkError."""
        name = self._name.of_source(source)
        if self._sources.setdefault(name, source) != source:
            raise SinkError(
                f"{self._sources[name]} and {source} would both be written to the table {name}: "
                'let `table` have "{schema}_{table}"'
            )
        columns = columns_of(schema)
        check_has_key(source, columns, self._options.mode)
        if taken := {one.name for one in columns} & set(self._shape.extras):
            raise SinkError(
                f"{source} has a column {min(taken)}, as the sink's own is named: leave it out, or "
                "rename it"
            )
        self._known[source] = self._ready(source, name, schema, columns)
        self._schemas[source] = schema

    def _ready(
        self, source: str, name: str, schema: WriterSchema, columns: Sequence[AvroColumn]
    ) -> TargetTable | None:
        held = self._existing.columns(name)
        note = self.notes.read(name, source)
        if not held:
            if not may_make(source, name, self._options.ddl):
                return None
            self.notes.check_there(name, source)
            self._server.run(self._shape.create(self._server.place(name), columns))
            self.notes.schema(name, schema)
        elif note is None:
            self._existing.check(source, name, self._shape, columns)
            self.notes.schema(name, schema)
        elif note.schema.version > schema.version:
            # Rows that come again, or another lane was faster.
            return self._target(name, columns, renamed_since(note.schema), is_old=True)
        elif note.schema.text != schema.text:
            was = note.schema
            for version in versions_after(was, schema, self._versions):
                self._alter(source, name, was, version)
                was = version
        return self._target(name, columns, {})

    def _target(
        self,
        name: str,
        columns: Sequence[AvroColumn],
        renamed: Mapping[str, str],
        *,
        is_old: bool = False,
    ) -> TargetTable:
        held = self._existing.columns(name)
        may_lack = is_old or self._options.ddl.add_column == "ignore"
        made: list[TargetColumn] = []
        for column in columns:
            held_name = renamed.get(column.name, column.name)
            if held_name not in held and may_lack:
                continue
            kind = held_type(held.get(held_name, column_type(column)))
            encode = encoder(kind, column.kind)
            made.append(TargetColumn(column.name, held_name, encode, nothing(kind)))
        keys = tuple(renamed.get(one, one) for one in self._shape.keys(columns))
        place = self._server.place(name)
        return TargetTable(name, place, self._shape, tuple(made), keys, len(columns))

    def _alter(self, source: str, name: str, noted: WriterSchema, schema: WriterSchema) -> None:
        """Alter the table from one version of the schema to the next one."""
        was = {one.name: one for one in columns_of(noted)}
        now = {one.name: one for one in columns_of(schema)}
        held = self._undone(name, self._existing.columns(name))
        step = Step(source, noted, schema, self._options.ddl)
        plan = step.plan(held, _types(was), _types(now))
        altering = Altering(self._server.place(name), held, was, now, self._shape)
        for statement in list(altering.statements(plan)):
            self._server.run(statement)
        after = self._existing.columns(name)
        kept = [now[one.name] for one in plan.columns if one.name not in plan.same_types]
        check_fits(source, name, after, kept)
        self.notes.schema(name, schema)

    def _undone(self, name: str, held: Mapping[str, str]) -> Mapping[str, str]:
        """Give the columns their names again whose exchange a crash has cut off."""
        passing = [one for one in held if one.startswith(PASSING)]
        if not passing:
            return held
        pairs = ((identifier(one), identifier(one.removeprefix(PASSING))) for one in passing)
        commands = ", ".join(f"RENAME COLUMN {one} TO {was}" for one, was in pairs)
        self._server.run(f"ALTER TABLE {self._server.place(name)} {commands}")
        return self._existing.columns(name)


def _types(columns: Mapping[str, AvroColumn]) -> dict[str, str]:
    return {name: column_type(one) for name, one in columns.items()}
