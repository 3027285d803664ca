"""Decide by column operations which rows a batch writes, removes or only touches.

For the targets that have no MERGE of their own; and conditions by which rows are read.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import and_, or_
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from databus.client.spark.targets.changes import (
    AS_OF,
    DELETE,
    SCN,
    SOURCE,
    Changes,
    Mark,
    cast_to,
    key_codes,
)

Mask = np.ndarray


class Comparison(NamedTuple):
    """One comparison; `or_null`: it is also true where the column is null."""

    column: str
    operator: str  # =, <, <=, > or >=; of `null` there is no value
    value: int | bool | str | None = None
    or_null: bool = False


# All of these tests.
Condition = Sequence[Comparison]
_ANY = pc.scalar(True)


@dataclass(frozen=True, slots=True)
class Decision:
    """The effect of each change; every mask but `by` has one entry per change."""

    at: Mask  # index of the held row with the same key, of several the newest; -1: none
    by: Mask  # for each held row the index of the change with the same key; -1: none
    replaces: Mask
    removes: Mask
    inserts: Mask
    # The row is newer than the change, which only raises the row's as-of SCN.
    touches: Mask


def decide(held: pa.Table, changes: Changes, *, takes_new: bool = True) -> Decision:
    """Return the effect of each change on the rows held.

    `held` has the key columns, SCN and as-of SCN; the keys' types are those of the changes.
    """
    rows = changes.rows
    held_codes, codes = key_codes(
        [held.select(changes.keys), rows.select(changes.keys)], changes.keys
    )
    place = np.full(max([-1, *held_codes, *codes]) + 1, -1, dtype=np.int64)
    # Where each key is changed, and where it is held, by the key's code.
    place[codes] = np.arange(len(codes))
    by = place[held_codes]
    place[:] = -1
    each = np.arange(len(held_codes))
    place[held_codes] = each
    if (place[held_codes] != each).any():  # several rows of a key, so the newest one is looked for
        in_order = np.argsort(_filled(held[SCN]), kind="stable")
        place[held_codes[in_order]] = in_order
    at = place[codes]
    is_held = at >= 0
    is_delete = numbers(rows[DELETE]).astype(bool)
    is_newer = is_held & (numbers(rows[SCN]) >= _taken(held[SCN], at))
    is_older = is_held & ~is_newer
    is_proof = _taken(held[AS_OF], at) < numbers(rows[AS_OF])
    return Decision(
        at=at,
        by=by,
        replaces=is_newer & ~is_delete,
        removes=is_newer & is_delete,
        inserts=~is_held & ~is_delete & takes_new,
        touches=is_older & ~is_delete & is_proof,
    )


def merged(
    held: pa.Table, changes: Changes, *, takes_new: bool = True
) -> tuple[pa.Table, int, int]:
    """Return a table after changes, and how many rows were written and removed.

    `held` has at least the columns of the changes, with types that hold their values.
    """
    rows = cast_to(changes.rows, _schema_for(held, changes))
    decision = decide(held, replace(changes, rows=rows), takes_new=takes_new)
    at, touches = decision.at, decision.touches
    as_of = _filled(held[AS_OF]).copy()
    as_of[at[touches]] = numbers(rows[AS_OF])[touches]
    is_touched = np.zeros(held.num_rows, dtype=bool)
    is_touched[at[touches]] = True
    is_replaced = _of_held(decision.replaces, decision.by)
    is_gone = np.zeros(held.num_rows, dtype=bool)
    for mark in changes.marks:
        is_gone |= covered_by(held, mark, as_of)
    # A row that this batch proves to exist, or replaces, is not removed by its marks.
    is_gone &= ~(is_touched | is_replaced)
    is_gone |= _of_held(decision.removes, decision.by)
    kept = _with_scns(held, AS_OF, as_of).filter(pa.array(~(is_gone | is_replaced)))
    is_written = decision.replaces | decision.inserts
    places = pa.array(at[is_written], mask=at[is_written] < 0)
    written = rows.filter(pa.array(is_written))
    columns = [
        written[field.name]
        if field.name in changes.rows.column_names
        # A column that the changes do not have keeps its value.
        else held[field.name].take(places)
        for field in held.schema
    ]
    table = pa.concat_tables([kept, pa.table(columns, schema=held.schema)])
    return table, int(is_written.sum() + touches.sum()), int(is_gone.sum())


def forgotten(*, also_scn: bool) -> tuple[str, ...]:
    """Return the columns that `Target.forget_as_of` clears."""
    return (AS_OF, SCN) if also_scn else (AS_OF,)


def without(names: Sequence[str], held: pa.Table, source: str | None) -> pa.Table:
    """Return a table with columns of SCNs cleared in the rows of a source (None: all rows)."""
    is_of = np.ones(held.num_rows, dtype=bool)
    if source is not None and SOURCE in held.column_names:
        is_of = np.asarray(pc.fill_null(pc.equal(held[SOURCE], source), False))
    for name in names:
        held = _with_scns(held, name, np.where(is_of, -1, _filled(held[name])))
    return held


def numbers(column: pa.ChunkedArray) -> np.ndarray:
    """Return a column without nulls as a numpy array."""
    return np.asarray(column)


def _of_held(of_changes: Mask, by: Mask) -> Mask:
    """Return for each held row what is so of the change with its key; False without one."""
    found: Mask = np.append(of_changes, False)[by]
    return found


def _schema_for(held: pa.Table, changes: Changes) -> pa.Schema:
    return pa.schema([*held.schema, changes.rows.schema.field(DELETE)])


def _with_scns(held: pa.Table, name: str, scns: np.ndarray) -> pa.Table:
    """Return a table with other SCNs in a column; -1 becomes null."""
    field = held.schema.field(name)
    column = pa.array(scns, field.type, mask=scns < 0)
    return held.set_column(held.column_names.index(name), field, column)


def covered_by(held: pa.Table, mark: Mark, as_of: np.ndarray | None = None) -> np.ndarray:
    """Return which rows a mark removes; `as_of`: their as-of SCNs, if the batch has raised some."""
    as_of = _filled(held[AS_OF]) if as_of is None else as_of
    is_covered: np.ndarray = _filled(held[SCN]) <= mark.scn
    if not mark.is_truncate:
        is_covered &= as_of < mark.scn
    if SOURCE in held.column_names:
        is_covered &= np.asarray(pc.fill_null(pc.equal(held[SOURCE], mark.source), False))
    return is_covered


def _filled(column: pa.ChunkedArray) -> np.ndarray:
    """Return a column of SCNs as numbers; null becomes -1, older than all others."""
    return np.asarray(pc.fill_null(column, -1))


def _taken(column: pa.ChunkedArray, at: np.ndarray) -> np.ndarray:
    """Return a column's numbers at some indexes; -1 at index -1."""
    values: np.ndarray = np.append(_filled(column), -1)[at]
    return values


def among(
    keys: pa.Table,
    others: Sequence[Condition],
    least: Condition = (),
    only: Collection[str] | None = None,
) -> pc.Expression:
    """Return the condition of `Target.find`; with several key columns other rows fulfil it, too.

    `only`: columns that may be compared. Tests of others are left out, so more rows fulfil it.
    """
    parts = [_all_of(tests, only) for tests in others]
    if keys.num_rows:
        names = [name for name in keys.column_names if only is None or name in only]
        columns = (pc.field(name).isin(keys[name].unique()) for name in names)
        parts.append(reduce(and_, columns, _ANY))
    found = reduce(or_, parts) if parts else pc.scalar(False)
    return _all_of(least, only) & found


def _all_of(tests: Condition, only: Collection[str] | None) -> pc.Expression:
    used = (test for test in tests if only is None or test.column in only)
    return reduce(and_, map(_expression, used), _ANY)


def _expression(test: Comparison) -> pc.Expression:
    column = pc.field(test.column)
    if test.operator == "null":
        return column.is_null()
    compared: pc.Expression = {
        "=": column.__eq__, "<": column.__lt__, "<=": column.__le__,
        ">": column.__gt__, ">=": column.__ge__,
    }[test.operator](pc.scalar(test.value))  # fmt: skip
    return compared | column.is_null() if test.or_null else compared
