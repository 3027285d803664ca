"""The generator: synthetic tables that change at a given rate, for load tests and demos.

`generator:?rate=100&seed=1&rows=5`. The tables are the settings' sources. Transaction n depends
on the seed and on n only. So n is its SCN, a restart after k continues with k + 1, and two relays
with one seed deliver the same. The rows are consistent without stored state: transaction n
inserts rows, updates some rows that transaction n - 5 inserted and deletes some of n - 15. Only
the commit time comes from the clock.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from random import Random
from threading import Event
from typing import Any

from databus.conf.named_places import NamedPlace
from databus.conf.settings import PhysicalSourceSettings
from databus.doctor.checks import Check, ok
from databus.relay.sources.kind import CheckRequest, SourceKind
from databus.relay.sources.source import Captured, Newest, Origin, RowChange, Source, Transaction
from databus.relay.sources.uri import parse_uri
from databus.relay.sources.window_writer import WindowWriter
from databus.schemas.errors import SettingsError
from databus.schemas.event.metadata import Op
from databus.schemas.table import Column, Table

_UPDATED_AFTER = 5
_DELETED_AFTER = 15
_MOST_ROWS = 1000
_READ_WAIT_S = 0.5
_MOST_TRANSACTIONS = 100
_EPOCH = datetime(2020, 1, 1, tzinfo=UTC)
_WORDS = ("amber", "birch", "cobalt", "dune", "ember", "fjord", "grove", "häuser", "苔", "🪁")
_COLUMNS = (
    Column("id", "bigint", 0, nullable=False, key_position=0),
    Column("name", "varchar(100)", 1),
    Column("amount", "decimal(12,2)", 2),
    Column("weight", "double", 3),
    Column("quantity", "int", 4, nullable=False),
    Column("born", "date", 5),
    Column("seen", "timestamp(6)", 6),
    Column("image", "blob", 7),
)


class GeneratorSource(Source):
    """Yields transactions that follow from a seed.

    URI parameters: `rate`, transactions a second (100; 0 = no limit); `seed`
    (1); `rows`, most rows inserted by one transaction (5); `tables`, how many of
    the sources get rows (all). `now_ns` is the wall clock and `clock` a monotonic
    one in seconds; `stop`, when set by another thread, makes `read` come back.
    """

    def __init__(
        self,
        settings: PhysicalSourceSettings,
        now_ns: Callable[[], int] = time.time_ns,
        clock: Callable[[], float] = time.monotonic,
        stop: Event | None = None,
    ) -> None:
        uri = parse_uri(settings.uri)
        uri.check(("rate", "seed", "rows", "tables"))
        self.name = settings.name
        names = settings.source_names
        self._rate = uri.number("rate", 100, 0, 1_000_000)
        self._seed = int(uri.number("seed", 1, 0, 2**53))
        self._rows = int(uri.number("rows", 5, 1, _MOST_ROWS))
        count = int(uri.number("tables", len(names), 1, len(names)))
        self._tables = tuple(Table(name, _COLUMNS) for name in names[:count])
        self._start = _start(settings.start)
        self._now_ns = now_ns
        self._clock = clock
        self._stop = stop or Event()
        self._scn = 0
        self._opened_scn = 0
        self._opened_at = 0.0
        self._writer = WindowWriter(self.name)

    def open(self, after_scn: int | None, newest: Newest | None = None) -> None:
        """Go on after `after_scn`; a first start begins where the settings say."""
        self._scn = self._opened_scn = self._start if after_scn is None else after_scn
        self._opened_at = self._clock()
        self._writer = WindowWriter(self.name, self._encoder, newest)

    def scn_at(self, place: NamedPlace) -> int:
        """Return the SCN of a place; its transactions have one each, from 1 on."""
        return _start(str(place))

    def tables(self) -> Sequence[Table]:
        """Return the tables."""
        return self._tables

    def read(self) -> Sequence[Captured]:
        """Return the windows that are due; see `read_transactions`."""
        return self._writer.write_from(self.read_transactions)

    def read_transactions(self) -> Sequence[Transaction]:
        """Return the transactions that are due, at most 100; waits up to half a second."""
        deadline = self._clock() + _READ_WAIT_S
        while True:
            now = self._clock()
            count = min(self._due(now) - self._scn, _MOST_TRANSACTIONS)
            if count > 0:
                return [self._next() for _ in range(count)]
            next_at = self._opened_at + (self._scn + 1 - self._opened_scn) / self._rate
            if now >= deadline or self._stop.wait(max(min(next_at, deadline) - now, 0.0001)):
                return []

    def close(self) -> None:
        """Do nothing: a generator has no connection."""

    def _due(self, now: float) -> int:
        if not self._rate:
            return self._scn + _MOST_TRANSACTIONS
        return self._opened_scn + int((now - self._opened_at) * self._rate)

    def _next(self) -> Transaction:
        self._scn += 1
        changes = list(self._changes(self._scn))
        return Transaction(self._scn, self._now_ns(), changes, Origin(file="generator"))

    def _changes(self, scn: int) -> Iterator[RowChange]:
        for table, key in self._inserted(scn):
            yield RowChange(table, Op.INSERT, self._row(key, 0))
        for table, key in self._inserted(scn - _UPDATED_AFTER):
            if self._is_updated(key):
                yield RowChange(table, Op.UPDATE, self._row(key, 1), self._row(key, 0))
        for table, key in self._inserted(scn - _DELETED_AFTER):
            if self._random("delete", key).random() < 0.25:
                yield RowChange(table, Op.DELETE, self._row(key, int(self._is_updated(key))))

    def _inserted(self, scn: int) -> Iterator[tuple[Table, int]]:
        if scn < 1:
            return
        random = self._random("insert", scn)
        for place in range(random.randint(1, self._rows)):
            yield random.choice(self._tables), scn * _MOST_ROWS + place

    def _is_updated(self, key: int) -> bool:
        return self._random("update", key).random() < 0.5

    def _row(self, key: int, version: int) -> dict[str, Any]:
        random = self._random("row", key, version)
        days, micros = random.randrange(20_000), random.randrange(10**15)
        row = {
            "id": key,
            "name": " ".join(random.choices(_WORDS, k=random.randint(1, 6))),
            "amount": Decimal(random.randint(-(10**9), 10**9)).scaleb(-2),
            "weight": random.uniform(-1e6, 1e6),
            "quantity": random.randint(-(2**31), 2**31 - 1),
            "born": date(1970, 1, 1) + timedelta(days=days),
            "seen": _EPOCH + timedelta(microseconds=micros),
            "image": random.randbytes(random.randint(0, 40)),
        }
        nulled = random.choice(_COLUMNS)
        if nulled.nullable:
            row[nulled.name] = None
        return row

    def _random(self, what: str, *numbers: int) -> Random:
        return Random(f"{self._seed} {what} {numbers}")


def _start(text: str) -> int:
    if text in ("latest", "earliest"):
        return 0
    if text.isascii() and text.isdigit():
        return int(text)
    raise SettingsError(f"start = {text!r}: must be `earliest` or an SCN for a generator")


def _open(settings: PhysicalSourceSettings, data_dir: Path | None) -> GeneratorSource:  # noqa: ARG001
    return GeneratorSource(settings)


def _check(request: CheckRequest) -> list[Check]:
    return [ok(request.subject, "makes its rows itself")]


KIND = SourceKind(open=_open, check=_check)
