"""Values of FLOAT columns with the digits that people wrote. Pure.

A FLOAT has 32 bits. Read as a double, 0.1 is 0.10000000149011612, which is what a text or a column
of doubles would show. The double with the fewest digits that is the same FLOAT is 0.1.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from struct import pack, unpack
from typing import Any

from databus.schemas.columns.avro_columns import Kind, WriterSchema, columns_of

_DIGITS = range(6, 10)  # 9 are enough for every float of 32 bits
_LARGEST = (2 - 2**-23) * 2.0**127


@lru_cache(maxsize=4096)
def float_columns(schema: WriterSchema) -> tuple[str, ...]:
    """Return the columns of 32-bit floats."""
    return tuple(one.name for one in columns_of(schema) if one.kind is Kind.FLOAT)


def shortened(row: Mapping[str, Any], columns: tuple[str, ...]) -> dict[str, Any]:
    """Return a row whose floats have the fewest digits."""
    found = dict(row)
    for name in columns:
        value = found.get(name)
        if value is not None:
            found[name] = shortest(value)
    return found


def shortest(value: float) -> float:
    """Return the double with the fewest digits that is the same float of 32 bits."""
    for digits in _DIGITS:
        short = float(f"{value:.{digits}g}")
        if abs(short) <= _LARGEST and unpack("f", pack("f", short))[0] == value:
            return short
    return value  # also what is no number
