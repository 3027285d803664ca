"""The server's packed decimals.

Nine digits in four bytes, big-endian, left and right of the point; the digits
left over at either end in 0, 1, 1, 2, 2, 3, 3, 4, 4 bytes. The first bit is
inverted, so that it is 1 for a number that is not negative; of a negative one
all bits are inverted.
"""

from __future__ import annotations

from decimal import Decimal
from functools import lru_cache
from typing import NamedTuple

_BYTES_OF_DIGITS = (0, 1, 1, 2, 2, 3, 3, 4, 4, 4)


class _Packing(NamedTuple):
    """Where the groups of digits lie: (shift, mask, 10 ** digits), from the left."""

    size: int
    sign: int
    ones: int
    groups: tuple[tuple[int, int, int], ...]


def decimal_size(precision: int, scale: int) -> int:
    """Return how many bytes a DECIMAL(precision, scale) takes."""
    return _packing(precision, scale).size


def decimal_of(data: bytes, precision: int, scale: int) -> Decimal:
    """Unpack a DECIMAL(precision, scale)."""
    return Decimal(decimal_text(data, precision, scale))


def decimal_text(data: bytes, precision: int, scale: int) -> str:
    """Unpack into the server's own text: no leading zeros, all digits of the scale."""
    size, sign, ones, groups = _packing(precision, scale)
    if len(data) < size:
        raise ValueError(f"a decimal({precision},{scale}) needs {size} bytes, not {len(data)}")
    number = int.from_bytes(data[:size], "big") ^ sign
    is_negative = number & sign
    if is_negative:
        number ^= ones
    value = 0
    for shift, mask, unit in groups:
        value = value * unit + (number >> shift & mask)
    text = f"-{value:0{scale + 1}}" if is_negative and value else f"{value:0{scale + 1}}"
    return f"{text[:-scale]}.{text[-scale:]}" if scale else text


@lru_cache(maxsize=1024)
def _packing(precision: int, scale: int) -> _Packing:
    whole, part = divmod(precision - scale, 9), divmod(scale, 9)
    digits = [whole[1], *[9] * (whole[0] + part[0]), part[1]]
    sizes = [_BYTES_OF_DIGITS[count] for count in digits]
    size = sum(sizes)
    groups, shift = [], 8 * size
    for count, width in zip(digits, sizes, strict=True):
        shift -= 8 * width
        if count:
            groups.append((shift, (1 << 8 * width) - 1, 10**count))
    return _Packing(size, 1 << (8 * size - 1), (1 << 8 * size) - 1, tuple(groups))
