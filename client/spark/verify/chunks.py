"""Split a table's rows into chunks, each compared by one digest. Pure.

With an integer key, chunks are key ranges, which the database finds by its index. With
any other key, the digest of the key distributes rows over buckets; reading a bucket
takes a pass over the table.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from databus.schemas.columns.avro_columns import AvroColumn, Kind


class ChunkDigest(NamedTuple):
    """A chunk's row count, and the XOR of its rows' digests."""

    rows: int = 0
    digest: int = 0


EMPTY = ChunkDigest()
Digests = Mapping[int, ChunkDigest]  # by chunk number; empty chunks may be missing


class Span(NamedTuple):
    """Keys in (`after`, `last`]; None = no limit."""

    after: int | None
    last: int | None


@dataclass(frozen=True, slots=True)
class KeyRanges:
    """Chunk n has the keys in (`bounds[n - 1]`, `bounds[n]`]; the last chunk has the rest."""

    bounds: tuple[int, ...]

    @property
    def count(self) -> int:
        """The number of chunks."""
        return len(self.bounds) + 1

    def chunk_of(self, key: int | None) -> int:
        """Return the chunk of a key; a damaged target may have a null, which counts as 0."""
        return bisect_left(self.bounds, key or 0)

    def limits(self) -> list[Span]:
        """Return the range of each chunk."""
        return [Span(*pair) for pair in pairwise((None, *self.bounds, None))]

    def spans(self, chunks: Sequence[int]) -> list[Span]:
        """Return the ranges of some chunks; adjacent ranges are merged."""
        spans: list[Span] = []
        limits = self.limits()
        for chunk in sorted(chunks):
            after, last = limits[chunk]
            # Fewer and longer ranges: each is one condition of the query.
            if spans and after is not None and spans[-1].last == after:
                spans[-1] = Span(spans[-1].after, last)
            else:
                spans.append(Span(after, last))
        return spans


@dataclass(frozen=True, slots=True)
class KeyBuckets:
    """Chunk n has the rows whose key's digest modulo `count` is n."""

    count: int


Chunks = KeyRanges | KeyBuckets


def has_key_ranges(key: Sequence[AvroColumn], is_nullable: bool) -> bool:
    """Return whether a key is one integer column that is never null."""
    return len(key) == 1 and key[0].kind in (Kind.INT, Kind.LONG) and not is_nullable


def bucket_count(rows: int, chunk_rows: int) -> int:
    """Return the number of buckets for `rows` rows."""
    return max(1, -(-rows // chunk_rows))


def differing(source: Digests, target: Digests) -> list[int]:
    """Return the chunks with different digests."""
    return sorted(
        chunk
        for chunk in {*source, *target}
        if source.get(chunk, EMPTY) != target.get(chunk, EMPTY)
    )


def batches(
    chunks: Sequence[int], source: Digests, target: Digests, rows: int
) -> Iterator[list[int]]:
    """Yield chunks in groups of at most `rows` rows per side; a larger chunk is a group alone."""
    group: list[int] = []
    held = 0
    for chunk in chunks:
        size = max(source.get(chunk, EMPTY).rows, target.get(chunk, EMPTY).rows)
        # Rows of a group are in memory at once, on both sides.
        if group and held + size > rows:
            yield group
            group, held = [], 0
        group.append(chunk)
        held += size
    if group:
        yield group


def where(*conditions: str) -> str:
    """Return a WHERE clause of the conditions that are not empty; "" if all are."""
    given = [condition for condition in conditions if condition]
    return f" WHERE {' AND '.join(given)}" if given else ""


def of_chunks(chunks: Chunks, numbers: Sequence[int], key: str, bucket: str) -> list[str]:
    """Return conditions that select the rows of some chunks, each row by exactly one of them.

    `key`: the integer column, for chunks by key range. `bucket`: the number whose
    remainder is taken, for other chunks.
    """
    if isinstance(chunks, KeyBuckets):
        return [f"{bucket} % {chunks.count} IN ({', '.join(map(str, numbers))})"]
    return [within(key, span) for span in chunks.spans(numbers)]


def within(key: str, span: Span) -> str:
    """Return the condition that an integer column is in a range."""
    limits = [] if span.after is None else [f"{key} > {span.after}"]
    limits += [] if span.last is None else [f"{key} <= {span.last}"]
    return " AND ".join(limits)
