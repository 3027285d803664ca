"""A thread that acquires a lease, renews it, and tells when it is gained or lost."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import NamedTuple

from databus.leases.errors import LeaseError, LeaseLostError
from databus.leases.holding import HeldLease
from databus.leases.store import LeaseState, LeaseStore

log = logging.getLogger(__name__)

_LOOK_S = 0.25  # for `may_hold` and the end; the lease is looked at as often as its store needs
_LOOKS = 1 / 12  # of ttl_s, at most: only then does the time between two looks count in full
_RETRY_S = 0.5


class Holder(NamedTuple):
    """The owner of a lease, as one contender knows it: `owner` "" or `term` 0 = not known.

    `is_held`: that contender has it, by this machine's clock.
    """

    is_held: bool
    owner: str
    term: int


class LeaseKeeper:
    """Contends for one lease until `stop`, and holds it as long as the store lets it.

    On its thread, `may_hold` tells whether this process wants the lease now, and `on_change` is
    called when it was gained, lost or given back; neither may block. All else is for any thread.
    """

    def __init__(
        self,
        store: LeaseStore,
        name: str,
        owner: str,
        ttl_s: float,
        may_hold: Callable[[], bool],
        on_change: Callable[[], None],
    ) -> None:
        self.name, self.owner, self.ttl_s = name, owner, ttl_s
        self.problem = ""
        """Why the store could not be asked the last time; "" if it could."""
        self.seen: LeaseState | None = None
        """The lease as it was last looked at, while somebody else may have it; None = unknown."""
        self._store, self._may_hold, self._on_change = store, may_hold, on_change
        self._watch = store.watch(name)
        self._held: HeldLease | None = None
        self._was_held = False
        self._refused: HeldLease | None = None
        self._newest_term = 0  # that this process has had
        self._greatest = 0  # term that is known of; see `go_on_above`
        self._ended = threading.Event()
        self._woken = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"lease-{name}", daemon=True)

    def start(self) -> None:
        """Begin to contend."""
        self._thread.start()

    def stop(self, timeout_s: float, *, gives_back: bool = True) -> bool:
        """End the thread; return whether it ended in time. Idempotent.

        The lease is given back, so that others can have it at once, or is left to run out: if this
        process may still write under it.
        """
        if not gives_back:
            self._held = None
        self._ended.set()
        self.look_again()
        if self._thread.ident is not None:
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def look_again(self) -> None:
        """Ask `may_hold` now, and look at the lease."""
        self._woken.set()
        self._watch.interrupt()

    @property
    def holder(self) -> Holder:
        """The owner of the lease now."""
        try:
            return Holder(True, self.owner, self.term())
        except LeaseLostError:
            seen = self.seen
        return Holder(False, "", 0) if seen is None else Holder(False, seen.owner, seen.term)

    @property
    def is_held(self) -> bool:
        """Whether the lease is held now, by this machine's clock."""
        return self.holder.is_held

    def term(self) -> int:
        """Return the term to write under; raise LeaseLostError if the lease is not held now.

        Call it before each write, not once: the process may have been frozen since.
        """
        held = self._held
        if held is None:
            raise LeaseLostError(self.name, self._newest_term, "this process does not have it")
        return held.term()

    def lose(self, newest: int) -> None:
        """Forget the lease: a store has refused a write under it, as term `newest` has begun there.

        If the lease is still in this process' name, it is given back, and acquired anew.
        """
        self.go_on_above(newest)
        self._refused, self._held = self._held, None
        self.look_again()

    def go_on_above(self, term: int) -> None:
        """Acquire the lease with a greater term than one that was found with what it protects."""
        self._greatest = max(self._greatest, term)

    def _run(self) -> None:
        while not self._ended.is_set():
            self._woken.clear()
            try:
                wait_s = self._step()
                self._note("")
            except LeaseError as error:
                self._note(str(error))
                wait_s = _RETRY_S
            except Exception as error:
                # A thread that ended would look like a lease that somebody else has.
                log.exception("lease %s", self.name)
                self._note(repr(error))
                wait_s = _RETRY_S
            self._tell()
            if not self._ended.is_set():
                self._woken.wait(wait_s)
        self._give_back()

    def _step(self) -> float:
        """Renew the lease or contend for it; return for how long to wait then, in seconds."""
        refused, self._refused = self._refused, None
        if refused is not None:
            refused.release()
        held = self._held
        if held is None:
            self._contend()
            return 0.0
        if not self._may_hold():
            self._held = None
            held.release()
            return _LOOK_S
        held.renew_if_due()
        if held.is_lost:
            self._held = None
            return 0.0
        if held.problem:
            raise LeaseError(held.problem)
        return min(_LOOK_S, held.due_in_s)

    def _contend(self) -> None:
        """Look at the lease for a while, and acquire it if it is free."""
        # None = as it was told before.
        self.seen = self._watch.wait(min(_LOOK_S, self.ttl_s * _LOOKS)) or self.seen
        is_free = self.seen is not None and self.seen.is_free
        if not is_free or self._ended.is_set() or not self._may_hold():
            return
        lease = self._store.acquire(self.name, self.owner, self.ttl_s, above=self._greatest)
        if lease is not None:
            self._newest_term = lease.term
            self._held = HeldLease(self._store, lease)

    def _tell(self) -> None:
        is_held = self.is_held
        if is_held == self._was_held:
            return
        self._was_held = is_held
        log.info("lease %s is %s", self.name, "held" if is_held else "not held any more")
        self._on_change()

    def _give_back(self) -> None:
        held, self._held = self._held, None
        if held is not None and not held.is_lost:
            try:
                held.release()
            except LeaseError as error:
                log.warning("lease %s was not given back, so it runs out: %s", self.name, error)
        self._tell()

    def _note(self, problem: str) -> None:
        if problem and not self.problem:
            log.warning("lease %s: %s; trying again", self.name, problem)
        self.problem = problem
