"""Which events of a stream a process of a group consumes, and for which partitions.

One stream has the events of all partitions that a process owns, from the oldest checkpoint on.
What a partition has consumed is dropped. An update that moves a row from one partition to another
belongs to both. Who owns only one of them is told that the row entered or left.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from databus.groups.generations import Generation
from databus.schemas.partitions.row_hashes import RowHashes


class Move(StrEnum):
    """What an update does to the partitions of a process that has one side of it."""

    ENTERED = "entered"  # before the update the row was in a partition of another process
    LEFT = "left"  # now it is; what is kept of the row must be removed here


@dataclass(frozen=True, slots=True)
class Delivery:
    """An event for its consumer: the partitions that have not consumed it yet, in ascending order.

    `move` is None unless the event moves a row between these partitions and others.
    """

    partitions: tuple[int, ...]
    move: Move | None = None


@dataclass(frozen=True, slots=True)
class Ownership:
    """The partitions that a process owns, and what its group has consumed."""

    owned: frozenset[int]
    generation: Generation

    def of_row(self, scn: int, hashes: RowHashes) -> Delivery | None:
        """Return how a row's event is delivered; None if it is not.

        `hashes` are those of `schemas/partitions/row_hashes.py`.
        """
        count = self.generation.partitions
        wanted = [one for one in hashes.each if self._is_wanted(scn, one)]
        if not wanted:
            return None
        partitions = tuple(sorted({one % count for one in wanted}))
        if all(map(self.owns, hashes.each)):
            return Delivery(partitions)
        return Delivery(partitions, Move.ENTERED if self.owns(hashes.row) else Move.LEFT)

    def of_changed_row(self, row_hash: int) -> Delivery:
        """Return how a row is delivered that was in one of these partitions, or in none of them."""
        return Delivery(tuple(sorted(self.owned)), None if self.owns(row_hash) else Move.LEFT)

    def of_whole_table(self, scn: int) -> Delivery | None:
        """Return how the removal of all rows of a table is delivered; None if it is not.

        It concerns the rows of these partitions that `Generation.is_consumed` is false for.
        """
        scns = self.generation.checkpoints.scns
        partitions = tuple(sorted(one for one in self.owned if scn > scns[one]))
        return Delivery(partitions) if partitions else None

    def owns(self, row_hash: int) -> bool:
        """Whether a row with this hash is of one of these partitions."""
        return row_hash % self.generation.partitions in self.owned

    def _is_wanted(self, scn: int, row_hash: int) -> bool:
        return self.owns(row_hash) and not self.generation.is_consumed(scn, row_hash)
