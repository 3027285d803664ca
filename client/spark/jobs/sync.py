"""Copy a table into a target, and keep the target equal to it; failed queries are restarted.

A target that `load` has filled is followed from the load's SCN. Any other target is
first filled from the bootstrap servers. The position is in Spark's checkpoint and in
the target: after a kill at any point the job continues, and each batch is applied
exactly once.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from databus.client.machines.backoff import BackOff
from databus.client.spark import register
from databus.client.spark.consuming.apply import apply_changes
from databus.client.spark.consuming.apply_events import look_at
from databus.client.spark.consuming.restart_policy import (
    JOB_FAILURES,
    SPARK_FAILURES,
    Failure,
    Restarts,
    read_failure,
)
from databus.client.spark.consuming.target_proof import TargetProof
from databus.client.spark.jobs.load import load
from databus.client.spark.jobs.sync_tables import (
    CHECK_EVERY,
    LOOK_S,
    MOST_RESTARTS,
    start_options,
    stream_options,
    trigger_of,
)
from databus.client.spark.jobs.target_template import check_one
from databus.client.spark.monitoring.progress import batch_stats
from databus.client.spark.options import options_of_load, parse_options
from databus.client.spark.session import need_own_driver
from databus.client.spark.source.change_stream import known_schemas, make_measure_client
from databus.client.spark.targets.target import (
    Target,
    check_same_source,
    check_whole,
    open_target,
)
from databus.conf.settings import BackOffSettings
from databus.schemas.errors import (
    BootstrapTooOldError,
    DatabusError,
    OtherTargetError,
    ReloadNeededError,
)

log = logging.getLogger(__name__)

STORE_WAIT_S = 5


@dataclass(frozen=True, slots=True)
class SyncProgress:
    """The progress of a job. SCNs are by physical source; there is none during a snapshot.

    `rows`: written or removed since the job started. `lag_s`: between the commits of the
    newest window and the last applied one. `stopped`: the states of physical sources that
    are not captured, so that the newest SCN and the lag are not known. `reload`: why the
    rows are being read again now; `reloads`: how often they were.
    """

    rows: int = 0
    batches: int = 0
    scns: Mapping[str, int] = field(default_factory=dict)
    newest_scns: Mapping[str, int] = field(default_factory=dict)
    lag_s: float | None = None
    restarts: int = 0
    stopped: Mapping[str, str] = field(default_factory=dict)
    reload: str = ""
    reloads: int = 0


Report = Callable[[SyncProgress], None]


def sync(
    spark: SparkSession,
    source: str,
    target: str,
    *,
    relays: Sequence[str],
    bootstrap_servers: Sequence[str] = (),
    checkpoint: str,
    mode: str | None = None,
    available_now: bool = False,
    every_s: float = 1.0,
    options: Mapping[str, str] | None = None,
    most_restarts: int = MOST_RESTARTS,
    stop: threading.Event | None = None,
    report: Report = lambda _: None,
) -> SyncProgress:
    """Follow a table until `stop` is set, or with `available_now` up to the newest change.

    `checkpoint` is a folder for this job only. `mode`: what the target holds, as in
    `open_target`. `options`: more options of
    `format("databus")`. `report` is called once a second. A batch starts every
    `every_s` seconds if there are new changes.

    Raises ConsumerError if the query fails for a reason that a restart cannot fix, or
    `most_restarts` times without a batch in between; OtherTargetError for a checkpoint
    whose batches went to another target, or to one that was removed or restored since;
    SettingsError for wrong arguments.
    """
    check_one(source, target)
    need_own_driver(spark, "sync")
    register(spark)
    given = stream_options([source], relays, bootstrap_servers, options)
    opened = open_target(target, mode=mode)
    trigger = trigger_of(available_now, every_s)
    try:
        check_same_source(opened, source)
        if source not in parse_options(given).filters:
            check_whole(opened, source)
        job = _Job(spark, opened, target, given, checkpoint, trigger, most_restarts, report)
        return job.run(stop or threading.Event())
    finally:
        opened.close()


class _Job:
    """One source and its target."""

    def __init__(
        self,
        spark: SparkSession,
        target: Target,
        uri: str,
        options: Mapping[str, str],
        checkpoint: str,
        trigger: Mapping[str, Any],
        most_restarts: int,
        report: Report,
    ) -> None:
        parse_options(options)
        self._spark = spark
        self._target = target
        self._uri = uri
        self._reload: ReloadNeededError | None = None
        self._other_target: OtherTargetError | None = None
        self._options = options
        self._checkpoint = checkpoint
        self._trigger = trigger
        self._report = report
        self._restarts = Restarts(most_restarts, BackOff(BackOffSettings(), Random()))
        self._progress = SyncProgress()
        self._read_scns: Mapping[str, int] = {}  # by the batches that were applied
        # The target is for one thread at a time.
        self._busy = threading.Lock()

    def run(self, stop: threading.Event) -> SyncProgress:
        """Run queries, one after another, until one ends normally or `stop` is set."""
        while not stop.is_set():
            try:
                self._look_at_schemas()
                query = self._start()
                self._follow(query, stop)
            except ReloadNeededError as error:
                if not self._options["bootstrapServers"]:
                    raise
                self._reload = error
                self._load_again(stop)
                continue
            except JOB_FAILURES as error:
                if self._other_target is not None:
                    raise self._other_target from error
                if self._is_reload(read_failure(error)):
                    self._load_again(stop)
                    continue
                scn = max(self._progress.scns.values(), default=0)
                wait_s = self._restarts.wait_s(error, self._options["sources"], scn)
                self._progress = replace(self._progress, restarts=self._progress.restarts + 1)
                stop.wait(wait_s)
                continue
            break
        self._report(self._progress)
        return self._progress

    def _start(self) -> StreamingQuery:
        folder = self._folder()
        whole = self._checkpoint
        self._proof = TargetProof(self._spark, folder, self._target, whole=whole)
        self._proof.check()
        stream = self._spark.readStream.format("databus").options(**self._options)
        changes = stream.options(**self._begin()).load()
        writer = changes.writeStream.foreachBatch(self._apply)
        return writer.option("checkpointLocation", folder).trigger(**self._trigger).start()

    def _folder(self) -> str:
        """Return the query's checkpoint folder: after a reload a new one within the job's."""
        # A checkpoint only goes forward, so each reload begins a new one.
        since = self._target.applied(self._reload_app)
        return self._checkpoint if since is None else f"{self._checkpoint}/since-{since}"

    @property
    def _source(self) -> str:
        return self._options["sources"]

    @property
    def _reload_app(self) -> str:
        return f"reload:{self._source}"

    def _look_at_schemas(self) -> None:
        """Follow new schema versions, whether or not changes follow; raises ReloadNeededError."""
        options = parse_options(self._options)
        try:
            (versions,) = known_schemas(options).values()
            (physical,) = self._physical()
        except DatabusError as error:
            # A query says so, too, and is restarted then.
            log.debug("%s: the schemas could not be asked for: %s", self._source, error)
            return
        scn = self._read_scns.get(physical, -1)
        with self._busy:
            look_at(self._target, self._source, versions, physical, scn, options.columns_as_text)

    def _is_reload(self, failure: Failure) -> bool:
        """Return whether a query ended because rows must be read again, and they can be."""
        is_needed = self._reload is not None or failure.is_a(ReloadNeededError)
        return is_needed and bool(self._options["bootstrapServers"])

    def _load_again(self, stop: threading.Event) -> None:
        """Load the table again beside the target, then replace the target with it in one step.

        Until then readers see the target unchanged.
        """
        why, self._reload = self._reload, None
        needed_scn = 0 if why is None else why.scn
        log.warning("%s: the rows are read again: %s", self._source, why or "a changed type")
        servers = self._options["bootstrapServers"].split(",")
        # In the same folder or database, so that it can take the target's place.
        beside = f"{self._uri}__databus_reload"
        self._progress = replace(self._progress, reload=str(why or "must be read again"))
        while not stop.is_set():
            self._report(self._progress)
            try:
                (physical,) = self._physical()
                loaded = load(
                    self._spark,
                    self._source,
                    beside,
                    bootstrap_servers=servers,
                    least_scn=needed_scn,
                    alone=True,
                    options=options_of_load(self._options, self._source),
                )
            except BootstrapTooOldError:
                stop.wait(STORE_WAIT_S)
                continue
            except (*SPARK_FAILURES, DatabusError) as error:
                if read_failure(error).is_a(BootstrapTooOldError):
                    # The store seeds the table again itself; that may take long.
                    stop.wait(STORE_WAIT_S)
                    continue
                wait_s = self._restarts.wait_s(error, self._source, needed_scn)
                stop.wait(wait_s)
                continue
            self._target.take_over(beside, self._reload_app, loaded.scn, {physical: loaded.scn})
            self._progress = replace(self._progress, reloads=self._progress.reloads + 1)
            break
        self._progress = replace(self._progress, reload="")

    def _physical(self) -> list[str]:
        with closing(make_measure_client(parse_options(self._options))) as measure_client:
            return list(measure_client.by_physical)

    def _begin(self) -> Mapping[str, str]:
        """Return the start without a checkpoint: the target's position, or `beginning`."""
        commit_log = self._target.commit_log()
        # While a load is unfinished its position is 0.
        if not any(commit_log.positions().values()):
            return start_options(0, None)
        (physical,) = self._physical()
        return start_options(commit_log.positions().get(physical, 0), commit_log.mark(physical))

    def _apply(self, batch: DataFrame, batch_id: int) -> None:
        try:
            with self._busy, self._proof.batch(batch_id):
                applied = apply_changes(batch, batch_id, self._target)
        # Spark passes on only the text of an error, so the error itself is kept here.
        except ReloadNeededError as error:
            self._reload = error
            raise
        except OtherTargetError as error:
            self._other_target = error
            raise
        self._restarts.progressed()
        now = self._progress
        rows = now.rows + applied.upserts + applied.deletes
        scns = applied.positions
        self._progress = replace(now, rows=rows, batches=now.batches + 1, scns=scns)

    def _follow(self, query: StreamingQuery, stop: threading.Event) -> None:
        looks = 0
        try:
            while not query.awaitTermination(LOOK_S):
                self._report_progress(query)
                if stop.is_set():
                    break
                looks += 1
                if looks % CHECK_EVERY == 0:
                    self._look_at_schemas()
            self._report_progress(query)
            if not stop.is_set():
                self._look_at_schemas()
        finally:
            query.stop()

    def _report_progress(self, query: StreamingQuery) -> None:
        last = query.lastProgress
        batch = None if last is None else batch_stats(json.loads(last.json))
        if batch is not None:
            self._progress = replace(
                self._progress,
                newest_scns=batch.newest_scns,
                lag_s=batch.lag_s,
                stopped=batch.stopped,
            )
            self._read_scns = batch.scns
        self._report(self._progress)
