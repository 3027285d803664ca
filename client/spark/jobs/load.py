"""A table, or a query over tables, copied into a target: in chunks, and restartable.

A load is of one SCN. It writes a chunk at a time, and with each, in one commit,
that it has: a load that was killed and is started with the same arguments goes
on with the next chunk, as of the same SCN. When all are written, rows of the
target that no chunk brought are removed, and the target's position is the
load's SCN: `verify` compares from there, and `sync` goes on from there.

What a load notes in the target beside its chunks, as batch numbers of app ids
of its own: the SCN (`<job>:scn`), and how the table was cut (`<job>@<SCN>:…`).
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass, fields, replace
from pathlib import Path
from uuid import uuid4

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession, functions as sf

from databus.client.spark import register
from databus.client.spark.arrow.avro_columns import choose_columns
from databus.client.spark.arrow.row_keys import quoted
from databus.client.spark.arrow.row_types import CHANGE_COLUMN, arrow_schema, changes_schema
from databus.client.spark.consuming.apply import apply_changes
from databus.client.spark.jobs.load_source import (
    BootstrapOrigin,
    Cut,
    DatabaseOrigin,
    Origin,
    primary_key,
)
from databus.client.spark.targets.changes import SCN, Changes, changes_of
from databus.client.spark.targets.following import shape_note
from databus.client.spark.targets.target import Target, check_same_source, open_target
from databus.schemas.errors import BootstrapTooOldError, SettingsError

# Rows of a chunk: they are in the driver's memory together.
CHUNK_ROWS = 500_000


@dataclass(frozen=True, slots=True)
class LoadProgress:
    """How far a load is. `estimate`: rows in all, as far as somebody knows."""

    source: str
    rows: int
    estimate: int
    rows_per_s: float
    chunk: int
    chunks: int
    is_done: bool = False


@dataclass(frozen=True, slots=True)
class Loaded:
    """What a load came to. `skipped`: chunks that an earlier start had written."""

    source: str
    target: str
    scn: int
    rows: int
    chunks: int
    skipped: int


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
    least_scn: int = 0,
    report: Report = lambda _: None,
) -> Loaded:
    """Copy a table into a target; returns when all of it is there.

    From the bootstrap servers, as of an SCN, or with `settings` (a relay's) from
    the database itself. `columns` must have the key's; `where` is a condition in
    Spark SQL. A load that was killed goes on, unless `again` says to begin anew.

    Rows from before `least_scn` are not taken: BootstrapTooOldError then says to wait.

    Raises DatabusError; SettingsError for arguments.
    """
    register(spark)
    origin = _origin(spark, source, bootstrap_servers, settings, as_of, partitions)
    opened = open_target(target)
    arguments = (source, target, columns, where, as_of, settings is not None)
    # A load anew must not be taken for the one that is done, if nothing has changed since.
    job_id = _job_id(*arguments, *([uuid4().hex] if again else []))
    try:
        if not again:
            check_same_source(opened, source)
        return _Job(opened, origin, columns, where, job_id, report).run(chunk_rows, least_scn)
    finally:
        opened.close()


def _origin(
    spark: SparkSession,
    source: str,
    servers: Sequence[str],
    settings: Path | None,
    as_of: int | None,
    partitions: int | None,
) -> Origin:
    if settings is None:
        if not servers:
            raise SettingsError("name a bootstrap server, or load from the database itself")
        return BootstrapOrigin(spark, source, servers, as_of=as_of, partitions=partitions)
    if as_of is not None:
        raise SettingsError("as of an SCN a table is known to bootstrap servers, not its database")
    return DatabaseOrigin(spark, source, settings, partitions=partitions)


def _job_id(*arguments: object) -> str:
    """Return what a load with the same arguments has again."""
    text = json.dumps(arguments, default=list)
    return f"load-{hashlib.blake2b(text.encode(), digest_size=8).hexdigest()}"


class _Job:
    """One load into one target."""

    def __init__(
        self,
        target: Target,
        origin: Origin,
        columns: Sequence[str],
        where: str,
        job_id: str,
        report: Report,
    ) -> None:
        self._target = target
        self._origin = origin
        self._where = where
        self._id = job_id
        self._report = report
        self._keys = primary_key(origin)
        self._columns = choose_columns(origin.columns, columns)
        lacking = [key for key in self._keys if key not in self._columns.names]
        if lacking:
            raise SettingsError(
                f"{origin.source}: columns must have the key's, {', '.join(lacking)} is missing"
            )
        # For a condition all columns are read: which ones it looks at only Spark knows.
        self._read_columns = [] if where or not columns else self._columns.names

    def run(self, chunk_rows: int, least_scn: int) -> Loaded:
        """Write what is not written yet."""
        scn, cut = self._resumed()
        if scn is None or scn < least_scn:
            scn = self._origin.begin()
            if scn < least_scn:
                raise BootstrapTooOldError(
                    f"{self._origin.source} is at scn {scn} and {least_scn} is needed; "
                    "ask again later"
                )
            cut = self._origin.cut(scn, chunk_rows)
            self._note_plan(scn, cut)
        app = f"{self._id}@{scn}"
        last = self._target.applied(app)
        done = -1 if last is None else last
        skipped = min(done + 1, cut.chunks)
        pace = _Pace(self._origin.source, self._origin.estimate_rows(), cut.chunks, skipped)
        for number in range(skipped, cut.chunks):
            chunk = self._chunk(scn, cut, number)
            applied = apply_changes(chunk, number, self._target, keys=self._keys, app_id=app)
            self._report(pace.after_chunk(applied.upserts))
        # Also over a table that follows its source: it has the columns of then now.
        self._target.apply(shape_note(self._origin.source), scn, self._nothing())
        self._target.apply(app, cut.chunks, self._end(scn))
        self._report(pace.end())
        source, uri = self._origin.source, self._target.uri
        return Loaded(source, uri, scn, pace.rows, cut.chunks, skipped)

    # What the target has noted

    def _resumed(self) -> tuple[int | None, Cut]:
        """Return SCN and cut of a load that was begun and not ended; no SCN: there is none."""
        scn = self._target.applied(f"{self._id}:scn")
        if scn is None:
            return None, Cut()
        app = f"{self._id}@{scn}"
        noted = {one.name: self._target.applied(f"{app}:{one.name}") for one in fields(Cut)}
        cut = Cut(**{name: number for name, number in noted.items() if number is not None})
        last = self._target.applied(app)
        return (None, Cut()) if last is not None and last >= cut.chunks else (scn, cut)

    def _note_plan(self, scn: int, cut: Cut) -> None:
        # The SCN last: with it the plan is whole. From then on nothing is known of the
        # target but that it is being loaded: its position is 0.
        nothing = self._nothing()
        for one, number in zip(fields(Cut), astuple(cut), strict=True):
            if number != one.default:
                self._target.apply(f"{self._id}@{scn}:{one.name}", number, nothing)
        # Another load may have been as of the same SCN, with another condition.
        self._target.forget_as_of(self._origin.source)
        # From here on the rows are this source's: a load anew may follow on another's.
        own = replace(nothing, source=self._origin.source)
        self._target.apply(f"{self._id}:scn", scn, own)

    # Changes

    def _chunk(self, scn: int, cut: Cut, number: int) -> DataFrame:
        rows = self._origin.chunk(scn, cut, number, self._read_columns)
        if self._where:
            rows = rows.where(self._where)
        names = [sf.col(quoted(name)) for name in self._columns.names]
        origin = self._origin
        told = snapshot_meta(sf.col(SCN), scn, origin.physical_source, origin.source)
        return rows.select(*names, told.alias(CHANGE_COLUMN))

    def _end(self, scn: int) -> Changes:
        """Return the mark that everything of that SCN is there."""
        origin = self._origin
        mark = {
            "op": "snapshot_end",
            "scn": scn,
            "as_of": scn,
            "source": origin.source,
            "physical_source": origin.physical_source,
        }
        return self._changes([{CHANGE_COLUMN: mark}])

    def _nothing(self) -> Changes:
        return replace(self._changes([]), positions={self._origin.physical_source: 0})

    def _changes(self, records: list[dict[str, object]]) -> Changes:
        shape = arrow_schema(changes_schema({self._origin.source: self._columns}, "columns", False))
        table = pa.Table.from_pylist(records, schema=shape)
        return changes_of(table, self._keys, source_column=self._target.source_column)


class _Pace:
    """Counts a load's rows and time."""

    def __init__(self, source: str, estimate: int, chunks: int, chunk: int) -> None:
        self.rows = 0
        self._source = source
        self._estimate = estimate * (chunks - chunk) // chunks
        self._chunks = chunks
        self._chunk = chunk
        self._begin_s = time.monotonic()

    def after_chunk(self, rows: int) -> LoadProgress:
        """Return how far it is with one chunk more."""
        self.rows += rows
        self._chunk += 1
        return self._now(max(self._estimate, self.rows), is_done=False)

    def end(self) -> LoadProgress:
        """Return how far it is at the end."""
        return self._now(self.rows, is_done=True)

    def _now(self, estimate: int, *, is_done: bool) -> LoadProgress:
        rate = self.rows / max(time.monotonic() - self._begin_s, 1e-9)
        return LoadProgress(
            self._source, self.rows, estimate, rate, self._chunk, self._chunks, is_done
        )


def snapshot_meta(scn: Column, as_of: int, physical_source: str, source: str) -> Column:
    """Return the column `_databus` of rows of a whole snapshot as of an SCN."""
    return sf.struct(
        sf.lit("snapshot").alias("op"),
        scn.alias("scn"),
        sf.lit(None).cast("int").alias("index"),
        sf.lit(as_of).cast("bigint").alias("as_of"),
        sf.lit(source).alias("source"),
        sf.lit(physical_source).alias("physical_source"),
    )
