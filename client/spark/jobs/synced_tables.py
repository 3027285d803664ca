"""The targets of one job, by source: each batch is applied to all of them, side by side.

A failure that passes (a database that is away) is tried again for ever: the batch
waits. Any other failure sets its table aside, with the reason, and the others go on;
its target stays as it is until its rows are read again. A change of columns that the
target cannot follow is such a failure, unless the job reads the rows again by itself.
That is done beside the batches (`reload`), which pass such a table over until then.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from random import Random
from typing import TypeVar
from uuid import uuid4

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession, functions as sf

from databus.client.machines.backoff import BackOff
from databus.client.spark.arrow.event_rows import EVENT
from databus.client.spark.arrow.row_types import CHANGE_COLUMN
from databus.client.spark.consuming.apply import apply_changes
from databus.client.spark.consuming.apply_events import (
    apply_events,
    by_source,
    look_at,
    newest_scns,
)
from databus.client.spark.consuming.restart_policy import (
    SPARK_ERRORS,
    has_spark,
    passes,
    read_failure,
    text_of,
)
from databus.client.spark.consuming.schema_book import SchemaBook
from databus.client.spark.consuming.split import of_source, versions_in
from databus.client.spark.consuming.table_notes import (
    NO_BATCH,
    TableNote,
    TableNotes,
    check_as_left,
)
from databus.client.spark.jobs.reload import Reload, Reloader, keeps_all
from databus.client.spark.jobs.target_template import one_target, target_of
from databus.client.spark.options import parse_options
from databus.client.spark.targets.commit_log import CommitLog, mark_notes
from databus.client.spark.targets.executors import persisted
from databus.client.spark.targets.target import (
    Applied,
    Target,
    check_whole,
    merges_on_executors,
    open_target,
)
from databus.conf.settings import BackOffSettings
from databus.schemas.errors import (
    DatabusError,
    IncompatibleSchemaError,
    ReadAgainError,
    ReloadNeededError,
)

log = logging.getLogger(__name__)

SIDE_BY_SIDE = 4
RELOADS = 2  # at once; each takes half of Spark's tasks
_LOOK_S = 1.0  # how soon a wait sees that the job is to end
_Done = TypeVar("_Done")
# Applies the rows of one source to its target, for an app id.
Part = Callable[[Target, str], Applied]
Parts = Mapping[str, Part]
_NOTING = threading.Lock()


class StoppedError(Exception):
    """The job was told to stop while a batch was applied; Spark repeats the batch."""


def _is_of_the_query(error: Exception) -> bool:
    # A JVM that has ended refuses connections, and what it was asked ends in any error.
    if isinstance(error, (OSError, *SPARK_ERRORS)) and not has_spark():
        return True
    return isinstance(error, SPARK_ERRORS) and read_failure(error).kind is None


@dataclass(slots=True)
class TablesState:
    """What is shown of the tables; `aside`, `retried`, `reloading` by source, with the reason."""

    rows: int = 0
    batches: int = 0
    reloads: int = 0
    tables: int = 0
    aside: dict[str, str] = field(default_factory=dict)
    retried: dict[str, str] = field(default_factory=dict)
    reloading: dict[str, str] = field(default_factory=dict)

    @property
    def passed_over(self) -> set[str]:
        """The tables to whose targets no rows of batches go just now."""
        return {*self.aside, *self.reloading}


class SyncedTables:
    """Applies the batches of one checkpoint.

    `given`: the options of its stream. `homes` returns the physical source of each source.
    `mode`: what the targets hold, as in `open_target`.
    """

    def __init__(
        self,
        spark: SparkSession,
        template: str,
        book: SchemaBook,
        notes: TableNotes,
        *,
        given: Mapping[str, str],
        reloads: bool,
        stop: threading.Event,
        homes: Callable[[], Mapping[str, str]],
        mode: str | None = None,
    ) -> None:
        self._spark = spark
        self._template = template
        self._book = book
        self._notes = notes
        options = parse_options(given)
        self._has_servers = bool(options.bootstrap_servers)
        self._reloads = reloads and self._has_servers
        self._as_text = options.columns_as_text
        self._stop = stop
        self._has_ended = threading.Event()
        self._folder = notes.folder
        self._known_app: str | None = None
        self._homes = homes
        self._targets: dict[str, Target] = {}
        # Sources with filters of the job, or whose targets are known not to have a part only.
        self._not_parts = {*options.filters}
        self._mode = mode
        self._on_executors = merges_on_executors(target_of(template, "a.b"))
        # One batch or one look at a time; the threads of a batch change different tables.
        self._busy = threading.RLock()
        self._reloader = Reloader(spark, given, book, self._taken, lambda: self._busy)
        self._pool = ThreadPoolExecutor(RELOADS)
        self._tag = f"databus-reload-{uuid4().hex}"
        self._running: dict[str, Future[None]] = {}
        self.state = TablesState(tables=len(notes.now.tables))
        self.state.aside |= {s: one.aside for s, one in notes.now.tables.items() if one.aside}
        for source, why in self.state.aside.items():
            log.warning("%s: still set aside (--reload %s): %s", source, source, why)
        self.state.reloading |= {s: one.reload for s, one in notes.now.tables.items() if one.reload}

    def close(self) -> None:
        """End reloads where they are, and close the targets."""
        self._has_ended.set()
        if any(not one.done() for one in self._running.values()):
            self._spark.interruptTag(self._tag)
        self._pool.shutdown()
        for target in self._targets.values():
            target.close()

    def target(self, source: str) -> Target:
        """Return the target of a source; raises SettingsError."""
        if source not in self._targets:
            uri = target_of(self._template, source)
            # Not those of the targets, which hide passwords.
            known = tuple(self._targets)  # other threads open targets, too
            others = (name for name in known if target_of(self._template, name) == uri)
            if (other := next(others, None)) is not None:
                raise one_target(self._template, source, other)
            self._targets[source] = open_target(uri, mode=self._mode)
        return self._targets[source]

    def commit_log(self, source: str) -> CommitLog | None:
        """Return the commit log of a target; None if its table is set aside.

        Waits for a target that is out of reach. Raises StoppedError.
        """

        def ask() -> CommitLog:
            self._check_whole(source)
            return self.target(source).commit_log()

        return self._guarded(source, ask)

    def apply(self, batch: DataFrame, batch_id: int) -> None:
        """Apply a batch to the targets, and record it. Raises StoppedError; Spark's errors."""
        with self._busy:
            if not self._on_executors:
                self._apply_parts(batch_id, *self._collected(batch, batch_id))
                return
            with persisted(batch.select(EVENT, CHANGE_COLUMN)) as kept:
                self._apply_parts(batch_id, *self._on_tasks(kept, batch_id))

    def _collected(self, batch: DataFrame, batch_id: int) -> tuple[Parts, dict[str, int]]:
        """Return how the part of each source is applied, collected on the driver; and the SCNs."""
        events = batch.select(EVENT, CHANGE_COLUMN).toArrow()

        def apply(rows: pa.Table, target: Target, app: str) -> Applied:
            return apply_events(
                rows, batch_id, target, self._book, app_id=app, as_text=self._as_text
            )

        parts = {source: partial(apply, rows) for source, rows in by_source(events).items()}
        return parts, newest_scns(events)

    def _on_tasks(self, batch: DataFrame, batch_id: int) -> tuple[Parts, dict[str, int]]:
        """Return the same for parts that stay on the executors."""
        used = versions_in(batch)

        def apply(source: str, target: Target, app: str) -> Applied:
            changes = of_source(batch, source, used[source], self._book, self._as_text)
            try:
                return apply_changes(changes, batch_id, target, app_id=app)
            except SPARK_ERRORS as error:
                if read_failure(error).is_a(ReadAgainError):
                    # With a lost executor's blocks, which may have newer versions now.
                    used.update(versions_in(batch))
                raise

        told = sf.col(CHANGE_COLUMN)
        newest = sf.max(sf.greatest(told["scn"], told["as_of"]))
        scns = batch.groupBy(told["physical_source"]).agg(newest).collect()
        return {source: partial(apply, source) for source in sorted(used)}, dict(map(tuple, scns))

    def _apply_parts(self, batch_id: int, parts: Parts, scns: Mapping[str, int]) -> None:
        passed_over, marks = self.state.passed_over, mark_notes(self._folder.marks_at(batch_id))
        parts = {source: one for source, one in parts.items() if source not in passed_over}
        with ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
            apply_one = partial(self._apply_one, scns=scns, marks=marks)
            done = [pool.submit(apply_one, name, part) for name, part in parts.items()]
        for one in done:
            applied = one.result()
            self.state.rows += applied.upserts + applied.deletes
        with _NOTING:
            self._notes.now = self._notes.now.with_taken(scns)
        self._notes.write()
        self.state.batches += 1
        self.state.tables = len(self._notes.now.tables)

    def check_targets(self, is_followed: Callable[[str], bool]) -> None:
        """Set tables aside whose targets are not as the job left them, though no row may come.

        Waits for a target that is out of reach. Raises StoppedError; Spark's errors.
        """
        with self._busy, ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
            others = self._notes.now.tables.keys() - self.state.passed_over
            done = [
                pool.submit(self._guarded, source, partial(self._check_as_left, source))
                for source in sorted(filter(is_followed, others))
            ]
        for one in done:
            one.result()
        self._notes.write()

    def read_again(self, sources: Iterable[str]) -> None:
        """Begin to read all rows of sources again, also of those that are set aside.

        Raises ReloadNeededError without bootstrap servers.
        """
        with self._busy:
            for source in sources:
                if not self._has_servers:
                    raise ReloadNeededError(
                        f"{source}: name bootstrap servers to read its rows again"
                    )
                if source not in self.state.reloading:
                    self._begin_reload(source, "asked for")
            self._notes.write()

    def resume_reloads(self) -> None:
        """Go on with what an earlier start of the job was reading again."""
        for source in tuple(self.state.reloading):
            self._submit(source)

    def is_reloading(self) -> bool:
        """Return whether rows of a table are being read again."""
        return any(not one.done() for one in self._running.values())

    def look_at_schemas(self, scns: Mapping[str, int]) -> None:
        """Follow new schema versions although no row does. Raises DatabusError.

        `scns`: up to where all changes were applied, by physical source.
        """
        passed_over = self.state.passed_over
        followed = [source for source in self._targets if source not in passed_over]
        if not followed:
            return
        self._book.look_again(followed)
        homes = self._homes()
        with self._busy:
            for source in followed:
                if (home := homes.get(source)) is not None:
                    scn = scns.get(home, -1)
                    self._guarded(source, partial(self._look_at, source, home, scn))
            self._notes.write()

    @property
    def _app(self) -> str | None:
        """The id of the query, under which targets record batches; None before its first start."""
        # Read once: it is in a file, which may be far away, and is needed for each table.
        self._known_app = self._known_app or self._folder.query_id()
        return self._known_app

    # One table

    def _apply_one(
        self, source: str, part: Part, scns: Mapping[str, int], marks: Mapping[str, int]
    ) -> Applied:
        def attempt() -> Applied:
            self._check_as_left(source)
            app = self._app
            assert app is not None, "Spark has named the query before its first batch"
            try:
                with self.target(source).noting(marks):
                    applied = part(self.target(source), app)
            except (ReloadNeededError, IncompatibleSchemaError, *SPARK_ERRORS) as error:
                why = _reload_needed(error, self.target(source))
                if why is None or not self._reloads:
                    raise
                # The change of columns is in this batch, or before it.
                self._begin_reload(source, why, scns.get(self._homes()[source], 0))
                return Applied()
            last = self.target(source).applied(app)
            self._note(source, NO_BATCH if last is None else last)
            return applied

        return self._guarded(source, attempt) or Applied()

    def _look_at(self, source: str, physical: str, scn: int) -> None:
        target, versions = self.target(source), self._book.versions(source)
        try:
            look_at(target, source, versions, physical, scn, self._as_text)
        except (ReloadNeededError, IncompatibleSchemaError) as error:
            why = _reload_needed(error, target)
            if why is None or not self._reloads:
                raise
            needed = error.scn if isinstance(error, ReloadNeededError) else scn
            self._begin_reload(source, why, needed)

    def _guarded(
        self,
        source: str,
        attempt: Callable[[], _Done],
        ends_query: Callable[[Exception], bool] = _is_of_the_query,
    ) -> _Done | None:
        """Run until it is done; None if the table is set aside.

        Raises StoppedError, and errors of the query itself.
        """
        back_off = BackOff(BackOffSettings(), Random())
        while True:
            try:
                done = attempt()
            except StoppedError:
                raise
            except Exception as error:
                if ends_query(error):
                    raise
                if not passes(error):
                    self._set_aside(source, error)
                    return None
                self.state.retried[source] = text_of(error)
                log.warning("%s: tried again: %s", source, text_of(error))
                if self._is_over_after(back_off.next_s()):
                    raise StoppedError from error
                continue
            self.state.retried.pop(source, None)
            return done

    def _is_over_after(self, wait_s: float) -> bool:
        """Wait; return whether the job ends."""
        end_s = time.monotonic() + wait_s
        while not self._is_over():
            left_s = end_s - time.monotonic()
            if left_s <= 0:
                return False
            self._stop.wait(min(left_s, _LOOK_S))
        return True

    def _is_over(self) -> bool:
        return self._stop.is_set() or self._has_ended.is_set()

    def _set_aside(self, source: str, error: Exception) -> None:
        is_read = isinstance(error, (DatabusError, *SPARK_ERRORS))
        why = read_failure(error).problem if is_read else f"{error!r}"
        log.error("%s: set aside: %s", source, why, exc_info=not isinstance(error, DatabusError))
        self.state.retried.pop(source, None)
        self.state.reloading.pop(source, None)
        self.state.aside[source] = why
        self._put_note(source, lambda note: replace(note, aside=why, reload=""))

    def _check_as_left(self, source: str) -> None:
        note = self._notes.now.tables.get(source)
        if note is not None and note.batch != NO_BATCH:
            check_as_left(note, self._notes.path, source, self.target(source), self._app)
        self._check_whole(source)

    def _check_whole(self, source: str) -> None:
        if source not in self._not_parts:
            check_whole(self.target(source), source)
            self._not_parts.add(source)

    def _note(self, source: str, batch: int) -> None:
        uri = self.target(source).uri
        self._put_note(source, lambda note: replace(note, target=uri, batch=batch))

    def _put_note(self, source: str, change: Callable[[TableNote], TableNote]) -> None:
        with _NOTING:
            found = self._notes.now.tables.get(source, TableNote(""))
            self._notes.now = self._notes.now.with_table(source, change(found))

    # Reloads

    def _taken(self, physical: str) -> int:
        return self._notes.now.taken.get(physical, 0)

    def _begin_reload(self, source: str, why: str, least_scn: int = 0) -> None:
        """Pass the table over from now on, and read its rows again beside the batches."""
        log.warning("%s: all rows are read again: %s", source, why)
        self._put_note(
            source, lambda note: replace(note, aside="", reload=why, least_scn=least_scn)
        )
        self.state.aside.pop(source, None)
        self.state.reloading[source] = why
        self._submit(source)

    def _submit(self, source: str) -> None:
        self._running[source] = self._pool.submit(self._reload, source, self._running.get(source))

    def _reload(self, source: str, before: Future[None] | None) -> None:
        """Read a table's rows again until that is done, it is set aside, or the job ends.

        `before`: the reload before this one, which may be at its very end.
        """
        self._spark.addTag(self._tag)
        if before is not None:
            wait([before])
        with suppress(StoppedError):
            # A failure of Spark does not end this thread: it is tried again, like a target's.
            self._guarded(source, partial(self._reload_once, source), lambda _: False)
        with self._busy:
            self._notes.write()

    def _reload_once(self, source: str) -> None:
        note, target = self._notes.now.tables[source], self.target(source)

        def show(how_far: str) -> None:
            if self._is_over():
                raise StoppedError
            self.state.reloading[source] = f"{note.reload} ({how_far})"

        def done() -> None:
            app = self._app
            last = None if app is None else target.applied(app)
            batch = NO_BATCH if last is None else last
            self._put_note(source, lambda _: TableNote(target.uri, batch))
            self._notes.write()
            self.state.reloads += 1
            self.state.reloading.pop(source)

        try:
            uri = target_of(self._template, source)
            reload = Reload(source, self._homes()[source], uri, target, note.least_scn)
            self._reloader.run(reload, show, done)
        except Exception as error:
            if self._is_over() or not has_spark():
                # Spark's tasks were interrupted, or it has ended: the next start goes on.
                raise StoppedError from error
            if (why := _reload_needed(error, target)) is not None:
                # The servers do not have its rows in the new columns yet, or they changed again.
                raise ReadAgainError(why) from error
            raise


def _reload_needed(error: Exception, target: Target) -> str | None:
    """Return why rows must be read again, if an error says so; it may come from Spark's tasks."""
    if not isinstance(error, (DatabusError, *SPARK_ERRORS)):
        return None
    failure = read_failure(error)
    # A type that the table cannot hold; one that keeps what was is never filled again.
    is_unfit = failure.is_a(IncompatibleSchemaError) and not keeps_all(target)
    return failure.problem if is_unfit or failure.is_a(ReloadNeededError) else None
