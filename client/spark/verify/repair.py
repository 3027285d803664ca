"""Repair the rows that a comparison reported.

In the target: rows are read again from the database, as of an SCN up to which
everything was visible, and put into the target as of that SCN. Rows that the stream
has brought since are newer and stay. A row that the target does not have is written
only while the target is not past that SCN, as the row may have been deleted later.

By touching: the current time is written into the source's rows, so that the stream
brings them. A row that only the target has cannot be touched, and is deleted there.

A key that has several rows in a mirror: all of them are deleted first, as of an SCN, and
then the key is repaired like one that the target does not have. Between the two commits the
row is missing, and a repair that is killed there is run again. In a table that keeps what
was, it is not known which of the rows is wrong: these keys are left, and named.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, closing
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.types import StructField, StructType

from databus.client.spark.arrow.row_types import arrow_schema, spark_type
from databus.client.spark.session import job_session
from databus.client.spark.targets.target import Put, Target, open_target
from databus.client.spark.verify.differences import comparer_of
from databus.client.spark.verify.report import (
    Compared,
    OnStep,
    Report,
    Reported,
    Step,
    findings_in,
    keys_of,
    read_report,
    unseen,
)
from databus.client.spark.verify.source_table import (
    Selection,
    SourceTable,
    open_source_table,
    physical_source_of,
    rows_of_keys,
)
from databus.client.spark.verify.table_shape import Key, Row, Shape
from databus.client.spark.verify.target_table import TargetTable, check_holds
from databus.client.spark.verify.verify import Verifier, VerifyOptions, changes_for
from databus.client.sql.modes import WriteMode
from databus.conf.settings import RelaySettings
from databus.schemas.columns.avro_columns import AvroColumn
from databus.schemas.errors import ConsumerError, SettingsError, SourceUnavailableError

KEYS_AT_ONCE = 1000
ATTEMPTS = 20
_POLL_S = 0.1
_NULL_KEYS = (
    "have a null in their key, by which no row can be written or deleted: delete the rows "
    "yourself, or read the table again, databus spark load {source} {target} --again"
)
_SEVERAL_ROWS = (
    "have several current rows in {target}, which is of mode {mode}: it is not known which of "
    "them is wrong, and what the target tells of the past would change with it. Load a new "
    "target, databus spark load {source} NEW_TARGET --mode {mode}, and follow that one"
)


class How(StrEnum):
    """The ways to repair rows."""

    TARGET = "target"  # write them to the target
    TOUCH = "touch"  # update them in the source


@dataclass(frozen=True, slots=True)
class RepairOptions:
    """The options of a repair; `verify`: the options of the comparison afterwards.

    Columns and condition of that are taken from the report.
    """

    how: How = How.TARGET
    touch_column: str = ""
    verify: VerifyOptions = field(default_factory=VerifyOptions)
    patience_s: float = 60.0


class NotMended(NamedTuple):
    """Keys that a repair leaves as they are; `reason` says why, and what to do."""

    keys: Sequence[Key]
    reason: str


@dataclass(slots=True)
class Repaired:
    """The result of a repair. `left`: the comparison of the same rows afterwards.

    `not_mended`: keys that were left as no repair can mend them, and why, with what to do.
    """

    compared: Compared
    how: How
    keys: int = 0
    written: int = 0
    deleted: int = 0
    touched: int = 0
    not_mended: list[NotMended] = field(default_factory=list)
    left: Report | None = None

    @property
    def is_same(self) -> bool:
        """Whether no row differs any more."""
        return self.left is None or self.left.is_same


def _session() -> SparkSession:
    return job_session("databus repair")


def repair(
    report: Path,
    settings: RelaySettings,
    options: RepairOptions = RepairOptions(),
    *,
    spark: SparkSession | None = None,
    start_spark: Callable[[], SparkSession] = _session,
    on_step: OnStep = unseen,
) -> Repaired:
    """Repair the rows in a report, and compare them again.

    `start_spark` is called where no session is given.

    Raises SettingsError for a wrong report or options, SourceError, and ConsumerError
    if the target is past the SCN of the rows at every attempt.
    """
    if (options.how is How.TOUCH) != bool(options.touch_column):
        raise SettingsError("--touch-column goes with --how touch, which needs it")
    reported = read_report(report)
    with ExitStack() as stack:
        table = stack.enter_context(_source_of(settings, reported))
        target = open_target(reported.compared.target, _missing_keys(reported, table.shape))
        stack.callback(target.close)
        check_holds(target, reported.compared.source)
        done = Repaired(reported.compared, options.how)
        keys = keys_of(table.shape, reported.keys)
        duplicates = keys_of(table.shape, reported.duplicates)
        repairer = Repairer(table, target, options, on_step)
        repairer.repair(keys, done, duplicates)
        if keys:
            spark = spark or start_spark()
            done.left = _verify(keys, table, target, reported, options.verify, spark, on_step)
    return done


class Repairer:
    """Repairs rows of one target."""

    def __init__(
        self,
        source: SourceTable,
        target: Target,
        options: RepairOptions,
        on_step: OnStep = unseen,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self._source = source
        self._target = target
        self._options = options
        self._on_step = on_step
        self._pause = pause

    def repair(self, keys: Sequence[Key], done: Repaired, duplicates: Collection[Key] = ()) -> None:
        """Repair the rows of these keys, and count the results in `done`.

        `duplicates`: those of the keys that have several rows.
        """
        done.not_mended = self._not_mended(keys, duplicates)
        left = {key for one in done.not_mended for key in one.keys}
        keys, several = [key for key in keys if key not in left], set(duplicates)
        for group in _groups(keys):
            self._delete_all([key for key in group if key in several], done)
            if self._options.how is How.TARGET:
                self._write(group, done)
            else:
                self._touch(group, done)
            done.keys += len(group)
            self._on_step(Step("repairing", done.keys, len(keys)))
        if done.touched:
            self._wait_for_stream()

    def _not_mended(self, keys: Sequence[Key], duplicates: Collection[Key]) -> list[NotMended]:
        """Return the keys whose rows cannot be mended by what a target can do."""
        target, source = self._target, self._source.shape.source
        nulls = [key for key in keys if None in key]
        several = [key for key in duplicates if None not in key]
        found = []
        if nulls:
            found.append(NotMended(nulls, _NULL_KEYS.format(source=source, target=target.uri)))
        if several and target.mode is not WriteMode.MIRROR:
            words = {"source": source, "target": target.uri, "mode": target.mode}
            found.append(NotMended(several, _SEVERAL_ROWS.format(**words)))
        return found

    def _delete_all(self, keys: Sequence[Key], done: Repaired) -> None:
        """Delete all rows of keys; rows newer than the newest SCN that is visible stay."""
        if keys:
            done.deleted += self._put_as_of(self._source.visible_scn(), {}, keys).deleted

    def _write(self, keys: Sequence[Key], done: Repaired) -> None:
        put = self._put(keys, lambda rows: rows)
        done.written += put.written
        done.deleted += put.deleted

    def _touch(self, keys: Sequence[Key], done: Repaired) -> None:
        there = list(rows_of_keys(self._source, keys))
        self._source.touch(there, self._options.touch_column)
        done.touched += len(there)
        if len(there) < len(keys):
            # Only deletes: the stream brings a row that has been inserted meanwhile.
            done.deleted += self._put(keys, lambda _: {}).deleted

    def _put(self, keys: Sequence[Key], chosen: Callable[[dict[Key, Row]], dict[Key, Row]]) -> Put:
        """Put the chosen ones of the source's rows, and delete the keys that it does not have."""
        scn = -1
        for _ in range(ATTEMPTS):
            # Before the rows are read, so that they are at least as new.
            scn = self._source.visible_scn()
            rows = rows_of_keys(self._source, keys)
            gone = [key for key in keys if key not in rows]
            chosen_rows = chosen(rows)
            put = self._put_as_of(scn, chosen_rows, gone)
            # Otherwise the target went past the SCN meanwhile: read the rows again, as of a newer
            # one.
            if put.took_new_rows or not chosen_rows:
                return put
        raise ConsumerError(
            scn,
            f"{self._target.uri} was past the SCN of the rows read from "
            f"{self._source.shape.source}, {ATTEMPTS} times: is the target filled from the "
            f"physical source {self._source.physical_source} of the settings?",
        )

    def _put_as_of(self, scn: int, rows: dict[Key, Row], gone: Sequence[Key]) -> Put:
        shape = self._source.shape
        return self._target.put(
            rows_table(shape, rows.values()) if rows else None,
            keys_table(shape, gone) if gone else None,
            physical_source=self._source.physical_source,
            scn=scn,
            source=shape.source,
        )

    def _wait_for_stream(self) -> None:
        scn, name = self._source.newest_scn(), self._source.physical_source
        deadline = time.monotonic() + self._options.patience_s
        while (position := self._target.positions().get(name)) is not None and position < scn:
            if time.monotonic() > deadline:
                raise SourceUnavailableError(
                    f"{self._target.uri} is at scn {position} of {name}, but rows were touched "
                    f"up to scn {scn}: is the job running that fills it?"
                )
            self._pause(_POLL_S)


def rows_table(shape: Shape, rows: Iterable[Row]) -> pa.Table:
    """Return rows as an Arrow table."""
    return pa.Table.from_pylist([dict(row) for row in rows], _schema(shape.columns))


def keys_table(shape: Shape, keys: Iterable[Key]) -> pa.Table:
    """Return keys as an Arrow table."""
    rows: list[dict[str, Any]] = [dict(zip(shape.key_names, key, strict=True)) for key in keys]
    return pa.Table.from_pylist(rows, _schema(shape.key))


def _schema(columns: Sequence[AvroColumn]) -> pa.Schema:
    return arrow_schema(StructType([StructField(c.name, spark_type(c)) for c in columns]))


def _groups(keys: Sequence[Key]) -> Iterator[Sequence[Key]]:
    for at in range(0, len(keys), KEYS_AT_ONCE):
        yield keys[at : at + KEYS_AT_ONCE]


def _source_of(settings: RelaySettings, reported: Reported) -> AbstractContextManager[SourceTable]:
    """Return the table, not opened yet, with the columns that the target has."""
    compared = reported.compared
    physical = physical_source_of(settings, compared.source)
    # Opened for a moment: its columns decide which ones are read from the source.
    with closing(open_target(compared.target)) as target:
        held = target.schema()
    if held is None:
        raise SettingsError(f"target {compared.target} has no table: load it")
    with open_source_table(physical, compared.source) as table:
        names = tuple(name for name in table.shape.names if name in held.names)
    return open_source_table(physical, compared.source, Selection(names, compared.where))


def _missing_keys(reported: Reported, shape: Shape) -> Sequence[str] | None:
    """Return the source's key if the target does not know its own; else None."""
    with closing(open_target(reported.compared.target)) as target:
        return None if target.keys else shape.key_names


def _verify(
    keys: Sequence[Key],
    table: SourceTable,
    target: Target,
    reported: Reported,
    options: VerifyOptions,
    spark: SparkSession,
    on_step: OnStep,
) -> Report:
    """Compare the rows of some keys, in the report's columns."""
    selection = Selection(reported.compared.columns, reported.compared.where)
    options = replace(options, selection=selection)
    rows = TargetTable(target, table.shape, spark)
    left = Report(reported.compared)
    comparer = comparer_of(reported.compared.columns, options.compare)
    with findings_in(None, left, table.shape, options.most_kept) as findings:
        changes = changes_for(table, rows, options, spark)
        verifier = Verifier(table, rows, changes, comparer, options, on_step)
        verifier.verify_keys(keys, left, findings)
    return left
