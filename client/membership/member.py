"""A member of a group at work: the rules of `client/group`, with a store of leases and threads.

One thread asks the store, one request after another: it renews the slot first of all, looks at the
group, and gives back and asks for partitions. Each request may take seconds. Another thread only
watches the time: what the process holds runs out by its own clock, whether or not the store
answers, and then it aborts everything in time. What it may do at any moment is asked with `term`.

If the store cannot be reached, the member goes on until its slot runs out, then aborts. Nobody else
takes its partitions meanwhile, for that needs the store. When it can be reached again, a member
whose slot nobody has taken from it keeps it, and asks for its partitions again.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from typing import Protocol

from databus.client.group.handover import (
    Abort,
    Acquire,
    Assigned,
    Begin,
    Finish,
    Finished,
    Granted,
    Handover,
    Instruction,
    Lost,
    Message,
    Refused,
    Release,
    Stopped,
    Tick,
)
from databus.client.membership.membership import Membership
from databus.daemon.faults import is_transient
from databus.leases.errors import LeaseError, LeaseLostError

log = logging.getLogger(__name__)

# Of ttl_s.
_LOOK_AFTER = 1 / 6  # at most a quarter
_ASK_AGAIN_AFTER = 1 / 8  # at most a quarter
_RETRY_AFTER = 1 / 12
_NOTE_AFTER = 1 / 8  # partitions come one by one, and one record has the moves of them all
# The others wait for a quarter more than ttl_s: in that time everything must be aborted.
_WATCH_EVERY = 1 / 20


class PartitionWork(Protocol):
    """What a process does with its partitions. The calls come from several threads, one at a time.

    None of them may raise, wait, or take a lock that is held while a `Member` is called. `finish`
    is answered by `Member.finished`, `abort` by `Member.stopped`, at once or later, by any thread.
    """

    def begin(self, partition: int, term: int) -> None:
        """Consume from the checkpoint on: `FencedCheckpointStore.begin_term` with this term."""

    def finish(self, partition: int) -> None:
        """Consume to the end of a window, store the checkpoint under the term, report."""

    def abort(self, partition: int) -> None:
        """Deliver nothing more, store nothing, report when nothing of it runs."""

    def fail(self, error: Exception) -> None:
        """Take note that the process is a member no more; everything was aborted."""


class Member:
    """A process that takes its share of a group's partitions, from `start` to `stop`.

    All methods may be called from any thread.
    """

    def __init__(
        self,
        membership: Membership,
        work: PartitionWork,
        clock_s: Callable[[], float],
        ttl_s: float,
        finish_s: float,
    ) -> None:
        """`clock_s` is that of the leases; `finish_s` is the time that `PartitionWork.finish` has.

        One who needs longer is aborted, and its partition is free for others `ttl_s` later.
        """
        self.problem = ""
        """Why the store cannot be used now; "" while it can."""
        self._membership, self._work, self._clock_s, self._ttl_s = membership, work, clock_s, ttl_s
        self._handover = Handover(finish_s, ttl_s * _ASK_AGAIN_AFTER)
        # Held while the rules decide and the work is told, never while the store is asked.
        self._lock = threading.RLock()
        self._terms: dict[int, int] = {}  # of what may be consumed and stored
        self._aborted: dict[int, tuple[int, float]] = {}  # term, and when it is given back
        self._asks: deque[int] = deque()
        self._releases: deque[tuple[int, int]] = deque()
        self._taken: set[int] = set()  # and not noted yet, which is for people and may wait
        self._note_at_s = clock_s()
        self._look_at_s = clock_s()
        self._is_leaving, self._has_left = False, False
        self._is_cut_off = False  # and that was logged
        self._wake, self._ended = threading.Event(), threading.Event()
        self._threads = [
            threading.Thread(target=target, name=f"group-{kind}", daemon=True)
            for kind, target in (("store", self._run_store), ("time", self._run_time))
        ]

    def start(self) -> None:
        """Begin to take part."""
        for thread in self._threads:
            thread.start()

    def leave(self) -> None:
        """Begin to finish and give back all partitions; do not wait."""
        with self._lock:
            self._is_leaving = True
            self._tell(Assigned(frozenset()))
        self._look_soon()

    def stop(self, timeout_s: float) -> bool:
        """Leave, and return whether all partitions were finished and given back in time.

        If not, everything was aborted, and others wait until the slot has run out. A request to the
        store that was sent already is waited for.
        """
        self.leave()
        self._ended.wait(timeout_s)
        self._end()
        for thread in self._threads:
            thread.join()
        return self._has_left

    def term(self, partition: int) -> int:
        """Return the term to store a partition's checkpoint under; raise LeaseLostError.

        Call it before each window is delivered and each checkpoint is stored: the process may have
        been frozen since the last time.
        """
        # The slot first: a term that is found afterwards is of this slot, or the slot is lost.
        slot = self._membership.slot
        term = self._terms.get(partition)
        if term is None or slot is None:
            raise LeaseLostError(f"partition {partition}", term or 0, "it is not owned")
        slot.term()
        return term

    def finished(self, partition: int) -> None:
        """Report that a partition's checkpoint is stored and nothing of it runs."""
        with self._lock:
            self._tell(Finished(partition))
        self._wake.set()

    def stopped(self, partition: int) -> None:
        """Report that nothing of an aborted partition runs."""
        with self._lock:
            self._tell(Stopped(partition))
        self._wake.set()

    # -- the thread that watches the time ---------------------------------------------------------

    def watch_time(self) -> None:
        """Abort what has run out, or is not finished in time, and ask again for what is due."""
        with self._lock:
            if not self._is_held():
                self._lose_all()
            now_s = self._clock_s()
            self._tell(Tick())
            for partition, (term, free_at_s) in list(self._aborted.items()):
                if now_s >= free_at_s:
                    # It may still be in a callback; what that stores is refused after the next
                    # owner has begun its term.
                    del self._aborted[partition]
                    self._releases.append((partition, term))
                    self._wake.set()

    def _run_time(self) -> None:
        while not self._ended.wait(self._ttl_s * _WATCH_EVERY):
            try:
                self.watch_time()
            except Exception as error:
                self._fail(error)

    # -- the thread that asks the store -----------------------------------------------------------

    def ask_store(self) -> float:
        """Do what is most urgent; return for how many seconds nothing is to be done then."""
        try:
            pause_s = self._ask_store()
            if self._is_cut_off and not self.problem:
                self._is_cut_off = False
                log.info("group %s: the coordinator answers again", self._membership.facts.group)
            return pause_s
        except Exception as error:
            # Also a mistake in the code of this process: a member that has silently ended would
            # look like one that owns nothing.
            if not is_transient(error):
                self._fail(error)
                return self._ttl_s
            if not self._is_cut_off:
                self._is_cut_off = True
                log.warning("group %s: %s; trying again", self._membership.facts.group, error)
            self.problem = str(error)
            return self._ttl_s * _RETRY_AFTER

    def _run_store(self) -> None:
        while not self._ended.is_set():
            self._wake.clear()
            pause_s = self.ask_store()
            # A store that did not answer is not asked sooner, whatever is wanted of it.
            woken = self._ended if self.problem else self._wake
            if pause_s > 0 and not self._ended.is_set():
                woken.wait(pause_s)

    def _ask_store(self) -> float:
        membership = self._membership
        if membership.slot is None and not self._is_leaving:
            membership.join(self._ttl_s)
            self._look_soon()
        if membership.slot is not None:
            membership.slot.renew_if_due()
            self.problem = membership.slot.problem
            if membership.slot.is_lost:
                self._lose_slot()
                return 0.0
        if self._clock_s() >= self._look_at_s:
            self._look()
            return 0.0
        if self._releases:
            partition, term = self._releases[0]
            membership.release(partition, term)
            self._releases.popleft()
            return 0.0
        if self._asks and self._is_held():
            self._acquire(self._asks[0])
            return 0.0
        if self._taken and self._clock_s() >= self._note_at_s and self._is_held():
            self._note_taken()
            return 0.0
        if self._is_leaving and not self._handover.states and not self._releases:
            membership.leave()
            self._has_left = True
            self._ended.set()
        due_in_s = self._ttl_s if membership.slot is None else membership.slot.due_in_s
        next_s = min(self._look_at_s, self._note_at_s) if self._taken else self._look_at_s
        return min(due_in_s, max(0.0, next_s - self._clock_s()))

    def _look(self) -> None:
        # Before it is read: a change during the reading must not be missed.
        self._look_at_s = self._clock_s() + self._ttl_s * _LOOK_AFTER
        leaving = self._is_leaving
        record = self._membership.look(is_leaving=leaving, on_change=self._look_soon)
        with self._lock:
            if not self._is_leaving:
                self._tell(Assigned(record.partitions_of(self._membership.name)))
        if leaving != self._is_leaving:
            self._look_soon()

    def _look_soon(self, *_: object) -> None:
        self._look_at_s = self._clock_s()
        self._wake.set()

    def _acquire(self, partition: int) -> None:
        # After an error it is asked again, also if it is not wanted any more: perhaps it was
        # granted, and then it must be given back.
        term = self._membership.acquire(partition)
        with self._lock:
            if term is not None and not self._is_held():
                return  # it is asked for again under the slot once that is held
            self._asks.popleft()
            self._tell(Refused(partition) if term is None else Granted(partition, term))

    def _note_taken(self) -> None:
        with self._lock:
            taken, self._taken = self._taken, set()
        try:
            self._membership.note_taken(taken)
        except LeaseError as error:
            # Nothing depends on it, and what else is asked of the store says what is wrong.
            log.debug("group %s: not noted yet: %s", self._membership.facts.group, error)
            with self._lock:
                self._taken |= taken
                self._note_at_s = self._clock_s() + self._ttl_s * _NOTE_AFTER

    def _lose_slot(self) -> None:
        with self._lock:
            self._lose_all()
            self._membership.lose()
            # What was acquired under that slot is free for others.
            self._releases.clear()
            self._aborted.clear()
            self._tell(Assigned(frozenset()))
            while self._asks:
                self._tell(Refused(self._asks.popleft()))

    def _fail(self, error: Exception) -> None:
        with self._lock:
            self.problem = str(error) or repr(error)
            try:
                self._end()
            finally:
                self._work.fail(error)

    def _end(self) -> None:
        """Own nothing from now on, and end the threads."""
        self._ended.set()
        self._wake.set()
        with self._lock:
            self._lose_all()

    # -- the rules, under the lock ----------------------------------------------------------------

    def _is_held(self) -> bool:
        slot = self._membership.slot
        if slot is None:
            return False
        try:
            slot.term()
        except LeaseLostError:
            return False
        return True

    def _lose_all(self) -> None:
        for partition in self._handover.renewed:
            self._tell(Lost(partition))

    def _tell(self, message: Message) -> None:
        for instruction in self._handover.handle(message, self._clock_s()):
            self._do(instruction)

    def _do(self, instruction: Instruction) -> None:
        match instruction:
            case Acquire(partition):
                self._asks.append(partition)
                self._wake.set()
            case Begin(partition, term):
                self._terms[partition] = term
                if not self._taken:
                    self._note_at_s = self._clock_s() + self._ttl_s * _NOTE_AFTER
                self._taken.add(partition)
                self._work.begin(partition, term)
            case Finish(partition, _):
                self._work.finish(partition)
            case Abort(partition):
                term = self._terms.pop(partition)
                self._aborted[partition] = term, self._clock_s() + self._ttl_s
                self._work.abort(partition)
            case Release(partition, term):
                self._terms.pop(partition, None)
                self._aborted.pop(partition, None)
                self._releases.append((partition, term))
                self._wake.set()
