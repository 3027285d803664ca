"""Conditions on a table's rows, in the SQL that all databases have. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from databus.client.spark.verify.chunks import Chunks, KeyBuckets, Span


def where(*conditions: str) -> str:
    """Return the clause of the conditions that are not empty; "" when all are."""
    given = [condition for condition in conditions if condition]
    return f" WHERE {' AND '.join(given)}" if given else ""


def of_chunks(chunks: Chunks, numbers: Sequence[int], key: str, bucket: str) -> list[str]:
    """Return the conditions that together have the rows of some chunks, each row in one of them.

    `key`: of chunks by ranges, the integer column; `bucket`: of others, the
    number that the remainder is taken of.
    """
    if isinstance(chunks, KeyBuckets):
        return [f"{bucket} % {chunks.count} IN ({', '.join(map(str, numbers))})"]
    return [_within(key, span) for span in chunks.spans(numbers)]


def _within(key: str, span: Span) -> str:
    limits = [] if span.after is None else [f"{key} > {span.after}"]
    limits += [] if span.last is None else [f"{key} <= {span.last}"]
    return " AND ".join(limits)
