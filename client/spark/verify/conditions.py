"""Conditions on a table's rows, in SQL that all databases support. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from databus.client.spark.verify.chunks import Chunks, KeyBuckets, Span


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
    return [_within(key, span) for span in chunks.spans(numbers)]


def _within(key: str, span: Span) -> str:
    limits = [] if span.after is None else [f"{key} > {span.after}"]
    limits += [] if span.last is None else [f"{key} <= {span.last}"]
    return " AND ".join(limits)
