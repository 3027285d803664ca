"""What a target remembers beside its rows: batches, positions and generations, as one flat map.

Each target keeps the map as it best can, in the same commit as the rows: a
Delta table as app transactions, Parquet in its manifest, a database in a table
of its own. The entries, names to whole numbers:

    batch:<app>             the last batch of this app that is applied
    position:<physical>     every change of the log up to this SCN is applied
    owner:<physical>        hash of the app that wrote that position
    base:<source>@<app>     what is added to this app's generations of a source
    counter:<source>        the newest generation of this source in the target

An app is one checkpoint of one query. A generation is numbered anew by the
target, for each checkpoint counts its own from 0: the first snapshot of a
second checkpoint must still be newer than all that the first one brought.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

NO_GENERATION = -1


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
        kind = "position:"
        return {
            name.removeprefix(kind): scn
            for name, scn in self.entries.items()
            if name.startswith(kind)
        }

    def counter(self, source: str) -> int:
        """Return the newest generation of a source; NO_GENERATION when none is known."""
        return self.entries.get(f"counter:{source}", NO_GENERATION)

    def newest_generation(self) -> int:
        """Return the newest generation of any source; NO_GENERATION when none is known."""
        counters = [n for name, n in self.entries.items() if name.startswith("counter:")]
        return max(counters, default=NO_GENERATION)

    def base(self, app_id: str, source: str, first: int) -> int:
        """Return what to add to an app's generations of a source to get the target's.

        An app that is new here begins after everything there is; `first` is the
        generation it comes with.
        """
        known = self.entries.get(f"base:{source}@{app_id}")
        return self.counter(source) + 1 - first if known is None else known

    def after(
        self,
        app_id: str,
        batch_id: int,
        positions: Mapping[str, int],
        generations: Mapping[str, Iterable[int]],
    ) -> Book:
        """Return the book once a batch is applied.

        `positions`: newest SCN per physical source of the batch. One app's
        position never goes back; another app's is taken as it is, for it may
        have begun before the last one's. `generations`: those of the batch per
        source, as its app counts them.
        """
        entries = {**self.entries, f"batch:{app_id}": batch_id}
        owner = _hash_of(app_id)
        for physical, scn in positions.items():
            is_own = entries.get(f"owner:{physical}") == owner
            known = entries.get(f"position:{physical}", scn)
            entries[f"position:{physical}"] = max(known, scn) if is_own else scn
            entries[f"owner:{physical}"] = owner
        for source, numbers in generations.items():
            base = self.base(app_id, source, min(numbers))
            entries[f"base:{source}@{app_id}"] = base
            entries[f"counter:{source}"] = max(self.counter(source), base + max(numbers))
        return Book(entries)

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
