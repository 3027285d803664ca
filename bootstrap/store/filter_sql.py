"""Translates a consumer's filter to an SQL condition with the same result.

Tables hold for each key the values that filters compute with: `number` is the long key,
the number that a byte key spells, or else its Java hash; `is_hashed` marks a hash. A hash
is in no range, so such rows pass a RANGE condition, and the code that fetches them asks
the filter in memory, which raises the error. Events about every row (truncates) pass all
conditions, or none.

A partition filter calls `key_hash` of a row's `key`, which `add_functions` adds to a connection; by
columns, a function that reads rows (`RowFilter`), for SQLite does not.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final, NamedTuple

from databus.schemas.errors import InvalidParameterError
from databus.schemas.filters import (
    AnyOf,
    EventFilter,
    ModFilter,
    NoFilter,
    PartitionFilter,
    RangeFilter,
    key_hash,
    key_number,
)
from databus.schemas.protocol import Parameter

EVERY_KEY: Final = 2  # `is_hashed` of an event about every row
_SMALLEST_LONG, _LARGEST_LONG = -(1 << 63), (1 << 63) - 1

# Java's abs leaves the smallest long negative, and its % keeps the sign. The remainder
# comes first because SQLite's abs fails for the smallest long.
_MOD = f"(case number when {_SMALLEST_LONG} then number % ? else abs(number % ?) end"
_MOD += " between ? and ?)"
_RANGE = "(is_hashed or number between ? and ?)"  # matches EVERY_KEY too
_HASH = "substr(?, 1 + key_hash(key) % ?, 1) = '1'"  # the first is a digit for each partition


class RowFilter:
    """A filter of one source that looks at its rows, for one read; one thread.

    A row of a snapshot has nothing that says where it was before. So a consumer that may have it
    already, from before the snapshot, gets it whatever its partition: if it was its own, it removes
    it. In the log each change says both.
    """

    def __init__(self, function: str, wants: Callable[[bytes], bool]) -> None:
        """`wants` decides by the event; `function` is its name in SQL."""
        self.function, self._wants = function, wants
        self._error: Exception | None = None

    def add_to(self, connection: sqlite3.Connection) -> None:
        """Let conditions of this connection call the function."""
        connection.create_function(self.function, 1, self._call, deterministic=True)

    def check(self) -> None:
        """Raise what the function has raised, of which SQLite says nothing."""
        if self._error is not None:
            raise self._error

    def _call(self, event: bytes) -> bool:
        try:
            return self._wants(event)
        except Exception as error:
            self._error = error
            raise


StoredFilter = EventFilter | RowFilter


class Condition(NamedTuple):
    """An SQL condition over `number` and `is_hashed`, and its parameters."""

    sql: str
    parameters: tuple[int | str, ...]
    has_ranges: bool = False  # if so, the filter must see each row with `is_hashed`


EVERY_ROW = Condition("1", ())


def add_functions(connection: sqlite3.Connection) -> None:
    """Add the functions that conditions call."""
    connection.create_function("key_hash", 1, _hash_of, deterministic=True)


@contextmanager
def applied(
    connection: sqlite3.Connection, filters: Iterable[StoredFilter | None]
) -> Iterator[None]:
    """Let the reads of the block use filters; raise what one of them raises."""
    of_rows = [one for one in filters if isinstance(one, RowFilter)]
    for one in of_rows:
        one.add_to(connection)
    try:
        yield
    except sqlite3.OperationalError:
        for one in of_rows:
            one.check()
        raise


def condition_of(
    wanted: StoredFilter | None, *, with_truncates: bool = True, known_scn: int | None = None
) -> Condition:
    """Return the condition of a filter; raises InvalidParameterError for an unsupported kind.

    By columns, rows after `known_scn` pass, too: the consumer may have had them.
    """
    if isinstance(wanted, RowFilter):
        is_known, known = ("", ()) if known_scn is None else ("scn > ? or ", (known_scn,))
        condition = Condition(f"({is_known}{wanted.function}(event))", known)
    else:
        condition = _condition_of_key(wanted)
    if not with_truncates:
        return condition._replace(sql=f"(is_hashed <> {EVERY_KEY} and {condition.sql})")
    if condition is EVERY_ROW:
        return EVERY_ROW
    return condition._replace(sql=f"(is_hashed = {EVERY_KEY} or {condition.sql})")


def check_range(
    condition: Condition, wanted: StoredFilter | None, is_hashed: int, key: int | bytes
) -> None:
    """Raise the filter's InvalidParameterError for a key that can be in no range."""
    if is_hashed == 1 and condition.has_ranges and wanted is not None:
        assert not isinstance(wanted, RowFilter), "it has no ranges"
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
        case PartitionFilter(partitions, those, ()):
            digits = "".join("01"[partition in those] for partition in range(partitions))
            return Condition(_HASH, (digits, partitions))
    raise InvalidParameterError(
        Parameter.FILTERS, repr(wanted), "must be a MOD, RANGE, HASH or NONE filter"
    )


def _hash_of(key: int | bytes | str) -> int:
    # A text is in place of a key where the event is about every row.
    return 0 if isinstance(key, str) else key_hash(key)


def number_of(key: int | bytes) -> tuple[int, bool]:
    """Return a key's `number` and `is_hashed`."""
    return (key, False) if isinstance(key, int) else key_number(key)


def _between(start: int, end: int) -> tuple[int, int]:
    """Return the first and last number of [start, end), clipped to SQLite's integers."""
    first, last = max(start, _SMALLEST_LONG), min(end - 1, _LARGEST_LONG)
    return (first, last) if first <= last else (1, 0)


def _any_of(conditions: Sequence[Condition]) -> Condition:
    """Return the OR of several conditions as a balanced tree: SQLite limits the depth."""
    if len(conditions) == 1:
        return conditions[0]
    middle = len(conditions) // 2
    left, right = _any_of(conditions[:middle]), _any_of(conditions[middle:])
    return Condition(
        f"({left.sql} or {right.sql})",
        left.parameters + right.parameters,
        left.has_ranges or right.has_ranges,
    )
