"""The share of a group's rows that one process reads in one stream. Pure.

The stream begins at the oldest checkpoint of the process's partitions, so it has rows that some of
them have consumed; those are dropped. A server applies one filter to a source, that of the
partitions. The filters of the application are applied here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from databus.client.group.deliveries import Delivery, Ownership
from databus.groups.generations import NOTHING, Generation, Vector
from databus.schemas.filters import EventFilter, PartitionFilter
from databus.schemas.partitions.row_hashes import row_hashes
from databus.schemas.scn import MAX_SCN


class SharedEvent(Protocol):
    """What a share asks of an event."""

    @property
    def source(self) -> str:
        """Its source's name."""
        ...

    @property
    def scn(self) -> int:
        """The SCN of its window."""
        ...

    @property
    def wire_key(self) -> int | bytes:
        """Its key."""
        ...

    @property
    def is_truncate(self) -> bool:
        """Whether it removes all rows of its table."""
        ...

    @property
    def row(self) -> dict[str, Any]:
        """The row."""
        ...

    @property
    def before(self) -> dict[str, Any] | None:
        """The row before an update."""
        ...


@dataclass(slots=True)
class Share:
    """The partitions that a process reads, and what each of them has consumed.

    The thread that delivers may call `forget_consumed`; `filter` never changes.
    """

    ownership: Ownership
    by: tuple[str, ...] = ()
    filters: Mapping[str, EventFilter] = field(default_factory=dict)
    """By source; those of the application."""
    known_scn: int = MAX_SCN
    """In a snapshot: rows with a greater SCN may be here already, in whatever partition.

    By columns, a server sends them all, for a snapshot does not say where a row was before.
    """

    @classmethod
    def of(
        cls,
        partitions: int,
        consumed: Mapping[int, int],
        by: tuple[str, ...] = (),
        filters: Mapping[str, EventFilter] | None = None,
        former: tuple[Vector, ...] = (),
    ) -> Share:
        """Return the share of a process that owns the partitions of `consumed`, of `partitions`.

        `consumed` has the SCN of the last window that each one consumed; `former` are the vectors
        of the group's generations before.
        """
        scns = Vector(tuple(consumed.get(partition, NOTHING) for partition in range(partitions)))
        generation = Generation(0, scns, former)
        return cls(Ownership(frozenset(consumed), generation), by, dict(filters or {}))

    @property
    def filter(self) -> PartitionFilter:
        """The filter that servers apply."""
        generation = self.ownership.generation
        return PartitionFilter(generation.partitions, self.ownership.owned, self.by)

    @property
    def newest_consumed(self) -> int:
        """The SCN above which no row was consumed by any partition, now or before a resize."""
        generation = self.ownership.generation
        return max(max(vector.scns) for vector in (generation.checkpoints, *generation.former))

    def forget_consumed(self) -> None:
        """Drop nothing from now on: a bootstrap delivers everything again."""
        nothing = Generation.first(self.ownership.generation.partitions)
        self.ownership = Ownership(self.ownership.owned, nothing)

    def delivery(self, event: SharedEvent) -> Delivery | None:
        """Return for which partitions an event is delivered here; None if for none.

        Raises InvalidParameterError if a column of `by` was not logged.
        """
        if event.is_truncate:
            return self.ownership.of_whole_table(event.scn)
        found = self.filters.get(event.source)
        if found is not None and not found.matches(event.wire_key):
            return None
        hashes = row_hashes(
            event.source, self.by, event.wire_key, lambda: event.row, lambda: event.before
        )
        if self.by and event.scn > self.known_scn:
            return self.ownership.of_changed_row(hashes.row)
        return self.ownership.of_row(event.scn, hashes)
