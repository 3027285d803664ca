"""A process that is a member of a group until SIGTERM, and logs what it owns.

    python -m tests.client.membership.group_process URL TTL_S LOG

Lines of the log, each with the process's id: `begin PID NUMBER TERM`, `finish PID NUMBER`,
`abort PID NUMBER`, and `owns PID BEFORE AFTER NUMBER:TERM,…`, all that it believed to own between
two readings of the machine's clock; `left PID` at last.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path

from databus.client.membership.member import Member
from databus.client.membership.membership import Membership
from databus.groups.group_record import GroupFacts, Process
from databus.leases.clock import steady_s
from databus.leases.errors import LeaseLostError
from databus.leases.places import open_records
from databus.leases.store import LeaseStore
from tests import PATIENCE_S
from tests.databus.leases.contending import Log

FACTS = GroupFacts("billing", 32, ("shop.orders",))
PAUSE_S = 0.02
FINISH_TAKES_S = 0.2  # in which another one that is too early would be seen
PID = os.getpid()


class LoggedWork:
    """Notes what it is told; it takes some time to finish, as one does with a window."""

    def __init__(self, log: Log) -> None:
        self.begun: dict[int, int] = {}
        self.member: Member | None = None
        self._finishing: dict[int, float] = {}
        self._log = log

    def begin(self, partition: int, term: int) -> None:
        self._log.note("begin", PID, partition, term)
        self.begun[partition] = term

    def finish(self, partition: int) -> None:
        self._finishing[partition] = steady_s() + FINISH_TAKES_S

    def abort(self, partition: int) -> None:
        assert self.member is not None
        if self._end("abort", partition):
            self.member.stopped(partition)

    def fail(self, error: Exception) -> None:
        self._log.note("failed", PID, error)

    def report_finished(self) -> None:
        """Report what has been finished by now."""
        assert self.member is not None
        for partition, at_s in list(self._finishing.items()):
            if at_s <= steady_s() and self._end("finish", partition):
                self.member.finished(partition)

    def _end(self, kind: str, partition: int) -> bool:
        """Return False if it has ended already: finished and aborted at the same moment."""
        self._finishing.pop(partition, None)
        if self.begun.pop(partition, None) is None:
            return False
        self._log.note(kind, PID, partition)
        return True

    def note_owned(self) -> None:
        """Log what may be consumed now."""
        assert self.member is not None
        before_s, owned = steady_s(), []
        for partition in list(self.begun):
            try:
                owned.append(f"{partition}:{self.member.term(partition)}")
            except LeaseLostError:
                continue
        if owned:
            self._log.note("owns", PID, before_s, steady_s(), ",".join(owned))


def main(url: str, ttl_s: float, log: Log) -> None:
    """Take part until SIGTERM."""
    is_ending = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: is_ending.set())
    records, work = open_records(url), LoggedWork(log)
    membership = Membership(records, LeaseStore(records), FACTS, Process(f"host:{PID}"))
    member = work.member = Member(membership, work, steady_s, ttl_s, finish_s=ttl_s)
    member.start()
    while not is_ending.is_set() or work.begun:
        if is_ending.wait(PAUSE_S):
            member.leave()
            time.sleep(PAUSE_S)
        work.note_owned()
        work.report_finished()
    if member.stop(PATIENCE_S):
        log.note("left", PID)
    records.close()


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]), Log(Path(sys.argv[3])))
