"""A table in its own database, as a comparison reads it: digests of chunks, and rows.

Only `touch` and `checksums` write. No other lock blocks a writer, and every statement is a
transaction of its own.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pkgutil import resolve_name
from typing import Any, NamedTuple

from databus.client.spark.verify.checksums.checksum_table import ChecksumTable, ChunkQuery
from databus.client.spark.verify.chunks import (
    ChunkDigest,
    Chunks,
    Digests,
    KeyBuckets,
    KeyRanges,
    Span,
    bucket_count,
    of_chunks,
    where,
    within,
)
from databus.client.spark.verify.table_shape import Key, Row, Shape
from databus.conf.settings import PhysicalSourceSettings, RelaySettings
from databus.relay.sources.kind import kind_of
from databus.relay.sources.table_scan import TableScan
from databus.schemas.errors import SettingsError, UnknownSourceError

KEYS_OF_A_QUERY = 500
_ALL_ROWS = 1 << 62


class Selection(NamedTuple):
    """Part of a table: its columns (none = all) and a condition in the database's SQL."""

    columns: tuple[str, ...] = ()
    where: str = ""


EVERYTHING = Selection()


class SourceTable(ABC):
    """One open table of a database; for one thread.

    Rows have the columns of `shape`, in Spark's value space. Every method raises
    SourceError, whose text says what to do.
    """

    shape: Shape
    _scan: TableScan
    # SQL of the quoted table name, the first key column, a row's digest and its key's digest.
    _name: str
    _key: str
    _digest: str
    _bucket: str

    def __init__(self, physical: PhysicalSourceSettings, source: str, selection: Selection) -> None:
        self.physical_source = physical.name
        self._source = source
        self._where = f"({selection.where})" if selection.where else ""

    def close(self) -> None:
        """Close the connections; may be called twice."""
        self._disconnect()
        self._scan.close()

    @abstractmethod
    def _disconnect(self) -> None:
        """Close the connection that digests are read on, if it is open."""

    def visible_scn(self) -> int:
        """Return an SCN up to which every transaction is visible to later reads."""
        return self._scan.visible_scn()

    def newest_scn(self) -> int:
        """Return the SCN at the end of the change log: no row that was read is newer."""
        return self._scan.newest_scn()

    def estimate_rows(self) -> int:
        """Return an estimate of the number of rows."""
        return self._scan.estimate_rows(self._source)

    def next_chunk(self, after: int | None, rows: int) -> tuple[int | None, ChunkDigest]:
        """Return the last key and the digest of the next `rows` rows behind an integer key.

        The last chunk has fewer rows; without any row the key is None.
        """
        query = self.chunk_query(after, rows)
        ((last, count, digest),) = self._ask(query.select(""))
        return None if last is None else int(last), ChunkDigest(int(count), int(digest))

    def chunk_query(self, after: int | None, rows: int) -> ChunkQuery:
        """Return the query that digests the next `rows` rows behind an integer key.

        A table with another key can be asked for its first rows only, and `last` is 0.
        """
        condition = where("" if after is None else f"{self._key} > {after}", self._where)
        last = "max(k)" if self.shape.has_key_ranges else "0"
        return ChunkQuery(partial(self._chunk_select, condition, rows, last), after, rows)

    @abstractmethod
    def _chunk_select(self, condition: str, rows: int, last: str, lock: str) -> str:
        """Return SQL for `last`, `found` and `digest` of a chunk; see `ChunkQuery`."""

    @abstractmethod
    def checksums(self, table: str, source: str, run: str) -> ChecksumTable:
        """Return the table for this one's checksums, by its name in the database and as a source.

        `run` is the name of one comparison.
        """

    def bucket_digests(self, count: int) -> Digests:
        """Return the digests of all buckets that have rows, in one pass over the table."""
        rows = self._ask(self._buckets_query(count))
        return {int(b): ChunkDigest(int(found), int(digest)) for b, found, digest in rows}

    def digests(self, chunks: Chunks, numbers: Sequence[int]) -> Digests:
        """Return the digests of some chunks as they are now."""
        if isinstance(chunks, KeyBuckets):
            found = self.bucket_digests(chunks.count)
            return {number: found[number] for number in numbers if number in found}
        limits = chunks.limits()
        return {number: self._digest_within(limits[number]) for number in numbers}

    def _digest_within(self, span: Span) -> ChunkDigest:
        condition = where(within(self._key, span), self._where)
        ((_, count, digest),) = self._ask(self._chunk_select(condition, _ALL_ROWS, "0", ""))
        return ChunkDigest(int(count), int(digest))

    @abstractmethod
    def _buckets_query(self, count: int) -> str:
        """Return SQL for bucket number, row count and digest of each bucket."""

    def rows(self, chunks: Chunks, numbers: Sequence[int]) -> Iterator[Row]:
        """Yield the rows of some chunks."""
        for condition in of_chunks(chunks, numbers, self._key, self._bucket):
            yield from self._read(condition)

    @abstractmethod
    def rows_of(self, keys: Sequence[Key]) -> Iterator[Row]:
        """Yield the rows that have these keys, at most KEYS_OF_A_QUERY of them."""

    @abstractmethod
    def touch(self, keys: Sequence[Key], column: str) -> None:
        """Write the current time into a column of these rows."""

    @abstractmethod
    def _read(self, condition: str) -> Iterator[Row]:
        """Yield the rows that fulfil a condition, and the selection's."""

    @abstractmethod
    def _ask(self, query: str) -> Any:
        """Return all rows of a query."""


def physical_source_of(settings: RelaySettings, source: str) -> PhysicalSourceSettings:
    """Return the database that a source is in; raises UnknownSourceError, SettingsError."""
    having = (one.with_source(source) for one in settings.physical_sources)
    found = [one for one in having if one is not None]
    if not found:
        known = {name for one in settings.physical_sources for name in one.source_names}
        raise UnknownSourceError(source, sorted(known))
    if len(found) > 1:
        names = ", ".join(one.name for one in found)
        raise SettingsError(
            f"{source} is a source of {names}: use a settings file that has one of them only"
        )
    return found[0]


@contextmanager
def open_source_table(
    physical: PhysicalSourceSettings, source: str, selection: Selection = EVERYTHING
) -> Iterator[SourceTable]:
    """Open a table for the length of a `with`; raises SettingsError and SourceError."""
    digest = kind_of(physical.uri).digest
    if not digest:
        text = "tables of this kind of source cannot be compared"
        raise SettingsError(f"uri = {physical.uri!r}: {text}")
    if physical.protects(physical.names.table_of(source)):
        raise SettingsError(
            f"{source}: `columns` in the settings protects some of its columns, so that database "
            "and target cannot be compared or made equal"
        )
    only = physical.only([source])
    table: SourceTable = resolve_name(digest)(
        only.by_table(), only.names.table_of(source), selection
    )
    table.shape = replace(table.shape, source=source)
    try:
        yield table
    finally:
        table.close()


def digest_source(
    table: SourceTable, chunk_rows: int, count: Callable[[int], None]
) -> tuple[Chunks, Digests]:
    """Split a table into chunks of about `chunk_rows` rows, and digest each.

    `count` is called with the number of rows of each chunk.
    """
    if not table.shape.has_key_ranges:
        buckets = KeyBuckets(bucket_count(table.estimate_rows(), chunk_rows))
        digests = table.bucket_digests(buckets.count)
        count(sum(found.rows for found in digests.values()))
        return buckets, digests
    bounds: list[int] = []
    found: dict[int, ChunkDigest] = {}
    after: int | None = None
    while True:
        last, digest = table.next_chunk(after, chunk_rows)
        found[len(bounds)] = digest
        count(digest.rows)
        if last is None or digest.rows < chunk_rows:
            return KeyRanges(tuple(bounds)), found
        bounds.append(last)
        after = last


def rows_with_keys(table: SourceTable, keys: Sequence[Key]) -> Iterator[Row]:
    """Yield the rows that have these keys."""
    wanted = set(keys)
    for at in range(0, len(keys), KEYS_OF_A_QUERY):
        for row in table.rows_of(keys[at : at + KEYS_OF_A_QUERY]):
            # The database's collation may find 'A' for 'a'; here keys compare by bytes.
            if table.shape.key_of(row) in wanted:
                yield row


def rows_of_keys(table: SourceTable, keys: Sequence[Key]) -> dict[Key, Row]:
    """Return the rows that have these keys, by key; a key without a row is left out."""
    return {table.shape.key_of(row): row for row in rows_with_keys(table, keys)}
