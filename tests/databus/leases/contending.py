"""A process that contends for a lease as long as it lives, and logs what it did under it.

    python -m tests.databus.leases.contending URL FOLDER TTL_S LOG

Lines of the log: `begin TERM SCN PID`, the position that it found; `held TERM BEFORE AFTER`, that
it believed to hold the lease between two readings of the machine's clock; `saved TERM SCN`.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from databus.daemon.faults import is_transient
from databus.leases.clock import steady_s
from databus.leases.errors import LeaseLostError, StaleTermError
from databus.leases.holding import HeldLease
from databus.leases.places import open_leases
from databus.leases.store import LeaseStore
from databus.schemas.checkpoint import Checkpoint
from databus.schemas.errors import DatabusError
from tests.databus.leases.writing import LEASE, NAME, SOURCES, Positions

PAUSE_S = 0.01


class Log:
    """A file that a kill at any moment leaves with whole lines."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def note(self, *words: object) -> None:
        os.write(self._fd, (" ".join(map(str, words)) + "\n").encode())


def main(url: str, folder: Path, ttl_s: float, log: Log) -> None:
    """Contend for ever."""
    leases, positions = open_leases(url), Positions(url, folder)
    watch = leases.watch(LEASE)
    while True:
        try:
            watch.wait(ttl_s / 8)
            lease = leases.acquire(LEASE, str(os.getpid()), ttl_s)
            if lease is not None:
                work(HeldLease(leases, lease), leases, positions, log)
        except DatabusError as error:
            if not is_transient(error):
                raise


def work(held: HeldLease, leases: LeaseStore, positions: Positions, log: Log) -> None:
    """Save one position after another until the lease is lost."""
    try:
        term = held.term()
        at, _ = positions.begin(term)
        scn = 0 if at is None else at.window_scn
        log.note("begin", term, scn, os.getpid())
        while True:
            held.renew_if_due()
            before_s = leases.now().at_s
            term = held.term()
            log.note("held", term, before_s, steady_s())
            scn += 1
            positions.checkpoints.save_under(NAME, SOURCES, Checkpoint.at(scn), term)
            positions.max_scn.save_under(scn, 1, term)
            log.note("saved", term, scn)
            time.sleep(PAUSE_S)
    except (LeaseLostError, StaleTermError):
        return


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), float(sys.argv[3]), Log(Path(sys.argv[4])))
