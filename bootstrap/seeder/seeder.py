"""The seeder: fills a source's snapshot from the database while the producer goes on.

No lock is taken on the source and nothing is written to it. A is an SCN up to
which every transaction is visible to whatever is read later. The table is read
in chunks, in the order of its key, and each row is merged into the store as of
A, unless the store knows of something newer: the log wins. What the store has
from before A and the database did not show was deleted before A. Then the
source waits until the producer has passed the SCN at which the reading ended;
at that point a row of A is one that nobody changed in between, and all others
came from the log, in order. So what is served is the table at one SCN, though
no two chunks were read at the same one. The theory is DBLog's (Andreakis,
Papapanagiotou 2020), but for its marks in the log: SCNs say what they say.

Each chunk and how far it came are one transaction of the store: after a crash
the next chunk is read. A table that cannot be read in pieces (no key, or one
that has no order to go on in) begins again, with a newer A.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from threading import Event
from typing import NamedTuple

from databus.bootstrap.seeder.rate_limiter import Pace, Progress, Report
from databus.bootstrap.seeder.row_encoder import RowEvents
from databus.bootstrap.seeder.row_identity import identity_of
from databus.bootstrap.store.store import Store
from databus.bootstrap.store.values import SourceState, SourceStatus
from databus.relay.sources.table_scan import TableScan
from databus.schemas.avro_rows import schema_id
from databus.schemas.errors import BootstrapError, SourceUnavailableError
from databus.schemas.table import Table
from databus.schemas.table_change import Versions, shape
from databus.schemas.table_schema import avro_schema


class _KeyChangedError(Exception):
    """The table has another key than the rows that are merged already; never leaves here."""


class _Place(NamedTuple):
    """Where to go on, in a table that still has this key: `seed_resume` of the store."""

    key: str
    resume: str

    @classmethod
    def read(cls, text: str | None) -> _Place | None:
        """Read what `text` wrote; none when reading begins from the beginning."""
        place = cls(*json.loads(text)) if text else None
        return place if place is not None and place.resume else None

    @property
    def text(self) -> str:
        """As the store keeps it."""
        return json.dumps(self)


def _key_text(table: Table) -> str:
    return json.dumps(identity_of(table))


def has_log(store: Store, state: SourceState) -> bool:
    """Whether the producer has begun with a source: what changes from now on is not missed."""
    return state.log_floor_scn >= 0 or store.position().scn >= 0


class Seeder:
    """Seeds sources of one store, on the thread that opened it.

    `report` is called after each chunk; when `stop` is set, `seed` ends after a chunk.
    """

    def __init__(
        self,
        store: Store,
        scan: TableScan,
        chunk_rows: int,
        most_rows_per_s: int,
        report: Report,
        stop: Event,
        wall_ns: Callable[[], int] = time.time_ns,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._scan = scan
        self._chunk_rows = chunk_rows
        self._most_rows_per_s = most_rows_per_s
        self._report = report
        self._stop = stop
        self._wall_ns = wall_ns
        self._monotonic_s = monotonic_s

    def seed(self, source: str) -> bool:
        """Seed a source that is new, or go on where it ended; returns whether it is seeded.

        Raises what the scan raises, RowError for a row that does not fit its
        column, SourceUnavailableError when the log does not begin before A.
        """
        while not self._stop.is_set():
            state = self._store.source(source)
            if state.status is SourceStatus.SEEDING and state.seed_until_scn >= 0:
                return self._end(source, state.seed_until_scn)
            state = self._begin(state)
            try:
                return self._read(state)
            except _KeyChangedError:
                self._store.reset_source(source)
            except BootstrapError:
                now = self._store.source(source)
                if (now.status, now.seed_scn) == (SourceStatus.SEEDING, state.seed_scn):
                    raise
                # Somebody wants it seeded anew, or the producer fell off the relay.
                if now.status is not SourceStatus.NEW:
                    break
        return False

    def _begin(self, state: SourceState) -> SourceState:
        source = state.name
        if state.status is SourceStatus.SEEDING:
            if _Place.read(state.seed_resume) and self._scan.is_chunked(source):
                return state
            # From the beginning, and with another A: only what is read from
            # now on is known to be there.
            self._store.reset_source(source)
        scn = self._scan.visible_scn()
        begin_scn = state.log_floor_scn
        if scn < begin_scn or not has_log(self._store, state):
            raise SourceUnavailableError(
                f"{source}: the store's log begins after scn {begin_scn} and the database shows "
                f"scn {scn}: what is between would be missed, so it must come there first"
            )
        self._store.begin_seeding(source, scn, self._scan.estimate_rows(source))
        return self._store.source(source)

    def _read(self, state: SourceState) -> bool:
        source, place = state.name, _Place.read(state.seed_resume)
        key, resume = (place.key, place.resume) if place else (None, None)
        pace = Pace(self._most_rows_per_s, self._stop.wait, self._monotonic_s)
        timestamp_ns, rows = self._wall_ns(), state.seed_rows
        events: RowEvents | None = None
        for chunk in self._scan.chunks(source, pace.limit(self._chunk_rows), resume):
            if events is None or events.table != chunk.table:
                before, key = key, _key_text(chunk.table)
                if before not in (None, key):
                    raise _KeyChangedError
                events = self._use(chunk.table, state, timestamp_ns)
            if chunk.resume is not None:
                # At the table's end the last place is kept: a crash from then on
                # costs one chunk, where no place would mean the beginning.
                place = _Place(_key_text(events.table), chunk.resume)
            self._store.merge_chunk(source, events.encode(chunk.rows), place and place.text)
            rows += len(chunk.rows)
            pace.count(len(chunk.rows))
            self._report(Progress(source, rows, state.seed_estimate, pace.rows_per_s))
            if self._stop.is_set():
                return False
        self._report(Progress(source, rows, state.seed_estimate, pace.rows_per_s, is_done=True))
        return self._end(source, self._scan.newest_scn())

    def _end(self, source: str, until_scn: int) -> bool:
        self._store.end_seeding(source, until_scn)
        self._store.activate_caught_up()
        return True

    def _use(self, table: Table, state: SourceState, timestamp_ns: int) -> RowEvents:
        """Return what makes the events of a table's rows, its schema known to the store."""
        known = self._store.schemas([state.src_id])
        text = Versions(text for _, _, text in known).at(state.seed_scn)
        is_it = text is not None and shape(text) == avro_schema(table)
        events = RowEvents(
            table, state.src_id, state.seed_scn, timestamp_ns, text if is_it else None
        )
        if schema_id(events.text) not in {schema_id(text) for _, _, text in known}:
            version = max((version for _, version, _ in known), default=0) + 1
            self._store.add_schemas(state.src_id, [(version, events.text)])
        return events
