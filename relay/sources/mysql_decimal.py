"""The server's packed decimals.

Nine digits in four bytes, big-endian, left and right of the point; the digits
left over at either end in 0, 1, 1, 2, 2, 3, 3, 4, 4 bytes. The first bit is
inverted, so that it is 1 for a number that is not negative; of a negative one
all bits are inverted.
"""

from __future__ import annotations

from decimal import Decimal

_BYTES_OF_DIGITS = (0, 1, 1, 2, 2, 3, 3, 4, 4, 4)


def decimal_size(precision: int, scale: int) -> int:
    """Return how many bytes a DECIMAL(precision, scale) takes."""
    whole, part = divmod(precision - scale, 9), divmod(scale, 9)
    return 4 * (whole[0] + part[0]) + _BYTES_OF_DIGITS[whole[1]] + _BYTES_OF_DIGITS[part[1]]


def decimal_of(data: bytes, precision: int, scale: int) -> Decimal:
    """Unpack a DECIMAL(precision, scale)."""
    return Decimal(decimal_text(data, precision, scale))


def decimal_text(data: bytes, precision: int, scale: int) -> str:
    """Unpack into the server's own text: no leading zeros, all digits of the scale."""
    size = decimal_size(precision, scale)
    if len(data) < size:
        raise ValueError(f"a decimal({precision},{scale}) needs {size} bytes, not {len(data)}")
    number = int.from_bytes(data[:size], "big") ^ (1 << (8 * size - 1))
    is_negative = not data[0] & 0x80
    if is_negative:
        number ^= (1 << 8 * size) - 1
    raw = number.to_bytes(size, "big")
    split = decimal_size(precision - scale, 0)
    whole = _digits(raw[:split], (precision - scale) % 9, leading=True).lstrip("0") or "0"
    part = _digits(raw[split:], scale % 9, leading=False)
    return f"{'-' if is_negative else ''}{whole}{'.' + part if part else ''}"


def _digits(raw: bytes, odd_digits: int, *, leading: bool) -> str:
    odd_bytes = _BYTES_OF_DIGITS[odd_digits]
    end = len(raw) - odd_bytes
    start = odd_bytes if leading else 0
    full = raw[start : start + end]
    groups = [f"{int.from_bytes(full[at : at + 4], 'big'):09}" for at in range(0, len(full), 4)]
    odd = raw[:odd_bytes] if leading else raw[end:]
    odd_text = f"{int.from_bytes(odd, 'big'):0{odd_digits}}" if odd_digits else ""
    return "".join([odd_text, *groups] if leading else [*groups, odd_text])
