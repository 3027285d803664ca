"""The mode `scd2`: the versions of each row, with the times from which and to which they were."""

from __future__ import annotations

import random
from datetime import datetime, timedelta
from typing import Any

import pytest

from databus.client.sinks.contract import Change
from tests.client.sinks.ready.sql.targets import Source, Target, write

pytest_plugins = ["tests.mariadb", "tests.mysql", "tests.postgres"]

T = Source({"id": "int", "v": "varchar(9)", "w": "int"})
LIFE = [
    T.insert(1, "a", 1, scn=1),
    T.update(1, "b", 2, scn=2),
    T.update(1, "c", 3, scn=2, index=1),
    T.delete(1, "c", 3, scn=5),
    T.insert(1, "d", 4, scn=7),
]
COLUMNS = ("_databus_scn", "_databus_index", "id", "v", "w", "_databus_from", "_databus_to")


def us(found: Any) -> int | None:
    """Return microseconds since 1970: those of a change are its SCN."""
    if found is None:
        return None
    moment = datetime.fromisoformat(found) if isinstance(found, str) else found
    return (moment.replace(tzinfo=None) - datetime(1970, 1, 1)) // timedelta(microseconds=1)


def versions(target: Target) -> list[tuple[Any, ...]]:
    rows = [(*row[:-2], us(row[-2]), us(row[-1])) for row in target.table("t", *COLUMNS)]
    return sorted(rows, key=lambda row: (row[2], row[0], row[1]))


def at_size(target: Target, changes: list[Change], size: int, **options: Any) -> None:
    with target.opened(mode="scd2", **options) as sink:
        for start in range(0, len(changes), size):
            sink.write(changes[start : start + size])
            sink.flush()


@pytest.mark.parametrize("size", [1, 2, 5], ids="flushes of {} changes".format)
def test_each_version_is_a_row_from_its_change_to_the_next(target: Target, size: int) -> None:
    at_size(target, LIFE, size)
    assert versions(target) == [
        (1, 0, 1, "a", 1, 1, 2),
        (2, 0, 1, "b", 2, 2, 2),
        (2, 1, 1, "c", 3, 2, 5),
        (7, 0, 1, "d", 4, 7, None),
    ]


@pytest.mark.parametrize("size", [1, 3], ids="flushes of {} changes".format)
def test_an_update_of_some_columns_keeps_the_others_of_the_version_before(
    target: Target, size: int
) -> None:
    changes = [T.insert(1, "a", 9, scn=1), T.update(1, "b", scn=2), T.update(1, "c", scn=3)]
    at_size(target, changes, size)
    assert [row[3:5] for row in versions(target)] == [("a", 9), ("b", 9), ("c", 9)]


def test_changes_that_come_again_change_nothing(target: Target) -> None:
    at_size(target, LIFE, 5, exactly_once=False)
    once = versions(target)
    for again in (LIFE[:1], LIFE[1:4], LIFE, LIFE[3:]):
        at_size(target, again, 2, exactly_once=False)
        assert versions(target) == once


def test_what_was_written_without_its_position_ends_when_it_comes_again_with_what_followed(
    target: Target,
) -> None:
    begin = [T.insert(1, "a", 1, scn=1), T.insert(3, "c", 1, scn=1, index=1)]
    then = [T.update(1, "b", 2, scn=2), T.delete(3, "c", 1, scn=4), T.update(1, "c", 2, scn=5)]
    at_size(target, [*begin, then[0]], 1, exactly_once=False)
    at_size(target, [*begin, *then], 5, exactly_once=False)
    assert [(row[2], row[0], *row[5:]) for row in versions(target)] == [
        (1, 1, 1, 2),
        (1, 2, 2, 5),
        (1, 5, 5, None),
        (3, 1, 1, 4),
    ]


@pytest.mark.parametrize("times", range(3))
def test_random_repeats_of_what_was_written_leave_the_rows_of_each_moment(
    target: Target, times: int
) -> None:
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}, {times}")
    rng = random.Random(seed)
    changes, states = history(rng, 30)
    done = 0
    while done < len(changes):
        begin = max(0, done - rng.randrange(12))
        done = min(len(changes), done + rng.randint(1, 12))
        at_size(target, changes[begin:done], rng.randint(1, 20), exactly_once=False)
    check_moments(target, states)


def test_a_truncate_ends_what_was_current_and_no_other(target: Target) -> None:
    rows = [T.insert(2, "x", 1, scn=1), T.update(2, "y", 1, scn=2), T.made("truncate", scn=4)]
    write(target, [*rows, T.insert(3, "z", 1, scn=5)], mode="scd2")
    assert [row[3:] for row in versions(target)] == [
        ("x", 1, 1, 2),
        ("y", 1, 2, 4),
        ("z", 1, 5, None),
    ]


def test_a_snapshot_begins_versions_of_rows_that_are_newer_than_the_current_one(
    target: Target,
) -> None:
    at_size(target, [T.insert(1, "a", 1, scn=4), T.insert(2, "b", 1, scn=4)], 2)
    page = [("snapshot", 1, "a", 1, 4), ("snapshot", 2, "c", 2, 6), ("snapshot", 3, "d", 3, 2)]
    given = [T.made(op, *row, scn=scn, index=9) for op, *row, scn in page]
    write(target, given, mode="scd2")
    assert [(row[2], row[3], *row[5:]) for row in versions(target)] == [
        (1, "a", 4, None),
        (2, "b", 4, 6),
        (2, "c", 6, None),
        (3, "d", 2, None),
    ]


def test_versions_of_several_sources_have_one_table(target: Target) -> None:
    other = Source(T.columns, name="crm.t")
    options = {"mode": "scd2", "source_column": "_src"}
    write(target, [T.insert(1, "a", 1, scn=1), other.insert(1, "b", 1, scn=2)], **options)
    write(target, [T.made("truncate", scn=3)], **options)
    assert target.table("t", "_src", "id", "v") == [("crm.t", 1, "b"), ("shop.t", 1, "a")]
    assert [us(row[1]) for row in target.table("t", "_src", "_databus_to")] == [None, 3]


def test_a_new_column_and_a_new_name_reach_all_versions(target: Target) -> None:
    at_size(target, LIFE[:2], 2)
    columns = {"id": "int", "value": "varchar(9)", "w": "int", "n": "int"}
    altered = T.altered(columns, renamed={"value": "v"}, added={"n": 5})
    write(target, [altered.update(1, "z", 3, 6, scn=8)], mode="scd2")
    held = target.table("t", "_databus_scn", "value", "w", "n")
    assert held == [(1, "a", 1, 5), (2, "b", 2, 5), (8, "z", 3, 6)]


State = dict[int, tuple[int, str, int]]


def history(rng: random.Random, transactions: int) -> tuple[list[Change], list[State]]:
    """Return random changes, and the rows after each transaction; the first has none."""
    rows: State = {}
    states: list[State] = [{}]
    changes: list[Change] = []
    for scn in range(1, transactions):
        for index in range(rng.randint(1, 3)):
            key = rng.randrange(5)
            row = (key, rng.choice("abc"), rng.randrange(9))
            if key in rows and rng.random() < 0.3:
                changes.append(T.delete(*rows.pop(key), scn=scn, index=index))
            else:
                op = "update" if key in rows else "insert"
                changes.append(T.made(op, *row, scn=scn, index=index))
                rows[key] = row
        states.append(dict(rows))
    return changes, states


def check_moments(target: Target, states: list[State]) -> None:
    held = versions(target)
    for scn, state in enumerate(states):
        found = [row[2:5] for row in held if row[5] <= scn and (row[6] is None or row[6] > scn)]
        assert found == [state[key] for key in sorted(state)], scn


def test_the_rows_of_each_moment_are_those_of_the_source(target: Target) -> None:
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    changes, states = history(rng, 80)
    at_size(target, changes, rng.randint(1, 40))
    check_moments(target, states)
