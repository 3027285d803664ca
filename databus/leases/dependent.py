"""Leases that last as long as another lease: renewing that one renews them all.

A process that owns many things holds one lease of its own, its *main lease*, and renews only that.
The record of a dependent lease names the main lease of its owner, with the term. A process that
wants it looks whether that main lease has ended, and ends it if it ran out
(`LeaseStore.has_ended`), before it takes the dependent lease under a new term. What has ended does
not come back: a main lease that is acquired again has another term.

So an owner holds a dependent lease while it holds its main lease, by its own clock, and until it
releases the dependent one. `acquire` may take long, or be answered after the main lease went: its
caller looks at the main lease afterwards.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from databus.leases.lease_record import LeaseRecord
from databus.leases.records import Records
from databus.leases.store import Lease, LeaseStore, key_of


class DependentLeases:
    """Gives dependent leases out, over the records that the main leases are kept in."""

    def __init__(
        self, records: Records, leases: LeaseStore, wall_s: Callable[[], float] = time.time
    ) -> None:
        """`leases` keeps the main leases; `wall_s` is only shown to people."""
        self._records, self._leases, self._wall_s = records, leases, wall_s

    def acquire(self, name: str, main: Lease) -> int | None:
        """Return a new term; None while the owner of another main lease has it, or was quicker.

        Whoever has it under `main` already gets a new term, too: an answer may have been lost. Call
        it at least every quarter of the `ttl_s` of main leases. Raises LeaseError.
        """
        stored = self._records.read(key_of(name))
        record = LeaseRecord(name)
        if stored is not None:
            record = LeaseRecord.decode(stored.data, name, self._records.shown)
        if record.owner not in ("", owner_under(main)):
            other, _, term = record.owner.rpartition("#")
            if not self._leases.has_ended(other, int(term)):
                return None
        new = record.taken(owner_under(main), main.ttl_s, 0, self._wall_s())
        return new.term if self._records.replace(key_of(name), new.encode(), stored) else None

    def release(self, name: str, term: int) -> None:
        """Let others acquire it at once; does nothing if it has another term. Raises LeaseError."""
        stored = self._records.read(key_of(name))
        if stored is None:
            return
        record = LeaseRecord.decode(stored.data, name, self._records.shown)
        if record.term == term and record.owner:
            freed = record.released(self._wall_s())
            # If it is not written, somebody else has it.
            self._records.replace(key_of(name), freed.encode(), stored)


def main_of(owner: str) -> tuple[str, int] | None:
    """Return the main lease that the owner of a dependent one is named after, and its term.

    None for an owner that is named otherwise: its lease depends on none.
    """
    name, mark, term = owner.rpartition("#")
    return (name, int(term)) if mark and term.isdecimal() else None


def owner_under(main: Lease) -> str:
    """Return how a record names its owner: by the owner's main lease and its term."""
    return f"{main.name}#{main.term}"
