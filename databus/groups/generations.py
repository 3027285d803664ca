"""What a group has read, also while the number of its partitions is changed.

A *vector* has, for each partition of one partitioning, the SCN of the last window that was
consumed whole. A group has the vector of its present partitions, its checkpoints. A resize makes
a new generation: it keeps the former vector, and each new partition begins at the minimum of the
former ones that it has rows of. So rows come again that one of those had consumed already. A row
at SCN s is such a duplicate exactly if `s <= vector[hash % len(vector)]` for a former vector, and
is dropped. A vector is dropped once no checkpoint is below its maximum: no row comes any more of
which it would say something.

If a group is resized before that, the former vectors are kept side by side. What one of them has
is consumed, whatever the others have.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import gcd
from typing import Any

from databus.schemas.filters import MAX_PARTITIONS

NOTHING = -1  # in place of an SCN: no window was consumed


@dataclass(frozen=True, slots=True)
class Vector:
    """The SCN of the last window consumed whole, by partition; NOTHING (-1) before the first."""

    scns: tuple[int, ...]

    def __post_init__(self) -> None:
        if not 1 <= len(self.scns) <= MAX_PARTITIONS or min(self.scns) < NOTHING:
            raise ValueError(f"a group has 1 to {MAX_PARTITIONS} partitions, and no SCN below -1")

    @property
    def partitions(self) -> int:
        """The number of partitions."""
        return len(self.scns)

    def has(self, scn: int, row_hash: int) -> bool:
        """Whether a row of that window and hash was consumed."""
        return scn <= self.scns[row_hash % len(self.scns)]


@dataclass(frozen=True, slots=True)
class Generation:
    """The checkpoints of a group's partitions, and the vectors of generations before it."""

    number: int
    checkpoints: Vector
    former: tuple[Vector, ...] = ()

    @classmethod
    def first(cls, partitions: int, scn: int = NOTHING) -> Generation:
        """Return the generation of a new group that begins after a window."""
        return cls(0, Vector((scn,) * partitions))

    @property
    def partitions(self) -> int:
        """The number of partitions."""
        return self.checkpoints.partitions

    def is_consumed(self, scn: int, row_hash: int) -> bool:
        """Whether a row of that window and hash was consumed, by this generation or before it.

        The removal of all rows of a table is consumed for some keys and not for others: it
        removes those rows for whose hash this is false.
        """
        return self.checkpoints.has(scn, row_hash) or any(
            vector.has(scn, row_hash) for vector in self.former
        )

    def begin_scn(self, partitions: frozenset[int]) -> int:
        """Return the SCN after which a process that owns these partitions reads."""
        return min(self.checkpoints.scns[partition] for partition in partitions)

    def advanced(self, partition: int, scn: int) -> Generation:
        """Return the generation after a checkpoint of one partition.

        Raises ValueError if that is older than the partition's present one.
        """
        scns = self.checkpoints.scns
        if scn < scns[partition]:
            raise ValueError(
                f"partition {partition} has consumed window {scns[partition]}, after {scn}"
            )
        changed = Vector((*scns[:partition], scn, *scns[partition + 1 :]))
        return replace(self, checkpoints=changed)._without_needless()

    def resized(self, partitions: int) -> Generation:
        """Return the next generation, with another number of partitions.

        The checkpoints must be final: no process of this generation may consume a row after
        them (`Resize`).
        """
        old = self.checkpoints.scns
        # A key is in partition q of the old ones and p of the new ones only if p - q is a
        # multiple of what both numbers of partitions are multiples of.
        common = gcd(len(old), partitions)
        oldest = [min(old[rest::common]) for rest in range(common)]
        begins = Vector(tuple(oldest[partition % common] for partition in range(partitions)))
        made = Generation(self.number + 1, begins, (*self.former, self.checkpoints))
        return made._without_needless()

    def _without_needless(self) -> Generation:
        oldest = min(self.checkpoints.scns)
        former = tuple(vector for vector in self.former if max(vector.scns) > oldest)
        return self if former == self.former else replace(self, former=former)

    def to_json_value(self) -> dict[str, Any]:
        """Return the generation as a JSON value."""
        return {
            "generation": self.number,
            "scns": list(self.checkpoints.scns),
            "former": [list(vector.scns) for vector in self.former],
        }

    @classmethod
    def from_json_value(cls, value: Mapping[str, Any]) -> Generation:
        """Return the generation that `to_json_value` wrote; raises ValueError for another value."""
        number, scns, former = value.get("generation"), value.get("scns"), value.get("former")
        if type(number) is not int or number < 0 or not isinstance(former, list):
            raise ValueError("a generation has a number, `scns` and `former`")
        return cls(number, _vector(scns), tuple(map(_vector, former)))


class Resize:
    """Collects the final checkpoints of all partitions, for the next generation.

    The lease of each partition is taken first, and its term begun in the checkpoint store
    (`FencedCheckpointStore.begin_term`). From then on those of its owner before are refused, so
    that the checkpoint is final. A process that dies on the way leaves nothing behind: whoever
    comes next does it all again.
    """

    def __init__(self, generation: Generation, partitions: int) -> None:
        Vector((NOTHING,) * partitions)  # raises ValueError
        self._generation = generation
        self._partitions = partitions
        self._missing = set(range(generation.partitions))

    @property
    def missing(self) -> frozenset[int]:
        """The partitions whose final checkpoint is not known yet."""
        return frozenset(self._missing)

    def found_final(self, partition: int, scn: int) -> None:
        """Take note of the checkpoint of a partition whose new term has begun."""
        if partition in self._missing:
            self._generation = self._generation.advanced(partition, scn)
            self._missing.remove(partition)

    def finish(self) -> Generation:
        """Return the next generation; raises ValueError while checkpoints are missing."""
        if self._missing:
            raise ValueError(f"no final checkpoint of partitions {sorted(self._missing)}")
        return self._generation.resized(self._partitions)


def _vector(value: Any) -> Vector:
    if not isinstance(value, Sequence) or not all(type(scn) is int for scn in value):
        raise ValueError("the SCNs of partitions are a list of numbers")
    return Vector(tuple(value))
