"""Numbers and times as Java and MySQL write them."""

from __future__ import annotations

from datetime import datetime

import pytest

from databus.relay.serving.columns.texts import (
    datetime_text,
    enum_place,
    java_double,
    java_float,
    set_bits,
    time_text,
)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0.0"),
        (-0.0, "-0.0"),
        (1.0, "1.0"),
        (-1.5, "-1.5"),
        (100.0, "100.0"),
        (0.001, "0.001"),
        (0.0001, "1.0E-4"),
        (9999999.0, "9999999.0"),
        (1e7, "1.0E7"),
        (12345678.9, "1.23456789E7"),
        (1.7976931348623157e308, "1.7976931348623157E308"),
        (5e-324, "4.9E-324"),
        (0.1 + 0.2, "0.30000000000000004"),
        (float("inf"), "Infinity"),
        (float("-inf"), "-Infinity"),
        (float("nan"), "NaN"),
    ],
)
def test_a_double_is_written_as_java_does(value: float, text: str) -> None:
    assert java_double(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1.5, "1.5"),
        (float.fromhex("0x1.99999a0000000p-4"), "0.1"),
        (16777216.0, "1.6777216E7"),
        (float.fromhex("0x1.fffffe0000000p+127"), "3.4028235E38"),
        (float.fromhex("0x1.0p-149"), "1.4E-45"),
    ],
)
def test_a_float_is_written_as_java_does(value: float, text: str) -> None:
    assert java_float(value) == text


@pytest.mark.parametrize(
    ("micros", "digits", "text"),
    [
        (0, 0, "00:00:00"),
        (-(838 * 3600 + 59 * 60 + 59) * 1_000_000, 0, "-838:59:59"),
        (1_500_000, 3, "00:00:01.500"),
        (-1, 6, "-00:00:00.000001"),
    ],
)
def test_a_time_has_its_sign_and_digits(micros: int, digits: int, text: str) -> None:
    assert time_text(micros, digits) == text


def test_a_fraction_has_as_many_digits_as_its_type() -> None:
    moment = datetime(2024, 2, 29, 1, 2, 3, 40)
    texts = [datetime_text(moment, digits) for digits in (0, 3, 6)]
    ends = ["", ".000", ".000040"]
    assert texts == [f"2024-02-29 01:02:03{end}" for end in ends]


def test_members_are_counted_from_one_and_from_the_lowest_bit() -> None:
    members = ("a", "b", "c")
    assert [enum_place(members, one) for one in ("", "a", "c")] == [0, 1, 3]
    assert [set_bits(members, one) for one in ("", "a", "a,c")] == [0, 1, 5]
