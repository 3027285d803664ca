"""Compare a table with the target that was filled from it, while both are being written.

Each side digests its rows in chunks, and only rows of chunks with different digests
are fetched. Those rows may differ only because changes are still on their way. So
each side states up to which SCN its rows are complete, and the changes since then are
replayed on both. Remaining differences are reported.

A target that records no position is read again after a pause instead. A difference
that stays the same for a number of reads is reported.

A key has one row. Where a target has several, that is a difference, whatever they hold. And
a chunk whose digests differ, though none of its rows does, is looked at again, and is never
taken to be equal before its digests are.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import SparkSession

from databus.client.spark.session import job_session
from databus.client.spark.targets.changes import SCN
from databus.client.spark.targets.target import open_target
from databus.client.spark.verify.chunks import Chunks, Digests, KeyRanges, batches, differing
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
    rows_with_keys,
)
from databus.client.spark.verify.stream_changes import StreamChanges
from databus.client.spark.verify.table_shape import Key, Row
from databus.client.spark.verify.target_table import TargetTable, check_holds
from databus.client.spark.verify.through_log import ThroughLog, open_checksums
from databus.conf.settings import RelaySettings
from databus.schemas.errors import SettingsError

FETCH_ROWS = 100_000
MOST_CANDIDATES = 1_000_000
NO_POSITION = -1
# Looks at a chunk whose digests differ though its rows do not, before that is reported. A chunk
# that is being written may do so once, but hardly at each look.
CHUNK_LOOKS = 5
RowsByKey = dict[Key, list[Row]]


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
        check_holds(opened, source)
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
        numbers = self._compare_rows(chunks, numbers, source, target, report, candidates)
        for _ in range(CHUNK_LOOKS):
            if not numbers:
                break
            source = self._source.digests(chunks, numbers)
            target = self._target.digests(chunks, numbers)
            numbers = differing(source, target)
            numbers = self._compare_rows(chunks, numbers, source, target, report, candidates)
        report.unexplained_chunks = len(numbers)
        self._judge(candidates, report, findings)

    def _compare_rows(
        self,
        chunks: Chunks,
        numbers: Sequence[int],
        source: Digests,
        target: Digests,
        report: Report,
        candidates: list[Candidate],
    ) -> list[int]:
        """Add the rows of chunks that differ to `candidates`; return the chunks without any."""
        left: list[int] = []
        for group in batches(numbers, source, target, FETCH_ROWS):
            left += self._fetch(chunks, group, report, candidates)
            # All of them are in memory at once.
            if len(candidates) > MOST_CANDIDATES:
                raise SettingsError(
                    f"more than {MOST_CANDIDATES} rows differ: load the target again, then compare"
                )
        return left

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

    def _fetch(
        self, chunks: Chunks, group: list[int], report: Report, candidates: list[Candidate]
    ) -> list[int]:
        """Add the keys whose rows differ to `candidates`; return the chunks that have none."""
        # The order matters: each side's SCN is asked for before its rows are read, so the
        # rows are at least as new.
        position = self._position()
        target = self._by_key(self._target.rows(chunks, group))
        report.fetched_target_rows += sum(map(len, target.values()))
        scn = self._source.visible_scn()
        source = self._by_key(self._source.rows(chunks, group))
        report.fetched_rows += sum(map(len, source.values()))
        self._on_step(Step("fetching rows", report.fetched_rows, None))
        found = list(self._unequal(source, target, scn, position))
        candidates += found
        # By value: rows that the user's functions call the same have other digests.
        values, unequal = comparer_of(self._comparer.names), iter(found)
        if self._comparer != values:
            unequal = self._unequal(source, target, scn, position, values)
        if isinstance(chunks, KeyRanges):
            return sorted({*group} - {chunks.chunk_of(one.key[0]) for one in unequal})
        # Which bucket a key is in is known on both sides, but not here.
        return [] if any(unequal) else group

    def _look(self, keys: Sequence[Key]) -> list[Candidate]:
        position = self._position()
        target = self._by_key(self._target.rows_with_keys(keys))
        scn = self._source.visible_scn()
        source = self._by_key(rows_with_keys(self._source, keys))
        return list(self._unequal(source, target, scn, position))

    def _by_key(self, rows: Iterable[Row]) -> RowsByKey:
        """Return rows by their key, the newest one of a key first."""
        found: RowsByKey = {}
        for row in rows:
            found.setdefault(self._source.shape.key_of(row), []).append(row)
        for several in found.values():
            several.sort(key=lambda row: row.get(SCN) or NO_POSITION, reverse=True)
        return found

    def _position(self) -> int:
        position = self._target.position(self._source.physical_source)
        return NO_POSITION if position is None else position

    def _unequal(
        self,
        source: RowsByKey,
        target: RowsByKey,
        scn: int,
        position: int,
        comparer: Comparer | None = None,
    ) -> Iterator[Candidate]:
        comparer = comparer or self._comparer
        for key in {**source, **target}:
            sources, targets = source.get(key, []), target.get(key, [])
            in_source, in_target = next(iter(sources), None), next(iter(targets), None)
            target_scn = None if in_target is None else in_target[SCN]
            counts = len(sources), len(targets)
            one = Candidate(key, in_source, in_target, scn, position, target_scn, *counts)
            if one.is_duplicate or comparer.kind(in_source, in_target) is not None:
                yield one

    def _judge(self, candidates: list[Candidate], report: Report, findings: Findings) -> None:
        if not candidates:
            return
        if self._changes is None:
            self._settle(candidates, report, findings)
            return
        candidates = self._seen_twice(candidates, report)
        if not candidates:
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

    def _seen_twice(self, candidates: list[Candidate], report: Report) -> list[Candidate]:
        """Read keys that had several rows again, and return the candidates as they are then.

        A database is read in parts, each in a transaction of its own: a version that ended
        meanwhile may have come together with the one that begins.
        """
        again = [one.key for one in candidates if one.is_duplicate]
        if not again:
            return candidates
        left = [one for one in candidates if not one.is_duplicate] + self._look(again)
        report.moving += len(candidates) - len(left)
        return left

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
        found = one.difference(one.in_source, one.in_target, one.source_scn, self._comparer)
        assert found is not None
        return found


def _is_as_before(before: Candidate, now: Candidate) -> bool:
    return _read_of(before) == _read_of(now)


def _read_of(one: Candidate) -> tuple[Row | None, Row | None, int, int]:
    return one.in_source, one.in_target, one.source_rows, one.target_rows
