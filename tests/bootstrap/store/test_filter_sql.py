"""Filters in SQL give the same answer as filters in memory."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing

import pytest
from hypothesis import given, strategies as st

from databus.bootstrap.store import (
    log_table,
    snapshot_pages,
    snapshot_table,
)
from databus.bootstrap.store.filter_sql import add_functions, condition_of, number_of
from databus.bootstrap.store.log_table import LogRange
from databus.bootstrap.store.snapshot_pages import SnapshotRange
from databus.schemas.errors import InvalidParameterError
from databus.schemas.filters import (
    AnyOf,
    EventFilter,
    ModFilter,
    NoFilter,
    PartitionFilter,
    RangeFilter,
    parse_filters,
)
from tests.bootstrap.filled import of_bytes

SMALLEST, LARGEST = -(1 << 63), (1 << 63) - 1
LONGS = st.integers(SMALLEST, LARGEST) | st.integers(-9, 9) | st.sampled_from([SMALLEST, LARGEST])
NUMBERS_IN_TEXT = st.builds(
    lambda sign, number: f"{sign}{number}".encode(),
    st.sampled_from(["", "", "+", "0"]),
    st.integers(SMALLEST - 2, LARGEST + 2) | st.integers(-9, 9),
)
KEYS = LONGS | NUMBERS_IN_TEXT | st.binary(max_size=12) | st.text(max_size=8).map(str.encode)


@st.composite
def spans(draw: st.DrawFn) -> tuple[int, int]:
    start, end = sorted((draw(LONGS), draw(LONGS)))
    return (start, end) if start < end else (start - 1, end) if start > SMALLEST else (start, 0)


MODS = st.builds(
    lambda buckets, span: ModFilter(buckets, *span), st.integers(1, 9) | LONGS.filter(bool), spans()
).filter(lambda one: one.num_buckets > 0)
RANGES = st.builds(lambda span: RangeFilter(*span), spans())
FILTERS: st.SearchStrategy[EventFilter] = (
    st.just(NoFilter())
    | MODS
    | RANGES
    | st.builds(PartitionFilter, st.just(7), st.frozensets(st.integers(0, 6), min_size=1))
    | st.builds(AnyOf, st.lists(MODS, min_size=1, max_size=5).map(tuple))
    | st.builds(AnyOf, st.lists(RANGES, min_size=1, max_size=5).map(tuple))
)


@pytest.fixture(scope="module")
def connection() -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as made:
        add_functions(made)
        snapshot_table.create(made, 1)
        log_table.create(made, 1)
        yield made


def answer(keys: list[int | bytes], wanted: EventFilter) -> list[int | bytes] | None:
    """Return the keys that a filter lets through in memory; None when it refuses one."""
    try:
        return [key for key in keys if wanted.matches(key)]
    except InvalidParameterError:
        return None


@given(st.lists(KEYS, max_size=12, unique=True), FILTERS)
def test_both_kinds_of_tables_answer_as_the_filter_in_memory(
    connection: sqlite3.Connection, keys: list[int | bytes], wanted: EventFilter
) -> None:
    connection.execute("begin")
    try:
        events = [of_bytes(key, 5) for key in keys]
        snapshot_table.merge(connection, 1, events, 0)
        log_table.append(connection, 1, list(enumerate(events)), 0)
        expected = answer(keys, wanted)
        if expected is None:
            with pytest.raises(InvalidParameterError, match="RANGE filter needs keys"):
                snapshot_pages.page(connection, 1, SnapshotRange(0, 9, 0, wanted), 1 << 20)
            with pytest.raises(InvalidParameterError, match="RANGE filter needs keys"):
                log_table.page(connection, LogRange([1], (0, -1), 9, {1: wanted}), 1 << 20)
            return
        by_id = snapshot_pages.page(connection, 1, SnapshotRange(0, 9, 0, wanted), 1 << 20)
        by_scn = snapshot_pages.page(connection, 1, SnapshotRange(4, 9, 0, wanted), 1 << 20)
        logged = log_table.page(connection, LogRange([1], (0, -1), 9, {1: wanted}), 1 << 20)
        assert [row.key for row in by_id.rows] == expected
        assert [row.key for row in by_scn.rows] == expected
        assert [row.key for row in logged.rows] == expected
    finally:
        connection.execute("rollback")


def test_as_many_filters_as_a_request_may_have_are_one_condition(
    connection: sqlite3.Connection,
) -> None:
    ranges = ",".join(f'{{"keyRange":{{"start":{n},"end":{n + 1}}}}}' for n in range(0, 3000, 2))
    text = f'{{"1":{{"partitionType":"RANGE","filters":[{ranges}]}}}}'
    wanted = parse_filters(text, max_chars=len(text))[1]
    condition = condition_of(wanted)
    sql = f"select number from (select ? as number, 0 as is_hashed) where {condition.sql}"
    found = [
        connection.execute(sql, (number, *condition.parameters)).fetchall() for number in (1, 2998)
    ]
    assert found == [[], [(2998,)]]


def test_a_filter_of_another_kind_is_refused() -> None:
    class Odd:
        def matches(self, key: int | bytes) -> bool:
            return True

        def to_json_value(self) -> dict[str, object]:
            return {}

    with pytest.raises(InvalidParameterError, match="MOD, RANGE, HASH or NONE"):
        condition_of(Odd())


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        (-(1 << 63), (-(1 << 63), False)),
        (b"-0042", (-42, False)),
        (b"+7", (7, False)),
        (b"", (0, True)),
        (b"a,b", (94679, True)),
    ],
)
def test_a_key_has_the_number_that_java_reckons_with(
    key: int | bytes, expected: tuple[int, bool]
) -> None:
    assert number_of(key) == expected


def test_a_number_that_is_no_long_is_hashed() -> None:
    assert number_of(b"9223372036854775808")[1]
