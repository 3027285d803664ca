"""Ptubes' partition of a row: Java's hash of its key.

    h = 31 * (31 + code) + hash      code 0 for integers, 1 for texts and bytes; 32 bits, wrapping
    partition id = |h rem 32767|
    partition = partition id mod the number of partitions

The hash of an integer is Long's, of a text String's (over UTF-16), of bytes that of Arrays. NULL
is the integer 0. The key is the primary key, or the columns that the settings name for a table.
Of several columns it is the text of an event's key (`schemas/event/keys.py`): Ptubes joins them
without a separator, so that ("1", "23") is ("12", "3") there.
"""

from __future__ import annotations

from datetime import date, datetime
from decimal import Decimal
from typing import Any

_IDS = 32767
_INTEGERS, _TEXTS = 0, 1
_WORD = 0xFFFFFFFF


def partition_id_in_python(key: int | str | bytes) -> int:
    """Return the partition id of a key, from 0 to 32766."""
    code = _INTEGERS if isinstance(key, int) else _TEXTS
    h = 31 * (31 + code) + _hash_of(key) & _WORD
    return abs(h - (1 << 32) if h >> 31 else h) % _IDS


def _hash_of(key: int | str | bytes) -> int:
    if isinstance(key, int):
        word = key & 0xFFFFFFFFFFFFFFFF
        return (word ^ word >> 32) & _WORD
    if isinstance(key, bytes):
        h = 1
        for byte in key:
            h = 31 * h + (byte - 256 if byte > 127 else byte) & _WORD
        return h
    h = 0
    units = key.encode("utf-16-le", "surrogatepass")
    for at in range(0, len(units), 2):
        h = 31 * h + (units[at] | units[at + 1] << 8) & _WORD
    return h


try:
    from databus.relay.serving.ptubes.rows._java_hashes import partition_id, skip_unowned
except ImportError:  # not built
    partition_id = partition_id_in_python

    def skip_unowned(
        data: bytes,  # noqa: ARG001
        at: int,
        owned: bytes,  # noqa: ARG001
        long_keyed: bytes,  # noqa: ARG001
    ) -> int:
        """Return where the next event begins that is to be looked at."""
        return at


__all__ = ["key_of_value", "partition_id", "partition_id_in_python", "skip_unowned"]


def key_of_value(value: Any) -> int | str | bytes:
    """Return a column's value as the key that is hashed."""
    if value is None:
        return 0
    if isinstance(value, int | str | bytes):
        return value
    if isinstance(value, Decimal):
        return int(value) if value == value.to_integral_value() else format(value, "f")
    if isinstance(value, date | datetime):
        return value.isoformat()
    return repr(value) if isinstance(value, float) else str(value)
