"""The statements that let a table follow a change of the source's, as it was planned. Pure.

Each ALTER is whole or not made at all, and what was made before a crash is not made again: the plan
is of the columns that are there. Only the names of an exchange are others in between.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any

from databus.client.sinks.errors import SinkError
from databus.client.sinks.formats.sql_texts import time_text
from databus.client.sinks.ready.clickhouse.definitions import Shape, nullable_type
from databus.client.sinks.ready.clickhouse.names import identifier, literal
from databus.client.sinks.ready.clickhouse.row_binary import encoder
from databus.client.sinks.ready.clickhouse.types import column_type, fits, held_type
from databus.client.sinks.ready.following import Plan, PlannedColumn
from databus.schemas.columns.any_text import any_text
from databus.schemas.columns.avro_columns import AvroColumn, Kind

PASSING = "_databus_passing_"


@dataclass(frozen=True, slots=True)
class Altering:
    """From the columns that a table has to those of the next schema."""

    place: str
    held: Mapping[str, str]  # the type of each column that is there
    was: Collection[str]  # the columns of the schema before
    now: Mapping[str, AvroColumn]
    shape: Shape

    def statements(self, plan: Plan) -> Iterator[str]:
        """Yield them in order; raise SinkError for what ClickHouse cannot do."""
        yield from self._drop(plan)
        yield from self._rename([(one.was, one.name) for one in plan.columns if one.was])
        for one in plan.columns:
            if one.was is not None:
                yield from self._retype(one, plan)
        for name in sorted(plan.kept & set(self.held)):
            # New rows do not have it, and what nobody knows is no default.
            kind = nullable_type(self.held[name])
            yield self._alter(f"MODIFY COLUMN {identifier(name)} {kind} DEFAULT NULL")
        for one in plan.columns:
            if one.was is None:
                yield from self._add(one)
        for one in plan.filled:
            yield from self._fill(one)

    def _drop(self, plan: Plan) -> Iterator[str]:
        used = {one.was for one in plan.columns} | plan.kept
        gone = [name for name in self.held if name in self.was and name not in used]
        if gone:
            yield self._alter(", ".join(f"DROP COLUMN {identifier(name)}" for name in gone))

    def _rename(self, names: list[tuple[str, str]]) -> Iterator[str]:
        moved = [(was, name) for was, name in names if was != name]
        for was, name in moved:
            if self._is_key(name):
                raise self._forbidden(was)
        if {was for was, _ in moved} & {name for _, name in moved}:
            yield self._renames((was, PASSING + was) for was, _ in moved)
            moved = [(PASSING + was, name) for was, name in moved]
        if moved:
            yield self._renames(moved)

    def _renames(self, moved: Any) -> str:
        pairs = (f"RENAME COLUMN {identifier(was)} TO {identifier(name)}" for was, name in moved)
        return self._alter(", ".join(pairs))

    def _retype(self, one: PlannedColumn, plan: Plan) -> Iterator[str]:
        column = self.now[one.name]
        before = self.held[one.was or one.name]
        is_kept = one.name in plan.same_types or fits(held_type(before), column)
        after = before if is_kept else self.shape.type_of(column)
        if held_type(self.shape.type_of(column)).is_nullable or held_type(before).is_nullable:
            after = nullable_type(after)
        if after == before:
            return
        if self._is_key(one.name):
            raise self._forbidden(one.name)
        yield self._alter(f"MODIFY COLUMN {identifier(one.name)} {after}")

    def _add(self, one: PlannedColumn) -> Iterator[str]:
        column = self.now[one.name]
        name, kind = identifier(one.name), self.shape.type_of(column)
        if one.value is None:
            # What rows at rest have is NULL, or not known.
            yield self._alter(f"ADD COLUMN IF NOT EXISTS {name} {nullable_type(kind)}")
            return
        default = self._value(one, column, kind)
        yield self._alter(f"ADD COLUMN IF NOT EXISTS {name} {kind} DEFAULT {default}")
        # Else it would follow a default that is altered later.
        yield self._alter(f"MATERIALIZE COLUMN {name}")

    def _fill(self, one: PlannedColumn) -> Iterator[str]:
        """Give a column that was there the value that the source's rows have in the new one."""
        column = self.now[one.name]
        before = self.held[one.name]
        kind = before if fits(held_type(before), column) else self.shape.type_of(column)
        if one.value is None or held_type(self.shape.type_of(column)).is_nullable:
            kind = nullable_type(kind)
        name, value = identifier(one.name), self._value(one, column, kind)
        yield self._alter(f"MODIFY COLUMN {name} {kind} DEFAULT {value}")
        yield self._alter(f"UPDATE {name} = {value} WHERE 1")

    def _value(self, one: PlannedColumn, column: AvroColumn, kind: str) -> str:
        held = held_type(kind)
        if one.value is not None:
            try:
                encoder(held, column.kind)(one.value)
            except ValueError as error:
                raise SinkError(f"{self.place}: {one.name} of rows at rest: {error}") from error
        return f"CAST({value_text(one.value, column.kind)} AS {kind})"

    def _is_key(self, name: str) -> bool:
        return self.shape.mode.has_keys and self.now[name].key is not None

    def _forbidden(self, name: str) -> SinkError:
        wanted = column_type(self.now[name]) if name in self.now else "another name"
        return SinkError(
            f"{self.place}: the source has altered {name} of the primary key ({wanted}), and "
            "ClickHouse alters no column of ORDER BY: DROP the table, delete its row of "
            "databus_tables, and load it again with databus sink reload"
        )

    def _alter(self, commands: str) -> str:
        return f"ALTER TABLE {self.place} {commands}"


def value_text(value: Any, kind: Kind) -> str:
    """Return a value as a statement has it."""
    if value is None:
        return "NULL"
    if kind is Kind.ANY:
        value = any_text(value)
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, bytes):
        return f"unhex('{value.hex()}')"
    if isinstance(value, Decimal):
        return literal(f"{value:f}")
    if isinstance(value, datetime | date | timedelta):
        return literal(time_text(value))
    return literal(value) if isinstance(value, str) else repr(value)
