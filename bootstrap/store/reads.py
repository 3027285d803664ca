"""The reads of a store, for servers and for writers.

Functions that are called inside one `reading` block all see the same moment.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from databus.bootstrap.store import (
    log_table,
    snapshot_pages,
    snapshot_table,
    source_table,
)
from databus.bootstrap.store.file import StoreFile
from databus.bootstrap.store.filter_sql import StoredFilter, applied
from databus.bootstrap.store.log_table import LogRange
from databus.bootstrap.store.packs.table import held_bytes
from databus.bootstrap.store.rows_now import RowsNow
from databus.bootstrap.store.snapshot_pages import SnapshotRange
from databus.bootstrap.store.values import (
    LogBody,
    LogMeasure,
    LogPage,
    Position,
    SnapshotBody,
    SnapshotMeasure,
    SnapshotPage,
    SourceSizes,
    SourceState,
    SourceStatus,
    StoreRow,
    StoreSizes,
)
from databus.schemas.checkpoint import LogWindow
from databus.schemas.errors import UnknownSourceError
from databus.schemas.scn import MAX_SCN
from databus.schemas.table_change import change_scn

STEPS_BETWEEN_LOOKS = 50_000  # steps of SQLite's virtual machine: about a millisecond


class StoreReading:
    """The read methods of a `Store`. They raise BootstrapError when the file cannot be read."""

    def __init__(self, file: StoreFile) -> None:
        self.path = file.path
        self.file = file
        self._connection = file.connection
        with file.explained("opening"):
            self.id: str = self._connection.execute("select id from store").fetchone()[0]

    def end_reads_when(self, is_given_up: Callable[[], bool]) -> None:
        """Abort reads with an error soon after `is_given_up` returns true."""
        self._connection.set_progress_handler(lambda: int(is_given_up()), STEPS_BETWEEN_LOOKS)

    def close(self) -> None:
        """Close the connection; may be called twice."""
        self.file.close()

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Run the block in one read transaction."""
        with self.file.reading("reading"):
            yield

    @contextmanager
    def _filtering(
        self,
        filters: Iterable[StoredFilter | None],
        doing: str,
        name: str = "",
        scn: int | None = None,
    ) -> Iterator[None]:
        with self.file.reading(doing, name, scn=scn), applied(self._connection, filters):
            yield

    # State and sizes

    def position(self) -> Position:
        """Return the position after the last applied window; SCN -1 when there is none."""
        with self.file.explained("reading the position"):
            return source_table.position_of(self._connection, self.path)

    def term(self) -> int:
        """Return the newest term that has begun; 0 = it was never written under a lease."""
        with self.file.explained("reading the term"):
            return source_table.term_of(self._connection)

    def window_at(self, src_ids: Sequence[int], scn: int) -> tuple[int, int] | None:
        """Return SCN and timestamp of the newest window up to `scn` with rows of these sources."""
        with self.file.explained("reading the log"):
            return log_table.window_at(self._connection, src_ids, scn)

    def mark(self) -> tuple[int, int] | None:
        """Return SCN and timestamp of the newest window with rows: they identify this log."""
        followed = [s.src_id for s in self.sources() if s.status is not SourceStatus.INACTIVE]
        return self.window_at(followed, MAX_SCN)

    def log_window(self) -> LogWindow | None:
        """Return the newest window with rows of any source that the relay had, if one is kept."""
        with self.file.explained("reading the window of the relay's log"):
            return source_table.log_window_of(self._connection, self.path)

    def sources(self) -> list[SourceState]:
        """Return every source that was ever added, by name."""
        with self.file.explained("reading the sources"):
            rows = self._connection.execute(f"{source_table.STATES} order by name")
            return [self._state_of(row) for row in rows]

    def source(self, name: str) -> SourceState:
        """Return one source; raises UnknownSourceError."""
        with self.file.explained("reading the source", name):
            row = self._connection.execute(
                f"{source_table.STATES} where name = ?", (name,)
            ).fetchone()
        if row is None:
            raise UnknownSourceError(name, [state.name for state in self.sources()])
        return self._state_of(row)

    def _state_of(self, row: Sequence[Any]) -> SourceState:
        return source_table.state_of(row, self.path, is_stamped=self.file.is_stamped)

    def sizes(self) -> StoreSizes:
        """Count the stored rows; reads a whole index of each table."""
        with self.file.reading("counting"):
            pages, free, page_bytes = (
                self._connection.execute(f"pragma {name}").fetchone()[0]
                for name in ("page_count", "freelist_count", "page_size")
            )
            packed_bytes = held_bytes(self._connection)
            sources = {state.name: self._sizes_of(state) for state in self.sources()}
        return StoreSizes(pages * page_bytes, free * page_bytes, packed_bytes, sources)

    def _sizes_of(self, state: SourceState) -> SourceSizes:
        rows, tombstones = snapshot_table.count(self._connection, state.src_id)
        (log_bytes,) = self._connection.execute(
            "select log_bytes from sources where name = ?", (state.name,)
        ).fetchone()
        return SourceSizes(
            rows, tombstones, log_table.count(self._connection, state.src_id), log_bytes
        )

    def schemas(self, src_ids: Iterable[int]) -> list[tuple[int, int, str]]:
        """Return every schema of the sources as (src_id, version, text), oldest first."""
        wanted = list(set(src_ids))
        sql = source_table.SCHEMAS.format(", ".join("?" * len(wanted)))
        with self.file.explained("reading schemas"):
            return self._connection.execute(sql, wanted).fetchall()

    def schemas_until_now(self, src_ids: Iterable[int]) -> list[tuple[int, int, str]]:
        """Return the schemas, except those of statements after the store's position."""
        with self.file.reading("reading schemas"):
            scn = self.position().scn
            return [row for row in self.schemas(src_ids) if change_scn(row[2]) <= scn]

    def rows_now(self, src_ids: Iterable[int]) -> RowsNow:
        """Return the converter of the sources' rows to the schema versions of the position."""
        texts: dict[int, list[str]] = {}
        with self.file.reading("reading schemas"):
            for src_id, _, text in self.schemas(src_ids):
                texts.setdefault(src_id, []).append(text)
            return RowsNow(texts, self.position().scn)

    # Reads for the server

    def has_older(self, src_id: int, scn: int) -> bool:
        """Return whether a row or tombstone of a source has an SCN below this one."""
        with self.file.reading("reading rows", str(src_id)):
            return snapshot_table.has_older(self._connection, src_id, scn)

    def snapshot_page(
        self, name: str, snapshot_range: SnapshotRange, most_bytes: int
    ) -> SnapshotPage:
        """Return rows of a source in the order of their ids: at least one if there is one.

        Raises InvalidParameterError when a RANGE filter finds a key that is not a number.
        """
        with self._filtering([snapshot_range.wanted], "reading rows", name):
            src_id = self.source(name).src_id
            return snapshot_pages.page(self._connection, src_id, snapshot_range, most_bytes)

    def snapshot_body(
        self, name: str, snapshot_range: SnapshotRange, most_bytes: int
    ) -> SnapshotBody:
        """Return the same rows' events joined in larger parts: faster for many rows.

        Raises the errors of `snapshot_page`.
        """
        with self._filtering([snapshot_range.wanted], "reading rows", name):
            src_id = self.source(name).src_id
            return snapshot_pages.body(self._connection, src_id, snapshot_range, most_bytes)

    def measure_snapshot(
        self, name: str, snapshot_range: SnapshotRange, most_rows: int, most_bytes: int
    ) -> SnapshotMeasure:
        """Return how far a number of rows and bytes reaches; raises as `snapshot_page` does."""
        with self._filtering([snapshot_range.wanted], "counting rows", name):
            src_id = self.source(name).src_id
            return snapshot_pages.measure(
                self._connection, src_id, snapshot_range, most_rows, most_bytes
            )

    def max_row(self, name: str) -> int:
        """Return the highest id of a source's rows and tombstones; 0 when there are none."""
        with self.file.reading("reading rows", name):
            return snapshot_pages.max_id(self._connection, self.source(name).src_id)

    def log_page(self, log_range: LogRange, most_bytes: int) -> LogPage:
        """Return log rows in commit order: at least one if there is one.

        A place is (SCN, index of the last row consumed). The index is WHOLE_WINDOW when
        the whole window was consumed.
        """
        with self._filtering(log_range.filters.values(), "reading the log", scn=log_range.after[0]):
            return log_table.page(self._connection, log_range, most_bytes)

    def log_body(self, log_range: LogRange, most_bytes: int) -> LogBody | None:
        """Return the events of whole windows joined in one: faster for many rows.

        None when the first window does not fit or this SQLite cannot join bytes: then
        call `log_page`.
        """
        with self._filtering(log_range.filters.values(), "reading the log", scn=log_range.after[0]):
            return log_table.body(self._connection, log_range, most_bytes)

    def measure_log(self, log_range: LogRange, most_rows: int, most_bytes: int) -> LogMeasure:
        """Return how far a number of rows and bytes reaches, in whole windows.

        At least one window if there is one; `target_scn` when there are no more.
        """
        with self._filtering(
            log_range.filters.values(), "counting the log", scn=log_range.after[0]
        ):
            return log_table.measure(self._connection, log_range, most_rows, most_bytes)

    def count_changed(self, name: str, since_scn: int, limit: int) -> int:
        """Count a source's rows and tombstones with SCNs above `since_scn`, up to `limit`."""
        with self.file.reading("counting rows", name):
            src_id = self.source(name).src_id
            return snapshot_table.count_changed(self._connection, src_id, since_scn, limit)

    def count_logged(self, src_ids: Sequence[int], after_scn: int, limit: int) -> int:
        """Count the sources' log rows after a window, up to `limit`."""
        with self.file.reading("counting the log", scn=after_scn):
            return log_table.count_after(self._connection, src_ids, after_scn, limit)

    def rows_by_key(self, name: str, keys: Collection[int | bytes]) -> dict[int | bytes, StoreRow]:
        """Return the existing rows and tombstones with these keys.

        While the tombstone of a TRUNCATE is kept, every key has one.
        """
        with self.file.reading("reading rows", name):
            return snapshot_table.by_key(self._connection, self.source(name).src_id, keys)
