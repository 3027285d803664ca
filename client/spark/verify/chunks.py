"""How the rows of a table are shared out into chunks that are compared as one. Pure.

By ranges of the key where it is one integer: the database finds such a chunk by
its index. Else by the digest of the key, which scatters rows over so many
buckets: to read one of those the database passes over the table.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from databus.client.spark.arrow.avro_columns import AvroColumn, Kind


class ChunkDigest(NamedTuple):
    """How many rows a chunk has, and the XOR of their digests."""

    rows: int = 0
    digest: int = 0


EMPTY = ChunkDigest()
Digests = Mapping[int, ChunkDigest]  # by chunk; one without rows may be left out


class Span(NamedTuple):
    """Keys after `after` and up to `last`, which is in it; None = no limit."""

    after: int | None
    last: int | None


@dataclass(frozen=True, slots=True)
class KeyRanges:
    """Chunk n has the keys after `bounds[n - 1]` and up to `bounds[n]`; the last has the rest."""

    bounds: tuple[int, ...]

    @property
    def count(self) -> int:
        """How many chunks there are."""
        return len(self.bounds) + 1

    def chunk_of(self, key: int) -> int:
        """Return the chunk that a key is in."""
        return bisect_left(self.bounds, key)

    def spans(self, chunks: Sequence[int]) -> list[Span]:
        """Return the ranges of some chunks, those that touch as one."""
        spans: list[Span] = []
        ends = (None, *self.bounds, None)
        limits = list(pairwise(ends))
        for chunk in sorted(chunks):
            after, last = limits[chunk]
            if spans and after is not None and spans[-1].last == after:
                spans[-1] = Span(spans[-1].after, last)
            else:
                spans.append(Span(after, last))
        return spans


@dataclass(frozen=True, slots=True)
class KeyBuckets:
    """Chunk n has the rows whose key's digest leaves the rest n when divided by `count`."""

    count: int


Chunks = KeyRanges | KeyBuckets


def has_key_ranges(key: Sequence[AvroColumn], is_nullable: bool) -> bool:
    """Say whether a key is one integer, so that it has ranges; a key that may be null has none."""
    return len(key) == 1 and key[0].kind in (Kind.INT, Kind.LONG) and not is_nullable


def bucket_count(rows: int, chunk_rows: int) -> int:
    """Return into how many buckets so many rows go."""
    return max(1, -(-rows // chunk_rows))


def differing(source: Digests, target: Digests) -> list[int]:
    """Return the chunks that are not the same on both sides."""
    return sorted(
        chunk
        for chunk in {*source, *target}
        if source.get(chunk, EMPTY) != target.get(chunk, EMPTY)
    )


def batches(
    chunks: Sequence[int], source: Digests, target: Digests, rows: int
) -> Iterator[list[int]]:
    """Yield chunks in groups of up to so many rows on either side, a larger chunk alone."""
    group: list[int] = []
    held = 0
    for chunk in chunks:
        size = max(source.get(chunk, EMPTY).rows, target.get(chunk, EMPTY).rows)
        if group and held + size > rows:
            yield group
            group, held = [], 0
        group.append(chunk)
        held += size
    if group:
        yield group
