"""The log of each reading of each batch: one SQLite file that outlives the job."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from benchmarks.spark_torture.spans import Span

LOG = """CREATE TABLE IF NOT EXISTS batches (
    seq INTEGER PRIMARY KEY, run INTEGER, batch_id INTEGER, detail TEXT,
    is_applied INTEGER DEFAULT 0)"""
# Where the windows of a batch were when it was read; the ring may lose them meanwhile.
Home = Literal["ring", "log", "unknown"]


@dataclass(frozen=True, slots=True)
class Contents:
    """The content of a batch. Transactions are 0 if it has no window."""

    rows: int
    windows: int = 0
    first_tx: int = 0
    last_tx: int = 0
    digest: int = 0  # of all rows' places and stamps, in order
    problems: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Reading:
    """One reading of a batch."""

    run: int
    batch_id: int
    span: Span
    contents: Contents
    home: Home
    is_applied: bool = False


class BatchLog:
    """The file."""

    def __init__(self, path: Path) -> None:
        self._db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        self._db.execute("PRAGMA journal_mode = WAL")
        self._db.execute("PRAGMA synchronous = OFF")  # kills end processes, not the machine
        self._db.execute(LOG)
        (self.run,) = self._db.execute("SELECT 1 + coalesce(max(run), 0) FROM batches").fetchone()

    def note(self, batch_id: int, span: Span, contents: Contents, home: Home) -> int:
        """Record what was read; return the entry's number."""
        detail = json.dumps({"span": asdict(span), "contents": asdict(contents), "home": home})
        values = (self.run, batch_id, detail)
        found = self._db.execute(
            "INSERT INTO batches (run, batch_id, detail) VALUES (?, ?, ?)", values
        )
        assert found.lastrowid is not None
        return found.lastrowid

    def note_applied(self, number: int) -> None:
        """Record that the batch of an entry was applied."""
        self._db.execute("UPDATE batches SET is_applied = 1 WHERE seq = ?", (number,))

    def readings(self) -> Iterator[Reading]:
        """Yield all entries in order."""
        rows = self._db.execute(
            "SELECT run, batch_id, detail, is_applied FROM batches ORDER BY seq"
        )
        for run, batch_id, text, is_applied in rows:
            detail: Mapping[str, Any] = json.loads(text)
            span, contents = Span(**detail["span"]), Contents(**detail["contents"])
            yield Reading(run, batch_id, span, contents, detail["home"], bool(is_applied))

    def close(self) -> None:
        """Close the file."""
        self._db.close()
