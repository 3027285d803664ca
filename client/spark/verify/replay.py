"""Replay changes on rows that were read, up to one SCN. Pure.

A reader has certainly seen all changes up to one SCN, and perhaps later ones. The
last change of a key after that SCN determines the row's final state; if the reader
had already seen that change, the row is the same. Changes have whole rows, so only
the last one counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from databus.client.spark.verify.differences import Comparer, Difference, Kind
from databus.client.spark.verify.table_shape import Key, Row

Place = tuple[int, int]  # SCN, index in its window
NOWHERE: Place = (-1, -1)


class LastChange(NamedTuple):
    """The last change of a key; `row` is None if the row was deleted."""

    place: Place
    row: Row | None


@dataclass(frozen=True, slots=True)
class Changes:
    """The last changes of some keys up to `until_scn`, and the place of the last truncate."""

    by_key: Mapping[Key, LastChange]
    until_scn: int
    truncated: Place = NOWHERE

    def row_at_end(self, key: Key, row: Row | None, seen_scn: int) -> Row | None:
        """Return the state at `until_scn` of a row that was read at `seen_scn` or later."""
        place, last = self.by_key.get(key, LastChange(NOWHERE, None))
        # A truncate after the key's last change has removed the row.
        if self.truncated > place:
            place, last = self.truncated, None
        return last if place[0] > seen_scn else row


class Candidate(NamedTuple):
    """A key whose rows differed when they were read.

    The rows are complete up to `source_scn` and `target_position`. `source_rows` and
    `target_rows`: how many rows have the key; of several, the newest one is given.
    """

    key: Key
    in_source: Row | None
    in_target: Row | None
    source_scn: int
    target_position: int
    target_scn: int | None = None
    source_rows: int = 1
    target_rows: int = 1

    @property
    def is_duplicate(self) -> bool:
        """Whether a side has several rows of the key."""
        return max(self.source_rows, self.target_rows) > 1

    def difference(
        self, in_source: Row | None, in_target: Row | None, until_scn: int, comparer: Comparer
    ) -> Difference | None:
        """Return how the rows differ that the sides have at `until_scn`, None if they do not.

        A key with several rows differs whatever comes: a later change changes all of them, or
        one of them.
        """
        found = comparer.kind(in_source, in_target)
        if self.is_duplicate:
            found = Kind.DUPLICATE, comparer.names
        if found is None:
            return None
        return Difference(
            self.key,
            *found,
            in_source,
            in_target,
            self.source_scn,
            self.target_scn,
            until_scn,
            self.source_rows,
            self.target_rows,
        )


def judge(
    candidates: Iterable[Candidate], changes: Changes, comparer: Comparer
) -> Iterator[Difference]:
    """Yield the candidates that still differ after all changes."""
    for one in candidates:
        in_source = changes.row_at_end(one.key, one.in_source, one.source_scn)
        in_target = changes.row_at_end(one.key, one.in_target, one.target_position)
        found = one.difference(in_source, in_target, changes.until_scn, comparer)
        if found is not None:
            yield found


def since(candidates: Iterable[Candidate]) -> int:
    """Return the SCN after which changes must be replayed for these candidates."""
    return min(min(one.source_scn, one.target_position) for one in candidates)
