"""What a job does with a micro-batch: one class for each form of SELECT."""

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
from databus.client.spark.sql.join_state import MirrorTable
from databus.client.spark.sql.plan import Feed, JoinPlan, UnionPlan
from databus.client.spark.sql.projection import selected_changes
from databus.client.spark.targets.changes import Changes
from databus.client.spark.targets.target import Applied, Target, check_same_source

_NOTED = 400  # characters that a target's book has for a source, with room


@dataclass(frozen=True, slots=True)
class UnionBatches:
    """Keeps a target equal to a SELECT of one source, or of several with UNION ALL."""

    plan: UnionPlan
    target: Target
    app_id: str

    def apply(self, batch: DataFrame, batch_id: int) -> Applied:
        """Apply a batch in the shape of `feeds`; raises DatabusError."""
        several = len(self.plan.branches) > 1
        if several:  # each branch reads it
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
    """Keeps a target equal to a JOIN, through mirrors of the joined tables.

    First the mirrors take the batch, each exactly once; then the touched rows
    are computed from them and written. Which rows those are is said by the
    batch itself, or, after a mark, by what the target has: never by what the
    mirrors were before. So a batch that comes again after a crash, with some of
    the mirrors already past it, comes to the same.
    """

    plan: JoinPlan
    spark: SparkSession
    mirrors: Mapping[Feed, MirrorTable]
    target: Target
    app_id: str

    def apply(self, batch: DataFrame, batch_id: int) -> Applied:
        """Apply a batch in the shape of `feeds`; raises DatabusError."""
        last = self.target.applied(self.app_id)
        if last is not None and last >= batch_id:
            return Applied(is_skipped=True, positions=self.target.positions())
        check_same_source(self.target, self._rows_source)
        table = batch.toArrow()
        by_feed = {feed: mirror.changes(table) for feed, mirror in self.mirrors.items()}
        applied = {
            feed: self.mirrors[feed].target.apply(self.app_id, batch_id, changes)
            for feed, changes in by_feed.items()
        }
        touched = self._touched(by_feed, applied)
        if not touched:
            return Applied(positions=self.target.positions())
        rows = wide_changes(self.plan, self.spark, self.mirrors, touched).toArrow()
        changes = Changes(rows, self.plan.key, (), _positions(by_feed), self._rows_source)
        return self.target.apply(self.app_id, batch_id, changes)

    @property
    def _rows_source(self) -> str:
        """Return what the target notes that its rows are of: of no one table."""
        labels = [self.plan.fact.label, *(one.feed.label for one in self.plan.dimensions)]
        return f"JOIN of {', '.join(labels)}"[:_NOTED]

    def _touched(
        self, by_feed: Mapping[Feed, Changes], applied: Mapping[Feed, Applied]
    ) -> list[DataFrame]:
        changed = {
            feed: changes.rows.select(self.mirrors[feed].kept.key)
            for feed, changes in by_feed.items()
            if changes.rows.num_rows
        }
        touched = touched_by_changes(self.plan, self.spark, self.mirrors, changed)
        if by_feed[self.plan.fact].marks and self.target.schema() is not None:
            held = self.target.rows(self.spark)
            touched.append(facts_gone(self.plan, self.spark, self.mirrors, held))
        feeds = [one.feed for one in self.plan.dimensions]
        if any(_may_remove(by_feed[feed], applied[feed]) for feed in feeds):
            touched.append(all_facts(self.plan, self.spark, self.mirrors))
        return touched


def _may_remove(changes: Changes, applied: Applied) -> bool:
    """Say whether marks may have taken rows away: of an earlier attempt nobody knows."""
    return bool(changes.marks) and (applied.is_skipped or applied.deletes > 0)


def _positions(by_feed: Mapping[Feed, Changes]) -> dict[str, int]:
    found: dict[str, int] = {}
    for changes in by_feed.values():
        for physical, scn in changes.positions.items():
            found[physical] = max(found.get(physical, scn), scn)
    return found
