"""Checks one batch: every transaction in it is whole, and no window is outside its span.

Rows carry the stamps of `benchmarks.torture.workload`: the transaction, which
of its changes, of how many.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple
from zlib import crc32

from benchmarks.spark_torture.log import Contents
from benchmarks.spark_torture.spans import Span
from benchmarks.torture.workload import SOURCES

MOST_PROBLEMS = 5  # of one batch
STANDING = frozenset({"snapshot", "delete"})
CHANGES = frozenset({"insert", "update", "delete"})
# Changes after the snapshot that are in the batch's windows come from the log.
INSTEAD = STANDING | CHANGES | {"snapshot_end"}


class Row(NamedTuple):
    """The checked fields of a row of a batch."""

    scn: int
    place: int | None  # in its window
    op: str
    source: str
    tx: int
    tx_row: int
    tx_rows: int


def as_read(span: Span, rows: Iterable[Row]) -> Span:
    """Return a batch as it was read: planned windows that are gone arrive as a snapshot."""
    is_instead = span.kind == "windows" and any(row.op not in CHANGES for row in rows)
    return replace(span, kind="instead") if is_instead else span


def check_batch(span: Span, rows: Iterable[Row]) -> Contents:
    """Check a batch's rows, which may be in any order."""
    if span.kind == "windows":
        return _check_windows(span, sorted(rows, key=lambda row: (row.scn, row.place or 0)))
    found = list(rows)
    if span.kind == "end":
        problems = _problems_of_end(span, found)
    else:
        problems = _problems_of_rows(found, STANDING if span.kind == "snapshot" else INSTEAD)
    return Contents(len(found), problems=problems[:MOST_PROBLEMS])


def _problems_of_end(span: Span, rows: Sequence[Row]) -> list[str]:
    found = Counter((row.op, row.source) for row in rows)
    wanted = Counter(("snapshot_end", source) for source in SOURCES if span.is_whole)
    return [] if found == wanted else [f"the end of a snapshot has {dict(found)}"]


def _problems_of_rows(rows: Sequence[Row], ops: frozenset[str]) -> list[str]:
    strange = [
        row for row in rows if row.op not in ops or (row.op != "snapshot_end" and row.tx < 0)
    ]
    return [f"in a snapshot there is {row}" for row in strange]


def _check_windows(span: Span, rows: Sequence[Row]) -> Contents:
    windows: dict[int, list[Row]] = defaultdict(list)
    for row in rows:
        windows[row.scn].append(row)
    problems: list[str] = []
    last_tx = 0
    for scn, window in windows.items():
        problems += [f"window {scn}: {problem}" for problem in _problems_of_window(window)]
        if not span.from_scn < scn <= span.to_scn:
            problems.append(f"window {scn} is not in ({span.from_scn}, {span.to_scn}]")
        if last_tx and window[0].tx != last_tx + 1:
            problems.append(f"window {scn}: transaction {window[0].tx} came after {last_tx}")
        last_tx = window[0].tx
    return Contents(
        len(rows),
        len(windows),
        rows[0].tx if rows else 0,
        last_tx,
        crc32(repr(rows).encode()),
        problems[:MOST_PROBLEMS],
    )


def _problems_of_window(rows: Sequence[Row]) -> list[str]:
    """Return the problems of a window, which is one transaction of MariaDB."""
    problems = [f"it has {row}" for row in rows if row.op not in CHANGES or row.tx < 0]
    stamps = {(row.tx, row.tx_row + (row.op == "delete"), row.tx_rows) for row in rows}
    tx, tx_rows = rows[0].tx, rows[0].tx_rows
    missing = {(tx, number, tx_rows) for number in range(1, tx_rows + 1)} - stamps
    if missing:
        problems.append(f"transaction {tx} lacks {len(missing)} of {tx_rows} changes")
    if len(stamps) > tx_rows:
        problems.append(f"transaction {tx} of {tx_rows} changes has {sorted(stamps)}")
    if len({row.place for row in rows}) < len(rows):
        problems.append(f"a row of transaction {tx} is there twice")
    return problems
