"""GTID sets: read, printed, subtracted, and encoded as servers take them."""

from __future__ import annotations

import struct
from uuid import UUID

import pytest
from hypothesis import given, strategies as st
from pymysqlreplication.gtid import GtidSet

from databus.relay.sources.mysql.binlog.gtid_set import (
    MysqlGtidSet,
    decode_gtid_set,
    parse_mariadb_position,
    purged_problem,
)

A = "3e11fa47-71ca-11e1-9e33-c80aa9429562"
B = "4e11fa47-71ca-11e1-9e33-c80aa9429562"


@pytest.mark.parametrize(
    ("text", "printed"),
    [
        ("", ""),
        (f"{A}:1-5", f"{A}:1-5"),
        (f"{A.upper()}:7", f"{A}:7"),
        (f"{A}:4-5:1-3:9", f"{A}:1-5:9"),
        (f"{A}:1-5:3-7", f"{A}:1-7"),
        (f"{B}:1, {A}:2,\n{B}:2", f"{A}:2,{B}:1-2"),
        (f"{A}:1-3:red:5-7:blue:1", f"{A}:1-3,{A}:blue:1,{A}:red:5-7"),
        (f"{A}:RED:1", f"{A}:red:1"),
    ],
)
def test_a_set_is_read_and_printed_in_order(text: str, printed: str) -> None:
    found = MysqlGtidSet.parse(text)
    assert str(found) == printed
    assert MysqlGtidSet.parse(printed) == found


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("3E11FA47:1-5", "not a UUID"),
        ("x" * 36 + ":1", "badly formed"),
        (A, "has no numbers"),
        (f"{A}:0", "not an interval"),
        (f"{A}:5-4", "not an interval"),
        (f"{A}:{1 << 63}", "not an interval"),
        (f"{A}:1:red", "tag that has no numbers"),
        (f"{A}:1--2", "neither a number nor a tag"),
        (f"{A}:", "neither a number nor a tag"),
        (f"{A}:{'t' * 33}:1", "neither a number nor a tag"),
    ],
)
def test_what_is_no_set_is_refused(text: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        MysqlGtidSet.parse(text)


numbers = st.lists(st.tuples(st.integers(1, 60), st.integers(0, 9)), min_size=1, max_size=5)


def text_of(intervals: list[tuple[int, int]]) -> str:
    return f"{A}:" + ":".join(f"{first}-{first + more}" for first, more in intervals)


def members(intervals: list[tuple[int, int]]) -> set[int]:
    return {n for first, more in intervals for n in range(first, first + more + 1)}


@given(numbers, numbers)
def test_a_difference_has_what_is_in_one_and_not_in_the_other(
    ones: list[tuple[int, int]], others: list[tuple[int, int]]
) -> None:
    left = MysqlGtidSet.parse(text_of(ones)) - MysqlGtidSet.parse(text_of(others))
    found = {n for pairs in left.intervals.values() for a, b in pairs for n in range(a, b)}
    assert found == members(ones) - members(others)


@given(numbers)
def test_a_set_without_tags_is_encoded_as_another_library_does(
    intervals: list[tuple[int, int]],
) -> None:
    found = MysqlGtidSet.parse(f"{text_of(intervals)},{B}:5")
    assert found.encoded() == GtidSet(str(found)).encoded()


@given(numbers, numbers, st.sampled_from(["", f"{B}:red:7,", f"{A}:blue:1-3,"]))
def test_a_set_is_decoded_as_it_was_encoded(
    ones: list[tuple[int, int]], others: list[tuple[int, int]], tagged: str
) -> None:
    found = MysqlGtidSet.parse(f"{tagged}{text_of(ones)},{text_of(others).replace(A, B)}")
    data = found.encoded()
    assert decode_gtid_set(data) == found
    for length in range(len(data)):
        with pytest.raises(ValueError, match="ends too early"):
            decode_gtid_set(data[:length])


def test_a_set_with_tags_is_encoded_in_the_format_of_mysql_8_3() -> None:
    found = MysqlGtidSet.parse(f"{A}:1-3:red:5-7")
    interval = struct.Struct("<QQQ")
    assert found.encoded() == b"".join(
        (
            b"\x01\x02\0\0\0\0\0\x01",  # format 1, two entries, format 1
            UUID(A).bytes + b"\0" + interval.pack(1, 1, 4),
            UUID(A).bytes + b"\x06red" + interval.pack(1, 5, 8),
        )
    )


@pytest.mark.parametrize(
    ("wanted", "purged", "says"),
    [
        (f"{A}:1-5", "", ""),
        (f"{A}:1-5", f"{A}:1-5", ""),
        (f"{A}:1-5", f"{A}:1-3", ""),
        (f"{A}:1-5", f"{A}:1-9", f"begins with {A}:6-9"),
        (f"{A}:1-5", f"{A}:1-5:red:1", f"begins with {A}:red:1"),
        (f"{A}:1-2:5", f"{A}:1-4", f"begins with {A}:3-4"),
        (f"{A}:1-5", f"{B}:1", f"begins with {B}:1"),
    ],
)
def test_a_set_behind_what_was_purged_is_told_with_both_ends(
    wanted: str, purged: str, says: str
) -> None:
    problem = purged_problem(wanted, purged, f"{A}:1-20")
    if not says:
        assert problem == ""
    else:
        assert says in problem
        assert f"it has {A}:1-20 and no longer {purged}" in problem


def test_a_position_of_mariadb_is_one_gtid_a_domain() -> None:
    assert parse_mariadb_position("0-1-100, 7-2-5") == {0: (1, 100), 7: (2, 5)}
    with pytest.raises(ValueError, match="domain 0 is there twice"):
        parse_mariadb_position("0-1-100,0-2-101")
    with pytest.raises(ValueError, match="not a GTID of MariaDB"):
        parse_mariadb_position("0-1")
