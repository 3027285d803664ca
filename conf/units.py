"""Sizes, durations and shares as people read them. Pure."""

from __future__ import annotations

import re
from typing import Any

_SIZE = re.compile(r"^\s*(\d+)\s*([KMGT]?)(?:iB|B)?\s*$", re.IGNORECASE)
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_SIZES = ("B", "KiB", "MiB", "GiB", "TiB")
_DURATIONS = (
    (1.0, 0.001, "ms"),
    (120.0, 1.0, "s"),
    (7200.0, 60.0, "min"),
    (172_800.0, 3600.0, "h"),
    (float("inf"), 86_400.0, "d"),
)


def size_text(size_bytes: float) -> str:
    """Write a size in the unit that fits: `1.5 KiB`."""
    for unit in _SIZES[:-1]:
        if abs(size_bytes) < 1024:
            return f"{size_bytes:.0f} B" if unit == "B" else f"{size_bytes:.1f} {unit}"
        size_bytes /= 1024
    return f"{size_bytes:.1f} {_SIZES[-1]}"


def duration_text(seconds: float) -> str:
    """Write a duration in the unit that fits: `12 ms`, `3.5 min`."""
    if seconds == 0:
        return "0 s"
    for limit, unit_s, unit in _DURATIONS:
        if seconds < limit:
            return f"{seconds / unit_s:.3g} {unit}"
    return f"{seconds:g} s"


def count_text(count: float) -> str:
    """Write a number short: `950`, `12.3k`, `4.5M`."""
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(count) >= limit:
            return f"{count / (1e3 if unit == 'k' else limit):.1f}{unit}"
    return f"{count:.0f}" if count >= 10 or count == int(count) else f"{count:.1f}"


def share_text(share: float) -> str:
    """Write a share of 1: `45 %`."""
    return f"{100 * share:.0f} %"


def parse_size_bytes(value: Any) -> Any:
    """Turn `"64MiB"`, `"64M"` or a number into a number of bytes."""
    if not isinstance(value, str):
        return value
    match = _SIZE.match(value)
    if not match:
        raise ValueError('write a number of bytes, or one with a unit such as "64MiB"')
    return int(match[1]) * _UNITS[match[2].upper()]
