"""Copy a table into a target, in chunks; a killed load can be resumed.

A load copies the table as of one SCN. Each chunk is one commit, which also records the
chunk's number. A killed load that is started again with the same arguments continues
with the next chunk, as of the same SCN. It begins anew if the table has other columns by
then, as rows with both would be taken for those of one moment, or if something else was
applied meanwhile. After the last chunk, rows of the target that no chunk had are removed, and
the target's position becomes the load's SCN: `verify` compares from there, and `sync`
continues from there.

With `again`, and after a load that was not completed, the rows of a mirror lose their SCNs first,
as these may be of another source, or of a log that the source had before: so the chunks replace
rows of any SCN. Else a load as of an SCN that the target is past is refused. With `again`, keys
that have several rows in a mirror lose all of them first, and the chunks bring the one that the
source has.

A load also records its plan in the target's commit log, as batch numbers of app ids: the
SCN (`<job>:scn`) and how the table was split (`<job>@<SCN>:…`). It makes all plans before it
void: their numbers become -1.
"""

from __future__ import annotations

import hashlib
import json
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from pathlib import Path
from uuid import uuid4

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession, functions as sf

from databus.client.spark import register
from databus.client.spark.arrow.row_keys import quoted
from databus.client.spark.arrow.row_types import (
    CHANGE_COLUMN,
    arrow_schema,
    changes_schema,
    choose_columns,
)
from databus.client.spark.consuming.apply import apply_changes
from databus.client.spark.consuming.restart_policy import SPARK_FAILURES, read_failure
from databus.client.spark.jobs.duplicates import remove_duplicates
from databus.client.spark.jobs.load_source import (
    BootstrapLoadSource,
    Cut,
    DatabaseLoadSource,
    LoadSource,
    primary_key,
)
from databus.client.spark.targets.changes import META, SCN, Changes, check_names
from databus.client.spark.targets.commit_log import PART, mark_notes
from databus.client.spark.targets.following import shape_note, widen
from databus.client.spark.targets.reshaping import find
from databus.client.spark.targets.target import Target, check_same_source, open_target
from databus.client.sql.modes import WriteMode
from databus.schemas.errors import (
    BootstrapTooOldError,
    IncompatibleSchemaError,
    ReadAgainError,
    SettingsError,
)

log = logging.getLogger(__name__)

# Rows of a chunk, which the driver holds in memory.
CHUNK_ROWS = 500_000
_PLANS = "load"  # the app of the commits that note a plan
_VOID = -1  # the number of what was noted for a plan that does not count any more


@dataclass(frozen=True, slots=True)
class LoadProgress:
    """The progress of a load. `estimate`: estimated total rows, 0 if not known."""

    source: str
    rows: int
    estimate: int
    rows_per_s: float
    chunk: int
    chunks: int
    is_done: bool = False


@dataclass(frozen=True, slots=True)
class Loaded:
    """The result of a load. `skipped`: chunks that an earlier start had written.

    `only_there`: columns that the target has and the table does not, such as a renamed column's
    earlier name. The load has not touched them.
    """

    source: str
    target: str
    scn: int
    rows: int
    chunks: int
    skipped: int
    only_there: tuple[str, ...] = ()


Report = Callable[[LoadProgress], None]


def load(
    spark: SparkSession,
    source: str,
    target: str,
    *,
    bootstrap_servers: Sequence[str] = (),
    settings: Path | None = None,
    columns: Sequence[str] = (),
    where: str = "",
    as_of: int | None = None,
    partitions: int | None = None,
    chunk_rows: int = CHUNK_ROWS,
    again: bool = False,
    mode: str | None = None,
    least_scn: int = 0,
    alone: bool = False,
    options: Mapping[str, str] | None = None,
    report: Report = lambda _: None,
) -> Loaded:
    """Copy a table into a target; return when the copy is complete.

    Rows come from the bootstrap servers, as of an SCN, or with `settings` (a relay's)
    from the database. `columns` must include the key; `where` is a condition in Spark
    SQL. A killed load is resumed, unless `again` is set. `options` are more options of
    `format("databus")`, such as `tokenFile`. `mode`: what the target holds, as in `open_target`.
    `alone`: the target is for this load only, so what another one left in it is removed first.

    A load without `as_of` begins again, as of a newer SCN, if the table is emptied or altered
    meanwhile, or the servers' log no longer reaches back.

    Raises BootstrapTooOldError if the source is not at `least_scn` yet, or not where the target
    is; DatabusError; SettingsError for wrong arguments.
    """
    register(spark)
    more = dict(options or {})
    load_source = _load_source(spark, source, bootstrap_servers, settings, as_of, partitions, more)
    opened = open_target(target, mode=mode)
    # With `again`, the load must not look like one that is already finished.
    once = [uuid4().hex] if again else []
    arguments = (source, target, columns, where, as_of, settings is not None, *once)
    try:
        if not again or opened.mode is not WriteMode.MIRROR:
            check_same_source(opened, source)
        job = _Job(opened, load_source, columns, where, arguments, report, alone=alone)
        run = partial(job.run, chunk_rows, again=spark if again else None)
        return run(least_scn) if as_of is not None else _until_read(run, job, least_scn)
    finally:
        opened.close()


def _until_read(run: Callable[[int], Loaded], job: _Job, least_scn: int) -> Loaded:
    """Run a load again as of a newer SCN, as long as the rows of one are not there any more."""
    while True:
        try:
            return run(least_scn)
        except (ReadAgainError, IncompatibleSchemaError, *SPARK_FAILURES) as error:
            failure = read_failure(error)
            if failure.is_a(ReadAgainError):
                # The table was emptied since that SCN, or the log of then is gone.
                least_scn = job.scn + 1
            elif not job.is_altered():
                raise
            log.warning("%s: begins again as of a newer scn: %s", job.source, failure.problem)


def _load_source(
    spark: SparkSession,
    source: str,
    servers: Sequence[str],
    settings: Path | None,
    as_of: int | None,
    partitions: int | None,
    more: Mapping[str, str],
) -> LoadSource:
    if settings is None:
        if not servers:
            raise SettingsError("name a bootstrap server, or load from the database")
        return BootstrapLoadSource(spark, source, servers, more, as_of=as_of, partitions=partitions)
    if as_of is not None:
        raise SettingsError("only bootstrap servers can load as of an SCN, not the database")
    return DatabaseLoadSource(spark, source, settings, more, partitions=partitions)


def _job_id(*arguments: object) -> str:
    """Return an id that is equal for equal arguments."""
    text = json.dumps(arguments, default=list)
    return f"load-{hashlib.blake2b(text.encode(), digest_size=8).hexdigest()}"


class _Job:
    """One load into one target."""

    def __init__(
        self,
        target: Target,
        load_source: LoadSource,
        columns: Sequence[str],
        where: str,
        arguments: Sequence[object],
        report: Report,
        *,
        alone: bool = False,
    ) -> None:
        self._target = target
        self._is_alone = alone
        self._load_source = load_source
        self._where = where
        self._is_part = bool(columns or where)
        self._chosen = columns
        self._arguments = arguments
        self._report = report
        self.source = load_source.source
        self.scn = -1  # as of which rows are read
        self._take_columns()

    def _take_columns(self) -> None:
        """Copy the columns that the source has now; raises SettingsError if they cannot be."""
        target, load_source, columns = self._target, self._load_source, self._chosen
        self._keys = primary_key(load_source)
        self._columns = choose_columns(load_source.columns, columns)
        # With other columns it is another load.
        self._id = _job_id(*self._arguments, self._columns.simpleString(), self._keys)
        lacking = [key for key in self._keys if key not in self._columns.names]
        if lacking:
            raise SettingsError(
                f"{load_source.source}: the key columns {', '.join(lacking)} are missing in columns"
            )
        if self._is_part and target.mode in (WriteMode.SCD2, WriteMode.APPEND_HISTORY):
            raise SettingsError(
                f"{load_source.source}: a target of mode {target.mode} takes the whole table: a "
                "part that it has as of an SCN cannot be told from the whole later. Load it "
                "without --where and --columns, or into a target of mode mirror or soft_delete"
            )
        # With a condition all columns are read: only Spark knows which ones it uses.
        read = load_source.columns.names if self._where else self._columns.names
        check_names(read, target.mode, load_source.source)
        self._read_columns = [] if self._where or not columns else self._columns.names

    def is_altered(self) -> bool:
        """Return whether the table has other columns now; these are copied from here on."""
        if is_altered := self._load_source.look_again():
            self._take_columns()
        return is_altered

    def _begun(
        self, chunk_rows: int, least_scn: int, again: SparkSession | None
    ) -> tuple[int, Cut]:
        """Begin anew; return SCN and cut."""
        source, physical = self.source, self._load_source.physical_source
        scn = self._load_source.begin()
        while self.is_altered():
            # As of an SCN before that, the rows had other columns than were read.
            scn = self._load_source.begin()
        if scn < least_scn:
            raise BootstrapTooOldError(
                f"{source} is at scn {scn} and {least_scn} is needed; ask again later"
            )
        if self._is_alone:
            # Its columns and types may be those of before an ALTER.
            self._target.remove()
        if again is None or self._target.mode is not WriteMode.MIRROR:
            check_not_past(self._target, physical, source, scn)
        cut = self._load_source.cut(scn, chunk_rows)
        is_there = self._target.schema() is not None
        # What a job writes meanwhile must not be replaced by what was before it, so the SCNs of the
        # rows are kept where they are of the log of this one.
        is_proved = again is None and self._target.positions().get(physical, 0) > 0
        self._note_plan(scn, cut, also_scn=not is_proved)
        if again is not None and is_there:
            # Behind the plan: from there on the target is known to be incomplete.
            remove_duplicates(again, self._target, source, physical, scn)
        return scn, cut

    def run(self, chunk_rows: int, least_scn: int, *, again: SparkSession | None = None) -> Loaded:
        """Write the chunks that are not written yet.

        `again`: the session with which rows are looked for that have the key of another one.
        """
        scn, cut = self._resumed()
        if scn is None or scn < least_scn:
            scn, cut = self._begun(chunk_rows, least_scn, again)
        self.scn = scn
        app = f"{self._id}@{scn}"
        last = self._target.applied(app)
        done = -1 if last is None else last
        skipped = min(done + 1, cut.chunks)
        # Only the chunks that are left count for the rate and the estimate.
        counter = _RateCounter(
            self._load_source.source, self._load_source.estimate_rows(), cut.chunks, skipped
        )
        for number in range(skipped, cut.chunks):
            chunk = self._chunk(scn, cut, number)
            applied = apply_changes(chunk, number, self._target, keys=self._keys, app_id=app)
            self._report(counter.after_chunk(applied.upserts))
        # Also for a table that already follows its source: its columns are now those of `scn`.
        self._target.apply(shape_note(self._load_source.source), scn, self._nothing())
        commit_log = self._target.commit_log()
        notes = commit_log.not_past(self.source, scn)
        if commit_log.is_part(self.source) and not self._is_part:
            notes[f"{PART}{self.source}"] = 0
        self._target.apply(app, cut.chunks, replace(self._end(scn), notes=notes))
        self._report(counter.end())
        source, uri = self._load_source.source, self._target.uri
        return Loaded(source, uri, scn, counter.rows, cut.chunks, skipped, self._only_there())

    def _only_there(self) -> tuple[str, ...]:
        held = self._target.schema()
        if held is None or self._chosen:
            return ()
        known = dict.fromkeys(self._columns.names)
        names = (name for name in held.names if not name.lower().startswith(META))
        return tuple(name for name in names if find(known, name) is None)

    # The target's commit log

    def _resumed(self) -> tuple[int | None, Cut]:
        """Return SCN and cut of an unfinished load; the SCN is None if there is none."""
        commit_log = self._target.commit_log()
        scn = commit_log.applied(f"{self._id}:scn")
        position = commit_log.positions().get(self._load_source.physical_source, 0)
        if scn is None or scn == _VOID or position:
            return None, Cut()
        app = f"{self._id}@{scn}"
        noted = {one.name: commit_log.applied(f"{app}:{one.name}") for one in fields(Cut)}
        cut = Cut(**{name: number for name, number in noted.items() if number is not None})
        last = commit_log.applied(app)
        return (None, Cut()) if last is not None and last >= cut.chunks else (scn, cut)

    def _note_plan(self, scn: int, cut: Cut, *, also_scn: bool) -> None:
        """Note what is loaded; until it is done the target's position is 0."""
        # Also a commit without rows has the types of the columns.
        widen(self._target, self._table([]), self._keys)
        # First, as the rows of the plans before it are not proven any more from here on.
        self._note({})
        # Another load may have been as of the same SCN, with another condition; and the SCNs of
        # the rows may be of another log, in which the same number is older, or newer.
        self._target.forget_as_of(self.source, also_scn=also_scn)
        parts = asdict(cut).items()
        plan = {f"{self._id}@{scn}:{name}": number for name, number in parts}
        self._note({f"{self._id}:scn": scn} | plan)

    def _note(self, plan: Mapping[str, int]) -> None:
        """Note a plan, and make all others void."""
        commit_log = self._target.commit_log()
        # The log is proved anew by the batches that follow the load.
        notes = mark_notes({self._load_source.physical_source: None})
        notes |= commit_log.noted(dict.fromkeys(commit_log.apps("load-"), _VOID) | dict(plan))
        if self._is_part:
            notes[f"{PART}{self.source}"] = 1
        # From here on the rows are this source's: with `again` they may have been another's.
        own = replace(self._nothing(), source=self.source, notes=notes)
        last = commit_log.applied(_PLANS)
        self._target.apply(_PLANS, 0 if last is None else last + 1, own)

    # Changes

    def _chunk(self, scn: int, cut: Cut, number: int) -> DataFrame:
        rows = self._load_source.chunk(scn, cut, number, self._read_columns)
        if self._where:
            rows = rows.where(self._where)
        names = [sf.col(quoted(name)) for name in self._columns.names]
        load_source = self._load_source
        told = snapshot_meta(sf.col(SCN), scn, load_source.physical_source, load_source.source)
        return rows.select(*names, told.alias(CHANGE_COLUMN))

    def _end(self, scn: int) -> Changes:
        """Return the mark that the snapshot as of the SCN is complete."""
        load_source = self._load_source
        mark = {
            "op": "snapshot_end",
            "scn": scn,
            "as_of": scn,
            "source": load_source.source,
            "physical_source": load_source.physical_source,
        }
        return self._changes([{CHANGE_COLUMN: mark}])

    def _nothing(self) -> Changes:
        return replace(self._changes([]), positions={self._load_source.physical_source: 0})

    def _changes(self, records: list[dict[str, object]]) -> Changes:
        return self._target.changes_of(self._table(records), self._keys)

    def _table(self, records: list[dict[str, object]]) -> pa.Table:
        shape = arrow_schema(
            changes_schema({self._load_source.source: self._columns}, "columns", False)
        )
        return pa.Table.from_pylist(records, schema=shape)


def check_not_past(target: Target, physical_source: str, source: str, scn: int) -> None:
    """Raise BootstrapTooOldError if a target has changes that rows as of an SCN do not have."""
    position = target.positions().get(physical_source, 0)
    if scn >= position:
        return
    replaced = (
        "to replace newer rows with these, give --again, and remove the checkpoint of the job that "
        "follows the target"
        if target.mode is WriteMode.MIRROR
        else f"a target of mode {target.mode} keeps what was, so fill a new one"
    )
    raise BootstrapTooOldError(
        f"{source} can be read as of scn {scn}, and {target.uri} has the changes up to scn "
        f"{position}: ask again later, or for a newer SCN. If the database was replaced or "
        f"restored, or {scn} is what you want: {replaced}"
    )


class _RateCounter:
    """Counts a load's rows, and their rate."""

    def __init__(self, source: str, estimate: int, chunks: int, chunk: int) -> None:
        self.rows = 0
        self._source = source
        self._estimate = estimate * (chunks - chunk) // chunks
        self._chunks = chunks
        self._chunk = chunk
        self._begin_s = time.monotonic()

    def after_chunk(self, rows: int) -> LoadProgress:
        """Return the progress after one more chunk."""
        self.rows += rows
        self._chunk += 1
        return self._now(max(self._estimate, self.rows), is_done=False)

    def end(self) -> LoadProgress:
        """Return the progress at the end."""
        return self._now(self.rows, is_done=True)

    def _now(self, estimate: int, *, is_done: bool) -> LoadProgress:
        rate = self.rows / max(time.monotonic() - self._begin_s, 1e-9)
        return LoadProgress(
            self._source, self.rows, estimate, rate, self._chunk, self._chunks, is_done
        )


def snapshot_meta(scn: Column, as_of: int, physical_source: str, source: str) -> Column:
    """Return the column `_databus` for rows of a complete snapshot as of an SCN."""
    return sf.struct(
        sf.lit("snapshot").alias("op"),
        scn.alias("scn"),
        sf.lit(None).cast("int").alias("index"),
        sf.lit(as_of).cast("bigint").alias("as_of"),
        sf.lit(source).alias("source"),
        sf.lit(physical_source).alias("physical_source"),
    )
