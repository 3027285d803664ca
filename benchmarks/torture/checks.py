"""Checks the promises in the client's log and tables. Values in, problems out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.torture.log import Delivery
from benchmarks.torture.workload import TortureTable

MOST_PROBLEMS_KEPT = 50


@dataclass
class Findings:
    """Counts for the last line, and all problems."""

    runs: int = 0
    windows: int = 0
    events: int = 0
    redelivered_windows: int = 0
    rollbacks: int = 0
    transactions: int = 0
    problem_count: int = 0
    problems: list[str] = field(default_factory=list)

    def add(self, problem: str) -> None:
        """Record a problem."""
        self.problem_count += 1
        if len(self.problems) < MOST_PROBLEMS_KEPT:
            self.problems.append(problem)


class LogCheck:
    """Checks the log line by line against the promises."""

    def __init__(self, findings: Findings) -> None:
        self._found = findings
        self._scn_of_tx: dict[int, int] = {}  # every transaction ever delivered
        self._last_scn = -1  # of this run; an announced rollback sets it back
        self._last_tx = 0  # likewise; 0 = at the start and after a rollback
        self._floor_scn = -1  # nothing up to the checkpoint from which it started may come
        self._newest_tx: int | None = 0  # None: not known, as after a bootstrap
        self._newest_scn = -1

    def take(self, delivery: Delivery) -> None:
        """Check one line."""
        if delivery.kind == "start":
            self._start(delivery)
        elif delivery.kind == "rollback":
            # Every window after this one comes again, and none before it.
            self._found.rollbacks += 1
            self._last_scn, self._last_tx = delivery.scn, 0
        elif delivery.kind == "problem":
            self._found.add(f"run {delivery.run}, window {delivery.scn}: {delivery.text}")
        else:
            self._window(delivery)

    def finish(self, committed: int) -> None:
        """Check the final state: every transaction arrived."""
        self._found.transactions = len(self._scn_of_tx)
        missing = [tx for tx in range(1, committed + 1) if tx not in self._scn_of_tx]
        if missing:
            shown = ", ".join(map(str, missing[:5]))
            self._found.add(f"{len(missing)} transactions never came: {shown} …")

    def _start(self, delivery: Delivery) -> None:
        self._found.runs += 1
        self._floor_scn = delivery.scn
        self._last_scn, self._last_tx = -1, 0
        if delivery.scn > self._newest_scn:
            self._found.add(
                f"run {delivery.run}: the checkpoint {delivery.scn} is ahead of the newest "
                f"window applied, {self._newest_scn}"
            )

    def _window(self, delivery: Delivery) -> None:
        self._found.windows += 1
        self._found.events += len(delivery.stamps)
        where = f"run {delivery.run}, window {delivery.scn}"
        if delivery.scn <= self._last_scn:
            self._found.add(f"{where}: the scn went back from {self._last_scn} unannounced")
        if delivery.scn <= self._floor_scn:
            self._found.add(f"{where}: it lies before the checkpoint {self._floor_scn}")
        self._found.redelivered_windows += delivery.scn <= self._newest_scn
        for tx, rows in transactions_of(delivery.stamps):
            self._transaction(where, delivery.scn, tx, rows)
        self._last_scn = delivery.scn
        self._newest_scn = max(self._newest_scn, delivery.scn)

    def _transaction(self, where: str, scn: int, tx: int, rows: Sequence[tuple[int, int]]) -> None:
        if tx < 0:
            self._found.add(f"{where}: transaction {-tx} was rolled back, and came")
            return
        expected = [(row, rows[0][1]) for row in range(1, rows[0][1] + 1)]
        if list(rows) != expected:
            self._found.add(f"{where}: transaction {tx} has rows {rows} instead of {expected}")
        if self._scn_of_tx.setdefault(tx, scn) != scn:
            self._found.add(f"{where}: transaction {tx} came at {self._scn_of_tx[tx]} before")
        if self._last_tx and tx != self._last_tx + 1:
            self._found.add(f"{where}: transaction {tx} came after {self._last_tx}")
        elif self._newest_tx is not None and tx > self._newest_tx + 1:
            self._found.add(f"{where}: transaction {tx} came, {self._newest_tx + 1} did not")
        self._last_tx = tx
        self._newest_tx = max(self._newest_tx or 0, tx)


def transactions_of(
    stamps: Iterable[tuple[int, int, int]],
) -> list[tuple[int, list[tuple[int, int]]]]:
    """Cut a window's changes into runs of the same transaction number."""
    found: list[tuple[int, list[tuple[int, int]]]] = []
    for tx, row, rows in stamps:
        if not found or found[-1][0] != tx:
            found.append((tx, []))
        found[-1][1].append((row, rows))
    return found


def check_log(deliveries: Iterable[Delivery], committed: int, findings: Findings) -> None:
    """Check the log of a run that committed a number of transactions."""
    check = LogCheck(findings)
    for delivery in deliveries:
        check.take(delivery)
    check.finish(committed)


def check_rows(
    table: TortureTable,
    applied: Sequence[tuple[Any, ...]],
    source: Sequence[tuple[Any, ...]],
    findings: Findings,
) -> None:
    """Compare what the consumer applied with the source's table, row by row."""
    wanted = {_key(table, row): tuple(row) for row in source}
    found = {_key(table, row): tuple(row) for row in applied}
    for key in wanted.keys() - found.keys():
        findings.add(f"{table.name} {key}: the consumer does not have it")
    for key in found.keys() - wanted.keys():
        findings.add(f"{table.name} {key}: the consumer has it, the source does not")
    for key in wanted.keys() & found.keys():
        if wanted[key] != found[key]:
            findings.add(f"{table.name} {key}: {found[key]} instead of {wanted[key]}")


def _key(table: TortureTable, row: Sequence[Any]) -> tuple[Any, ...]:
    columns = list(table.columns)
    return tuple(row[columns.index(column)] for column in table.key)
