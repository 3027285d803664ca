"""Checks a whole run: its batches in order, and the tables at the end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from benchmarks.spark_torture.log import Reading
from benchmarks.torture.checks import Findings


@dataclass
class JobFindings(Findings):
    """Adds counts for each kind of batch."""

    batches: int = 0
    replayed: int = 0  # readings of a batch that had been read before
    rows: Counter[str] = field(default_factory=Counter)  # by kind of batch
    homes: Counter[str] = field(default_factory=Counter)  # of batches of windows
    whole_snapshots: set[str] = field(default_factory=set)
    partial_snapshots: set[str] = field(default_factory=set)


def check_readings(
    readings: Iterable[Reading], committed: int, fell_off: bool, findings: JobFindings
) -> None:
    """Check the batches of a run, in order, against the number of committed transactions.

    `fell_off`: the job was away for so long that it needed a snapshot of what changed.
    """
    last: Reading | None = None
    for reading in readings:
        findings.runs = max(findings.runs, reading.run)
        where = f"run {reading.run}, batch {reading.batch_id}"
        for problem in reading.contents.problems:
            findings.add(f"{where}: {problem}")
        if last is not None and reading.batch_id == last.batch_id:
            findings.replayed += 1
            _check_again(where, last, reading, findings)
        else:
            _check_next(where, last, reading, findings)
            _count(reading, findings)
        last = reading
    if last is None or not last.is_applied or last.contents.last_tx != committed:
        findings.add(f"the last batch is {last}, and {committed} transactions were committed")
    if not findings.whole_snapshots:
        findings.add("there was no snapshot")
    if fell_off and not findings.partial_snapshots:
        findings.add("there was no snapshot of what changed meanwhile")


def _check_again(where: str, last: Reading, reading: Reading, findings: JobFindings) -> None:
    if "instead" in (reading.span.kind, last.span.kind):
        # As planned, except for where it was read from.
        if replace(reading.span, kind=last.span.kind) != last.span:
            findings.add(f"{where}: planned as {reading.span}, and {last.span} before")
        _count_snapshot(reading, findings)
        return
    if reading.span != last.span:
        findings.add(f"{where}: planned as {reading.span}, and {last.span} before")
    # Rows that changed meanwhile are not in the snapshot, but in the windows after it.
    if reading.span.kind != "snapshot" and reading.contents != last.contents:
        findings.add(f"{where}: has {reading.contents}, and {last.contents} before")


def _check_next(where: str, last: Reading | None, reading: Reading, findings: JobFindings) -> None:
    if reading.batch_id != (0 if last is None else last.batch_id + 1):
        findings.add(f"{where}: came after {last}")
        return
    if last is None:
        return
    if not last.is_applied:
        findings.add(f"{where}: began, and the batch before was not applied")
    span, before = reading.span, last.span
    if span.kind in ("windows", "instead") and span.from_scn != before.to_scn:
        findings.add(f"{where}: begins after {span.from_scn}, the last ended with {before.to_scn}")
    known, first = last.contents.last_tx, reading.contents.first_tx
    if known and first and first != known + 1:
        findings.add(f"{where}: begins with transaction {first}, the last ended with {known}")


def _count(reading: Reading, findings: JobFindings) -> None:
    span = reading.span
    findings.batches += 1
    findings.rows[span.kind] += reading.contents.rows
    findings.windows += reading.contents.windows
    if span.kind == "windows":
        findings.homes[reading.home] += 1
    _count_snapshot(reading, findings)


def _count_snapshot(reading: Reading, findings: JobFindings) -> None:
    span = reading.span
    if span.kind == "snapshot":
        kept = findings.whole_snapshots if span.is_whole else findings.partial_snapshots
        kept.add(span.snapshot)
    elif span.kind == "instead":
        findings.partial_snapshots.add(f"instead of batch {reading.batch_id}")


def plain_rows(columns: Sequence[Sequence[Any]]) -> list[tuple[Any, ...]]:
    """Return rows of columns."""
    return list(zip(*columns, strict=True))
