"""The store of one physical source: snapshot tables, log tables and each source's state.

It is one SQLite file. The producer writes windows and the seeder writes chunks, each in a
transaction with the position or progress that belongs to it; servers read. `Store` is one
connection for one thread at a time: each user opens its own.

Why a seeded table is correct, though the database changes while it is read: A
(`seed_scn`) is an SCN such that every transaction up to it was visible before the first
row was read. A row that was read has its value as of A or later, so it replaces what is
older than A and nothing newer. A stored row that is still older than A when the last row
was read was not found: it was deleted before A. Changes after A that were read too early
or too late are in the log, up to `seed_until_scn`, the end of the log after the last row
was read. Only then is the source served. This is the algorithm of Netflix' DBLog, without
writes to the source.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Final

from databus.bootstrap.store import (
    log_table,
    partial_rows,
    snapshot_table,
    source_table,
)
from databus.bootstrap.store.file import StoreFile, WriteLease
from databus.bootstrap.store.log_table import LogRange
from databus.bootstrap.store.reads import StoreReading
from databus.bootstrap.store.rows_now import RowsNow
from databus.bootstrap.store.snapshot_pages import SnapshotRange
from databus.bootstrap.store.snapshot_table import make_tombstone
from databus.bootstrap.store.values import (
    NOTHING_YET,
    WHOLE_WINDOW,
    LogBody,
    LogMeasure,
    LogPage,
    LogPlace,
    LogRow,
    Position,
    SnapshotBody,
    SnapshotMeasure,
    SnapshotPage,
    SourceSizes,
    SourceState,
    SourceStatus,
    StoredEvent,
    StoreRow,
    StoreSizes,
)
from databus.registry.former_schemas import rewritten
from databus.schemas.avro_rows import schema_id
from databus.schemas.checkpoint import LogWindow
from databus.schemas.errors import BootstrapError
from databus.schemas.table_change import change_scn

__all__ = [
    "NOTHING_YET",
    "WHOLE_WINDOW",
    "LogBody",
    "LogMeasure",
    "LogPage",
    "LogPlace",
    "LogRange",
    "LogRow",
    "Position",
    "SnapshotBody",
    "SnapshotMeasure",
    "SnapshotPage",
    "SnapshotRange",
    "SourceSizes",
    "SourceState",
    "SourceStatus",
    "Store",
    "StoreRow",
    "StoreSizes",
    "StoredEvent",
]

_HOLDS_ROWS: Final = (SourceStatus.ACTIVE, SourceStatus.SEEDING, SourceStatus.SEEDING_CATCH_UP)
_LEFTOVER_ROWS: Final = 1000  # turned into tombstones in one transaction
# Pause between two transactions, so that other writers get the lock: SQLite's has no queue.
_PAUSE_S: Final = 0.002


class Store(StoreReading):
    """One connection to a store. Raises BootstrapError when the file cannot be read or written."""

    def __init__(self, file: StoreFile, now_ns: Callable[[], int]) -> None:
        super().__init__(file)
        self._now_ns = now_ns
        # Sources that a statement marked for seeding again: name, SCN and reason, for the log.
        self.notes: list[tuple[str, int, str]] = []

    @classmethod
    def open(
        cls,
        path: Path,
        *,
        is_read_only: bool = False,
        now_ns: Callable[[], int] = time.time_ns,
        lease: WriteLease | None = None,
        busy_s: float | None = None,
    ) -> Store:
        """Open a store, creating it if necessary; `now_ns` is the wall clock.

        Under a `lease`, each write raises LeaseLostError when the lease is not held any more, and
        StaleTermError when a newer term has begun. Raises BootstrapError, also for a file that a
        newer version of the project wrote.
        """
        file = StoreFile(path, is_read_only, lease, busy_s)
        try:
            return cls(file, now_ns)
        except BaseException:
            file.close()
            raise

    def begin_term(self, term: int) -> None:
        """Refuse from now on what others write under a smaller term; raise LeaseError."""
        with self.file.writing("beginning a term"):
            source_table.begin_term(self._connection, self.path, term)

    # Sources and schemas

    def add_sources(
        self, src_ids: Mapping[str, int], stopped: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        """Set the sources, by name, that the relay has and the settings list.

        A source that is new, or was missing before, is marked to be seeded; one that is
        missing now becomes INACTIVE. `stopped` tells why some of those are missing. Raises
        BootstrapError when an id has changed: stored rows and events have the old one.
        """
        with self.file.writing("adding sources"):
            known = {state.name: state for state in self.sources()}
            log_scn = self.position().scn
            for name, src_id in src_ids.items():
                state = known.get(name)
                if state is None:
                    self._add_source(name, src_id, log_scn)
                elif state.src_id != src_id:
                    raise self._id_changed(state, src_id)
                elif state.status is SourceStatus.INACTIVE:
                    # The log has a gap: the changes during its absence.
                    log_table.clear(self._connection, src_id)
                    self._connection.execute(source_table.COME_BACK, (log_scn, log_scn, name))
            for name in known.keys() - src_ids.keys():
                why = stopped.get(name, "it is not among the sources of the settings any more")
                self._connection.execute(source_table.LEAVE, (why, name))

    def _add_source(self, name: str, src_id: int, log_scn: int) -> None:
        for state in self.sources():
            if state.src_id == src_id:
                raise self._id_changed(state, src_id, name)
        self._connection.execute(source_table.ADD_SOURCE, (name, src_id, log_scn, log_scn))
        snapshot_table.create(self._connection, src_id)
        log_table.create(self._connection, src_id)

    def _id_changed(self, state: SourceState, src_id: int, name: str = "") -> BootstrapError:
        return BootstrapError(
            f"store {self.path}: source {state.name} has src_id {state.src_id} here, and the relay "
            f"says {src_id} is {name or state.name}: give it its old `id` in the relay's settings, "
            "or move the store away to seed anew"
        )

    def add_schemas(self, src_id: int, versions: Iterable[tuple[int, str]]) -> None:
        """Store schema texts of a source, as (version, text).

        A known text keeps its version. A new text whose version is taken gets the next
        free one: relays may count differently.
        """
        listed = list(versions)
        texts = rewritten(text for _, text in listed)  # of a relay that is not upgraded yet
        known = {text for _, _, text in self.schemas([src_id])}
        numbered = zip((version for version, _ in listed), texts, strict=True)
        fresh = [(version, text) for version, text in numbered if text not in known]
        values = [(src_id, v, schema_id(text), text, change_scn(text)) for v, text in fresh]
        with self.file.writing("adding schemas", str(src_id)):
            self._connection.executemany(source_table.ADD_SCHEMA, values)
            # Of a statement before the position, which an earlier relay did not report.
            scn = self.position().scn
            passed = sorted({at for *_, at in values if 0 <= at <= scn})
            for state in self.sources():
                if state.src_id == src_id:
                    for at in passed:
                        self._pass_change(state, at)

    def _pass_changes(self, after_scn: int, until_scn: int) -> None:
        """Handle the schema changes in a range of the log."""
        rows = self._connection.execute(source_table.ALTERED, (after_scn, until_scn)).fetchall()
        for name, scn in rows:
            self._pass_change(self.source(name), scn)

    def _pass_change(self, state: SourceState, scn: int) -> None:
        """Mark a source to be seeded again if its rows cannot be converted."""
        problem = ""
        if state.status not in _HOLDS_ROWS or scn <= state.seed_scn:
            return
        until_scn = state.seed_until_scn
        # Whether all rows were read before the statement.
        is_read = until_scn < scn if until_scn >= 0 else state.status is SourceStatus.ACTIVE
        if not is_read:
            # Some rows were read before the statement and some after it.
            problem = f"altered at scn {scn} while it was seeded: seeded again"
        else:
            texts = {state.src_id: [text for _, _, text in self.schemas([state.src_id])]}
            now = RowsNow(texts, scn)
            if now.reload_scn(state.src_id) == scn:
                why = now.why_reload(state.src_id)
                problem = f"altered at scn {scn}: its rows are read again, for {why}"
        if problem:
            self._connection.execute(source_table.RESET, (problem, state.name))
            source_table.stamp_one(self._connection, state.name)
            self.notes.append((state.name, scn, problem))

    # Writes of the producer

    def apply_window(
        self,
        scn: int,
        timestamp_ns: int,
        events: Sequence[tuple[int, StoredEvent]],
        log_window: LogWindow | None = None,
    ) -> bool:
        """Apply a window, given as (src_id, event) in order; return False if it was applied.

        Log, rows, position and the log window are one transaction: `log_window`, as for `prove`,
        or the window itself if it has events. Raises BootstrapError for an event of a source that
        is not in the store.
        """
        with self.file.writing("applying a window", scn=scn, stamps=False):
            # After a restart the relay may send a window again that is stored already.
            last_scn = source_table.position_of(self._connection, self.path).scn
            if scn <= last_scn:
                return False
            by_source: dict[int, list[tuple[int, StoredEvent]]] = {}
            for index, (src_id, event) in enumerate(events):
                by_source.setdefault(src_id, []).append((index, event))
            for src_id, indexed in by_source.items():
                self._apply(scn, src_id, indexed)
            self._pass_changes(last_scn, scn)
            if events:
                # It proves the log also when its events have left the store's log.
                (name,) = self._connection.execute(source_table.NAME_OF, events[-1][:1]).fetchone()
                log_window = (scn, timestamp_ns, name)
            source_table.move(self._connection, scn, timestamp_ns, log_window)
        return True

    def prove(self, log_window: LogWindow) -> None:
        """Keep a window of any source that the relay had, up to the position, if it is newer.

        By it a relay of another log refuses the position, also where it has passed over windows
        without rows of the sources that are kept. It goes with the log (`fall_off`).
        """
        with self.file.writing("proving the log", scn=log_window[0], stamps=False):
            source_table.prove(self._connection, self.path, log_window)

    def _apply(self, scn: int, src_id: int, indexed: Sequence[tuple[int, StoredEvent]]) -> None:
        if any(event.is_partial for _, event in indexed):
            indexed = self._made_whole(scn, src_id, indexed)
        events = [event for _, event in indexed]
        size_bytes = sum(len(event.event) for event in events)
        if not self._connection.execute(
            source_table.COUNT_LOG_BYTES, (size_bytes, src_id)
        ).rowcount:
            raise BootstrapError(
                f"store {self.path}: window {scn} has an event of source {src_id}, which is not "
                "among those to be kept"
            )
        now_ns = self._now_ns()
        log_table.append(self._connection, src_id, indexed, now_ns)
        # What the window did before its last TRUNCATE has no effect on the rows.
        begin = _last_truncate(events)
        if begin is not None:
            snapshot_table.empty(self._connection, src_id, events[begin], now_ns)
            self._connection.execute(source_table.END_PACKS, (src_id,))
            events = events[begin + 1 :]
        snapshot_table.merge(self._connection, src_id, events, now_ns)

    def _made_whole(
        self, scn: int, src_id: int, indexed: Sequence[tuple[int, StoredEvent]]
    ) -> Sequence[tuple[int, StoredEvent]]:
        for state in self.sources():
            if state.src_id == src_id:
                texts = {src_id: [text for _, _, text in self.schemas([src_id])]}
                renew = RowsNow(texts, scn).renew_known
                whole = partial_rows.complete(
                    self._connection, state, indexed, self._schema_text, renew
                )
                if state.status is not SourceStatus.ACTIVE:
                    source_table.stamp_one(self._connection, state.name)
                return whole
        return indexed

    def _schema_text(self, digest: bytes) -> str:
        row = self._connection.execute(source_table.SCHEMA_TEXT, (digest,)).fetchone()
        if row is None:
            raise BootstrapError(f"store {self.path} has no schema of the id {digest.hex()}")
        text: str = row[0]
        return text

    def begin_log(self, scn: int) -> None:
        """Record that the log starts after window `scn`, before the first window is applied.

        For a producer that starts at the oldest window of a relay. Does nothing when a
        window was applied already. Sources whose producer had lagged out become NEW.
        """
        with self.file.writing("beginning the log", scn=scn):
            if self.position().scn == NOTHING_YET:
                self._connection.execute(source_table.BEGIN_LOG, (scn,))

    def fall_off(self, scn: int, oldest: int) -> None:
        """Record that no relay holds the window after `scn`.

        `oldest` is the oldest SCN that is held; below 0 it is unknown.

        The logs are cleared and nothing is served. Rows are kept, so that seeding finds
        those that were deleted meanwhile.
        """
        held = str(oldest) if oldest >= 0 else "unknown"
        problem = (
            f"no relay holds what follows scn {scn}; the oldest held is {held}: "
            "the changes in between are found by seeding anew"
        )
        with self.file.writing("falling off the relay", scn=scn):
            for state in self.sources():
                if state.status is not SourceStatus.INACTIVE:
                    log_table.clear(self._connection, state.src_id)
            self._connection.execute(source_table.FALL_OFF, (problem, scn))
            source_table.move(self._connection, NOTHING_YET, 0)

    # Writes of the seeder

    def begin_seeding(self, name: str, scn: int, estimate: int) -> None:
        """Start seeding a source with rows as of `scn`; `estimate` is their expected number.

        Raises BootstrapError when the log does not reach back to `scn`, or the source is
        not NEW.
        """
        with self.file.writing("beginning to seed", name, scn):
            state = self._source_that_is(name, SourceStatus.NEW)
            if scn < state.log_floor_scn:
                raise BootstrapError(
                    f"store {self.path}: {name} cannot be seeded as of scn {scn}: the log begins "
                    f"after scn {state.log_floor_scn}; try again when the database is as far"
                )
            self._connection.execute(source_table.BEGIN_SEEDING, (scn, estimate, name))

    def merge_chunk(self, name: str, events: Sequence[StoredEvent], resume: str | None) -> int:
        """Merge rows that were read, and store where to continue; return how many were stored.

        A row that the log has a newer event for is skipped: a row that was read before a
        TRUNCATE is gone, and one that was inserted after it is in the log.
        """
        with self.file.writing("merging rows", name):
            state = self._source_that_is(name, SourceStatus.SEEDING)
            if any(event.scn != state.seed_scn for event in events):
                raise BootstrapError(
                    f"store {self.path}: rows of {name} are not as of scn {state.seed_scn}"
                )
            emptied = snapshot_table.emptied(self._connection, state.src_id)
            # The rows were read before a TRUNCATE that the log already has.
            is_void = emptied is not None and emptied.scn > state.seed_scn
            taken = 0
            if not is_void:
                whole = partial_rows.complete_chunk(
                    self._connection, state, events, self._schema_text
                )
                taken = snapshot_table.merge(self._connection, state.src_id, whole, self._now_ns())
            self._connection.execute(source_table.PROGRESS, (resume, len(events), name))
        return taken

    def end_seeding(self, name: str, until_scn: int) -> None:
        """Record that every row was read when the log ended at `until_scn`.

        Rows that were not found become tombstones, some at a time. After a crash in
        between, call it again with `seed_until_scn` of the state.
        """
        with self.file.writing("ending to seed", name, until_scn):
            state = self._source_that_is(name, SourceStatus.SEEDING)
            self._connection.execute(source_table.READ_UNTIL, (until_scn, name))
        after: tuple[int, int] | None = (NOTHING_YET, NOTHING_YET)
        while after is not None:
            after = self._bury_leftovers(state, after)
            time.sleep(_PAUSE_S)
        with self.file.writing("ending to seed", name, until_scn):
            self._source_that_is(name, SourceStatus.SEEDING)
            self._connection.execute(source_table.CATCH_UP, (name,))

    def _bury_leftovers(self, state: SourceState, after: tuple[int, int]) -> tuple[int, int] | None:
        """Turn some leftovers into tombstones; return where to continue, None at the end."""
        now_ns = self._now_ns()
        with self.file.writing("ending to seed", state.name, state.seed_scn):
            self._source_that_is(state.name, SourceStatus.SEEDING)
            found = snapshot_table.leftovers(
                self._connection, state.src_id, after, state.seed_scn, _LEFTOVER_ROWS
            )
            snapshot_table.bury(
                self._connection,
                state.src_id,
                state.seed_scn,
                now_ns,
                ((row.id, make_tombstone(row.event, state.seed_scn, now_ns)) for row in found),
            )
        return (found[-1].scn, found[-1].id) if found else None

    def activate_caught_up(self) -> list[str]:
        """Activate the seeded sources whose log has caught up; return their names.

        A source whose log starts after the SCN of its seeding has a gap: it becomes NEW
        again. So does one with rows whose missing columns were never logged.
        """
        # Asked after each window: no write lock while there is nothing to activate.
        with self.file.explained("activating"):
            if self._connection.execute(source_table.CAUGHT_UP).fetchone() is None:
                return []
        activated = []
        with self.file.writing("activating"):
            for name, src_id, seed_scn, log_scn, partial_scn in self._connection.execute(
                source_table.CAUGHT_UP
            ).fetchall():
                if partial_scn > seed_scn and snapshot_table.has_partial(self._connection, src_id):
                    problem = (
                        f"rows up to scn {partial_scn} lack columns that were not logged and were "
                        "not there to be read: seeded again; binlog_row_image = FULL logs them"
                    )
                    self._connection.execute(source_table.RESET, (problem, name))
                elif log_scn <= seed_scn:
                    self._connection.execute(source_table.ACTIVATE, (name,))
                    activated.append(name)
                else:
                    problem = f"seeded as of scn {seed_scn}, but the log begins after {log_scn}"
                    self._connection.execute(source_table.RESET, (problem, name))
        return activated

    def reset_source(self, name: str) -> None:
        """Mark a source to be seeded again; its rows and its log are kept."""
        with self.file.writing("resetting", name):
            status = self.source(name).status
            if status in (SourceStatus.INACTIVE, SourceStatus.FELL_OFF_RELAY):
                raise BootstrapError(f"store {self.path}: source {name} is {status}, not kept now")
            self._connection.execute(source_table.RESET, ("", name))

    def read_again(self, name: str, scn: int, problem: str) -> bool:
        """Mark a served source to be seeded again if it was seeded before `scn`; return if so."""
        with self.file.writing("resetting", name, scn):
            state = self.source(name)
            if state.status is not SourceStatus.ACTIVE or state.seed_scn >= scn:
                return False
            self._connection.execute(source_table.RESET, (problem, name))
            source_table.stamp_one(self._connection, name)
        return True

    def set_problem(self, name: str, problem: str) -> None:
        """Store the problem of a source as a text; "" for none."""
        with self.file.writing("noting a problem", name):
            self._connection.execute(source_table.SET_PROBLEM, (problem, name))

    def _source_that_is(self, name: str, status: SourceStatus) -> SourceState:
        state = self.source(name)
        if state.status is not status:
            raise BootstrapError(
                f"store {self.path}: source {name} is {state.status}, not {status}: something "
                "else has changed it meanwhile"
            )
        return state


def _last_truncate(events: Sequence[StoredEvent]) -> int | None:
    """Return the index of the window's last TRUNCATE: rows before it are gone."""
    for index in range(len(events) - 1, -1, -1):
        if events[index].is_truncate:
            return index
    return None
