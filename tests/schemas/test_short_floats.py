"""Values of FLOAT columns have the fewest digits, and stay the same float."""

from __future__ import annotations

from struct import pack, unpack

import numpy as np
from hypothesis import given, strategies as st

from databus.schemas.columns.short_floats import shortest


@given(st.floats(width=32, allow_nan=False))
def test_the_shortest_double_is_the_same_float(value: float) -> None:
    assert pack("f", shortest(value)) == pack("f", value)


@given(st.floats(width=32, allow_subnormal=False, min_value=-(2.0**127), max_value=2.0**127))
def test_it_has_as_few_digits_as_possible(value: float) -> None:
    # numpy prints a float of 32 bits with the fewest digits.
    assert shortest(value) == float(str(np.float32(value)))


def test_a_float_looks_as_it_was_written() -> None:
    for text in ("0.1", "-7.0", "3.4e+38", "16777216.0", "1.1754944e-38", "inf", "nan"):
        (value,) = unpack("f", pack("f", float(text)))
        assert repr(shortest(value)) == text


def test_no_float_becomes_larger_than_a_float_may_be() -> None:
    largest = (2 - 2**-23) * 2.0**127
    assert shortest(largest) == largest
