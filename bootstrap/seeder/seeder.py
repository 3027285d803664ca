"""The seeder: fills a source's snapshot from the database while the producer continues.

It takes no lock on the source and writes nothing to it. A is an SCN such that every
transaction up to it is visible to all later reads. The table is read in chunks, in key
order, and each row is merged into the store as of A, unless the store has a newer
version from the log. A row that the store has from before A and that the database did
not return was deleted before A. Then the source waits until the producer has passed the
SCN at which the reading ended. At that point every row as of A is one that did not
change in between, and all others came from the log, in order. So the table is served as
of one SCN, though no two chunks were read at the same one. The algorithm is DBLog's
(Andreakis, Papapanagiotou 2020), without its watermarks in the log: SCNs take their
place.

A chunk and the progress that it makes are one transaction of the store: after a crash
the next chunk is read. A table that cannot be read in chunks (it has no key, or a key
without a usable order) is read from the beginning, with a newer A.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from threading import Event
from typing import NamedTuple

from databus.bootstrap.seeder.rate_limiter import Progress, RateLimiter, Report
from databus.bootstrap.seeder.row_encoder import RowEvents
from databus.bootstrap.seeder.row_identity import identity_of
from databus.bootstrap.store.store import Store
from databus.bootstrap.store.values import SourceState, SourceStatus
from databus.relay.sources.table_scan import TableScan
from databus.relay.sources.table_view import unprotected_here
from databus.schemas.avro_rows import captured_table, schema_id
from databus.schemas.errors import BootstrapError, SourceStoppedError, SourceUnavailableError
from databus.schemas.scn import binlog_position
from databus.schemas.table import Table
from databus.schemas.table_change import Versions, describes
from databus.schemas.table_schema import avro_schema


class _KeyChangedError(Exception):
    """The table's key is not that of the rows merged so far. Not raised out of this module."""


class _Place(NamedTuple):
    """Where to continue in a table whose key is still the same: the store's `seed_resume`."""

    key: str
    resume: str

    @classmethod
    def read(cls, text: str | None) -> _Place | None:
        """Parse `text`; None when reading starts from the beginning."""
        place = cls(*json.loads(text)) if text else None
        return place if place is not None and place.resume else None

    @property
    def text(self) -> str:
        """The text that the store keeps."""
        return json.dumps(self)


def _key_text(table: Table) -> str:
    return json.dumps(identity_of(table))


def has_log(store: Store, state: SourceState) -> bool:
    """Return whether the producer has started a source: from then on no change is missed."""
    return state.log_floor_scn >= 0 or store.position().scn >= 0


class Seeder:
    """Seeds the sources of one store, on the thread that opened the store.

    `report` is called after each chunk. When `stop` is set, `seed` ends after the current chunk.
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
        """Seed a new source, or continue an interrupted seeding; return whether it is seeded.

        Raises the scan's errors, RowError for a row that does not fit its column, and
        SourceUnavailableError when the store's log does not start before A.
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
                # It was marked to be seeded again, or the producer lagged out.
                if now.status is not SourceStatus.NEW:
                    break
        return False

    def _begin(self, state: SourceState) -> SourceState:
        source = state.name
        if state.status is SourceStatus.SEEDING:
            if _Place.read(state.seed_resume) and self._scan.is_chunked(source):
                return state
            # From the beginning, with a newer A: only rows that are read from
            # now on are known to exist.
            self._store.reset_source(source)
        scn = self._scan.visible_scn()
        begin_scn = state.log_floor_scn
        if scn < begin_scn or not has_log(self._store, state):
            raise SourceUnavailableError(
                f"{source}: the store's log begins after scn {begin_scn} and the database shows "
                f"scn {scn}: what is between would be missed, so it must come there first"
            )
        self._check_epoch(source, scn)
        self._store.begin_seeding(source, scn, self._scan.estimate_rows(source))
        return self._store.source(source)

    def _read(self, state: SourceState) -> bool:
        source, place = state.name, _Place.read(state.seed_resume)
        key, resume = (place.key, place.resume) if place else (None, None)
        limiter = RateLimiter(self._most_rows_per_s, self._stop.wait, self._monotonic_s)
        timestamp_ns, rows = self._wall_ns(), state.seed_rows
        events: RowEvents | None = None
        for chunk in self._scan.chunks(source, limiter.limit(self._chunk_rows), resume):
            if events is None or events.table != chunk.table:
                before, key = key, _key_text(chunk.table)
                if before not in (None, key):
                    raise _KeyChangedError
                events = self._use(chunk.table, state, timestamp_ns)
            if chunk.resume is not None:
                # At the end of the table the last position is kept: a crash then
                # costs one chunk. Without a position it would cost the whole table.
                place = _Place(_key_text(events.table), chunk.resume)
            self._store.merge_chunk(source, events.encode_chunk(chunk), place and place.text)
            rows += len(chunk.rows)
            limiter.count(len(chunk.rows))
            self._report(Progress(source, rows, state.seed_estimate, limiter.rows_per_s))
            if self._stop.is_set():
                return False
        self._report(Progress(source, rows, state.seed_estimate, limiter.rows_per_s, is_done=True))
        # No row that was read is newer than this.
        until_scn = self._scan.newest_scn()
        self._check_epoch(source, until_scn)
        return self._end(source, until_scn)

    def _end(self, source: str, until_scn: int) -> bool:
        self._store.end_seeding(source, until_scn)
        self._store.activate_caught_up()
        return True

    def _check_epoch(self, source: str, scn: int) -> None:
        """Raise SourceStoppedError if the relay reads another server, in a later epoch.

        SCNs of an earlier epoch say nothing about what the store has of the later one.
        """
        at_scn = self._store.position().scn
        epoch = binlog_position(max(at_scn, 0)).epoch
        if binlog_position(max(scn, 0)).epoch < epoch:
            raise SourceStoppedError(
                self._scan.name,
                at_scn,
                f"{source} cannot be seeded: the relay has gone on at another server, in epoch "
                f"{epoch}. Put that server first in `uri`, and set `epoch = {epoch}`, in the "
                "bootstrap pair's settings",
            )

    def _check_table(self, table: Table, texts: Sequence[str]) -> None:
        """Raise SourceStoppedError if the relay captures the source from another table."""
        captured = captured_table(texts[-1]) if texts else None
        mine = table.table or table.source
        if captured not in (None, mine):
            raise SourceStoppedError(
                self._scan.name,
                self._store.position().scn,
                f"source {table.source} is read from table {mine} here, and the relay captures it "
                f"from {captured}: write the same `table` in both settings files",
            )

    def _use(self, table: Table, state: SourceState, timestamp_ns: int) -> RowEvents:
        """Return the encoder of a table's rows, after storing their schema."""
        known = self._store.schemas([state.src_id])
        self._check_table(table, [text for _, _, text in known])
        if problem := unprotected_here(table, [text for _, _, text in known]):
            raise SourceStoppedError(self._scan.name, self._store.position().scn, problem)
        text = Versions(text for _, _, text in known).at(state.seed_scn)
        # The version in force at A, unless the table was altered since.
        is_it = text is not None and describes(text, avro_schema(table))
        events = RowEvents(
            table, state.src_id, state.seed_scn, timestamp_ns, text if is_it else None
        )
        if schema_id(events.text) not in {schema_id(text) for _, _, text in known}:
            version = max((version for _, version, _ in known), default=0) + 1
            self._store.add_schemas(state.src_id, [(version, events.text)])
        return events
