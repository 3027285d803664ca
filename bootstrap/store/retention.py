"""Deletes old log rows and tombstones from a store, in small steps.

* Log rows that are too old, or beyond the size limit: the oldest windows first, whole
  windows, all sources together. `log_floor_scn` advances in the same transaction. A source
  that is being seeded keeps every window after the SCN of its seeding, whatever the limits.
* Tombstones that are too old, lowest SCNs first; `tombstone_floor_scn` advances with them.
  A source that is being seeded keeps all: only a tombstone keeps a row that was read too
  early from coming back.

Age is measured by this host's clock from when the store received a row: a wrong clock at
the source cannot empty the log. Freed pages are reused; when more than a quarter of the
file is free, some are given back to the disk.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import groupby
from operator import attrgetter
from typing import Final

from databus.bootstrap.store import (
    log_table,
    snapshot_table,
    source_table,
)
from databus.bootstrap.store.log_table import OldRow
from databus.bootstrap.store.store import Store
from databus.bootstrap.store.values import SourceStatus
from databus.conf.settings import BootstrapSettings

STEP_ROWS: Final = 5000  # more when the last window is large
STEP_PAGES: Final = 2000
_FREE_SHARE: Final = 4  # one page in four may be free
_NS: Final = 1_000_000_000
_BEING_SEEDED = (SourceStatus.SEEDING, SourceStatus.SEEDING_CATCH_UP)


@dataclass(slots=True)
class Cut:
    """The windows to delete: all up to and including `scn`."""

    scn: int = -1  # none
    freed_bytes: dict[int, int] = field(default_factory=dict)  # by src_id
    is_more: bool = False


def find_cut(
    rows: Iterable[OldRow], before_ns: int, excess_bytes: int, most_rows: int = STEP_ROWS
) -> Cut:
    """Return which windows to delete, given the log's rows, oldest first.

    These are the windows received before `before_ns`, and more until `excess_bytes` are
    freed. It stops after `most_rows` rows.
    """
    cut = Cut()
    count = 0
    for scn, group in groupby(rows, key=attrgetter("scn")):
        window = list(group)
        if window[0].at_ns >= before_ns and excess_bytes <= 0:
            break
        if count >= most_rows:
            cut.is_more = True
            break
        cut.scn = scn
        count += len(window)
        for row in window:
            excess_bytes -= row.size_bytes
            cut.freed_bytes[row.src_id] = cut.freed_bytes.get(row.src_id, 0) + row.size_bytes
    return cut


class Retention:
    """Deletes old data from one store. For the thread that opened the store."""

    def __init__(
        self, store: Store, settings: BootstrapSettings, now_ns: Callable[[], int] = time.time_ns
    ) -> None:
        self._store = store
        self._connection = store.file.connection
        self._log_ns = int(settings.log_retention_s * _NS)
        self._log_bytes = settings.log_retention_bytes
        self._deleted_ns = int(settings.deleted_retention_s * _NS)
        self._now_ns = now_ns

    def step(self) -> bool:
        """Delete a limited number of rows; return whether there are more to delete.

        Raises BootstrapError.
        """
        return any([self._shorten_log(), self._forget_deleted(), self._give_back()])

    def _shorten_log(self) -> bool:
        with self._store.file.writing("shortening the log"):
            states = self._store.sources()
            # A seeding needs every window after its SCN.
            until_scn = min(
                (state.seed_scn for state in states if state.status in _BEING_SEEDED),
                default=self._store.position().scn,
            )
            excess_bytes = self._held_bytes() - self._log_bytes
            src_ids = [state.src_id for state in states]
            cut = find_cut(
                log_table.oldest(self._connection, src_ids, until_scn),
                self._now_ns() - self._log_ns,
                excess_bytes,
            )
            if cut.scn < 0:
                return False
            for src_id, freed_bytes in cut.freed_bytes.items():
                log_table.delete_until(self._connection, src_id, cut.scn)
                self._connection.execute(source_table.COUNT_LOG_BYTES_GONE, (freed_bytes, src_id))
            self._connection.execute(source_table.RAISE_LOG_FLOOR, (cut.scn,))
        return cut.is_more

    def _held_bytes(self) -> int:
        held: int = self._connection.execute(source_table.SUM_LOG_BYTES).fetchone()[0]
        return held

    def _forget_deleted(self) -> bool:
        before_ns = self._now_ns() - self._deleted_ns
        is_more = False
        with self._store.file.writing("forgetting deleted rows"):
            for state in self._store.sources():
                if state.status in _BEING_SEEDED:
                    continue
                count, scn = snapshot_table.forget_deleted(
                    self._connection, state.src_id, before_ns, STEP_ROWS
                )
                if count:
                    self._connection.execute(source_table.RAISE_TOMBSTONE_FLOOR, (scn, state.name))
                is_more |= count == STEP_ROWS
        return is_more

    def _give_back(self) -> bool:
        """Give some free pages back to the disk when there are too many."""
        with self._store.file.explained("giving back space"):
            if not self._has_too_much_free():
                return False
        with self._store.file.writing("giving back space", stamps=False):
            # One at a time: Python steps through a statement without columns only once.
            for _ in range(STEP_PAGES):
                self._connection.execute("pragma incremental_vacuum(1)")
            return self._has_too_much_free()

    def _has_too_much_free(self) -> bool:
        (pages,) = self._connection.execute("pragma page_count").fetchone()
        (free,) = self._connection.execute("pragma freelist_count").fetchone()
        return bool(free > max(STEP_PAGES, pages // _FREE_SHARE))
