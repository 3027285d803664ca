"""Values of a row as JSON from which the same values are read again. Pure.

to_json({"price": Decimal("1.20")})  ==  {"price": {"$decimal": "1.20"}}
"""

from __future__ import annotations

import math
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

_MICROSECOND = timedelta(microseconds=1)
# A datetime is a date, too: the first type that fits counts.
_TYPES: tuple[tuple[str, type, Callable[[Any], Any], Callable[[Any], Any]], ...] = (
    ("$decimal", Decimal, str, Decimal),
    ("$bytes", bytes, lambda v: b64encode(v).decode(), b64decode),
    ("$datetime", datetime, datetime.isoformat, datetime.fromisoformat),
    ("$date", date, date.isoformat, date.fromisoformat),
    ("$time", time, time.isoformat, time.fromisoformat),
    ("$microseconds", timedelta, lambda v: v // _MICROSECOND, lambda n: n * _MICROSECOND),
)
_READERS = {tag: read for tag, _, _, read in _TYPES}


def to_json(value: Any) -> Any:
    """Return a value as JSON; raise TypeError for one of no known type."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {"$float": repr(value)}
    for tag, kind, write, _ in _TYPES:
        if isinstance(value, kind):
            return {tag: write(value)}
    if isinstance(value, Mapping):
        inner = {str(key): to_json(one) for key, one in value.items()}
        # One that looks like a tag is put into another.
        return {"$object": inner} if any(key.startswith("$") for key in inner) else inner
    if isinstance(value, list | tuple):
        return [to_json(one) for one in value]
    raise TypeError(f"a value of type {type(value).__name__} cannot be kept")


def from_json(value: Any) -> Any:
    """Return the value of what `to_json` has returned; raise ValueError for anything else."""
    if isinstance(value, list):
        return [from_json(one) for one in value]
    if not isinstance(value, dict):
        return value
    if len(value) == 1:
        ((tag, held),) = value.items()
        if tag == "$object":
            return {key: from_json(one) for key, one in held.items()}
        if tag == "$float":
            return float(held)
        if tag in _READERS:
            return _READERS[tag](held)
    if any(key.startswith("$") for key in value):
        raise ValueError(f"{next(iter(value))} is no known type of value")
    return {key: from_json(one) for key, one in value.items()}
