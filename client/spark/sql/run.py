"""Run a job: load what there is, then follow, until somebody says stop."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from pyspark.errors import AnalysisException, ParseException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StructType

from databus.client.spark.sql.batches import JoinBatches, UnionBatches
from databus.client.spark.sql.binding import bind, feeds_of
from databus.client.spark.sql.explain import explain_keys
from databus.client.spark.sql.feeds import columns_of, read_feeds, types_of
from databus.client.spark.sql.job_file import SqlJob
from databus.client.spark.sql.job_folder import JobFolder, open_folder
from databus.client.spark.sql.mirrors import open_mirrors
from databus.client.spark.sql.plan import Feed, Plan, UnionPlan
from databus.client.spark.sql.selected import selected_changes
from databus.client.spark.sql.wide_rows import all_facts, wide_changes
from databus.client.spark.targets.target import Applied, open_target
from databus.schemas.errors import ConsumerError, DatabusError, SettingsError

Batches = UnionBatches | JoinBatches


class BatchDone(NamedTuple):
    """A batch that was applied."""

    batch_id: int
    applied: Applied


@dataclass(slots=True)
class RunSummary:
    """What a run did; rows of the target that were written and removed."""

    batches: int = 0
    upserts: int = 0
    deletes: int = 0
    positions: dict[str, int] = field(default_factory=dict)

    def take(self, applied: Applied) -> None:
        """Add a batch."""
        self.batches += 1
        self.upserts += applied.upserts
        self.deletes += applied.deletes
        self.positions = applied.positions


def run(
    job: SqlJob,
    spark: SparkSession,
    *,
    available_now: bool = False,
    on_plan: Callable[[list[str]], None] = lambda _: None,
    on_batch: Callable[[BatchDone], None] = lambda _: None,
    on_start: Callable[[StreamingQuery], None] = lambda _: None,
) -> RunSummary:
    """Keep a job's target equal to its SELECT.

    Goes on for ever, or with `available_now` until everything is applied that
    is there at the start. `on_batch` is called after each batch, on Spark's
    thread; `on_start` gets the query, for whoever wants to stop it.

    Raises DatabusError: SettingsError for a SELECT that does not fit its
    sources, the target's errors, ConsumerError when the query fails.
    """
    rows = types_of(job, feeds_of(job.query))
    plan = bind(job.query, {feed: columns_of(row) for feed, row in rows.items()})
    folder = open_folder(job)
    batches = _batches(job, spark, plan, rows, folder)
    changes = read_feeds(spark, job, plan.feeds)
    _check_expressions(job, batches, changes)
    on_plan(explain_keys(plan))
    following = _Following(batches, on_batch)
    query = following.start(job, folder, changes, available_now=available_now)
    on_start(query)
    following.wait(query)
    return following.summary


@dataclass(slots=True)
class _Following:
    """A query under way; its batches come on a thread of Spark's."""

    batches: Batches
    on_batch: Callable[[BatchDone], None]
    summary: RunSummary = field(default_factory=RunSummary)
    failure: DatabusError | None = None

    def start(
        self, job: SqlJob, folder: JobFolder, changes: DataFrame, *, available_now: bool
    ) -> StreamingQuery:
        writer = changes.writeStream.foreachBatch(self._apply).option(
            "checkpointLocation", str(folder.stream)
        )
        if available_now:
            return writer.trigger(availableNow=True).start()
        return writer.trigger(processingTime=f"{job.settings.trigger_seconds} seconds").start()

    def wait(self, query: StreamingQuery) -> None:
        """Wait for the end; raises the error of a batch as it was."""
        try:
            query.awaitTermination()
        except StreamingQueryException as error:
            if self.failure is not None:
                raise self.failure from error
            scn = max(self.summary.positions.values(), default=-1)
            raise ConsumerError(scn, f"the query has failed: {_cause(error)}") from error
        finally:
            query.stop()

    def _apply(self, batch: DataFrame, batch_id: int) -> None:
        try:
            applied = self.batches.apply(batch, batch_id)
        except DatabusError as error:
            self.failure = error
            raise
        self.summary.take(applied)
        self.on_batch(BatchDone(batch_id, applied))


def _batches(
    job: SqlJob,
    spark: SparkSession,
    plan: Plan,
    rows: Mapping[Feed, StructType],
    folder: JobFolder,
) -> Batches:
    if isinstance(plan, UnionPlan):
        target = open_target(job.settings.target, plan.key, source_column=len(plan.branches) > 1)
        return UnionBatches(plan, target, folder.app_id)
    target = open_target(job.settings.target, plan.key)
    mirrors = open_mirrors(plan.mirrors, rows, folder.mirrors)
    return JoinBatches(plan, spark, mirrors, target, folder.app_id)


def _check_expressions(job: SqlJob, batches: Batches, changes: DataFrame) -> None:
    """Have Spark look at every expression before the first batch."""
    try:
        if isinstance(batches, UnionBatches):
            selected_changes(batches.plan, changes)
        else:
            keys = all_facts(batches.plan, batches.spark, batches.mirrors)
            wide_changes(batches.plan, batches.spark, batches.mirrors, [keys])
    except (AnalysisException, ParseException) as error:
        raise SettingsError(f"{job.name}: Spark says: {error.getMessage()}") from error


def _cause(error: StreamingQueryException) -> str:
    """Return what a query died of: the last thing that was raised, of a long chain."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    raised = [line for line in lines if ".errors." in line or "Error: " in line]
    return (raised or lines)[-1]
