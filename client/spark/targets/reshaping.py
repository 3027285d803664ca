"""How a target's table becomes that of a later version of its source: a plan by columns. Pure.

A row that was not written since an ALTER is what the ALTER made of it. The
steps of `schemas.table_change` say what that is; here they are put together
into where each column of the new table comes from. Columns that the source
has dropped stay in the target as they are, until their name is wanted again.
A type is widened wherever the changes bring a wider one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import pyarrow as pa

from databus.client.spark.arrow.column_plan import any_text
from databus.client.spark.targets.changes import BOOKKEEPING, common_type
from databus.schemas.table_change import Kind, Step


class Made(NamedTuple):
    """A column of the new table: what a column was before, or one value in all rows."""

    name: str
    type: pa.DataType
    was: str | None
    value: Any = None


@dataclass(frozen=True, slots=True)
class Reshaping:
    """The columns of the new table, bookkeeping included, and its key."""

    columns: tuple[Made, ...]
    keys: tuple[str, ...]
    is_emptied: bool = False

    @property
    def schema(self) -> pa.Schema:
        """The new table's columns."""
        return pa.schema([(one.name, one.type) for one in self.columns])

    def table(self, held: pa.Table) -> pa.Table:
        """Return rows of the old table as they are in the new one."""
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
    """Return what makes of a table, with rows of a version, that of the version after some steps.

    `wanted`: the columns of the newer version with their types, as changes bring
    them. None: nothing has to be done to rows that are there. A column that has
    no value in them is left to the changes to add. A type that holds both the
    table's values and the changes' is not looked for where there is none: who
    applies the changes says so.
    """
    sources: dict[str, Made] = {
        field.name: Made(field.name, field.type, field.name) for field in held
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
    made.sort(key=lambda one: order.get(one.was or "", len(order)))
    as_it_is = [Made(field.name, field.type, field.name) for field in held]
    if made == as_it_is and not is_emptied:
        return None
    return Reshaping(tuple(made), new_keys, is_emptied)


def constant(value: Any, kind: pa.DataType, rows: int) -> pa.Array:
    """Return a column with the same value in all rows; text for a column that is had as text."""
    if value is None:
        return pa.nulls(rows, kind)
    if pa.types.is_string(kind) and not isinstance(value, str):
        value = any_text(value)
    return pa.repeat(pa.scalar(value, kind), rows)


def find(columns: Mapping[str, Any], name: str) -> str | None:
    """Return how a column is spelt, for Spark does not look at the case of names."""
    if name in columns:
        return name
    return next((known for known in columns if known.lower() == name.lower()), None)


def _after(sources: Mapping[str, Made], step: Step) -> dict[str, Made]:
    """Return where columns come from after one more step; the types of new ones come later.

    A later step may give them another name, which alone has a type in the changes.
    """
    found: dict[str, Made] = {}
    used: set[str] = set()
    for fate in step.fates:
        if fate.kind is Kind.DROPPED:
            continue
        if fate.kind is Kind.ADDED:
            # One that is new and null is added by the changes that bring it.
            if find(sources, fate.column) is not None or fate.value is not None:
                found[fate.column] = Made(fate.column, pa.null(), None, fate.value)
        elif fate.was is not None and (known := find(sources, fate.was)) is not None:
            used.add(known)
            found[fate.column] = sources[known]._replace(name=fate.column)
    # Those that were dropped, now or before, and bookkeeping.
    taken = {name.lower() for name in found}
    kept = {n: one for n, one in sources.items() if n not in used and n.lower() not in taken}
    return found | kept


def _typed(one: Made, wanted: pa.Schema) -> Made | None:
    """Return a column in the type that changes bring; None for a new one that is gone again."""
    if one.was is not None:
        return _widened(one, wanted)
    name = find(dict.fromkeys(wanted.names), one.name)
    return None if name is None else one._replace(name=name, type=wanted.field(name).type)


def _widened(one: Made, wanted: pa.Schema) -> Made:
    if one.name in BOOKKEEPING or one.name not in wanted.names:
        return one
    wider = common_type(one.type, wanted.field(one.name).type)
    return one if wider is None else one._replace(type=wider)
