"""The log of applied events, with each key's SCN: an older event may not overwrite a newer one.

Beside the rows and deliveries of `benchmarks.torture.log`, each key's newest
SCN is kept, for deleted keys too, with the *turn* in which it came. A turn
begins with each start of the client and each rollback that it announced: only
then may something older come again, and only from after where the turn began.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from benchmarks.torture.log import Change, Log

SEEN = """CREATE TABLE IF NOT EXISTS seen (
    source TEXT, key, scn INTEGER, turn INTEGER, is_deleted INTEGER,
    PRIMARY KEY (source, key)) WITHOUT ROWID"""
COUNTS = "CREATE TABLE IF NOT EXISTS counts (name TEXT PRIMARY KEY, number INTEGER)"
FIND = "SELECT scn, turn, is_deleted FROM seen WHERE source = ? AND key = ?"
NOTE = "INSERT OR REPLACE INTO seen VALUES (?, ?, ?, ?, ?)"
COUNT = """INSERT INTO counts VALUES (?, ?)
    ON CONFLICT (name) DO UPDATE SET number = number + excluded.number"""


class GuardedLog(Log):
    """The file; `counts` of it are `bootstrapped`, `live` and `deleted_after_it_came`."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._db.execute(SEEN)
        self._db.execute(COUNTS)
        self._turn = 0
        self._floor_scn = -1  # of this turn: nothing up to it comes again
        self._caught = 0

    def start(self, checkpoint_scn: int, detail: str = "") -> None:
        """Start a run: nothing up to `checkpoint_scn` may come again."""
        super().start(checkpoint_scn, detail)
        (self._turn,) = self._db.execute("SELECT 1 + coalesce(max(turn), 0) FROM seen").fetchone()
        self._floor_scn = checkpoint_scn

    def rollback(self, scn: int) -> None:
        """Record a rollback."""
        super().rollback(scn)
        self._turn += 1
        self._floor_scn = min(self._floor_scn, scn)

    def mode(self, mode: str, window_scn: int) -> None:
        """Record the mode of the next checkpoint."""
        self._write("mode", window_scn, mode)

    def apply(self, scn: int, changes: Sequence[Change]) -> None:
        """Apply one window of the live stream and log it, in one transaction."""
        self._count("live", len(changes))
        super().apply(scn, changes)

    def apply_page(self, scn: int, changes: Sequence[Change]) -> None:
        """Apply one page of a bootstrap and log it, in one transaction."""
        self._caught = 0
        self._apply_all("page", scn, changes, str(len(changes)))
        self._count("bootstrapped", len(changes))
        self._count("deleted_after_it_came", self._caught)

    def counts(self) -> dict[str, int]:
        """Return how many events of each kind were applied, including repeated ones."""
        return dict(self._db.execute("SELECT name, number FROM counts"))

    def _count(self, name: str, number: int) -> None:
        self._db.execute(COUNT, (name, number))

    def _apply(self, change: Change) -> None:
        found = self._db.execute(FIND, (change.source, change.key)).fetchone()
        if found is not None:
            self._guard(change, *found)
        note = (change.source, change.key, change.scn, self._turn, change.is_delete)
        self._db.execute(NOTE, note)
        super()._apply(change)

    def _guard(self, change: Change, scn: int, turn: int, is_deleted: int) -> None:
        self._caught += change.is_delete and not is_deleted
        if change.scn >= scn:
            return
        where = f"{change.source} {change.key!r} of scn {change.scn} came after that of scn {scn}"
        if turn == self._turn:
            self.problem(change.scn, f"{where}, unannounced")
        elif change.scn <= self._floor_scn:
            self.problem(change.scn, f"{where}, and before the checkpoint {self._floor_scn}")
