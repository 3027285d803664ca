"""Apply a job's micro-batches: one class for each form of SELECT."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession

from databus.client.spark.consuming.apply import apply_changes
from databus.client.spark.sql.join_rows import (
    all_facts,
    facts_gone,
    touched_by_changes,
    wide_changes,
)
from databus.client.spark.sql.join_state import JoinState
from databus.client.spark.sql.plan import JoinPlan, SourceStream, UnionPlan
from databus.client.spark.sql.projection import selected_changes
from databus.client.spark.targets.changes import Changes
from databus.client.spark.targets.target import Applied, Target, check_same_source

_NOTED = 400  # characters of a source's name that fit into a target's commit log, with room


@dataclass(frozen=True, slots=True)
class UnionBatches:
    """Keeps a target equal to a SELECT of one source, or of several with UNION ALL."""

    plan: UnionPlan
    target: Target
    app_id: str

    def apply(self, batch: DataFrame, batch_id: int) -> Applied:
        """Apply a batch in the shape of `source_streams`; raises DatabusError."""
        several = len(self.plan.branches) > 1
        if several:  # each branch reads the batch
            batch.persist()
        try:
            changes = selected_changes(self.plan, batch)
            return apply_changes(
                changes, batch_id, self.target, keys=self.plan.key, app_id=self.app_id
            )
        finally:
            if several:
                batch.unpersist()


@dataclass(frozen=True, slots=True)
class JoinBatches:
    """Keeps a target equal to a JOIN, by means of the join state.

    First the batch is applied to the state's tables, to each exactly once. Then the
    touched rows are computed from them and written. The touched rows depend on the
    batch, and after a mark on the target's rows, but never on the state before the
    batch. So a batch that comes again after a crash has the same result, even if
    some of the tables have already taken it.
    """

    plan: JoinPlan
    spark: SparkSession
    state: JoinState
    target: Target
    app_id: str

    def apply(self, batch: DataFrame, batch_id: int) -> Applied:
        """Apply a batch in the shape of `source_streams`; raises DatabusError."""
        # Read once, for all tables of the state.
        table = batch.toArrow()
        by_stream = {stream: kept.changes(table) for stream, kept in self.state.items()}
        commit_log = self.target.commit_log()
        if commit_log.has_all(self.app_id, batch_id, _positions(by_stream)):
            return Applied(is_skipped=True, positions=commit_log.positions())
        check_same_source(self.target, self._rows_source)
        applied = {
            stream: self.state[stream].target.apply(self.app_id, batch_id, changes)
            for stream, changes in by_stream.items()
        }
        touched = self._touched(by_stream, applied)
        if not touched:
            return Applied(positions=self.target.positions())
        rows = wide_changes(self.plan, self.spark, self.state, touched).toArrow()
        changes = Changes(rows, self.plan.key, (), _positions(by_stream), self._rows_source)
        return self.target.apply(self.app_id, batch_id, changes)

    @property
    def _rows_source(self) -> str:
        """The source that the target records for its rows; no single table's name."""
        labels = [self.plan.fact.label, *(one.stream.label for one in self.plan.dimensions)]
        return f"JOIN of {', '.join(labels)}"[:_NOTED]

    def _touched(
        self, by_stream: Mapping[SourceStream, Changes], applied: Mapping[SourceStream, Applied]
    ) -> list[DataFrame]:
        changed = {
            stream: changes.rows.select(self.state[stream].kept.key)
            for stream, changes in by_stream.items()
            if changes.rows.num_rows
        }
        touched = touched_by_changes(self.plan, self.spark, self.state, changed)
        # A mark does not name the rows that it removes, so they are found by comparison.
        if by_stream[self.plan.fact].marks and self.target.schema() is not None:
            held = self.target.rows(self.spark)
            touched.append(facts_gone(self.plan, self.spark, self.state, held))
        streams = [one.stream for one in self.plan.dimensions]
        if any(_may_remove(by_stream[stream], applied[stream]) for stream in streams):
            touched.append(all_facts(self.plan, self.spark, self.state))
        return touched


def _may_remove(changes: Changes, applied: Applied) -> bool:
    """Return whether marks may have removed rows; unknown, so true, after an earlier attempt."""
    return bool(changes.marks) and (applied.is_skipped or applied.deletes > 0)


def _positions(by_stream: Mapping[SourceStream, Changes]) -> dict[str, int]:
    found: dict[str, int] = {}
    for changes in by_stream.values():
        for physical, scn in changes.positions.items():
            found[physical] = max(found.get(physical, scn), scn)
    return found
