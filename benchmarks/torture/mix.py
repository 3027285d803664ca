"""The other actions of the torture's writer on a MySQL source, beside plain transactions. No I/O.

compress   `log_bin_compress` is switched while it runs
metadata   `binlog_row_metadata` too; without it, DDL in the mix sets it to FULL
xa         transactions that are prepared, and committed or rolled back some
           transactions later, by the session that prepared them or another one
ddl        a column of `notes` is added, renamed and dropped, again and again
truncate   `stock` is emptied

A committed XA transaction has the number of the moment it is committed at. XA
writes to `accounts` alone, so that neither DDL nor TRUNCATE waits for one that
is prepared.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from enum import StrEnum

from benchmarks.torture.workload import BY_SOURCE, End, Key, Work, Workload

MIXES = ("plain", "compress", "metadata", "xa", "ddl", "truncate")
XA_TABLE = BY_SOURCE["shop.accounts"]
DDL_TABLE = BY_SOURCE["shop.notes"]
EMPTIED_TABLE = BY_SOURCE["shop.stock"]

DDL_EVERY = 25  # transactions
COLUMN_VALUE = 7
LONGEST_PREPARED = 40  # transactions
SWITCHES = {
    "compress": ("log_bin_compress", ("ON", "OFF")),
    "metadata": ("binlog_row_metadata", ("FULL", "NO_LOG", "MINIMAL")),
}
_XA_SHARE, _SWITCH_SHARE, _TRUNCATE_SHARE = 0.06, 0.03, 0.015

# The additional column of `notes`, and the statements that change it, in order.
_STAGES = (
    (None, f"ALTER TABLE {DDL_TABLE.name} DROP COLUMN spare"),
    ("extra", f"ALTER TABLE {DDL_TABLE.name} ADD COLUMN extra INT DEFAULT {COLUMN_VALUE}"),
    ("spare", f"ALTER TABLE {DDL_TABLE.name} RENAME COLUMN extra TO spare"),
)


class Kind(StrEnum):
    """What an act does with its transaction."""

    RUN = "run"
    PREPARE = "prepare"
    END = "end"  # XA COMMIT or XA ROLLBACK of what was prepared
    STATEMENT = "statement"


@dataclass(frozen=True, slots=True)
class Act:
    """One action; `of` is its part of the mix."""

    kind: Kind
    work: Work
    of: str = "plain"

    @property
    def xid(self) -> str:
        """The name of an XA transaction, as a literal."""
        return f"'t{self.work.number}'"


@dataclass(frozen=True, slots=True)
class _Prepared:
    work: Work
    keys: list[Key]


def columns_at(number: int, mix: Collection[str]) -> dict[str, object]:
    """Return the additional columns of a row of `notes` that a transaction wrote."""
    name = _STAGES[number // DDL_EVERY % len(_STAGES)][0] if "ddl" in mix else None
    return {} if name is None else {name: COLUMN_VALUE}


def settings_of(mix: Collection[str]) -> Iterator[str]:
    """Yield the statements that run once, before the first transaction."""
    if "compress" in mix:
        yield "SET GLOBAL log_bin_compress_min_len = 10"
    if "ddl" in mix and "metadata" not in mix:
        yield "SET GLOBAL binlog_row_metadata = FULL"


class Mixer:
    """Draws, by the seed, the actions between the transactions of a workload."""

    def __init__(self, workload: Workload, count: int, mix: Collection[str], seed: int) -> None:
        self._workload = workload
        self._count = count
        self._mix = frozenset(mix)
        self._random = random.Random(f"mix {seed}")
        self._due: dict[int, _Prepared] = {}  # by the number at which it is committed
        self._doomed: dict[int, Work] = {}  # by the number before which it is rolled back

    def acts(self) -> Iterator[Act]:
        """Yield all acts, in order."""
        for number in range(1, self._count + 1):
            yield from self._between(number)
            due = self._due.pop(number, None)
            if due is None:
                yield from (Act(Kind.RUN, work) for work in self._workload.at(number))
            else:
                self._workload.adopt(XA_TABLE, due.keys)
                yield Act(Kind.END, due.work, "xa")

    def _between(self, number: int) -> Iterator[Act]:
        draw = self._random
        if number in self._doomed:
            yield Act(Kind.END, self._doomed.pop(number), "xa")
        for name in sorted(SWITCHES.keys() & self._mix):
            if draw.random() < _SWITCH_SHARE:
                variable, values = SWITCHES[name]
                yield _statement(f"SET GLOBAL {variable} = {draw.choice(values)}", name)
        if "ddl" in self._mix and number % DDL_EVERY == 0:
            yield _statement(_STAGES[number // DDL_EVERY % len(_STAGES)][1], "ddl")
        if "truncate" in self._mix and draw.random() < _TRUNCATE_SHARE:
            self._workload.forget(EMPTIED_TABLE)
            yield _statement(f"TRUNCATE TABLE {EMPTIED_TABLE.name}", "truncate")
        if "xa" in self._mix and draw.random() < _XA_SHARE:
            yield from self._prepare(number)

    def _prepare(self, number: int) -> Iterator[Act]:
        at = number + self._random.randrange(1, LONGEST_PREPARED)
        is_committed = self._random.random() < 0.7
        taken: Collection[int] = self._due if is_committed else self._doomed
        if at > self._count or at in taken:
            return
        work, keys = self._workload.inserts(at if is_committed else -at, XA_TABLE)
        if is_committed:
            self._due[at] = _Prepared(work, keys)
        else:
            self._doomed[at] = work
        yield Act(Kind.PREPARE, work, "xa")


def _statement(sql: str, of: str) -> Act:
    return Act(Kind.STATEMENT, Work(0, [(sql, ())]), of)


def counts_of(seed: int, transactions: int, mix: Collection[str]) -> dict[str, int]:
    """Return how many acts of each part of the mix a run has; XA transactions count once."""
    mixer = Mixer(Workload(seed), transactions, mix, seed)
    found = Counter(act.of for act in mixer.acts() if act.kind is not Kind.END)
    return {name: found[name] for name in MIXES if name in mix and name != "plain"}


def decision(act: Act) -> str:
    """Return the statement that ends a prepared transaction."""
    return f"XA {'COMMIT' if act.work.end is End.COMMIT else 'ROLLBACK'} {act.xid}"
