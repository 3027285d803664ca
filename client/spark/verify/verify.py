"""Compare a table with the target that was filled from it, while both are being written.

Each side digests its rows in chunks, and only rows of chunks with different digests
are fetched. Those rows may differ only because changes are still on their way. So
each side states up to which SCN its rows are complete, and the changes since then are
replayed on both. Remaining differences are reported.

A target that records no position is read again after a pause instead. A difference
that stays the same for a number of reads is reported.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import SparkSession

from databus.client.spark.session import job_session
from databus.client.spark.targets.changes import SCN
from databus.client.spark.targets.target import open_target
from databus.client.spark.verify.chunks import Chunks, Digests, batches, differing
from databus.client.spark.verify.differences import Comparer, Difference, comparer_of
from databus.client.spark.verify.replay import Candidate, judge, since
from databus.client.spark.verify.report import (
    Compared,
    Findings,
    OnStep,
    Report,
    Step,
    findings_in,
    unseen,
)
from databus.client.spark.verify.source_table import (
    EVERYTHING,
    Selection,
    SourceTable,
    digest_source,
    open_source_table,
    physical_source_of,
    rows_of_keys,
)
from databus.client.spark.verify.stream_changes import StreamChanges
from databus.client.spark.verify.table_shape import Key, Row
from databus.client.spark.verify.target_table import TargetTable
from databus.client.spark.verify.through_log import ThroughLog, open_checksums
from databus.conf.settings import RelaySettings
from databus.schemas.errors import SettingsError

FETCH_ROWS = 100_000
MOST_CANDIDATES = 1_000_000
NO_POSITION = -1


@dataclass(frozen=True, slots=True)
class VerifyOptions:
    """The options of a comparison.

    `settle_s`: instead of replaying changes, read differing rows again after so many
    seconds; a difference that is the same in `settle_tries` reads is reported.
    `through_log`: compare the target with checksums that are written into the source's
    database and arrive in the stream. `create_table`: create their table if it is not there.
    """

    relays: tuple[str, ...] = ()
    bootstrap_servers: tuple[str, ...] = ()
    selection: Selection = EVERYTHING
    chunk_rows: int = 2000
    compare: tuple[str, ...] = ()
    settle_s: float | None = None
    settle_tries: int = 3
    most_looks: int = 20
    most_kept: int = 20
    through_log: bool = False
    create_table: bool = False


def _session() -> SparkSession:
    return job_session("databus verify")


def verify(
    source: str,
    target: str,
    settings: RelaySettings,
    options: VerifyOptions = VerifyOptions(),
    *,
    report: Path | None = None,
    spark: SparkSession | None = None,
    start_spark: Callable[[], SparkSession] = _session,
    on_step: OnStep = unseen,
) -> Report:
    """Compare a source's table with a target, which is named by its URI.

    `settings` are the relay's, with the database's URI. `report`: a file for all
    differences. `start_spark` is called where no session is given, once the tables are known
    to be comparable. Raises SettingsError for tables that cannot be compared, SourceError,
    and Spark's errors.
    """
    if options.through_log and options.settle_s is not None:
        raise SettingsError("--through-log replays changes, so it does not go with --settle")
    physical = physical_source_of(settings, source)
    with ExitStack() as stack:
        table = stack.enter_context(open_source_table(physical, source, options.selection))
        checksums = None
        if options.through_log:
            # Opened first: what it refuses is known before Spark starts.
            opening = open_checksums(physical, table, options.create_table)
            checksums = stack.enter_context(opening)
        opened = open_target(target)
        stack.callback(opened.close)
        spark = spark or start_spark()
        rows = TargetTable(opened, table.shape, spark)
        changes = changes_for(table, rows, options, spark)
        where = options.selection.where
        compared = Compared(source, target, physical.name, table.shape.names, where)
        found = Report(compared, position=rows.position(physical.name))
        findings = stack.enter_context(findings_in(report, found, table.shape, options.most_kept))
        comparer = comparer_of(table.shape.names, options.compare)
        verifier = Verifier(table, rows, changes, comparer, options, on_step)
        if checksums is None:
            verifier.verify(found, findings)
        else:
            assert changes is not None
            log = ThroughLog(table, rows, changes, checksums, on_step)
            verifier.verify_chunks(*log.compare(options.chunk_rows, found), found, findings)
        # Written last, so a file without totals is known to be unfinished.
        findings.end()
    return found


def changes_for(
    table: SourceTable, target: TargetTable, options: VerifyOptions, spark: SparkSession
) -> StreamChanges | None:
    """Return the changes to replay; None if rows are read again instead.

    Raises SettingsError if neither is possible.
    """
    if options.settle_s is not None:
        return None
    if target.position(table.physical_source) is None:
        raise SettingsError(
            f"the target records no position of {table.physical_source}, so it is not known which "
            "changes are still on their way to it: compare with --settle SECONDS, which reads "
            "differing rows again"
        )
    if not options.relays:
        raise SettingsError("--relay is missing: changes on their way to the target are read there")
    return StreamChanges(
        spark,
        table.shape,
        table.physical_source,
        options.relays,
        options.bootstrap_servers,
        options.selection.where,
    )


class Verifier:
    """Compares one table with one target; without `changes` it reads rows again."""

    def __init__(
        self,
        source: SourceTable,
        target: TargetTable,
        changes: StreamChanges | None,
        comparer: Comparer,
        options: VerifyOptions,
        on_step: OnStep = unseen,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self._source = source
        self._target = target
        self._changes = changes
        self._comparer = comparer
        self._options = options
        self._on_step = on_step
        self._pause = pause

    def verify(self, report: Report, findings: Findings) -> None:
        """Compare all rows."""
        self.verify_chunks(*self._digests(report), report, findings)

    def verify_chunks(
        self, chunks: Chunks, source: Digests, target: Digests, report: Report, findings: Findings
    ) -> None:
        """Compare the rows of the chunks whose digests differ."""
        numbers = differing(source, target)
        report.chunks, report.differing_chunks = chunks.count, len(numbers)
        report.differing_rows = sum(source[one].rows for one in numbers if one in source)
        candidates: list[Candidate] = []
        for group in batches(numbers, source, target, FETCH_ROWS):
            candidates += self._fetch(chunks, group, report)
            # All of them are in memory at once.
            if len(candidates) > MOST_CANDIDATES:
                raise SettingsError(
                    f"more than {MOST_CANDIDATES} rows differ: load the target again, then compare"
                )
        self._judge(candidates, report, findings)

    def verify_keys(self, keys: Sequence[Key], report: Report, findings: Findings) -> None:
        """Compare the rows of some keys."""
        report.rows = report.target_rows = len(keys)
        self._judge(self._look(keys), report, findings)

    def _digests(self, report: Report) -> tuple[Chunks, Digests, Digests]:
        estimate = self._source.estimate_rows()

        def count(rows: int) -> None:
            report.rows += rows
            self._on_step(Step("digesting the source", report.rows, estimate))

        chunks, source = digest_source(self._source, self._options.chunk_rows, count)
        self._on_step(Step("digesting the target", 0, None))
        target = self._target.digests(chunks)
        report.target_rows = sum(found.rows for found in target.values())
        self._on_step(Step("digesting the target", report.target_rows, report.target_rows))
        return chunks, source, target

    def _fetch(self, chunks: Chunks, group: list[int], report: Report) -> list[Candidate]:
        """Return the keys in some chunks whose rows differ when they are read."""
        key_of = self._source.shape.key_of
        # The order matters: each side's SCN is asked for before its rows are read, so the
        # rows are at least as new.
        position = self._position()
        target = {key_of(row): row for row in self._target.rows(chunks, group)}
        report.fetched_target_rows += len(target)
        scn = self._source.visible_scn()
        source = {key_of(row): row for row in self._source.rows(chunks, group)}
        report.fetched_rows += len(source)
        self._on_step(Step("fetching rows", report.fetched_rows, None))
        return list(self._unequal(source, target, scn, position))

    def _look(self, keys: Sequence[Key]) -> list[Candidate]:
        position = self._position()
        target = self._target.rows_of_keys(keys)
        scn = self._source.visible_scn()
        source = rows_of_keys(self._source, keys)
        return list(self._unequal(source, target, scn, position))

    def _position(self) -> int:
        position = self._target.position(self._source.physical_source)
        return NO_POSITION if position is None else position

    def _unequal(
        self, source: dict[Key, Row], target: dict[Key, Row], scn: int, position: int
    ) -> Iterator[Candidate]:
        for key in {**source, **target}:
            in_source, in_target = source.get(key), target.get(key)
            if self._comparer.kind(in_source, in_target) is not None:
                target_scn = None if in_target is None else in_target[SCN]
                yield Candidate(key, in_source, in_target, scn, position, target_scn)

    def _judge(self, candidates: list[Candidate], report: Report, findings: Findings) -> None:
        if not candidates:
            return
        if self._changes is None:
            self._settle(candidates, report, findings)
            return
        self._on_step(Step("replaying changes", 0, len(candidates)))
        # No row that was read is newer than this.
        reach = self._source.newest_scn()
        keys = [one.key for one in candidates]
        changes = self._changes.between(since(candidates), reach, keys)
        report.until_scn = changes.until_scn
        differences = 0
        for found in judge(candidates, changes, self._comparer):
            findings.add(found)
            differences += 1
        report.moving += len(candidates) - differences
        self._on_step(Step("replaying changes", len(candidates), len(candidates)))

    def _settle(self, candidates: list[Candidate], report: Report, findings: Findings) -> None:
        """Read candidates again until they are equal, or have differed equally often enough."""
        assert self._options.settle_s is not None
        # The last difference of each key, and how often it was the same.
        seen = {one.key: (one, 1) for one in candidates}
        for _ in range(self._options.most_looks):
            for key in [k for k, (_, times) in seen.items() if times >= self._options.settle_tries]:
                findings.add(self._settled(seen.pop(key)[0]))
            if not seen:
                break
            self._pause(self._options.settle_s)
            again = {one.key: one for one in self._look(list(seen))}
            seen = {
                key: (one, seen[key][1] + 1 if _is_as_before(seen[key][0], one) else 1)
                for key, one in again.items()
            }
            self._on_step(Step("reading again", len(candidates) - len(seen), len(candidates)))
        report.unsettled += len(seen)
        report.moving += len(candidates) - sum(report.counts.values()) - len(seen)

    def _settled(self, one: Candidate) -> Difference:
        found = self._comparer.kind(one.in_source, one.in_target)
        assert found is not None
        kind, columns = found
        scn = one.source_scn
        return Difference(
            one.key, kind, columns, one.in_source, one.in_target, scn, one.target_scn, scn
        )


def _is_as_before(before: Candidate, now: Candidate) -> bool:
    return (before.in_source, before.in_target) == (now.in_source, now.in_target)
