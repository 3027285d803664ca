"""A source that changes at random, and a consumer that brings its changes to a target.

The consumer is all that a query can be: it starts with a snapshot, falls behind
and takes another one, is started anew with a new checkpoint, replays batches.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

ROW = pa.struct([("id", pa.int32()), ("name", pa.string())])
META = pa.struct(
    [
        ("op", pa.string()),
        ("scn", pa.int64()),
        ("index", pa.int32()),
        ("time", pa.timestamp("us", tz="UTC")),
        ("physical_source", pa.string()),
        ("source", pa.string()),
        ("schema_version", pa.int32()),
        ("as_of", pa.int64()),
        ("gtid", pa.string()),
        ("before", ROW),
    ]
)
# As with option beforeImages=false.
META_ALONE = pa.struct([part for part in META if part.name != "before"])
SCHEMA = pa.schema([*ROW, ("_databus", META)])

Change = dict[str, Any]


def change(
    op: str,
    scn: int,
    row: Mapping[str, Any] | None = None,
    *,
    index: int | None = 0,
    before: Mapping[str, Any] | None = None,
    source: str = "shop.person",
    physical_source: str = "shop",
    as_of: int | None = None,
) -> Change:
    """Return one change as a row of a batch."""
    meta = {
        "op": op,
        "scn": scn,
        "index": index,
        "source": source,
        "physical_source": physical_source,
        "as_of": scn if as_of is None else as_of,
        "before": before,
    }
    return {**(row or {}), "_databus": meta}


def batch_of(changes: Iterable[Change], schema: pa.Schema = SCHEMA) -> pa.Table:
    """Return changes as a batch."""
    return pa.Table.from_pylist(list(changes), schema=schema)


@dataclass
class ChangingSource:
    """A table of two columns, with the log of all that happened to it."""

    name: str
    physical: str
    random: random.Random
    rows: dict[int, tuple[str, int]] = field(default_factory=dict)  # id: (name, SCN)
    log: list[list[Change]] = field(default_factory=list)  # window n has SCN n + 1

    _states: list[dict[int, tuple[str, int]]] = field(default_factory=lambda: [{}])

    @property
    def scn(self) -> int:
        return len(self.log)

    def rows_at(self, scn: int) -> dict[int, tuple[str, int]]:
        """Return the rows as a window left them."""
        return self._states[scn]

    def commit(self) -> None:
        """Change some rows in one window."""
        self._log_a_window()
        self._states.append(dict(self.rows))

    def _log_a_window(self) -> None:
        scn = self.scn + 1
        if self.random.random() < 0.02:
            self.rows.clear()
            self.log.append([self._change("truncate", scn, None, 0)])
            return
        window: list[Change] = []
        for _ in range(self.random.randint(1, 5)):
            self._change_a_row(scn, window)
        self.log.append(window)

    def snapshot(self, low: int, high: int, as_of: int) -> list[Change]:
        """Read the rows of a key range as they are now, for a snapshot as of a window before."""
        return [
            self._change("snapshot", scn, {"id": key, "name": name}, 0, as_of=max(as_of, scn))
            for key, (name, scn) in self.rows.items()
            if low <= key < high
        ]

    def mark(self, scn: int) -> Change:
        """Return the end of a snapshot."""
        return self._change("snapshot_end", scn, None, None)

    def _change_a_row(self, scn: int, window: list[Change]) -> None:
        key, index = self.random.randrange(40), len(window)
        name = f"{key} at {scn}.{index}"
        row: dict[str, Any] = {"id": key, "name": name}
        if key not in self.rows:
            self.rows[key] = (name, scn)
            window.append(self._change("insert", scn, row, index))
            return
        old = {"id": key, "name": self.rows[key][0]}
        free = [other for other in range(40) if other not in self.rows]
        what = self.random.random()
        if what < 0.4:
            del self.rows[key]
            window.append(self._change("delete", scn, old, index))
        elif what < 0.6 and free:
            moved: dict[str, Any] = {"id": self.random.choice(free), "name": name}
            del self.rows[key]
            self.rows[moved["id"]] = (name, scn)
            window.append(self._change("update", scn, moved, index, before=old))
        else:
            self.rows[key] = (name, scn)
            before = old if what < 0.8 else None
            window.append(self._change("update", scn, row, index, before=before))

    def _change(
        self, op: str, scn: int, row: dict[str, Any] | None, index: int | None, **more: Any
    ) -> Change:
        more |= {"source": self.name, "physical_source": self.physical}
        return change(op, scn, row, index=index, **more)


@dataclass
class Reader:
    """What a checkpoint knows of one source."""

    source: ChangingSource
    at: int = 0
    # Key ranges of a snapshot still to be read, and what follows them.
    ranges: list[tuple[int, int]] = field(default_factory=list)
    mark_at: int | None = None

    def begin_snapshot(self) -> None:
        """Read everything anew: the snapshot is of now, or begun a little before."""
        lag = self.source.random.randint(0, 5)
        self.at = max(0, self.source.scn - lag)
        cut = self.source.random.randint(1, 39)
        self.ranges = [(0, cut), (cut, 40)]
        # The mark comes before what is caught up with, or after it.
        self.mark_at = min(self.source.scn, self.at + self.source.random.choice([0, 3]))

    def take(self) -> list[Change]:
        """Return the next changes: a piece of the snapshot, or some windows."""
        if self.ranges:
            assert self.mark_at is not None
            return self.source.snapshot(*self.ranges.pop(0), self.mark_at)
        until = min(self.source.scn, self.at + self.source.random.randint(0, 4))
        if self.mark_at is not None:
            until = min(self.source.scn, self.mark_at)
        windows = self.source.log[self.at : until]
        self.at = until
        found = [row for window in windows for row in window]
        if self.mark_at == until:
            found.append(self.source.mark(until))
            self.mark_at = None
        return found

    @property
    def is_done(self) -> bool:
        return not self.ranges and self.mark_at is None and self.at == self.source.scn


@dataclass
class Checkpoint:
    """A query's place in some sources; `batches` are what it has planned."""

    app_id: str
    readers: Sequence[Reader]
    batches: list[pa.Table] = field(default_factory=list)

    def plan(self) -> tuple[int, pa.Table]:
        """Plan the next batch; return its number and rows, in no order."""
        rows = [row for reader in self.readers for row in reader.take()]
        self.readers[0].source.random.shuffle(rows)
        self.batches.append(batch_of(rows))
        return len(self.batches) - 1, self.batches[-1]


def begun(app_id: str, sources: Sequence[ChangingSource]) -> Checkpoint:
    """Return a new checkpoint that begins with a snapshot."""
    readers = [Reader(source) for source in sources]
    for reader in readers:
        reader.begin_snapshot()
    return Checkpoint(app_id, readers)
