"""Compares a store's snapshot with the database while both change.

The database's rows are read in chunks and looked up in the store by key. A row that is not
equal becomes a candidate, because its change may be on its way: it is compared again at
the end, when the producer has passed everything that was read. A stored row that has not
changed since before the read must then equal what was read, or it is a difference. One
that has changed is moving, and its chunk is read again. A live row that was in the store
from the beginning and in no chunk is surplus.

The working data is in a temporary file, so tables may have any size. Rows of a table
without a key are identified by their content: duplicates count once, and their number is
not compared.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from threading import Event

from databus.bootstrap.seeder.job import OpenScan, store_path
from databus.bootstrap.seeder.rate_limiter import Progress, RateLimiter, Report
from databus.bootstrap.store.snapshot_pages import needed_rows
from databus.bootstrap.store.store import Store
from databus.bootstrap.store.values import SourceState, SourceStatus
from databus.bootstrap.verify.comparison import Comparison, Kind, RowComparer
from databus.bootstrap.verify.scratch_table import Candidate, ScratchTable
from databus.conf.settings import BootstrapSettings, PhysicalSourceSettings
from databus.relay.sources.kind import open_scan
from databus.relay.sources.table_scan import Chunk, TableScan
from databus.relay.sources.table_view import unprotected_here
from databus.schemas.avro_rows import row_codec
from databus.schemas.errors import BootstrapError
from databus.schemas.event.keys import key_maker
from databus.schemas.table_schema import avro_schema

LOOKS = 10
PATIENCE_S = 60.0
_POLL_S = 0.05
_ASK_EVERY_S = 1.0
_PAGE_BYTES = 1 << 20
_FEWEST_CHUNKS = 2  # chunks to read again before a row that the store deleted counts as gone


class Verifier:
    """Compares sources of one store on the thread that opened it. The store is only read.

    `stop` ends a comparison early; at most `most_examples` differences are kept in full.
    """

    def __init__(
        self,
        store: Store,
        scan: TableScan,
        chunk_rows: int,
        report: Report,
        stop: Event,
        most_examples: int = 20,
        patience_s: float = PATIENCE_S,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._scan = scan
        self._chunk_rows = chunk_rows
        self._report = report
        self._stop = stop
        self._most_examples = most_examples
        self._patience_s = patience_s
        self._monotonic_s = monotonic_s

    def verify(self, source: str) -> Comparison:
        """Compare a source that is served.

        Raises BootstrapError when it is not served or was seeded again meanwhile, or
        when the producer makes no progress; and the scan's SourceError.
        """
        state = self._served(source)
        begin_scn = self._scan.visible_scn()
        self._wait_for_producer(begin_scn)
        table = self._scan.table(source)
        texts = [text for _, _, text in self._store.schemas([state.src_id])]
        if problem := unprotected_here(table, texts):
            raise BootstrapError(problem)
        has_key = bool(table.key_columns)
        comparer = RowComparer(self._store, state, Comparison(source, has_key), self._most_examples)
        changed_scn = comparer.changed_scn
        with closing(ScratchTable()) as scratch:
            self._read(comparer, scratch, begin_scn)
            self._settle(comparer, scratch)
            comparer.found.is_whole = not self._stop.is_set()
            if comparer.found.is_whole:
                self._find_surplus(comparer, scratch, begin_scn)
        # Seeding moves the floor.
        if self._served(source).floor_scn != state.floor_scn:
            raise BootstrapError(
                f"{source} was seeded again while it was compared: verify it again"
            )
        if self._store.rows_now([state.src_id]).changed_scn(state.src_id) != changed_scn:
            raise BootstrapError(f"{source} was altered while it was compared: verify it again")
        return comparer.found

    def _served(self, source: str) -> SourceState:
        state = self._store.source(source)
        if state.status is not SourceStatus.ACTIVE:
            raise BootstrapError(
                f"{source} is {state.status} and not served yet: verify it when it is active"
            )
        return state

    def _read(self, comparer: RowComparer, scratch: ScratchTable, begin_scn: int) -> None:
        """Compare the whole table once."""
        limiter = RateLimiter(0, self._stop.wait, self._monotonic_s)
        estimate = self._scan.estimate_rows(comparer.source)
        for chunk, place, scn in self._chunks(comparer.source, None, begin_scn):
            read = _payloads(comparer, chunk)
            rows = self._store.rows_by_key(comparer.source, list(read))
            scratch.see(row.id for row in rows.values())
            scratch.add(
                Candidate(key, payload, digest, scn, place)
                for key, (payload, digest) in read.items()
                if not comparer.is_same(rows.get(key), payload, digest)
            )
            comparer.found.rows += len(chunk.rows)
            limiter.count(len(chunk.rows))
            self._report(
                Progress(comparer.source, comparer.found.rows, estimate, limiter.rows_per_s)
            )

    def _chunks(
        self, source: str, resume: str | None, begin_scn: int
    ) -> Iterator[tuple[Chunk, str | None, int]]:
        """Yield each chunk with its start and an SCN up to which it shows every transaction."""
        is_chunked = self._scan.is_chunked(source)
        chunks = self._scan.chunks(source, self._chunk_rows, resume)
        scn, asked_s = begin_scn, self._monotonic_s()
        while not self._stop.is_set():
            # An older SCN is valid too, but more rows would seem to move. A new one
            # is work for the database, and some make us wait for it.
            if is_chunked and self._monotonic_s() - asked_s >= _ASK_EVERY_S:
                scn, asked_s = self._scan.visible_scn(), self._monotonic_s()
            chunk = next(chunks, None)
            if chunk is None:
                return
            yield chunk, resume, scn
            resume = chunk.resume if is_chunked else None

    def _settle(self, comparer: RowComparer, scratch: ScratchTable) -> None:
        """Compare candidates until each is equal, different, or moved in every pass."""
        places: list[tuple[str | None, set[int | bytes]]] = []
        for _ in range(LOOKS):
            for place, keys in places:
                scratch.add(self._read_again(comparer, place, keys))
            self._wait_for_producer(self._scan.newest_scn())
            for page in scratch.take():
                scratch.add(comparer.judge(page))
            places = scratch.take_places()
            if not places or self._stop.is_set():
                break
        comparer.found.moving = sum(len(keys) for _, keys in places)

    def _read_again(
        self, comparer: RowComparer, place: str | None, keys: set[int | bytes]
    ) -> Iterator[Candidate]:
        """Yield the current rows with these keys; read from `place`, where their chunk began."""
        begin_scn = self._scan.visible_scn()
        self._wait_for_producer(begin_scn)
        left = set(keys)
        chunks = self._chunks(comparer.source, place, begin_scn)
        for count, (chunk, _, scn) in enumerate(chunks, 1):
            for key, (payload, digest) in _payloads(comparer, chunk).items():
                if key in left:
                    left.remove(key)
                    yield Candidate(key, payload, digest, scn, place)
            # Rows inserted meanwhile may have pushed others into the next chunk.
            if not left or (count >= _FEWEST_CHUNKS and not comparer.has_live(left)):
                break
        for key in left:
            yield Candidate(key, None, b"", begin_scn, place)

    def _find_surplus(self, comparer: RowComparer, scratch: ScratchTable, begin_scn: int) -> None:
        """Find rows that were live in the store from the beginning and were in no chunk."""
        after_id, is_last = 0, False
        while not is_last:
            page = self._store.snapshot_page(
                comparer.source, needed_rows(0, begin_scn, after_id, None), _PAGE_BYTES
            )
            unseen = scratch.unseen([row.id for row in page.rows])
            for row in page.rows:
                if row.id in unseen:
                    comparer.differs(Kind.SURPLUS, row.key, row, None)
            after_id, is_last = page.last_id, page.is_last

    def _wait_for_producer(self, scn: int) -> None:
        last, deadline_s = -2, 0.0
        while (position := self._store.position().scn) < scn and not self._stop.is_set():
            if position > last:
                last, deadline_s = position, self._monotonic_s() + self._patience_s
            elif self._monotonic_s() > deadline_s:
                raise BootstrapError(
                    f"the producer stands at scn {position} and the database is at {scn}: "
                    "is `databus bootstrap run` running, and does it reach its relay?"
                )
            self._stop.wait(_POLL_S)


def verify(
    settings: BootstrapSettings,
    physical: PhysicalSourceSettings,
    sources: Sequence[str] | None,
    report: Report,
    stop: Event,
    most_examples: int = 20,
    open_scan: OpenScan = open_scan,
) -> list[Comparison]:
    """Compare the named sources of a store, or all.

    Raises the errors of `Verifier.verify`, and UnknownSourceError.
    """
    path = store_path(settings, physical)
    with closing(Store.open(path, is_read_only=True)) as store:
        sources = physical.source_names if sources is None else sources
        scan = open_scan(physical.only(sources))
        try:
            scan.open()
            verifier = Verifier(store, scan, settings.chunk_rows, report, stop, most_examples)
            return [verifier.verify(source) for source in sources]
        finally:
            scan.close()


def _payloads(comparer: RowComparer, chunk: Chunk) -> dict[int | bytes, tuple[bytes, bytes]]:
    """Return each row's Avro bytes and schema digest, by key."""
    text = avro_schema(chunk.table)
    key_of, write_row = key_maker(chunk.table), row_codec(text).encode
    digest = comparer.learn(text)
    return {key_of(row): (write_row(row), digest) for row in chunk.rows}
