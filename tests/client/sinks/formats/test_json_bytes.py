"""The fast writer of JSON says the same as the slow one, whatever the value."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import IntEnum, StrEnum
from typing import Any

import pytest
from hypothesis import given, strategies as st

from databus.client.sinks.formats.debezium.converters import connect_json
from databus.client.sinks.formats.plain import json_bytes
from databus.schemas.event.json import json_value


class _Colour(StrEnum):
    RED = "red"


class _Number(IntEnum):
    ONE = 1


PLAIN = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(min_value=-(1 << 70), max_value=1 << 70),
    st.floats(),
    st.text(),
    st.sampled_from(["null", 'say "null"', "\x00\x1f\x7f\u2028", "😀", _Colour.RED, _Number.ONE]),
    st.binary(max_size=9),
    st.decimals(allow_nan=False, allow_infinity=False, places=3),
    st.datetimes(),
    st.datetimes(timezones=st.just(UTC)),
    st.dates(),
    st.times(),
    st.timedeltas(),
)
VALUES = st.recursive(
    PLAIN,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.tuples(inner, inner),
        st.dictionaries(st.text(max_size=5), inner, max_size=4),
    ),
    max_leaves=12,
)


def told(value: Any) -> Any:
    """Return the JSON of a value, as `json` alone writes it and reads it."""
    return json.loads(json.dumps(json_value(value), allow_nan=False))


@given(VALUES)
def test_a_value_reads_back_as_the_standard_library_writes_it(value: Any) -> None:
    written = json_bytes(value)
    assert json.loads(written) == told(value)
    assert b"\n" not in written


@pytest.mark.parametrize("odd", [math.nan, math.inf, -math.inf])
def test_a_float_that_is_not_finite_is_never_null(odd: float) -> None:
    name = json.loads(json_bytes(odd))
    assert name in ("NaN", "Infinity", "-Infinity")
    for value in (
        {"a": odd},
        {"a": None, "b": odd},
        {"a": "null", "b": odd},
        {"a": {"b": odd}, "c": None},
        {"a": [None, (odd,)]},
    ):
        assert json_bytes(value).count(f'"{name}"'.encode()) == 1


def test_what_is_no_value_of_a_row_is_refused_as_before() -> None:
    @dataclass
    class Thing:
        a: int

    for odd in (Thing(1), object(), {1, 2}):
        with pytest.raises((TypeError, ValueError)):
            json_bytes({"a": odd})
    with pytest.raises(UnicodeEncodeError):
        json_bytes({"a": "\ud800"})


def test_values_without_a_type_in_json_have_the_forms_of_the_docs() -> None:
    row = {
        "decimal": Decimal("1E+3"),
        "bytes": b"\xff\x00",
        "moment": datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC),
        "day": date(2026, 1, 2),
        "time": time(1, 2, 3),
        "length": timedelta(seconds=-1),
        "large": 1 << 80,
        "small": 1e-7,
    }
    assert json_bytes(row) == (
        b'{"decimal":"1000","bytes":"/wA=","moment":"2026-01-02T03:04:05.000006+00:00",'
        b'"day":"2026-01-02","time":"01:02:03","length":-1000000,'
        b'"large":1208925819614629174706176,"small":1e-07}'
    )


def test_bytes_of_a_converter_of_kafka_connect_are_base64() -> None:
    assert connect_json({"a": b"\xff", "b": None}) == b'{"a":"/w==","b":null}'
