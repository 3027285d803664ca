"""Mod and range filters, with Java's arithmetic."""

from __future__ import annotations

import json
from contextlib import suppress

import pytest
from hypothesis import given, strategies as st

from databus.schemas.errors import InvalidParameterError
from databus.schemas.filters import (
    AnyOf,
    EventFilter,
    ModFilter,
    NoFilter,
    PartitionFilter,
    RangeFilter,
    filters_to_json,
    java_hash,
    key_hash,
    parse_filters,
)

LONGS = st.integers(-(1 << 63), (1 << 63) - 1)


@st.composite
def ranges(draw: st.DrawFn) -> tuple[int, int]:
    start = draw(st.integers(-(1 << 63), (1 << 63) - 2))
    return start, draw(st.integers(start + 1, (1 << 63) - 1))


MODS = st.builds(
    lambda buckets, bounds: ModFilter(buckets, *bounds), st.integers(1, (1 << 63) - 1), ranges()
)
RANGES = ranges().map(lambda bounds: RangeFilter(*bounds))
PARTITIONS = st.integers(1, 200).flatmap(
    lambda count: st.builds(
        PartitionFilter,
        st.just(count),
        st.frozensets(st.integers(0, count - 1), min_size=1),
        st.lists(st.text(max_size=5), unique=True, max_size=3).map(tuple),
    )
)
FILTERS = st.one_of(
    st.just(NoFilter()),
    st.lists(MODS, min_size=1, max_size=3).map(lambda mods: AnyOf(tuple(mods))),
    st.lists(RANGES, min_size=1, max_size=3).map(lambda some: AnyOf(tuple(some))),
    PARTITIONS,
)


@given(st.dictionaries(st.integers(0, 32767), FILTERS, max_size=4))
def test_filters_come_back_from_their_json(filters: dict[int, EventFilter]) -> None:
    assert parse_filters(filters_to_json(filters)) == filters


def test_the_json_of_protocol_md_is_understood() -> None:
    text = """{"40": {"partitionType": "MOD",
                      "filters": [{"numBuckets": 4, "bktRange": {"start": 0, "end": 2}}]},
               "41": {"partitionType": "RANGE",
                      "filters": [{"keyRange": {"start": 100, "end": 200}}]},
               "42": {"partitionType": "NONE"}}"""
    assert parse_filters(text) == {
        40: AnyOf((ModFilter(4, 0, 2),)),
        41: AnyOf((RangeFilter(100, 200),)),
        42: NoFilter(),
    }


def test_one_filter_alone_is_written_as_a_list_of_one() -> None:
    assert parse_filters(filters_to_json({40: ModFilter(4, 0, 2)})) == {
        40: AnyOf((ModFilter(4, 0, 2),))
    }


def test_the_json_of_a_partition_filter_is_the_one_of_the_page() -> None:
    text = """{"43": {"partitionType": "HASH",
                      "filters": [{"partitions": 32, "wanted": "a1", "by": ["customer_id"]}]}}"""
    wanted = PartitionFilter(32, frozenset((0, 5, 7)), ("customer_id",))
    assert parse_filters(text) == {43: wanted}


def test_half_of_the_most_partitions_fit_a_request_for_several_sources() -> None:
    wanted = PartitionFilter(1 << 15, frozenset(range(0, 1 << 15, 2)))
    assert parse_filters(filters_to_json(dict.fromkeys(range(7), wanted)))[6] == wanted


def test_every_key_is_in_one_partition() -> None:
    for key in (0, -1, 1 << 62, b"", b"a,b", "naïve".encode()):
        (found,) = (one for one in range(7) if PartitionFilter(7, frozenset((one,))).matches(key))
        assert found == key_hash(key) % 7


def test_a_key_says_nothing_of_the_partition_by_a_column() -> None:
    with pytest.raises(InvalidParameterError, match="only their keys are known"):
        PartitionFilter(7, frozenset((0,)), ("city",)).matches(5)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("", 0),
        ("a", 97),
        ("hello", 99162322),
        ("hello world", 1794106052),
        ("polygenelubricants", -(1 << 31)),
        ("Hello, World!", 1498789909),
        ("é", 233),
        ("\N{GRINNING FACE}", 1772899),
    ],
)
def test_java_hash_codes(text: str, code: int) -> None:
    assert java_hash(text) == code


@given(st.text(max_size=40))
def test_java_hash_is_the_polynomial_over_utf_16_units(text: str) -> None:
    assert java_hash(text) == _hash_by_formula(text)


def _hash_by_formula(text: str) -> int:
    """s[0]*31^(n-1) + … + s[n-1] in 32 signed bits, as the Java documentation has it."""
    data = text.encode("utf-16-be")
    units = [int.from_bytes(data[at : at + 2], "big") for at in range(0, len(data), 2)]
    total: int = sum(unit * 31 ** (len(units) - 1 - at) for at, unit in enumerate(units))
    return (total + (1 << 31)) % (1 << 32) - (1 << 31)


@pytest.mark.parametrize(
    ("key", "bucket"),
    [
        (7, 3),
        (-7, 3),
        (8, 0),
        (b"7", 3),
        (b"-7", 3),
        (b"+7", 3),
        (b"hello", 99162322 % 4),
        (b"polygenelubricants", 0),  # abs of -2^31 as a long
        (b"9223372036854775808", None),  # too large for a long: hashed
    ],
)
def test_a_key_falls_into_one_bucket(key: int | bytes, bucket: int | None) -> None:
    expected = abs(java_hash("9223372036854775808")) % 4 if bucket is None else bucket
    matching = [at for at in range(4) if ModFilter(4, at, at + 1).matches(key)]
    assert matching == [expected]


def test_the_smallest_long_keeps_its_sign_as_in_java() -> None:
    smallest = -(1 << 63)
    assert ModFilter(4, 0, 1).matches(smallest)  # -2^63 % 4 is 0
    assert not any(ModFilter(3, at, at + 1).matches(smallest) for at in range(3))
    assert ModFilter(3, -2, -1).matches(smallest)  # -2^63 % 3 is -2 in Java


@given(LONGS.filter(lambda key: key != -(1 << 63)), st.integers(1, 50))
def test_mod_filters_of_all_buckets_share_the_keys_out(key: int, buckets: int) -> None:
    assert sum(ModFilter(buckets, at, at + 1).matches(key) for at in range(buckets)) == 1


def test_a_range_is_half_open() -> None:
    one = RangeFilter(100, 200)
    assert [one.matches(key) for key in (99, 100, 199, 200, b"150", b"99")] == [
        *(False, True, True, False, True, False)
    ]


def test_a_range_over_keys_that_are_no_numbers_is_refused_and_not_taken_for_no() -> None:
    with pytest.raises(InvalidParameterError, match="needs keys that are numbers"):
        RangeFilter(0, 10).matches(b"abc")


def test_filters_of_one_source_are_or_ed() -> None:
    either = AnyOf((RangeFilter(0, 10), RangeFilter(20, 30)))
    assert [either.matches(key) for key in (5, 15, 25)] == [True, False, True]
    assert NoFilter().matches(b"anything")


def one_filter(partition_type: str, text: str) -> str:
    return f'{{"40": {{"partitionType": "{partition_type}", "filters": [{text}]}}}}'


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "1",
        '{"40": 1}',
        '{"40": {}}',
        '{"x": {"partitionType": "NONE"}}',
        '{"-1": {"partitionType": "NONE"}}',
        '{"32768": {"partitionType": "NONE"}}',
        '{"40": {"partitionType": "HASH", "filters": [{}]}}',
        '{"40": {"partitionType": "MOD"}}',
        '{"40": {"partitionType": "MOD", "filters": []}}',
        '{"40": {"partitionType": "MOD", "filters": {"numBuckets": 1}}}',
        '{"40": {"partitionType": "MOD", "filters": [1]}}',
        one_filter("MOD", '{"numBuckets": 0, "bktRange": {"start": 0, "end": 1}}'),
        one_filter("MOD", '{"numBuckets": true, "bktRange": {"start": 0, "end": 1}}'),
        one_filter("MOD", '{"numBuckets": 2}'),
        one_filter("RANGE", '{"keyRange": {"start": 2, "end": 2}}'),
        one_filter("RANGE", '{"keyRange": {"start": 0.5, "end": 2}}'),
        one_filter("RANGE", '{"keyRange": {"start": 0, "end": 9223372036854775808}}'),
        one_filter("HASH", '{"partitions": 0, "wanted": "1"}'),
        one_filter("HASH", '{"partitions": 32769, "wanted": "1"}'),
        one_filter("HASH", '{"partitions": 4, "wanted": "0"}'),
        one_filter("HASH", '{"partitions": 4, "wanted": "10"}'),
        one_filter("HASH", '{"partitions": 4, "wanted": "-1"}'),
        one_filter("HASH", '{"partitions": 4, "wanted": 1}'),
        one_filter("HASH", '{"partitions": 4, "wanted": "1", "by": "id"}'),
        one_filter("HASH", '{"partitions": 4, "wanted": "1", "by": ["id", "id"]}'),
        one_filter("HASH", '{"partitions": 4, "wanted": "1"}, {"partitions": 4, "wanted": "2"}'),
        "[" * 20_000,
    ],
)
def test_malformed_filters_are_refused(text: str) -> None:
    with pytest.raises(InvalidParameterError) as caught:
        parse_filters(text)
    assert caught.value.parameter == "filters"


def test_oversized_filters_are_refused_unread() -> None:
    text = json.dumps({"40": {"partitionType": "NONE", "filters": [], "x": "y" * 1000}})
    assert parse_filters(text) == {40: NoFilter()}
    with pytest.raises(InvalidParameterError, match="longer than 1000"):
        parse_filters(text, max_chars=1000)


@given(st.text(max_size=60))
def test_random_text_raises_only_invalid_parameter(text: str) -> None:
    filters: dict[int, EventFilter] = {}
    with suppress(InvalidParameterError):
        filters = parse_filters(text)
    assert filters == {}
