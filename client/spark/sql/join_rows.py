"""Find the rows of a wide table that a batch touches, and compute them again.

Both use the join state after the batch. A fact's row is touched if it changed, or
if a row that it refers to changed, directly or through other dimensions. The state
after the batch is enough: if the fact referred to a changed row only before the
batch, then the fact itself, or a dimension on the way, has changed too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import reduce

import pyarrow as pa
from pyspark.sql import (
    Column,
    DataFrame,
    SparkSession,
    functions as F,  # noqa: N812 - as everybody writes it
)

from databus.client.spark.arrow.row_keys import quoted
from databus.client.spark.sql.join_state import JoinState
from databus.client.spark.sql.plan import Dimension, JoinPlan, Output, SourceStream
from databus.client.spark.targets.changes import AS_OF, DELETE, SCN
from databus.schemas.scn import MAX_SCN

FACT = "r0"
_TOUCHED = "k"


def touched_by_changes(
    plan: JoinPlan,
    spark: SparkSession,
    state: JoinState,
    changed: Mapping[SourceStream, pa.Table],
) -> list[DataFrame]:
    """Return the keys of the facts that changed rows touch; `changed`: the keys of these rows."""
    found = []
    if plan.fact in changed:
        found.append(spark.createDataFrame(changed[plan.fact]).select(*_fact_keys(plan)))
    for number, dimension in enumerate(plan.dimensions):
        if dimension.stream in changed:
            keys = spark.createDataFrame(changed[dimension.stream]).alias(dimension.name)
            facts = _referring(plan, spark, state, plan.dimensions[:number])
            found.append(
                facts.join(keys, _refers(dimension), "left_semi").select(*_fact_keys(plan, FACT))
            )
    return found


def all_facts(plan: JoinPlan, spark: SparkSession, state: JoinState) -> DataFrame:
    """Return the keys of all facts."""
    return state[plan.fact].rows(spark).select(*_fact_keys(plan))


def facts_gone(plan: JoinPlan, spark: SparkSession, state: JoinState, held: DataFrame) -> DataFrame:
    """Return the keys of the target's rows whose fact no longer exists."""
    facts = all_facts(plan, spark, state)
    return held.select(*plan.key).join(facts, list(plan.key), "left_anti").select(*plan.key)


def wide_changes(
    plan: JoinPlan,
    spark: SparkSession,
    state: JoinState,
    touched: Sequence[DataFrame],
) -> DataFrame:
    """Return the current wide rows of the touched keys, in the form of `Changes.rows`.

    A row that no longer exists is a delete with the highest possible SCN, as it must
    be removed whatever SCN it has: a job's batches come in order.
    """
    # A fact may be touched in several ways.
    keys = reduce(DataFrame.union, touched).distinct()
    columns = [_named(_TOUCHED, output.name) for output in plan.keys]
    rows = _wide(plan, spark, state, keys).withColumn(DELETE, F.lit(False)).alias("w")
    same = _all(
        column == F.col(f"w.{quoted(output.name)}")
        for column, output in zip(columns, plan.keys, strict=True)
    )
    scn = F.coalesce(F.col(f"w.{SCN}"), F.lit(MAX_SCN))
    key_of = {output.name: column for output, column in zip(plan.keys, columns, strict=True)}
    return (
        keys.alias(_TOUCHED)
        .join(rows, same, "left")
        .select(
            *(key_of.get(name, F.col(f"w.{quoted(name)}")).alias(name) for name in plan.columns),
            scn.alias(SCN),
            scn.alias(AS_OF),
            F.coalesce(F.col(f"w.{DELETE}"), F.lit(True)).alias(DELETE),
        )
    )


def _wide(
    plan: JoinPlan,
    spark: SparkSession,
    state: JoinState,
    keys: DataFrame,
) -> DataFrame:
    is_touched = _all(
        _named(FACT, key.expression) == _named(_TOUCHED, key.name) for key in plan.keys
    )
    found = (
        state[plan.fact].rows(spark).alias(FACT).join(keys.alias(_TOUCHED), is_touched, "left_semi")
    )
    for one in plan.dimensions:
        how = "left" if one.is_left else "inner"
        rows = state[one.stream].rows(spark).alias(one.name)
        found = found.join(rows, F.expr(one.condition), how)
    if plan.condition is not None:
        found = found.where(F.expr(plan.condition))
    outputs = [F.expr(output.expression).alias(output.name) for output in plan.outputs]
    return found.select(*outputs, F.col(f"{FACT}.{SCN}").alias(SCN))


def _referring(
    plan: JoinPlan,
    spark: SparkSession,
    state: JoinState,
    before: Sequence[Dimension],
) -> DataFrame:
    """Return the facts joined to the dimensions `before`, by the reference columns only."""
    facts = state[plan.fact].rows(spark).alias(FACT)
    for one in before:
        rows = state[one.stream].rows(spark).alias(one.name)
        # A left join even where the SELECT has an inner one: a fact that lacks this dimension
        # may still refer to the changed row.
        facts = facts.join(rows, _refers(one), "left")
    return facts


def _refers(dimension: Dimension) -> Column:
    return _all(
        _named(dimension.name, key.name) == F.expr(key.expression) for key in dimension.references
    )


def _fact_keys(plan: JoinPlan, table: str | None = None) -> list[Column]:
    """Return the fact's key columns under the target's names."""
    return [_of(table, key).alias(key.name) for key in plan.keys]


def _of(table: str | None, key: Output) -> Column:
    return F.col(quoted(key.expression)) if table is None else _named(table, key.expression)


def _named(table: str, column: str) -> Column:
    return F.col(f"{table}.{quoted(column)}")


def _all(conditions: Iterable[Column]) -> Column:
    return reduce(lambda left, right: left & right, conditions)
