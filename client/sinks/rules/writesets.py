"""Lanes for targets with several unique keys: changes that touch a common value share a lane.

A row that takes over the unique value of another row must be written after that row has given it
up. So every unique value, of the rows before and after, is held by the lane in which it was
touched last. A change whose values are held by one lane goes there; one whose values are held by
several lanes has to wait until they are written. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from databus.client.sinks.contract import Change, ChangeOp, Row
from databus.client.sinks.rules.key_values import folded

_MOST_VALUES = 100_000  # held at a time; then everything is written, and holding begins anew
_Value = tuple[Any, ...]


class Writeset:
    """The unique values that lanes hold."""

    def __init__(
        self,
        lanes: int,
        unique_keys: Callable[[str], Sequence[Sequence[str]]],
        most_values: int = _MOST_VALUES,
    ) -> None:
        self._lanes, self._unique_keys, self._most = lanes, unique_keys, most_values
        self._holders: dict[_Value, int] = {}
        self._keys: dict[str, list[tuple[str, ...]]] = {}

    def lane_of(self, unit: Sequence[Change], proposed: int) -> int | None:
        """Return the lane of changes that belong together, and let it hold their values.

        `proposed` is taken if no lane holds one of them. None: several lanes do, or too much is
        held, or the values are not all known; then `forget`, and everything has to be written.
        """
        values = set[_Value]()
        for change in unit:
            for value in self._values(change):
                if value is None:
                    return None
                values.add(value)
        lanes = {self._holders[value] for value in values if value in self._holders}
        if len(lanes) > 1 or len(self._holders) + len(values) > max(self._most, len(values)):
            return None
        lane = lanes.pop() if lanes else proposed
        self._holders.update(dict.fromkeys(values, lane))
        return lane

    def forget(self) -> None:
        """Hold nothing any more: everything is written, or will be before what comes next."""
        self._holders.clear()

    def _values(self, change: Change) -> Iterator[_Value | None]:
        yield (change.source, (), tuple(folded(one) for one in change.key.values()))
        keys = self._keys.get(change.source)
        if keys is None:
            keys = [tuple(key) for key in self._unique_keys(change.source)]
            self._keys[change.source] = keys
        for row in _rows(change):
            for key in keys:
                yield from _value(change.source, key, row)


def _rows(change: Change) -> Iterator[Row | None]:
    """Yield the rows whose values a change gives up or takes; None if one is not known."""
    if change.op in (ChangeOp.UPDATE, ChangeOp.DELETE):
        yield change.before
    if change.after is not None:
        yield change.after


def _value(source: str, key: tuple[str, ...], row: Row | None) -> Iterator[_Value | None]:
    if row is None or any(column not in row for column in key):
        yield None
        return
    values = [row[column] for column in key]
    if None not in values:  # a unique key may have many NULLs
        yield (source, key, tuple(map(folded, values)))
