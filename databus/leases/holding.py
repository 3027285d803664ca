"""An owner's side of a lease: renewed in time, and looked at before each write."""

from __future__ import annotations

import threading
from contextlib import suppress
from weakref import WeakSet

from databus.leases.clock import Moment
from databus.leases.errors import LeaseLostError, LeaseUnavailableError
from databus.leases.store import Lease, LeaseStore

_RENEW_AFTER = 1 / 3  # of ttl_s: two renewals may fail before the lease runs out
_RETRY_AFTER = 1 / 12
# For metrics: of which leases this process is the owner.
_all: WeakSet[HeldLease] = WeakSet()
_lock = threading.Lock()


class HeldLease:
    """A lease that one thread renews, by calling `renew_if_due` at least every `due_in_s`.

    Any thread may call `term`. `problem` says why the last renewal failed; "" if it did not.
    """

    def __init__(self, store: LeaseStore, lease: Lease) -> None:
        """Hold a lease that was just acquired from `store`."""
        with _lock:
            _all.add(self)
        self.problem = ""
        self._store, self._lease = store, lease
        self._is_lost = False
        self._next = _later(lease.sent, lease.ttl_s * _RENEW_AFTER)

    @property
    def name(self) -> str:
        """The lease's name."""
        return self._lease.name

    @property
    def is_lost(self) -> bool:
        """Whether another owner had it since, so that no renewal can bring it back."""
        return self._is_lost

    @property
    def due_in_s(self) -> float:
        """Seconds until the next renewal."""
        now = self._store.now()
        if now.steps_back != self._next.steps_back:
            return 0.0
        return max(0.0, self._next.at_s - now.at_s)

    def term(self) -> int:
        """Return the term to write under; raise LeaseLostError if the lease is not held now.

        Call it before each write, not once: the process may have been frozen since.
        """
        if self._is_lost:
            raise LeaseLostError(self.name, self._lease.term, "it has another owner")
        if self._store.held_for_s(self._lease) <= 0:
            why = self.problem or "it was not renewed in time"
            raise LeaseLostError(self.name, self._lease.term, why)
        return self._lease.term

    def renew_if_due(self) -> None:
        """Renew the lease if it is time to; a store that cannot be reached is a `problem`."""
        if self._is_lost or self.due_in_s > 0:
            return
        try:
            renewed = self._store.renew(self._lease)
        except LeaseUnavailableError as error:
            self.problem = str(error)
            self._next = _later(self._store.now(), self._lease.ttl_s * _RETRY_AFTER)
            return
        self.problem = ""
        if renewed is None:
            self._is_lost = True
        else:
            self._lease = renewed
            self._next = _later(renewed.sent, renewed.ttl_s * _RENEW_AFTER)

    def release(self) -> None:
        """Let another owner have it at once; raise LeaseError."""
        self._is_lost = True
        self._store.release(self._lease)


def _later(moment: Moment, seconds: float) -> Moment:
    return moment._replace(at_s=moment.at_s + seconds)


def held_here() -> dict[str, int]:
    """Return the terms of the leases that this process holds now, by name."""
    with _lock:
        leases = list(_all)
    found = {}
    for lease in leases:
        with suppress(LeaseLostError):
            found[lease.name] = lease.term()
    return found
