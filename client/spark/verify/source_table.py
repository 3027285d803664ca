"""A table in its own database, as a comparison reads it: digests of chunks, and rows.

Nothing is written but by `touch`, no lock is taken that a writer waits for, and
every statement is a transaction of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pkgutil import resolve_name
from typing import NamedTuple, Protocol

from databus.client.spark.verify.chunks import (
    ChunkDigest,
    Chunks,
    Digests,
    KeyBuckets,
    KeyRanges,
    bucket_count,
)
from databus.client.spark.verify.table_shape import Key, Row, Shape
from databus.conf.settings import PhysicalSourceSettings, RelaySettings
from databus.relay.sources.kind import kind_of
from databus.schemas.errors import SettingsError, UnknownSourceError

KEYS_OF_A_QUERY = 500


class Selection(NamedTuple):
    """Which part of a table: columns (none = all) and a condition in the database's SQL."""

    columns: tuple[str, ...] = ()
    where: str = ""


EVERYTHING = Selection()


class SourceTable(Protocol):
    """One table of a database that is open; for one thread.

    Rows have the columns of `shape`, in Spark's value space. Every method raises
    SourceError, whose text says what to do.
    """

    physical_source: str
    shape: Shape

    def close(self) -> None:
        """Let go of the database; may be called twice."""

    def visible_scn(self) -> int:
        """Return an SCN up to which every transaction is visible to later reads."""
        ...

    def newest_scn(self) -> int:
        """Return where the change log ends now: nothing that was read is newer."""
        ...

    def estimate_rows(self) -> int:
        """Return about how many rows the table has."""
        ...

    def next_chunk(self, after: int | None, rows: int) -> tuple[int | None, ChunkDigest]:
        """Return the last key and the digest of so many rows behind an integer key.

        Fewer rows are the last of the table; the key of none is None.
        """
        ...

    def bucket_digests(self, count: int) -> Digests:
        """Return the digests of all buckets that have rows."""
        ...

    def rows(self, chunks: Chunks, numbers: Sequence[int]) -> Iterator[Row]:
        """Yield the rows of some chunks."""
        ...

    def rows_of(self, keys: Sequence[Key]) -> Iterator[Row]:
        """Yield the rows that have these keys, at most KEYS_OF_A_QUERY of them."""
        ...

    def touch(self, keys: Sequence[Key], column: str) -> None:
        """Write the time of now into a column of these rows."""


def physical_source_of(settings: RelaySettings, source: str) -> PhysicalSourceSettings:
    """Return the database that a source is in; raises UnknownSourceError, SettingsError."""
    found = [one for one in settings.physical_sources if source in one.source_names]
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
    only = physical.model_copy(update={"sources": (source,)})
    table: SourceTable = resolve_name(digest)(only, source, selection)
    try:
        yield table
    finally:
        table.close()


def digest_source(
    table: SourceTable, chunk_rows: int, count: Callable[[int], None]
) -> tuple[Chunks, Digests]:
    """Share a table out into chunks of so many rows, and digest each.

    `count` is told how many rows there were, chunk by chunk.
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


def rows_of_keys(table: SourceTable, keys: Sequence[Key]) -> dict[Key, Row]:
    """Return the rows that have these keys, by key; a key without a row is left out."""
    wanted = set(keys)
    found: dict[Key, Row] = {}
    for at in range(0, len(keys), KEYS_OF_A_QUERY):
        for row in table.rows_of(keys[at : at + KEYS_OF_A_QUERY]):
            key = table.shape.key_of(row)
            # To the database 'a' may be 'A', and here it is not.
            if key in wanted:
                found[key] = row
    return found
