"""Run a job: load the existing rows, then follow the changes until it is stopped."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from random import Random
from typing import NamedTuple

from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StructType

from databus.client.machines.backoff import BackOff
from databus.client.spark.consuming.restart_policy import JOB_FAILURES, Restarts
from databus.client.spark.consuming.target_proof import TargetProof
from databus.client.spark.session import need_own_driver
from databus.client.spark.sql.batches import JoinBatches, UnionBatches
from databus.client.spark.sql.binder import bind, streams_of
from databus.client.spark.sql.explain import explain_keys
from databus.client.spark.sql.job_file import SqlJob
from databus.client.spark.sql.job_state import JobFolder, open_folder
from databus.client.spark.sql.join_rows import all_facts, wide_changes
from databus.client.spark.sql.join_state import open_join_state
from databus.client.spark.sql.plan import Plan, SourceStream, UnionPlan
from databus.client.spark.sql.projection import selected_changes
from databus.client.spark.sql.source_streams import columns_of, read_streams, types_of
from databus.client.spark.targets.target import Applied, Target, open_target
from databus.conf.settings import BackOffSettings
from databus.schemas.errors import DatabusError, SettingsError

Batches = UnionBatches | JoinBatches
LOOK_S = 1
MOST_RESTARTS = 10


class BatchDone(NamedTuple):
    """An applied batch."""

    batch_id: int
    applied: Applied


@dataclass(slots=True)
class RunSummary:
    """The result of a run: rows of the target written and removed, SCNs by physical source."""

    batches: int = 0
    upserts: int = 0
    deletes: int = 0
    restarts: int = 0
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
    stop: threading.Event | None = None,
    most_restarts: int = MOST_RESTARTS,
    on_plan: Callable[[list[str]], None] = lambda _: None,
    on_batch: Callable[[BatchDone], None] = lambda _: None,
) -> RunSummary:
    """Keep a job's target equal to its SELECT until `stop` is set.

    With `available_now` it ends when all changes up to its start are applied. When
    servers are unavailable it waits; a query that failed because of them is restarted
    up to `most_restarts` times without a batch in between. `on_plan` gets sentences
    about the sources' columns; `on_batch` is called after each batch, on one of
    Spark's threads.

    Raises SettingsError for a SELECT that does not fit its sources and for a
    checkpoint of another job, OtherTargetError for a target that is not as the
    job left it, errors of the target, NoAnswerError if no server answers before the first
    query, and ConsumerError if the query fails.
    """
    need_own_driver(spark, "run")
    running = _Running(job, spark, stop or threading.Event(), on_batch)
    restarts = Restarts(most_restarts, BackOff(BackOffSettings(), Random()))
    running.on_applied = restarts.progressed
    is_prepared = False
    while not running.stop.is_set():
        try:
            # Before each start: after an ALTER the sources have other columns.
            on_plan(running.prepare())
            is_prepared = True
            running.follow(available_now=available_now)
            break
        except JOB_FAILURES as error:
            if running.failure is not None:
                raise running.failure from error
            if not is_prepared:
                raise  # a wrong address is told at once
            scn = max(running.summary.positions.values(), default=0)
            running.stop.wait(restarts.wait_s(error, job.name, scn))
            running.summary.restarts += 1
        finally:
            running.close()
    return running.summary


class _Running:
    """A job and its query; batches arrive on one of Spark's threads."""

    def __init__(
        self,
        job: SqlJob,
        spark: SparkSession,
        stop: threading.Event,
        on_batch: Callable[[BatchDone], None],
    ) -> None:
        self.stop = stop
        self.summary = RunSummary()
        self.failure: DatabusError | None = None
        self.on_applied: Callable[[], None] = lambda: None
        self._job = job
        self._spark = spark
        self._on_batch = on_batch
        self._opened = ExitStack()

    def prepare(self) -> list[str]:
        """Bind the query to its sources, open folder and target; return sentences about keys."""
        rows = types_of(self._job, streams_of(self._job.query))
        columns = {stream: columns_of(row) for stream, row in rows.items()}
        self._folder = open_folder(self._job, columns)
        plan = bind(self._job.query, self._folder.columns)
        self._target = self._opened.enter_context(closing(_target(self._job, plan)))
        self._batches = _batches(self._spark, plan, rows, self._folder, self._target)
        self._changes = read_streams(self._spark, self._job, plan.streams)
        _check_expressions(self._job, self._batches, self._changes)
        # Last: a job that does not fit its sources leaves no folder.
        self._folder.keep()
        return explain_keys(plan)

    def follow(self, *, available_now: bool) -> None:
        """Run one query until it ends or `stop` is set."""
        stream, whole = str(self._folder.stream), str(self._folder.path)
        app = self._folder.app_id
        self._proof = TargetProof(self._spark, stream, self._target, app_id=app, whole=whole)
        self._proof.check()
        writer = self._changes.writeStream.foreachBatch(self._apply).option(
            "checkpointLocation", stream
        )
        every = f"{self._job.settings.trigger_seconds} seconds"
        query: StreamingQuery = (
            writer.trigger(availableNow=True).start()
            if available_now
            else writer.trigger(processingTime=every).start()
        )
        try:
            # Spark's wait cannot be interrupted, so each one is short.
            while not query.awaitTermination(LOOK_S) and not self.stop.is_set():
                pass
        finally:
            query.stop()

    def close(self) -> None:
        """Close the target's connections, if it was opened."""
        self._opened.close()

    def _apply(self, batch: DataFrame, batch_id: int) -> None:
        try:
            with self._proof.batch():
                applied = self._batches.apply(batch, batch_id)
        except DatabusError as error:
            # Spark passes on only the text of an error, so the error itself is kept here.
            self.failure = error
            raise
        self.summary.take(applied)
        self.on_applied()
        self._on_batch(BatchDone(batch_id, applied))


def _target(job: SqlJob, plan: Plan) -> Target:
    several = isinstance(plan, UnionPlan) and len(plan.branches) > 1
    return open_target(job.settings.target, plan.key, source_column=several)


def _batches(
    spark: SparkSession,
    plan: Plan,
    rows: Mapping[SourceStream, StructType],
    folder: JobFolder,
    target: Target,
) -> Batches:
    if isinstance(plan, UnionPlan):
        return UnionBatches(plan, target, folder.app_id)
    state = open_join_state(plan.state, rows, folder.join_state)
    return JoinBatches(plan, spark, state, target, folder.app_id)


def _check_expressions(job: SqlJob, batches: Batches, changes: DataFrame) -> None:
    """Let Spark analyse every expression before the first batch."""
    try:
        if isinstance(batches, UnionBatches):
            selected_changes(batches.plan, changes)
        else:
            keys = all_facts(batches.plan, batches.spark, batches.state)
            wide_changes(batches.plan, batches.spark, batches.state, [keys])
    except (AnalysisException, ParseException) as error:
        said = " ".join((error.getMessage() or str(error)).split())
        raise SettingsError(f"{job.name}: Spark says: {said}") from error
