"""Keep a target for each of many tables: one driver, one stream, one checkpoint.

Tables are chosen by names and patterns. One that comes later is filled from the
bootstrap servers, and then followed like the others. A table that fails is set
aside with its error, and the others go on (`synced_tables`). Columns that change are
changed in the targets without ending the query.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import closing
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from databus.client.machines.backoff import BackOff
from databus.client.spark import register
from databus.client.spark.consuming.checkpoint_folder import CheckpointFolder
from databus.client.spark.consuming.restart_policy import JOB_FAILURES, Restarts
from databus.client.spark.consuming.schema_book import SchemaBook
from databus.client.spark.consuming.table_notes import TableNotes
from databus.client.spark.jobs.synced_tables import StoppedError, SyncedTables
from databus.client.spark.jobs.target_template import target_of
from databus.client.spark.monitoring.progress import batch_stats, offset_of
from databus.client.spark.options import SourceOptions, parse_options
from databus.client.spark.session import need_own_driver
from databus.client.spark.source.change_stream import make_measure_client
from databus.client.subscription import chosen_sources
from databus.conf.named_places import Word
from databus.conf.patterns import NamePatterns
from databus.conf.settings import BackOffSettings
from databus.schemas.errors import ConsumerError, DatabusError, SettingsError

log = logging.getLogger(__name__)

LOOK_S = 1
CHECK_EVERY = 10  # looks, whether a statement without rows was logged
MOST_RESTARTS = 10
# Options of the source that a job's arguments, or its targets, decide.
_SET = frozenset(
    {
        "mode",
        "sources",
        "relays",
        "bootstrapservers",
        "start",
        "startmark",
        "layout",
        "newsources",
        "columns",
    }
)


@dataclass(frozen=True, slots=True)
class TablesProgress:
    """The progress of a job of many tables.

    `rows`: written or removed since the job started. `tables`: those that have a target.
    `scns`, `newest_scns` and `stopped` are by physical source, as in `SyncProgress`. The
    others are by source: `aside`, why no rows go to its target; `retried`, what is tried
    again just now; `reloading`, why all its rows are read again just now; `waiting`, why
    it is not read yet. `joining`: sources whose earlier rows are being read.
    """

    rows: int = 0
    batches: int = 0
    tables: int = 0
    scns: Mapping[str, int] = field(default_factory=dict)
    newest_scns: Mapping[str, int] = field(default_factory=dict)
    lag_s: float | None = None
    restarts: int = 0
    reloads: int = 0
    stopped: Mapping[str, str] = field(default_factory=dict)
    aside: Mapping[str, str] = field(default_factory=dict)
    retried: Mapping[str, str] = field(default_factory=dict)
    reloading: Mapping[str, str] = field(default_factory=dict)
    waiting: Mapping[str, str] = field(default_factory=dict)
    joining: Sequence[str] = ()


Report = Callable[[TablesProgress], None]


def sync_tables(
    spark: SparkSession,
    sources: Sequence[str],
    target: str,
    *,
    relays: Sequence[str],
    bootstrap_servers: Sequence[str] = (),
    checkpoint: str,
    mode: str | None = None,
    available_now: bool = False,
    every_s: float = 1.0,
    on_schema_change: str = "reload",
    reload: Sequence[str] = (),
    options: Mapping[str, str] | None = None,
    most_restarts: int = MOST_RESTARTS,
    stop: threading.Event | None = None,
    report: Report = lambda _: None,
) -> TablesProgress:
    """Follow tables until `stop` is set, or with `available_now` up to the newest change.

    `sources`: names and patterns (`shop.*`, `!shop.tmp_*`). `target` has `{table}`, and
    `{schema}` if the tables are of several schemas: `delta:lake/{schema}/{table}`.
    `checkpoint` is a folder for this job only. `mode` is that of `open_target`.
    `on_schema_change`: what to do where a target cannot follow a change of columns: read the
    table again (`reload`; it needs bootstrap servers), or set it aside (`aside`). `reload`:
    names and patterns of tables whose rows are read again first; of those set aside, too.

    Raises ConsumerError if the query fails for a reason that a restart cannot fix, or
    `most_restarts` times without a batch in between, and if all tables are set aside;
    SettingsError for wrong arguments.
    """
    need_own_driver(spark, "sync")
    register(spark)
    target_of(target, "schema.table")
    if on_schema_change not in ("reload", "aside"):
        raise SettingsError(f"on_schema_change = {on_schema_change}: it is reload or aside")
    given = {
        **stream_options(sources, relays, bootstrap_servers, options),
        "layout": "events",
        "newSources": "beginning" if bootstrap_servers else "here",
    }
    trigger = trigger_of(available_now, every_s)
    job = _Job(spark, target, given, checkpoint, trigger, stop or threading.Event(), report)
    restarts = Restarts(most_restarts, BackOff(BackOffSettings(), Random()))
    with (
        closing(SchemaBook(job.options)) as book,
        closing(job.tables(book, reloads=on_schema_change == "reload", mode=mode)) as tables,
    ):
        return job.run(tables, restarts, reload)


def stream_options(
    sources: Sequence[str],
    relays: Sequence[str],
    bootstrap_servers: Sequence[str],
    more: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """Return the options of a job's stream; raises SettingsError for those that it sets itself."""
    for name in more or ():
        if name.lower() in _SET:
            raise SettingsError(f"option {name}: a job sets it itself; leave it out")
    return {
        **(more or {}),
        "mode": "changes",
        "sources": ",".join(sources),
        "relays": ",".join(relays),
        "bootstrapServers": ",".join(bootstrap_servers),
    }


def start_options(scn: int, mark: tuple[int, int] | None) -> dict[str, str]:
    """Return the options of a stream that has no checkpoint, and goes on where its targets are.

    `mark`: a window of their log; SCN 0: they are not complete as of any.
    """
    if not scn:
        return {"start": Word.BEGINNING}
    proof = {} if mark is None else {"startMark": f"{mark[0]},{mark[1]}"}
    return {"start": str(scn), **proof}


def trigger_of(available_now: bool, every_s: float) -> dict[str, Any]:
    """Return the trigger of a job's queries, as the arguments of Spark's `trigger`."""
    return {"availableNow": True} if available_now else {"processingTime": f"{every_s} seconds"}


class _Job:
    """The queries of one checkpoint, one after another."""

    def __init__(
        self,
        spark: SparkSession,
        template: str,
        given: Mapping[str, str],
        checkpoint: str,
        trigger: Mapping[str, Any],
        stop: threading.Event,
        report: Report,
    ) -> None:
        self.options: SourceOptions = parse_options(given)
        self.folder = CheckpointFolder(spark, checkpoint)
        self.notes = TableNotes(self.folder)
        self.stop = stop
        self._spark = spark
        self._template = template
        self._given = given
        self._trigger = trigger
        self._report = report
        self._progress = TablesProgress()

    def tables(self, book: SchemaBook, *, reloads: bool, mode: str | None) -> SyncedTables:
        """Return the targets of this job."""
        return SyncedTables(
            self._spark,
            self._template,
            book,
            self.notes,
            given=self._given,
            reloads=reloads,
            stop=self.stop,
            homes=self.homes,
            mode=mode,
        )

    def run(
        self, tables: SyncedTables, restarts: Restarts, reload: Sequence[str]
    ) -> TablesProgress:
        """Run queries until one ends normally or `stop` is set."""
        again, is_checked = list(reload), False
        tables.resume_reloads()
        while not self.stop.is_set():
            try:
                if again:
                    tables.read_again(chosen_sources(again, self.homes()))
                    again.clear()
                if not is_checked:
                    self._check_targets(tables)
                    is_checked = True
                self._follow(self._start(tables, restarts), tables)
                self._await_reloads(tables)
            except StoppedError:
                break
            except JOB_FAILURES as error:
                if self.stop.is_set():
                    break
                self._check_aside(tables)
                scn = max(self._progress.scns.values(), default=0)
                wait_s = restarts.wait_s(error, ",".join(self.options.sources), scn)
                self._progress = replace(self._progress, restarts=self._progress.restarts + 1)
                self.stop.wait(wait_s)
                continue
            break
        self._show(tables)
        self._check_aside(tables)
        return self._progress

    def _start(self, tables: SyncedTables, restarts: Restarts) -> StreamingQuery:
        def apply(batch: DataFrame, batch_id: int) -> None:
            tables.apply(batch, batch_id)
            restarts.progressed()

        stream = self._spark.readStream.format("databus").options(**self._given)
        writer = stream.options(**self._begin(tables)).load().writeStream.foreachBatch(apply)
        folder = self.folder.path
        return writer.option("checkpointLocation", folder).trigger(**self._trigger).start()

    def _check_targets(self, tables: SyncedTables) -> None:
        """Look at the targets of all tables that are followed, which may take long."""
        is_followed = NamePatterns(self.options.sources).match
        with ThreadPoolExecutor(1) as pool:
            checked = pool.submit(tables.check_targets, is_followed)
            while not wait([checked], LOOK_S).done:
                self._show(tables)
            checked.result()

    def _begin(self, tables: SyncedTables) -> Mapping[str, str]:
        """Return the start without a checkpoint: where all targets are, or `beginning`."""
        if self.folder.has_planned():
            return start_options(0, None)
        homes = self.homes()
        found = [tables.commit_log(source) for source in homes]
        logs = [one for one in found if one is not None]  # others are set aside
        physical, *others = {*homes.values()} or {""}
        if others:
            return start_options(0, None)
        # A target that was loaded is followed from there; a missing one has no position.
        scns = (one.positions().get(physical, 0) for one in logs)
        marks = (mark for one in logs if (mark := one.mark(physical)) is not None)
        return start_options(min(scns, default=0), max(marks, default=None))

    def homes(self) -> dict[str, str]:
        """Return the physical source of each source."""
        with closing(make_measure_client(self.options)) as client:
            return {one: name for name, of in client.by_physical.items() for one in of}

    def _follow(self, query: StreamingQuery, tables: SyncedTables) -> None:
        looks = 0
        try:
            while not query.awaitTermination(LOOK_S):
                self._show(tables, query)
                self._check_aside(tables)
                if self.stop.is_set():
                    break
                looks += 1
                if looks % CHECK_EVERY == 0:
                    self._look_at_schemas(tables)
            self._show(tables, query)
            if not self.stop.is_set():
                self._look_at_schemas(tables)
        finally:
            query.stop()

    def _await_reloads(self, tables: SyncedTables) -> None:
        """Wait for reloads, which go on beside the query; after it, if it ends by itself."""
        while tables.is_reloading() and not self.stop.wait(LOOK_S):
            self._show(tables)

    def _look_at_schemas(self, tables: SyncedTables) -> None:
        joining = self._progress.joining
        try:
            tables.look_at_schemas({} if joining else self._progress.scns)
        except DatabusError as error:
            # The query says so, too, and is restarted then.
            log.debug("the schemas could not be asked for: %s", error)

    def _check_aside(self, tables: SyncedTables) -> None:
        """Raise ConsumerError if no table is left that rows go to."""
        aside = tables.state.aside
        # Tables without rows so far are not known to the targets: asked for only if it matters.
        if len(aside) >= tables.state.tables and aside and not self._is_any_left(aside):
            source, why = next(iter(aside.items()))
            more = f" (and {len(aside) - 1} more tables)" if len(aside) > 1 else ""
            raise ConsumerError(
                max(self.notes.now.taken.values(), default=0), f"{source}: {why}{more}"
            )

    def _is_any_left(self, aside: Mapping[str, str]) -> bool:
        """Return whether a source is not set aside, or may not be: no relay tells the sources."""
        try:
            return bool(self.homes().keys() - aside.keys())
        except DatabusError as error:
            log.debug("the sources could not be asked for: %s", error)
            return True

    def _show(self, tables: SyncedTables, query: StreamingQuery | None = None) -> None:
        state = tables.state
        self._progress = replace(
            self._progress,
            rows=state.rows,
            batches=state.batches,
            tables=state.tables,
            reloads=state.reloads,
            aside=dict(state.aside),
            retried=dict(state.retried),
            reloading=dict(state.reloading),
        )
        last = None if query is None else query.lastProgress
        if last is not None:
            self._progress = _with_places(self._progress, json.loads(last.json))
        self._report(self._progress)


def _with_places(progress: TablesProgress, last: Mapping[str, Any]) -> TablesProgress:
    """Return the progress with what Spark says of the query's last batch."""
    stats = batch_stats(last)
    if stats is None:
        return progress
    (source,) = last["sources"]
    end, latest = offset_of(source.get("endOffset")), offset_of(source.get("latestOffset"))
    return replace(
        progress,
        scns=stats.scns,
        newest_scns=stats.newest_scns,
        lag_s=stats.lag_s,
        stopped=stats.stopped,
        joining=tuple((end or {}).get("joining", {})),
        waiting=dict((latest or {}).get("waiting", {})),
    )
