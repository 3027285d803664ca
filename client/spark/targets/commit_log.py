"""What a target remembers beside its rows: batches and positions, as one flat map.

Each target keeps the map as it best can, in the same commit as the rows: a
Delta table as app transactions, Parquet in its manifest, a database in a table
of its own. The entries, names to whole numbers:

    batch:<app>             the last batch of this app that is applied
    position:<physical>     every change of the log up to this SCN is applied
    owner:<physical>        hash of the app that wrote that position
    source:<source>         the rows are this source's; of several, that with the greatest number

An app is one checkpoint of one query. Targets of an earlier version have no
`source:`: the apps `shape:<source>` and `reload:<source>` say it there.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field

_SOURCE = "source:"
_BEFORE = ("batch:shape:", "batch:reload:")


@dataclass(frozen=True, slots=True)
class Book:
    """The entries of a target, and the rules by which they change."""

    entries: Mapping[str, int] = field(default_factory=dict)

    def applied(self, app_id: str) -> int | None:
        """Return the last batch of an app that is applied, or None."""
        return self.entries.get(f"batch:{app_id}")

    def has(self, app_id: str, batch_id: int) -> bool:
        """Say whether a batch is applied already: batches of an app come in order."""
        last = self.applied(app_id)
        return last is not None and last >= batch_id

    def positions(self) -> dict[str, int]:
        """Return the SCN per physical source up to which everything is applied."""
        return self._under("position:")

    def sources(self) -> list[str]:
        """Name the source that the rows are of; several where nobody said which of them."""
        numbers = self._under(_SOURCE)
        if numbers:
            return [max(numbers, key=lambda name: numbers[name])]
        return sorted({name for kind in _BEFORE for name in self._under(kind)})

    def takes_new(self, physical_source: str, scn: int) -> bool:
        """Say whether a row that is missing was not there at an SCN, and not deleted since."""
        return self.positions().get(physical_source, scn) <= scn

    def after(
        self, app_id: str, batch_id: int, positions: Mapping[str, int], source: str | None = None
    ) -> Book:
        """Return the book once a batch is applied.

        `positions`: newest SCN per physical source of the batch. One app's
        position never goes back; another app's is taken as it is, for it may
        have begun before the last one's. `source`: whose rows they are, where a
        target has those of one alone.
        """
        entries = {**self.entries, f"batch:{app_id}": batch_id}
        owner = _hash_of(app_id)
        for physical, scn in positions.items():
            is_own = entries.get(f"owner:{physical}") == owner
            known = entries.get(f"position:{physical}", scn)
            entries[f"position:{physical}"] = max(known, scn) if is_own else scn
            entries[f"owner:{physical}"] = owner
        numbers = self._under(_SOURCE)
        if source is not None and (not numbers or self.sources() != [source]):
            entries[f"{_SOURCE}{source}"] = max(numbers.values(), default=0) + 1
        return Book(entries)

    def _under(self, kind: str) -> dict[str, int]:
        return {
            name.removeprefix(kind): number
            for name, number in self.entries.items()
            if name.startswith(kind)
        }

    def changed_since(self, before: Book) -> dict[str, int]:
        """Return the entries that another book does not have like that."""
        return {
            name: number
            for name, number in self.entries.items()
            if before.entries.get(name) != number
        }


def _hash_of(app_id: str) -> int:
    """Return 62 bits of an app's name: whether two are the same is all that is asked."""
    digest = hashlib.blake2b(app_id.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 2
