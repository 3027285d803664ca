"""The workers of a store that several processes may fill: those of the process with its lease.

The lease is of the store, by the id in its file, so that processes with another file of the same
name never wait for each other. Whoever gains it begins its term in the store, which shuts out what
an earlier owner may still write, and starts producer and seeder: they go on where the store says.
Whoever loses it stops them. What does not stop in time cannot write: its term is over.

Only the process that has SQLite's write lock can release it. A process that is frozen in the middle
of a write is ended by the kernel, see `write_guard`. For anything else that has the lock, the new
owner waits as long as that lasts, and says so. Readers do not notice.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, closing
from pathlib import Path

from databus.bootstrap.ownership.lock_holder import shown_holder
from databus.bootstrap.ownership.workers import Ownership, Worker, left_s, stop_all
from databus.bootstrap.ownership.write_guard import WriteGuard
from databus.bootstrap.store.file import WriteLease, identify
from databus.bootstrap.store.store import Store
from databus.daemon.faults import trace_of
from databus.leases.errors import LeaseLostError, StaleTermError
from databus.leases.keeper import LeaseKeeper
from databus.leases.store import LeaseStore
from databus.schemas.errors import BootstrapError, DatabusError

log = logging.getLogger(__name__)

_LOOK_S = 0.5  # whether the file is still the same, and which term it has
_BUSY_S = 1.0  # for a lock, before it is told who holds it
_STOP_S = 10.0  # for workers whose lease went; they can write nothing
_KEEPER_S = 5.0

MakeWorkers = Callable[[WriteLease], Mapping[str, Worker]]


class StandbyWorkers:
    """Contends for a store's lease from `start` to `stop`, and fills the store while it has it."""

    def __init__(
        self,
        path: Path,
        leases: LeaseStore,
        owner: str,
        ttl_s: float,
        make: MakeWorkers,
        guard: WriteGuard,
    ) -> None:
        """`make` returns new workers that write under a lease; `owner` is shown to people.

        Owns the guard.
        """
        self.running: Mapping[str, Worker] = {}
        self._path, self._leases, self._owner, self._ttl_s = path, leases, owner, ttl_s
        self._make, self._guard = make, guard
        self._keeper: LeaseKeeper | None = None
        self._store_id = ""
        self._term = 0  # under which the workers write; 0 = there are none
        self._problem = ""
        self._unstopped: list[Worker] = []  # after their time: they may still be in a write
        self._changed, self._ended = threading.Event(), threading.Event()
        self._end_s = float("inf")
        self._thread = threading.Thread(target=self._run, name=f"owner-{path.stem}", daemon=True)

    def ownership(self) -> Ownership:
        """Return the state of the lease. Any thread may call it."""
        keeper = self._keeper
        if keeper is None:
            return Ownership("standby", "", 0, self._problem)
        problem = self._problem or (keeper.problem and f"lease: {keeper.problem}")
        is_held, owner, term = keeper.holder
        if not is_held:
            return Ownership("standby", owner, term, problem)
        if self.running and term == self._term:
            return Ownership("active", owner, term, problem)
        return Ownership("taking over", owner, term, problem)

    def start(self) -> None:
        """Begin to contend."""
        self._guard.start()
        self._thread.start()

    def stop(self, timeout_s: float) -> bool:
        """Stop the workers, then give the lease back; return whether all stopped in time.

        A lease under which a worker may still write is left to run out.
        """
        self._end_s = time.monotonic() + timeout_s
        self._ended.set()
        self._changed.set()
        if self._thread.ident is not None:
            self._thread.join(timeout_s)
        self._guard.stop()
        return not self._thread.is_alive() and stop_all(self._unstopped, left_s(self._end_s))

    def _run(self) -> None:
        while not self._ended.is_set():
            try:
                self._contend(*identify(self._path))
            except Exception as error:
                # A thread has no caller to raise to: it tells, and tries again.
                self._note(error)
                self._ended.wait(_LOOK_S)

    def _contend(self, store_id: str, newest: int) -> None:
        """Contend for the lease of a store until the end, or until the file is another store."""
        name = f"bootstrap/{store_id}"
        keeper = LeaseKeeper(
            self._leases, name, self._owner, self._ttl_s, lambda: True, self._changed.set
        )
        keeper.go_on_above(newest)
        self._keeper, self._problem, self._store_id = keeper, "", store_id
        keeper.start()
        try:
            while not self._ended.is_set():
                self._changed.wait(_LOOK_S)
                self._changed.clear()
                if not self._keep_up(keeper):
                    return
        finally:
            has_stopped = self._end_work(min(_STOP_S, left_s(self._end_s)))
            keeper.stop(_KEEPER_S, gives_back=has_stopped)
            self._keeper = None

    def _keep_up(self, keeper: LeaseKeeper) -> bool:
        """Start or stop the workers as the lease says; return False when the file is another."""
        try:
            store_id, newest = identify(self._path)
            if store_id != self._store_id:
                log.warning("store %s is another one now: its lease, too", self._path)
                return False
            keeper.go_on_above(newest)
            is_held, _, term = keeper.holder
            term = term if is_held else 0
            if term and newest > term:
                raise StaleTermError(f"store {self._path}", term, newest)
            if term != self._term:
                self._end_work(_STOP_S)
                if term:
                    self._begin_work(keeper, term)
            self._problem = ""
        except StaleTermError as error:
            # The records of leases were lost: a greater term is in the store.
            keeper.lose(error.newest)
            self._note(error)
        except DatabusError as error:
            self._note(error)
        return True

    def _begin_work(self, keeper: LeaseKeeper, term: int) -> None:
        lease = _OneTerm(keeper, term, self._guard)
        with closing(Store.open(self._path, lease=lease, busy_s=_BUSY_S)) as store:
            store.begin_term(term)
            scn = store.position().scn
        running = self._make(lease)
        for worker in running.values():
            worker.start()
        self.running, self._term = running, term
        log.info("store %s: filled by this process, term %d, scn %d", self._path, term, scn)

    def _end_work(self, timeout_s: float) -> bool:
        """Stop the workers; return whether they have stopped."""
        if not self._term:
            return True
        workers, self.running = list(self.running.values()), {}
        term, self._term = self._term, 0
        has_stopped = stop_all(workers, timeout_s)
        if not has_stopped:
            self._unstopped += workers
        log.info("store %s: not filled by this process any more, term %d", self._path, term)
        return has_stopped

    def _note(self, error: Exception) -> None:
        text = str(error) if isinstance(error, DatabusError) else f"internal error: {error!r}"
        holder = shown_holder(self._path) if isinstance(error, BootstrapError) else ""
        text = f"{text}; {holder}" if holder else text
        if text != self._problem:
            log.error("%s; trying again", text, exc_info=trace_of(error))
        self._problem = text


class _OneTerm:
    """The lease under one term: a later term of this process is for other workers."""

    def __init__(self, keeper: LeaseKeeper, term: int, guard: WriteGuard) -> None:
        self._keeper, self._term, self._guard = keeper, term, guard

    def term(self) -> int:
        """Return the term; raise LeaseLostError when it is not that of the lease any more."""
        now = self._keeper.term()
        if now != self._term:
            raise LeaseLostError(self._keeper.name, self._term, f"this process has term {now} now")
        return now

    def writing(self) -> AbstractContextManager[None]:
        """Guard a transaction."""
        return self._guard.writing()
