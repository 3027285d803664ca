"""Plan how a target's table becomes that of a later schema version, column by column. Pure.

A row that has not been written since an ALTER has the values that the ALTER gave
it. The steps of `schemas.table_change` describe that; this module combines them
into the origin of each column of the new table. A column that the source has
dropped stays in the target until a new column needs its name. A type is widened if
the changes have a wider one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import pyarrow as pa

from databus.client.spark.targets.changes import BOOKKEEPING, common_type
from databus.schemas.columns.any_text import any_text
from databus.schemas.table_change import Kind, Step


class NewColumn(NamedTuple):
    """A column of the new table: the old column `was`, or `value` in all rows."""

    name: str
    type: pa.DataType
    was: str | None
    value: Any = None


@dataclass(frozen=True, slots=True)
class Reshaping:
    """The columns of the new table, bookkeeping included, and its key."""

    columns: tuple[NewColumn, ...]
    keys: tuple[str, ...]
    is_emptied: bool = False

    @property
    def schema(self) -> pa.Schema:
        """The new table's schema."""
        return pa.schema([(one.name, one.type) for one in self.columns])

    def in_words(self, held: pa.Schema) -> str:
        """Return what is done to a table with these columns, for the log."""
        words = ["all rows are removed"] if self.is_emptied else []
        for one in self.columns:
            if one.was is None:
                words.append(f"{one.name} {one.type} is added, {one.value!r} in all rows")
                continue
            if one.was != one.name:
                words.append(f"{one.was} is renamed to {one.name}")
            if (before := held.field(one.was).type) != one.type:
                words.append(f"{one.name} {before} becomes {one.type}")
        used = {one.was for one in self.columns}
        words += [f"{name} is replaced" for name in held.names if name not in used]
        return "; ".join(words)

    def table(self, held: pa.Table) -> pa.Table:
        """Return rows of the old table, converted to the new one."""
        rows = held.slice(0, 0) if self.is_emptied else held
        arrays = [
            constant(one.value, one.type, rows.num_rows)
            if one.was is None
            else rows[one.was].cast(one.type)
            for one in self.columns
        ]
        return pa.table(arrays, schema=self.schema)


def reshaping(
    held: pa.Schema, keys: Sequence[str], steps: Sequence[Step], wanted: pa.Schema
) -> Reshaping | None:
    """Return the plan that takes a table through some steps, or None if rows need no change.

    `wanted`: the columns of the newer version, with the types that changes have.
    A new column without a value for old rows is not in the plan: applying the
    changes adds it. If no type holds both the table's values and the changes', the
    plan keeps the table's type, and applying the changes raises the error.
    """
    sources: dict[str, NewColumn] = {
        field.name: NewColumn(field.name, field.type, field.name) for field in held
    }
    new_keys = tuple(keys)
    for step in steps:
        renamed = {fate.was: fate.column for fate in step.fates if fate.kind is Kind.RENAMED}
        sources = _after(sources, step)
        new_keys = tuple(renamed.get(key, key) for key in new_keys)
    typed = (_typed(one, wanted) for one in sources.values())
    made = [one for one in typed if one is not None]
    is_emptied = any(step.is_emptied for step in steps)
    order = {name: number for number, name in enumerate(held.names)}
    # Old columns keep their order; new ones follow.
    made.sort(key=lambda one: order.get(one.was or "", len(order)))
    as_it_is = [NewColumn(field.name, field.type, field.name) for field in held]
    if made == as_it_is and not is_emptied:
        return None
    return Reshaping(tuple(made), new_keys, is_emptied)


def constant(value: Any, kind: pa.DataType, rows: int) -> pa.Array:
    """Return a column with the same value in all rows, as text for a string column."""
    if value is None:
        return pa.nulls(rows, kind)
    if pa.types.is_string(kind) and not isinstance(value, str):
        value = any_text(value)
    return pa.repeat(pa.scalar(value, kind), rows)


def find(columns: Mapping[str, Any], name: str) -> str | None:
    """Return a column's own spelling of a name, ignoring case as Spark does; None if missing."""
    if name in columns:
        return name
    return next((known for known in columns if known.lower() == name.lower()), None)


def _after(sources: Mapping[str, NewColumn], step: Step) -> dict[str, NewColumn]:
    """Return the origins of columns after one more step; new columns have no type yet.

    A later step may rename them, and the changes have a type only for the last name.
    """
    found: dict[str, NewColumn] = {}
    used: set[str] = set()
    for fate in step.fates:
        if fate.kind is Kind.DROPPED:
            continue
        if fate.kind is Kind.ADDED:
            # A new column that is null in old rows is added when the changes are applied.
            if find(sources, fate.column) is not None or fate.value is not None:
                found[fate.column] = NewColumn(fate.column, pa.null(), None, fate.value)
        elif fate.was is not None and (known := find(sources, fate.was)) is not None:
            used.add(known)
            found[fate.column] = sources[known]._replace(name=fate.column)
    # Keep columns that were dropped, now or before, and the bookkeeping columns.
    taken = {name.lower() for name in found}
    kept = {n: one for n, one in sources.items() if n not in used and n.lower() not in taken}
    return found | kept


def _typed(one: NewColumn, wanted: pa.Schema) -> NewColumn | None:
    """Return a column with the changes' type; None for a new column that is dropped again."""
    if one.was is not None:
        return _widened(one, wanted)
    name = find(dict.fromkeys(wanted.names), one.name)
    return None if name is None else one._replace(name=name, type=wanted.field(name).type)


def _widened(one: NewColumn, wanted: pa.Schema) -> NewColumn:
    if one.name in BOOKKEEPING or one.name not in wanted.names:
        return one
    wider = common_type(one.type, wanted.field(one.name).type)
    return one if wider is None else one._replace(type=wider)
