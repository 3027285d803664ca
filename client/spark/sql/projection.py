"""Turn changes of sources into changes of the selected rows: SELECT … WHERE on a stream.

A row is written if it fulfils the condition after its change, and deleted if not.
Deleting a row that the target does not have has no effect, so the row's earlier
state and the before image are not needed. A condition that is NULL is not
fulfilled. Marks (truncate, snapshot_end) stay marks.
"""

from __future__ import annotations

from functools import reduce

from pyspark.sql import (
    Column,
    DataFrame,
    functions as F,  # noqa: N812 - as everybody writes it
)

from databus.client.spark.arrow.row_keys import quoted
from databus.client.spark.arrow.row_types import CHANGE_COLUMN
from databus.client.spark.sql.plan import Branch, Output, UnionPlan
from databus.client.spark.sql.source_streams import is_of

_IS_IN = "_databus_is_in"
_OLD = "_databus_before"
_KEPT = ("scn", "index", "physical_source", "as_of")


def selected_changes(plan: UnionPlan, batch: DataFrame) -> DataFrame:
    """Return changes for `apply_changes`; the source of each is its branch's label.

    `batch` has the shape of `source_streams`. It is read once for each branch.
    """
    parts = [_of_branch(branch, batch) for branch in plan.branches]
    return reduce(DataFrame.union, parts)


def _of_branch(branch: Branch, batch: DataFrame) -> DataFrame:
    sides = quoted(branch.stream.label)
    rows = batch.where(is_of(branch.stream)).select(
        f"{sides}.row.*", F.col(f"{sides}.before").alias(_OLD), CHANGE_COLUMN
    )
    decided = rows.withColumn(_IS_IN, _is_in(branch))
    # Only for the columns' types: the delete of an old key has typed nulls in other columns.
    values = decided.select(*(_value(branch, output) for output in branch.outputs))
    change = F.struct(
        *(_value(branch, output) for output in branch.outputs),
        _meta(branch, F.when(_is_upsert() & ~F.col(_IS_IN), "delete").otherwise(_op())),
    )
    keys = {output.name: output.expression for output in branch.key}
    old_key = F.struct(
        *(
            _old(keys.get(field.name)).cast(field.dataType).alias(field.name)
            for field in values.schema
        ),
        _meta(branch, F.lit("delete")),
    )
    # One row becomes two when its key has changed: the new row, and a delete of the old key.
    both = F.array_compact(F.array(change, F.when(_has_moved(branch), old_key)))
    return decided.select(F.inline(both))


def _op() -> Column:
    return F.col(f"{CHANGE_COLUMN}.op")


def _is_upsert() -> Column:
    return _op().isin("insert", "update", "snapshot")


def _is_in(branch: Branch) -> Column:
    if branch.condition is None:
        return _is_upsert()
    # NULL is not fulfilled, as in a WHERE.
    fulfils = F.coalesce(F.expr(branch.condition), F.lit(False))
    return F.when(_is_upsert(), fulfils).otherwise(False)


def _value(branch: Branch, output: Output) -> Column:
    """Return a column's value: of a key column in every row, of others only in written rows.

    An expression may fail on rows that the condition excludes (1 / total).
    """
    value = F.expr(output.expression)
    is_key = any(key.name == output.name for key in branch.key)
    return (value if is_key else F.when(F.col(_IS_IN), value)).alias(output.name)


def _old(column: str | None) -> Column:
    return F.lit(None) if column is None else F.col(f"{_OLD}.{quoted(column)}")


def _has_moved(branch: Branch) -> Column:
    """Return the condition that an update has changed the key."""
    moved = [_old(key.expression) != F.col(quoted(key.expression)) for key in branch.key]
    return (_op() == "update") & F.coalesce(reduce(Column.__or__, moved), F.lit(False))


def _meta(branch: Branch, op: Column) -> Column:
    kept = [F.col(f"{CHANGE_COLUMN}.{name}").alias(name) for name in _KEPT]
    return F.struct(op.alias("op"), F.lit(branch.label).alias("source"), *kept).alias(CHANGE_COLUMN)
