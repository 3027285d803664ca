"""A consumer's filter as an SQL condition: the same answer as the filter in memory.

Tables hold with each key what the filters' arithmetic needs: `number` is the
long key, the number that a byte key reads as, or else its Java hash, and
`is_hashed` says that it is the latter. A range is not known of a hash, so such
rows pass a RANGE condition and whoever fetches them asks the filter in memory,
which raises the error. What is about every row passes all conditions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from databus.schemas.errors import InvalidParameterError
from databus.schemas.filters import (
    PARAMETER,
    AnyOf,
    EventFilter,
    ModFilter,
    NoFilter,
    RangeFilter,
    key_number,
)

EVERY_KEY: Final = 2  # `is_hashed` of what is about every row
_SMALLEST_LONG, _LARGEST_LONG = -(1 << 63), (1 << 63) - 1

# Java's abs leaves the smallest long negative, and its % keeps the sign. The
# remainder first: SQLite's abs fails with the smallest long.
_MOD = f"(case number when {_SMALLEST_LONG} then number % ? else abs(number % ?) end"
_MOD += " between ? and ?)"
_RANGE = "(is_hashed or number between ? and ?)"  # EVERY_KEY, too


class Condition(NamedTuple):
    """An SQL condition over `number` and `is_hashed`, and its parameters."""

    sql: str
    parameters: tuple[int, ...]
    has_ranges: bool = False  # then a row with `is_hashed` must be shown to the filter


EVERY_ROW = Condition("1", ())


def condition_of(wanted: EventFilter | None) -> Condition:
    """Return the condition of a filter; raises InvalidParameterError for one of another kind."""
    condition = _condition_of_key(wanted)
    if condition is EVERY_ROW:
        return EVERY_ROW
    return condition._replace(sql=f"(is_hashed = {EVERY_KEY} or {condition.sql})")


def check_range(
    condition: Condition, wanted: EventFilter | None, is_hashed: int, key: int | bytes
) -> None:
    """Let the filter refuse a key that is in no range; raises InvalidParameterError."""
    if is_hashed == 1 and condition.has_ranges and wanted is not None:
        wanted.matches(key)


def _condition_of_key(wanted: EventFilter | None) -> Condition:
    match wanted:
        case None | NoFilter():
            return EVERY_ROW
        case AnyOf(filters):
            return _any_of([_condition_of_key(one) for one in filters])
        case ModFilter(num_buckets, start, end):
            return Condition(_MOD, (num_buckets, num_buckets, *_between(start, end)))
        case RangeFilter(start, end):
            return Condition(_RANGE, _between(start, end), has_ranges=True)
    raise InvalidParameterError(PARAMETER, repr(wanted), "must be a MOD, RANGE or NONE filter")


def number_of(key: int | bytes) -> tuple[int, bool]:
    """Return a key's `number` and `is_hashed`."""
    return (key, False) if isinstance(key, int) else key_number(key)


def _between(start: int, end: int) -> tuple[int, int]:
    """Return the first and last number of [start, end), in SQLite's range."""
    first, last = max(start, _SMALLEST_LONG), min(end - 1, _LARGEST_LONG)
    return (first, last) if first <= last else (1, 0)


def _any_of(conditions: Sequence[Condition]) -> Condition:
    """Return the OR of several, as a balanced tree: SQLite limits the depth of one."""
    if len(conditions) == 1:
        return conditions[0]
    middle = len(conditions) // 2
    left, right = _any_of(conditions[:middle]), _any_of(conditions[middle:])
    return Condition(
        f"({left.sql} or {right.sql})",
        left.parameters + right.parameters,
        left.has_ranges or right.has_ranges,
    )
