"""Compare a target with checksums that arrive in the change stream.

The checksum of a chunk is a row of a table in the source's own database, and holds exactly
at that row's place in the stream (see `checksums`). So nothing has to settle, and a chunk
that is equal is equal at that place. In this order:

1. The digests of the target's rows are read once and kept. They are complete up to the
   target's position, and have nothing that is committed later than they are read.
2. The checksums are written into the source's database, chunk after chunk. So each has a
   place in the stream behind everything in the digests that were read.
3. The stream is read from the target's position up to the last checksum. The last change of
   each key up to the place of its chunk's checksum replaces what was read of that key. That is
   the target at that place, and its checksum must be the source's.

The rows of a chunk with another checksum are then found as in every comparison.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from typing import NamedTuple

from pyspark.sql import functions as sf

from databus.client.spark.arrow.row_types import CHANGE_COLUMN
from databus.client.spark.verify.checksums.checksum_table import NAME, ChecksumTable
from databus.client.spark.verify.chunks import (
    EMPTY,
    ChunkDigest,
    Chunks,
    KeyBuckets,
    KeyRanges,
)
from databus.client.spark.verify.report import ChunkResult, OnStep, Report, Step
from databus.client.spark.verify.source_table import SourceTable
from databus.client.spark.verify.stream_changes import StreamChanges
from databus.client.spark.verify.target_table import Place, TargetTable
from databus.conf.settings import PhysicalSourceSettings
from databus.schemas.errors import SettingsError, SourceError, SourceUnavailableError


class Checksum(NamedTuple):
    """A checksum as it came in the stream: chunk number, last key, digest, and its place.

    SCN alone does not do: a window of SQLite may have several transactions.
    """

    number: int
    last: int | None
    digest: ChunkDigest
    place: Place


class ComparedChunks(NamedTuple):
    """The chunks of a table, and both sides' digests at the chunks' SCNs."""

    chunks: Chunks
    source: dict[int, ChunkDigest]
    target: dict[int, ChunkDigest]


@contextmanager
def open_checksums(
    physical: PhysicalSourceSettings, table: SourceTable, create: bool
) -> Iterator[ChecksumTable]:
    """Open the table of checksums beside a table for the length of a `with`.

    What was written is removed at the end. Raises SettingsError if checksums would not
    come in the stream, or not hold at their place.
    """
    database = physical.names.table_of(table.shape.source).partition(".")[0]
    name = f"{database}.{NAME}"
    source = physical.names.name_of(name)
    checksums = table.checksums(name, source, uuid.uuid4().hex)
    with closing(checksums):
        # First: a relay that is to capture the table needs it.
        if create:
            checksums.create()
        checksums.check()
        if physical.with_source(source) is None:
            raise SettingsError(
                f"--through-log: checksums come in the change stream, but {name} is not among the "
                f"sources of {physical.name}: add it to `sources` in the relay's settings, and "
                "restart the relay"
            )
        try:
            yield checksums
        except BaseException:
            with suppress(SourceError):
                checksums.delete()
            raise
        checksums.delete()


class ThroughLog:
    """Compares the chunks of one table with one target, by checksums in the stream."""

    def __init__(
        self,
        table: SourceTable,
        target: TargetTable,
        changes: StreamChanges,
        checksums: ChecksumTable,
        on_step: OnStep,
    ) -> None:
        self._table = table
        self._target = target
        self._changes = changes
        self._checksums = checksums
        self._on_step = on_step

    def compare(self, chunk_rows: int, report: Report) -> ComparedChunks:
        """Write the checksums, and compare the target with them as they come in the stream.

        Raises SettingsError for a table that would have to be locked as a whole,
        SourceUnavailableError if checksums do not come.
        """
        # Before the rows are read, which are then complete at least up to it.
        position = self._target.position(self._table.physical_source)
        if position is None:
            raise SettingsError(
                "--through-log: the target records no position of "
                f"{self._table.physical_source}, so it is not known which changes its rows have: "
                "compare with --settle SECONDS"
            )
        self._on_step(Step("digesting the target", 0, None))
        kept = self._target.keep_digests()
        begin = self._table.newest_scn()
        written = self._write(chunk_rows, report)
        until = self._changes.reached(self._table.newest_scn())
        found = self._read(begin, until, written)
        report.until_scn = found[-1].place[0]
        chunks = self._chunks(found)
        changes = self._changes.read(min(position, until), until)
        ends = [one.place for one in found]
        self._on_step(Step("comparing checksums", 0, len(found), "chunks"))
        is_row = self._changes.is_row()
        target = self._target.digests_at(kept, changes, is_row, chunks, ends)
        report.target_rows = sum(one.rows for one in target.values())
        report.chunk_results = _results(found, target)
        self._on_step(Step("comparing checksums", len(found), len(found), "chunks"))
        return ComparedChunks(chunks, {one.number: one.digest for one in found}, target)

    def _write(self, chunk_rows: int, report: Report) -> int:
        """Write the checksums of all chunks, and return how many there are."""
        estimate = self._table.estimate_rows()
        after: int | None = None
        number = 0
        while True:
            last, rows = self._checksums.write(number, self._table.chunk_query(after, chunk_rows))
            number += 1
            report.rows += rows
            self._on_step(Step("writing checksums", report.rows, estimate))
            if last is None:
                return number
            if not self._table.shape.has_key_ranges:
                raise SettingsError(
                    f"--through-log: {self._table.shape.source} has no integer key whose ranges "
                    "could be locked one after the other, and too many rows to be locked at once: "
                    f"set --chunk-rows higher than its about {estimate:,} rows to lock all of them "
                    "for the time of one checksum, or compare without --through-log"
                )
            after = last

    def _read(self, after_scn: int, until_scn: int, written: int) -> list[Checksum]:
        """Return the checksums as they came in the stream."""
        place = f"{CHANGE_COLUMN}.scn", f"{CHANGE_COLUMN}.index"
        stream = self._changes.read(after_scn, until_scn, self._checksums.source)
        rows = (
            stream.where(sf.col(f"{CHANGE_COLUMN}.op") == "insert")
            .where(sf.col("run") == self._checksums.run)
            .select("number", "last_key", "chunk_rows", "digest", *place)
            .orderBy("number")
            .collect()
        )
        if [row[0] for row in rows] != list(range(written)):
            raise SourceUnavailableError(
                f"{written} checksums were written, and {len(rows)} of them came in the stream up "
                f"to scn {until_scn}: does the relay read the database that "
                f"{self._checksums.table} is in?"
            )
        return [
            Checksum(number, last, ChunkDigest(count, digest), (scn, index))
            for number, last, count, digest, scn, index in rows
        ]

    def _chunks(self, found: Sequence[Checksum]) -> Chunks:
        if not self._table.shape.has_key_ranges:
            return KeyBuckets(1)
        return KeyRanges(tuple(one.last for one in found if one.last is not None))


def _results(found: Sequence[Checksum], target: dict[int, ChunkDigest]) -> list[ChunkResult]:
    results = []
    after: int | None = None
    for one in found:
        rows = target.get(one.number, EMPTY)
        is_equal = rows == one.digest
        results.append(
            ChunkResult(after, one.last, one.place[0], one.digest.rows, rows.rows, is_equal)
        )
        after = one.last
    return results
