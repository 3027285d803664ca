"""Leases: who may write something, and under which term.

    leases = open_leases("zookeeper://zk-1:2181,zk-2:2181/databus")
    lease = leases.acquire("billing/7", "host-a:4711", ttl_s=10.0)   # None: somebody has it

A *lease* is the right to write something, for `ttl_s` after it was last renewed. Its *term* grows
by one with each owner and never goes back: not after a release, a restart of the store or a day on
which nobody was there. Everything written under a lease carries the term, and what stores it
refuses a smaller one than it has seen (`StaleTermError`). The lease prevents most double work; the
term prevents the rest, for no lease can stop a process that was frozen between its last look at
the clock and its write.

An owner decides by its own clock whether it still holds its lease, counted from before its last
request was sent. So one that is cut off from the store, or was frozen, stops by itself. A
contender decides by how long the record has not changed; see `expiry`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from databus.leases.clock import Moment, StepCountingClock, steady_s
from databus.leases.errors import LeaseUnavailableError
from databus.leases.expiry import MARGIN, Sighting, look_again, runs_out_in_s
from databus.leases.lease_record import LeaseRecord
from databus.leases.records import Records, Stored, record_name
from databus.schemas.errors import SettingsError

FOLDER = "leases"
_TRIES = 5  # others that contend for the lease may write in between


@dataclass(frozen=True, slots=True)
class Lease:
    """A lease as its owner got it; `sent` is when the request for it, or its renewal, was sent."""

    name: str
    owner: str
    term: int
    ttl_s: float
    sent: Moment

    def held_for_s(self, now: Moment) -> float:
        """Return the seconds for which the owner may still write; 0 = no longer."""
        if now.steps_back != self.sent.steps_back:
            return 0.0  # the clock went back: nobody knows how long ago that was
        return max(0.0, self.sent.at_s + self.ttl_s - now.at_s)


@dataclass(frozen=True, slots=True)
class LeaseState:
    """A lease as others see it; `owner` is "" before the first one and after a release."""

    name: str
    owner: str
    term: int
    ttl_s: float
    renewed: str
    """When it was last renewed, by the owner's time of day; for people."""
    is_free: bool


class LeaseStore:
    """Gives leases out, over any store of records. Thread-safe."""

    def __init__(
        self,
        records: Records,
        clock_s: Callable[[], float] = steady_s,
        wall_s: Callable[[], float] = time.time,
    ) -> None:
        """Keep leases in `records`; `clock_s` decides, `wall_s` is only shown to people."""
        self._records = records
        self._clock = StepCountingClock(clock_s)
        self._wall_s = wall_s
        self._sightings: dict[str, Sighting] = {}
        self._lock = threading.Lock()

    def acquire(self, name: str, owner: str, ttl_s: float, *, above: int = 0) -> Lease | None:
        """Return the lease with a new term; None while somebody has it, or was quicker.

        To take over a lease that is not renewed any more, call it at least every quarter of
        `ttl_s`, or `wait` on a watch: how long the lease has not been renewed is only counted
        from look to look. `owner` is shown to people and need not be unique. `above` is the
        greatest term that is known from what was written under the lease, so that terms go on if
        the store has lost its records. Raises LeaseError.
        """
        if not owner or not 0 < ttl_s < float("inf"):
            raise SettingsError(f"owner = {owner!r}, ttl_s = {ttl_s!r}: give a name and seconds")
        sent = self._clock.read()
        stored, record = self._read(name)
        if record.owner and self._runs_out_in_s(name, stored, record) > 0:
            return None
        new = record.taken(owner, ttl_s, above, self._wall_s())
        if not self._records.replace(key_of(name), new.encode(), stored):
            return None
        return Lease(name, owner, new.term, ttl_s, sent)

    def renew(self, lease: Lease) -> Lease | None:
        """Return the lease for another `ttl_s`; None once it was released, or has another term.

        One that ran out, but that nobody has taken, is renewed: its owner was the last one to
        write. Raises LeaseError; then the lease is held as long as it was before.
        """
        sent = self._clock.read()
        is_ours = self._change(lease, lambda record: record.renewed_at(self._wall_s()))
        return replace(lease, sent=sent) if is_ours else None

    def release(self, lease: Lease) -> None:
        """Let others acquire the lease at once; does nothing if it has another term already."""
        self._change(lease, lambda record: record.released(self._wall_s()))

    def has_ended(self, name: str, term: int) -> bool:
        """Return whether the owner with this term has lost the lease for good.

        If its time ran out, the lease is taken from it: it cannot renew it any more. Call it as
        often as `acquire`. Raises LeaseError.
        """
        stored, record = self._read(name)
        if record.term != term or not record.owner:
            return True
        if self._runs_out_in_s(name, stored, record) > 0:
            return False
        freed = record.released(self._wall_s())
        return self._records.replace(key_of(name), freed.encode(), stored)

    def now(self) -> Moment:
        """Return the present moment, by the clock that decides."""
        return self._clock.read()

    def held_for_s(self, lease: Lease) -> float:
        """Return the seconds for which the lease's owner may still write; 0 = no longer.

        Asks nobody: it is right while the store cannot be reached, too.
        """
        return lease.held_for_s(self._clock.read())

    def look(self, name: str, on_change: Callable[..., None] | None = None) -> LeaseState:
        """Return the state of a lease; raise LeaseError.

        `on_change` may be called, with any arguments, when it changes; see `Records.read`.
        """
        stored, record = self._read(name, on_change)
        is_free = not record.owner or self._runs_out_in_s(name, stored, record) <= 0
        return LeaseState(
            name, record.owner, record.term, record.ttl_s, record.renewed, is_free=is_free
        )

    def watch(self, name: str) -> LeaseWatch:
        """Return a watch of a lease; nothing is held open by it."""
        return LeaseWatch(self, name, self._records.poll_s)

    def close(self) -> None:
        """Close the store's connections. Leases are not released."""
        self._records.close()

    def _change(self, lease: Lease, changed: Callable[[LeaseRecord], LeaseRecord]) -> bool:
        """Change the record of a lease; return False if it is not the lease's owner's any more."""
        for _ in range(_TRIES):
            stored, record = self._read(lease.name)
            # The owner, too: a store that has lost its records gives the same term to another one.
            if (record.term, record.owner) != (lease.term, lease.owner):
                return False
            if self._records.replace(key_of(lease.name), changed(record).encode(), stored):
                return True
        raise LeaseUnavailableError(self._records.shown, f"{lease.name} changes all the time")

    def _read(
        self, name: str, on_change: Callable[..., None] | None = None
    ) -> tuple[Stored | None, LeaseRecord]:
        stored = self._records.read(key_of(name), on_change)
        if stored is None:
            return None, LeaseRecord(name)
        return stored, LeaseRecord.decode(stored.data, name, self._records.shown)

    def _runs_out_in_s(self, name: str, stored: Stored | None, record: LeaseRecord) -> float:
        version = None if stored is None else stored.version
        with self._lock:
            last = self._sightings.get(name)
            seen = look_again(last, version, self._clock.read(), record.ttl_s)
            self._sightings[name] = seen
        return runs_out_in_s(seen, record.ttl_s)


class LeaseWatch:
    """Waits for changes of a lease, its running out included. For one thread."""

    def __init__(self, store: LeaseStore, name: str, poll_s: float) -> None:
        self._store, self._name, self._poll_s = store, name, poll_s
        self._changed = threading.Event()
        self._told: tuple[str, int, bool] | None = None

    def wait(self, timeout_s: float) -> LeaseState | None:
        """Return the state when owner, term or `is_free` has changed; None after `timeout_s`.

        The first call returns the present state at once. Raises LeaseError.
        """
        deadline_s = time.monotonic() + timeout_s
        while True:
            self._changed.clear()
            state = self._store.look(self._name, self.interrupt)
            facts = (state.owner, state.term, state.is_free)
            if facts != self._told:
                self._told = facts
                return state
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                return None
            self._changed.wait(min(left_s, self._pause_s(state)))

    def interrupt(self, *_: object) -> None:
        """Make a waiting thread look again now; any thread may call it."""
        self._changed.set()

    def _pause_s(self, state: LeaseState) -> float:
        if state.is_free:
            return self._poll_s
        # Often enough that the time between two looks counts in full.
        return min(self._poll_s, state.ttl_s * MARGIN / 2)


def key_of(name: str) -> str:
    """Return the name of a lease's record."""
    return f"{FOLDER}/{record_name(name, name)}"
