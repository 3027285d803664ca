"""Checks the promises of a bootstrap in the client's log and tables."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from benchmarks.torture.checks import Findings, LogCheck, check_rows
from benchmarks.torture.log import Delivery, Log
from benchmarks.torture.workload import TABLES
from databus.demo.databases import Session
from databus.schemas.checkpoint import ConsumptionMode

SLICES = 16  # of each table, so that a slice's rows fit into memory with ease
SNAPSHOT, CATCHUP = ConsumptionMode.SNAPSHOT, ConsumptionMode.CATCHUP
ONLINE, INIT = ConsumptionMode.ONLINE, ConsumptionMode.INIT

# Which mode may follow which within a run. A snapshot restarts when the
# bootstrap server says that its log no longer reaches back.
FOLLOWS: dict[str, set[str]] = {
    "": {INIT, ONLINE, SNAPSHOT},
    INIT: {ONLINE, SNAPSHOT},
    ONLINE: {SNAPSHOT},
    SNAPSHOT: {CATCHUP},
    CATCHUP: {ONLINE, SNAPSHOT},
}


@dataclass
class BootstrapFindings(Findings):
    """Adds the pages, and the modes in the order of the checkpoints."""

    pages: int = 0
    modes: list[str] = field(default_factory=list)


class BootstrapCheck(LogCheck):
    """Reads the log line by line.

    Windows of the live stream keep every promise that they keep without a
    bootstrap. What a page brings is checked by the log's guard, and in the end
    by the rows.
    """

    def __init__(self, findings: BootstrapFindings) -> None:
        super().__init__(findings)
        self._bootstrap = findings
        self._mode = ""

    def take(self, delivery: Delivery) -> None:
        """Check one line."""
        if delivery.kind == "page":
            self._bootstrap.pages += 1
            # The position after a page is not a transaction from which to count.
            self._last_tx, self._newest_tx = 0, None
        elif delivery.kind == "mode":
            self._take_mode(delivery)
        else:
            super().take(delivery)

    def finish(self, committed: int) -> None:
        """Check the final state: live, at the newest transaction."""
        self._bootstrap.transactions = len(self._scn_of_tx)
        if self._mode != ONLINE:
            self._bootstrap.add(f"the last checkpoint's mode is {self._mode or 'none'}")
        if committed not in self._scn_of_tx:
            self._bootstrap.add(f"the newest transaction, {committed}, never came")
        if SNAPSHOT not in self._bootstrap.modes:
            self._bootstrap.add("there was no bootstrap")

    def _start(self, delivery: Delivery) -> None:
        self._mode = delivery.text
        if self._mode != ONLINE:
            # Not an applied position, but the one from which the bootstrap continues.
            self._newest_scn = max(self._newest_scn, delivery.scn)
        super()._start(delivery)

    def _take_mode(self, delivery: Delivery) -> None:
        mode = delivery.text
        if mode != self._mode and mode not in FOLLOWS[self._mode]:
            self._bootstrap.add(
                f"run {delivery.run}: mode {mode} after {self._mode or 'no checkpoint'}"
            )
        self._mode = mode
        self._bootstrap.modes.append(mode)
        # A bootstrap ends at a window that it delivered, and that no later window repeats.
        self._newest_scn = max(self._newest_scn, delivery.scn)


def check_log(deliveries: Iterable[Delivery], committed: int, findings: BootstrapFindings) -> None:
    """Check the log of a run that committed a number of transactions."""
    check = BootstrapCheck(findings)
    for delivery in deliveries:
        check.take(delivery)
    check.finish(committed)


def check_tables(log: Log, source: Session, findings: Findings) -> int:
    """Compare every table slice by slice; return how many rows the source has."""
    count = 0
    for table in TABLES:
        for number in range(SLICES):
            where = f"{table.key[-1]} % {SLICES} = {number}"
            rows = source.rows(table.select(where))
            count += len(rows)
            check_rows(table, log.rows(table, where), rows, findings)
    return count
