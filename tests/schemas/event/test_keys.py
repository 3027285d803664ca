"""What an event's key is."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import assume, given, strategies as st

from databus.schemas.errors import RowError
from databus.schemas.event.keys import event_key, key_maker
from databus.schemas.table import Column, Table

PARTS = (
    st.none() | st.text(max_size=5) | st.binary(max_size=4) | st.sampled_from([",", "\\", "\\N"])
)


def table(*key_types: str) -> Table:
    """A table whose columns k0, k1 … are its key, and one more that is not."""
    keys = [Column(f"k{at}", sql_type, at, False, at) for at, sql_type in enumerate(key_types)]
    return Table("shop.t", (*keys, Column("note", "text", len(keys))))


@pytest.mark.parametrize("value", [0, -1, (1 << 63) - 1, -(1 << 63)])
def test_one_integer_column_is_a_long_key(value: int) -> None:
    assert event_key(table("bigint"), {"k0": value, "note": None}) == value


def test_an_unsigned_bigint_is_a_long_key_as_long_as_it_fits_one() -> None:
    unsigned = table("bigint(20) unsigned")
    assert event_key(unsigned, {"k0": Decimal(5)}) == 5
    assert event_key(unsigned, {"k0": Decimal(1 << 63)}) == b"9223372036854775808"
    assert event_key(unsigned, {"k0": 1 << 63}) == b"9223372036854775808"


def test_columns_are_joined_so_that_no_two_keys_look_alike() -> None:
    pair = table("varchar(9)", "varchar(9)")
    assert event_key(pair, {"k0": "1", "k1": "23"}) == b"1,23"
    assert event_key(pair, {"k0": "12", "k1": "3"}) == b"12,3"
    assert event_key(pair, {"k0": "a,b", "k1": "c\\"}) == b"a\\,b,c\\\\"
    assert event_key(pair, {"k0": None, "k1": b"\x01\xff"}) == b"\\N,\\x01ff"


@given(st.tuples(PARTS, PARTS), st.tuples(PARTS, PARTS))
def test_different_columns_make_different_keys(
    one: tuple[object, object], other: tuple[object, object]
) -> None:
    assume(one != other)
    make = key_maker(table("varchar(9)", "varchar(9)"))
    assert make({"k0": one[0], "k1": one[1]}) != make({"k0": other[0], "k1": other[1]})


def test_the_key_columns_are_taken_in_the_order_of_the_key() -> None:
    turned = Table(
        "shop.t", (Column("b", "int", 0, False, 1), Column("a", "varchar(5)", 1, False, 0))
    )
    assert event_key(turned, {"b": 2, "a": "x"}) == b"x,2"


@pytest.mark.parametrize(
    ("value", "key"),
    [
        ("abc", b"abc"),
        ("é", "é".encode()),
        (Decimal("1E+2"), b"100"),
        (Decimal("1.50"), b"1.50"),
        (date(2024, 2, 29), b"2024-02-29"),
        (datetime(2024, 2, 29, 1, 2, 3), b"2024-02-29T01:02:03"),
        (datetime(2024, 2, 29, 1, tzinfo=UTC), b"2024-02-29T01:00:00+00:00"),
        (
            datetime(2024, 2, 29, 1, tzinfo=timezone(timedelta(hours=2))),
            b"2024-02-28T23:00:00+00:00",
        ),
        (1.5, b"1.5"),
    ],
)
def test_the_text_forms(value: Any, key: bytes) -> None:
    assert event_key(table("varchar(9)"), {"k0": value}) == key


def test_a_table_without_a_key_uses_the_digest_of_the_row() -> None:
    keyless = Table("shop.log", (Column("a", "int", 0), Column("b", "text", 1)))
    key = event_key(keyless, {"a": 1, "b": "x"})
    assert isinstance(key, bytes)
    assert len(key) == 32
    assert key == event_key(keyless, {"b": "x", "a": 1})
    assert key != event_key(keyless, {"a": 1, "b": "y"})


def test_what_cannot_be_part_of_a_key_names_its_column() -> None:
    for key_types in (("int",), ("int", "int")):
        with pytest.raises(RowError, match=r"'k0'.*not in the row"):
            event_key(table(*key_types), {"k1": 1})
    with pytest.raises(RowError, match=r"'k0'.*list cannot"):
        event_key(table("varchar(9)"), {"k0": []})
    with pytest.raises(RowError, match=r"'k0'.*not valid text"):
        event_key(table("varchar(9)"), {"k0": "\udc80"})
