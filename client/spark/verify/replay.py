"""What rows that were read come to once everything up to one SCN has happened to them. Pure.

A row was read by somebody who saw everything up to one SCN for certain, and
perhaps more. The last change of its key after that SCN is then what it ends as:
had the reader seen that change already, the row would be the same. Changes have
whole rows, so only the last one counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from databus.client.spark.verify.differences import Comparer, Difference
from databus.client.spark.verify.table_shape import Key, Row

Place = tuple[int, int]  # SCN, index in its window
NOWHERE: Place = (-1, -1)


class LastChange(NamedTuple):
    """The last change of a key; `row` is None when the row is gone."""

    place: Place
    row: Row | None


@dataclass(frozen=True, slots=True)
class Changes:
    """The last changes of some keys up to `until_scn`, and where the table was emptied last."""

    by_key: Mapping[Key, LastChange]
    until_scn: int
    truncated: Place = NOWHERE

    def row_at_end(self, key: Key, row: Row | None, seen_scn: int) -> Row | None:
        """Return the row at `until_scn` of one read when everything up to `seen_scn` was seen."""
        place, last = self.by_key.get(key, LastChange(NOWHERE, None))
        if self.truncated > place:
            place, last = self.truncated, None
        return last if place[0] > seen_scn else row


class Candidate(NamedTuple):
    """A key whose rows were not the same as they were read.

    Everything up to `source_scn` and `target_position` was seen there.
    """

    key: Key
    in_source: Row | None
    in_target: Row | None
    source_scn: int
    target_position: int
    target_scn: int | None = None


def judge(
    candidates: Iterable[Candidate], changes: Changes, comparer: Comparer
) -> Iterator[Difference]:
    """Yield the candidates that still differ after all changes."""
    for one in candidates:
        in_source = changes.row_at_end(one.key, one.in_source, one.source_scn)
        in_target = changes.row_at_end(one.key, one.in_target, one.target_position)
        found = comparer.kind(in_source, in_target)
        if found is not None:
            kind, columns = found
            yield Difference(
                one.key,
                kind,
                columns,
                in_source,
                in_target,
                one.source_scn,
                one.target_scn,
                changes.until_scn,
            )


def since(candidates: Iterable[Candidate]) -> int:
    """Return the SCN after which changes are needed to judge candidates."""
    return min(min(one.source_scn, one.target_position) for one in candidates)
