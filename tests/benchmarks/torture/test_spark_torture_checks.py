"""What the Spark torture's checks find, on batches made by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.spark_torture.batch_checks import Row, as_read, check_batch
from benchmarks.spark_torture.checks import JobFindings, check_readings
from benchmarks.spark_torture.kills import VICTIMS, plan_kills
from benchmarks.spark_torture.log import Contents, Reading
from benchmarks.spark_torture.spans import Span
from benchmarks.torture.workload import SOURCES

WINDOWS = Span("windows", 10, 30)
SNAPSHOT = Span("snapshot", 0, 10, "0/0/10/store", is_whole=True)
END = Span("end", 10, 10, is_whole=True)
PARTIAL = Span("snapshot", 40, 50, "0/40/50/store")


def window(scn: int, tx: int, rows: int) -> list[Row]:
    """Return a transaction of inserts, of which the last is an update and its row's deletion."""
    found = [Row(scn, n, "insert", SOURCES[n % 2], tx, n + 1, rows + 2) for n in range(rows)]
    updated = Row(scn, rows, "update", SOURCES[0], tx, rows + 1, rows + 2)
    return [*found, updated, updated._replace(place=rows + 1, op="delete")]


ROWS = [*window(20, 7, 3), *window(25, 8, 1)]


def test_a_batch_of_whole_transactions_in_any_order_is_right() -> None:
    found = check_batch(WINDOWS, reversed(ROWS))
    assert found.problems == []
    assert (found.rows, found.windows, found.first_tx, found.last_tx) == (8, 2, 7, 8)
    assert found == check_batch(WINDOWS, ROWS)


def test_planned_windows_that_are_gone_may_come_as_a_snapshot() -> None:
    rows = [row._replace(op="snapshot") for row in window(22, 7, 3)]
    span = as_read(WINDOWS, rows)
    assert span == replace(WINDOWS, kind="instead")
    assert check_batch(span, rows).problems == []
    assert as_read(WINDOWS, ROWS) == WINDOWS
    (problem,) = check_batch(span, [rows[0]._replace(op="truncate")]).problems
    assert "in a snapshot there is" in problem


@pytest.mark.parametrize("at", range(len(ROWS)))
def test_every_row_that_is_missing_is_found(at: int) -> None:
    (problem,) = check_batch(WINDOWS, [*ROWS[:at], *ROWS[at + 1 :]]).problems
    assert "lacks 1 of" in problem


@pytest.mark.parametrize(
    ("rows", "problem"),
    [
        ([*ROWS, ROWS[0]], "twice"),
        ([*ROWS, *window(31, 9, 1)], r"window 31 is not in \(10, 30\]"),
        ([*ROWS, *window(10, 6, 1)], r"window 10 is not in \(10, 30\]"),
        ([*ROWS, *window(26, 10, 1)], "transaction 10 came after 8"),
        ([*ROWS, *window(26, -9, 1)], "it has Row"),
        ([ROWS[0]._replace(op="snapshot"), *ROWS[1:]], "it has Row"),
        ([*ROWS, *(row._replace(scn=25, place=9) for row in window(25, 9, 1))], "has "),
    ],
)
def test_what_is_off_in_a_batch_of_windows_is_found(rows: list[Row], problem: str) -> None:
    with pytest.raises(AssertionError, match=problem):
        assert check_batch(WINDOWS, rows).problems == []


def test_a_snapshot_has_rows_as_they_stand_and_its_end_one_mark_a_source() -> None:
    standing = [Row(5, 0, "snapshot", SOURCES[0], 0, 0, 0)]
    assert check_batch(SNAPSHOT, standing).problems == []
    assert check_batch(SNAPSHOT, [standing[0]._replace(tx=-1)]).problems != []
    assert check_batch(SNAPSHOT, ROWS).problems != []
    marks = [Row(10, None, "snapshot_end", source, 0, 0, 0) for source in SOURCES]
    assert check_batch(END, marks).problems == []
    assert check_batch(END, marks[1:]).problems != []
    assert check_batch(replace(END, is_whole=False), []).problems == []


def reading(batch_id: int, span: Span, first_tx: int = 0, last_tx: int = 0) -> Reading:
    return Reading(1, batch_id, span, Contents(5, 1, first_tx, last_tx), "ring", is_applied=True)


READINGS = [
    reading(0, SNAPSHOT),
    reading(1, END),
    reading(2, WINDOWS, 7, 8),
    reading(3, Span("windows", 30, 40), 9, 12),
    reading(4, PARTIAL),
    reading(5, Span("end", 50, 50)),
    reading(6, Span("windows", 50, 60), 20, 22),
]


def checked(readings: list[Reading]) -> JobFindings:
    findings = JobFindings()
    check_readings(readings, 22, True, findings)
    return findings


def test_batches_that_follow_each_other_are_right_and_counted() -> None:
    again = replace(READINGS[2], is_applied=False)
    findings = checked([*READINGS[:2], again, *READINGS[2:]])
    assert findings.problems == []
    assert (findings.batches, findings.replayed) == (7, 1)
    assert len(findings.whole_snapshots) == len(findings.partial_snapshots) == 1
    assert findings.homes == {"ring": 3}


def test_a_batch_may_be_read_as_windows_and_then_as_a_snapshot_in_their_place() -> None:
    instead = replace(READINGS[3], span=replace(READINGS[3].span, kind="instead"))
    late = replace(instead, contents=Contents(9))
    first = replace(READINGS[3], is_applied=False)
    assert checked([*READINGS[:3], first, late, *READINGS[4:]]).problem_count == 0
    without_partial = [*READINGS[:3], late, reading(4, Span("windows", 40, 60), 20, 22)]
    findings = checked(without_partial)
    assert (findings.problems, len(findings.partial_snapshots)) == ([], 1)
    elsewhere = replace(late, span=replace(late.span, to_scn=41))
    assert checked([*READINGS[:3], first, elsewhere, *READINGS[4:]]).problem_count == 1


def test_a_snapshot_that_is_read_again_may_have_fewer_rows_and_windows_may_not() -> None:
    other = Contents(4, 1, 7, 8)
    fewer = replace(READINGS[0], contents=Contents(4))
    assert checked([READINGS[0], fewer, *READINGS[1:]]).problem_count == 0
    changed = replace(READINGS[2], contents=other)
    assert checked([*READINGS[:2], changed, *READINGS[2:]]).problem_count == 1


@pytest.mark.parametrize(
    "readings",
    [
        [*READINGS[:2], *READINGS[3:]],
        READINGS[:6],
        READINGS[1:],
        [*READINGS[:6], replace(READINGS[6], is_applied=False)],
        [*READINGS[:3], replace(READINGS[3], span=Span("windows", 31, 40)), *READINGS[4:]],
        [*READINGS[:3], replace(READINGS[3], contents=Contents(5, 1, 10, 12)), *READINGS[4:]],
        [*READINGS[:2], replace(READINGS[2], is_applied=False), *READINGS[3:]],
        [
            *READINGS[:3],
            replace(READINGS[3], contents=replace(READINGS[3].contents, problems=["x"])),
            *READINGS[4:],
        ],
    ],
)
def test_a_batch_that_is_lost_or_does_not_follow_is_found(readings: list[Reading]) -> None:
    assert checked(readings).problem_count


def test_every_victim_is_among_eight_kills_whatever_the_seed() -> None:
    for seed in range(5):
        assert {kill.victim for kill in plan_kills(seed, len(VICTIMS))} == set(VICTIMS)
    assert plan_kills(3, 5) == plan_kills(3, 5)
    assert {kill.victim for kill in plan_kills(1, 2)} == {"driver", "executor"}
