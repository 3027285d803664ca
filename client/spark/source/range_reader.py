"""Read one range from the servers as Arrow batches; runs in a task.

Windows come from a relay's ring. Windows that the ring has evicted since the range was
planned come from a bootstrap server's log, which has the same events. A window that
was partly read by then is read again, without the rows that were already returned.
"""

from __future__ import annotations

import json
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

from databus.client.machines.position import place_order
from databus.client.responses import read_stream_headers
from databus.client.spark.arrow.event_batches import EventBatches
from databus.client.spark.arrow.row_types import CHANGE_COLUMN, Layout, WriterSchema
from databus.client.spark.options import SourceOptions, parse_options
from databus.client.spark.planning.ranges import LogRange, Range, SnapshotEnd, SnapshotRange
from databus.client.spark.planning.requests import (
    catch_up,
    filters_text,
    online_at,
    proved,
    snapshot,
)
from databus.client.spark.planning.server_pool import Answer, ServerPool, check_patience
from databus.client.spark.planning.stock_stream import StockStream
from databus.client.spark.source.bootstrap_pages import MAX_FETCH_BYTES, BootstrapPages, take_answer
from databus.client.spark.source.stock_reader import read_stock_windows
from databus.schemas.checkpoint import Checkpoint
from databus.schemas.errors import (
    BootstrapTooYoungError,
    DatabusError,
    ScnNotFoundError,
    ServerError,
    SettingsError,
)
from databus.schemas.protocol import Header, Parameter

WAIT_MS = 1000
MOST_READERS = 8
WHOLE_WINDOW = -1


class RangeReader:
    """Reads ranges of one query; a worker process keeps it for its next tasks."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._relays = ServerPool(options.relays, options.retry_seconds, options.access)
        servers = options.bootstrap_servers
        self._bootstraps = (
            ServerPool(servers, options.retry_seconds, options.access) if servers else None
        )
        self._schemas: dict[str, list[WriterSchema]] = {}

    def close(self) -> None:
        """Close the connections."""
        self._relays.close()
        if self._bootstraps is not None:
            self._bootstraps.close()

    def read(self, one: Range, target: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Yield a range's rows as batches with exactly the target's schema.

        Raises DatabusError that names the windows or rows that could not be read.
        """
        if isinstance(one, SnapshotEnd):
            yield from self._end_snapshot(one, target)
            return
        if isinstance(one, LogRange) and one.is_stock:
            yield from self._read_stock_windows(one, target)
            return
        sources = one.sources if isinstance(one, LogRange) else (one.source,)
        read = _RangeRead(self, one, sources, target)
        if isinstance(one, LogRange):
            yield from read.windows(one)
        else:
            yield from read.snapshot(one)

    def _read_stock_windows(self, one: LogRange, target: pa.Schema) -> Iterator[pa.RecordBatch]:
        options, sources = self._options, one.sources
        columns = self.columns(one, sources, target)
        ids = self.src_ids(sources)
        stream = StockStream(self._relays, ids, options.filters, options.fetch_bytes)
        newer_schemas = partial(self.schemas, sources, is_again=True)
        yield from read_stock_windows(one, stream, columns, newer_schemas, options)

    def columns(
        self,
        one: Range,
        sources: Sequence[str],
        target: pa.Schema,
        *,
        as_snapshot: bool = False,
    ) -> EventBatches:
        """Return the decoder of a range's events."""
        return EventBatches(
            target,
            self.schemas(sources),
            physical_source=one.physical_source,
            layout=layout_of(target),
            as_of=one.at_scn if isinstance(one, SnapshotRange) else None,
            as_snapshot=as_snapshot,
            on_new_column=self._options.on_new_column,
            as_text=self._options.columns_as_text,
            batch_rows=self._options.batch_rows,
            keeps_events=self._options.keeps_events,
        )

    def schemas(self, sources: Sequence[str], is_again: bool = False) -> list[WriterSchema]:
        """Return all versions of the sources' schemas; `is_again` asks the servers again."""
        if is_again or any(name not in self._schemas for name in sources):
            found = self._relays.register(sources) if self._options.relays else {}
            if self._bootstraps is not None and (is_again or not found):
                for name, versions in self._bootstraps.register(sources).items():
                    found.setdefault(name, []).extend(versions)
            self._schemas |= found
        return [version for name in sources for version in self._schemas[name]]

    def src_ids(self, sources: Sequence[str]) -> Mapping[str, int]:
        """Return the sources' ids."""
        return {version.source: version.src_id for version in self.schemas(sources)}

    @property
    def options(self) -> SourceOptions:
        """The query's options."""
        return self._options

    @property
    def relays(self) -> ServerPool:
        """The relays."""
        return self._relays

    @property
    def bootstraps(self) -> ServerPool | None:
        """The bootstrap servers, or None."""
        return self._bootstraps

    def _end_snapshot(self, one: SnapshotEnd, target: pa.Schema) -> Iterator[pa.RecordBatch]:
        columns = self.columns(one, one.sources, target)
        for source in one.sources:
            columns.add_mark(one.at_scn, source)
        yield from columns.flush()


def layout_of(target: pa.Schema) -> Layout:
    """Return the layout of a schema of changes; a struct column cannot be a table's column."""
    first = target.field(0)
    return (
        "structs" if first.name != CHANGE_COLUMN and pa.types.is_struct(first.type) else "columns"
    )


# Spark keeps its workers, and with them open connections and known schemas.
_readers: dict[str, RangeReader] = {}


def range_reader(options: Mapping[str, str]) -> RangeReader:
    """Return this process's reader for these options, with its open connections."""
    text = json.dumps(dict(options), sort_keys=True)
    if text not in _readers:
        if len(_readers) >= MOST_READERS:
            close_readers()
        _readers[text] = RangeReader(parse_options(options))
    return _readers[text]


def close_readers() -> None:
    """Close all readers of this process."""
    while _readers:
        _readers.popitem()[1].close()


class _RangeRead:
    """The state of reading one range."""

    def __init__(
        self, reader: RangeReader, one: Range, sources: Sequence[str], target: pa.Schema
    ) -> None:
        assert not isinstance(one, SnapshotEnd)
        self._reader = reader
        self._sources = sources
        self._options = reader.options
        self._src_ids = reader.src_ids(sources)
        filters = {name: f for name, f in self._options.filters.items() if name in sources}
        self._filters = filters_text(filters, self._src_ids)
        self._columns = reader.columns(
            one,
            sources,
            target,
            as_snapshot=isinstance(one, SnapshotRange),
        )
        self._size_bytes = self._options.fetch_bytes
        # The window that was partly returned: its SCN, and the index of its last returned row.
        self._given = (-1, -1)
        self._moved_at = time.monotonic()

    def windows(self, one: LogRange) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a log range."""
        place = (one.from_scn, WHOLE_WINDOW)
        end = (one.to_scn, WHOLE_WINDOW)
        while place != end:
            try:
                answer = self._ask_relay_after(place, one)
            except ScnNotFoundError as error:
                self._need_bootstrap(one, place, error)
                break
            place = yield from self._take_windows(answer, place, one.to_scn)
        yield from self._flush(-1 if place[1] == WHOLE_WINDOW else place[0])
        if place != end:
            yield from self._logged(one, place)

    def snapshot(self, one: SnapshotRange) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a snapshot range; stop if its server says that it is not valid."""
        begin = snapshot(one.source, one.from_row, one.at_scn, one.since_scn, one.store)
        servers = self._reader.bootstraps
        if servers is None:
            raise SettingsError(
                f"{one.physical_source}: a batch was planned with rows of a snapshot of "
                f"{one.source}; give the option bootstrapServers, including {one.server}"
            )
        servers.prefer(one.server)
        try:
            yield from self._pages(servers, begin, {Parameter.UNTIL_ROW: str(one.to_row)})
        except DatabusError as error:
            # The planner gets the same error before it ends the snapshot, and starts
            # another one, in which all these rows come again. But not if another server said it,
            # and the snapshot's own, which is away, has the snapshot as before when it is back.
            is_no_more = isinstance(error, BootstrapTooYoungError) and error.server == one.server
            if one.is_final or not is_no_more:
                raise

    def _logged(self, one: LogRange, place: tuple[int, int]) -> Iterator[pa.RecordBatch]:
        scn, offset = place
        if offset != WHOLE_WINDOW:
            scn -= 1  # the whole window again: offsets in a window differ between servers
        begin = catch_up(scn, one.to_scn, proof=one.proof)
        for batch in self._pages(self._need_servers(), begin, {}):
            yield from self._not_given(batch)

    def _pages(
        self, servers: ServerPool, begin: Checkpoint, more: Mapping[str, str]
    ) -> Iterator[pa.RecordBatch]:
        options = self._options
        pages = BootstrapPages(
            servers, self._sources, self._filters, options.fetch_bytes, options.retry_seconds
        )
        return pages.read(begin, self._columns, options.batch_rows, more)

    def _need_servers(self) -> ServerPool:
        servers = self._reader.bootstraps
        assert servers is not None, "the planner needs bootstrap servers for such a range"
        return servers

    # Requests

    def _ask_relay_after(self, place: tuple[int, int], one: LogRange) -> Answer:
        try:
            return self._ask_relay(place, one)
        except ScnNotFoundError:
            if place[1] != WHOLE_WINDOW:
                raise
            # The ring may begin with the next window, and does not know the one before.
            return self._ask_relay((place[0] + 1, 0), one)

    def _ask_relay(self, place: tuple[int, int], one: LogRange) -> Answer:
        parameters = {
            Parameter.SOURCES: ",".join(self._sources),
            # Not each of several relays was asked when the range was planned.
            Parameter.CHECKPOINT: proved(online_at(*place), one.proof).to_json(),
            Parameter.SIZE: str(self._size_bytes),
            Parameter.OUTPUT: "binary",
            Parameter.EVENT_VERSION: "2",
            Parameter.TRUNCATE: "true",
            # The batch ends there, whatever has come since it was planned.
            Parameter.UNTIL_SCN: str(one.to_scn),
            Parameter.WAIT_MS: str(WAIT_MS),
        }
        if self._filters is not None:
            parameters[Parameter.FILTERS] = self._filters
        return self._reader.relays.get("/stream", parameters, place[0])

    def _need_bootstrap(
        self, one: LogRange, place: tuple[int, int], error: ScnNotFoundError
    ) -> None:
        if self._reader.bootstraps is None:
            raise SettingsError(
                f"{one.physical_source}: a batch was planned with the windows from scn {place[0]} "
                f"to {one.to_scn}, but no relay holds them any more ({error}); give the option "
                "bootstrapServers, or start with another checkpoint folder"
            ) from error

    # Answers

    def _take_windows(
        self, answer: Answer, place: tuple[int, int], to_scn: int
    ) -> Generator[pa.RecordBatch, None, tuple[int, int]]:
        """Yield the complete batches of an answer; return the place of the next request."""
        headers = read_stream_headers(answer.server, answer.headers)
        if headers.pending_event_bytes is not None and not answer.body:
            self._grow(headers.pending_event_bytes, answer.server, place[0])
            return place
        if headers.resume is None:
            raise ServerError(
                answer.server,
                f"/stream without header {Header.RESUME}: it is not a relay of this project, on "
                "which the batch was planned",
            )
        check_resume(answer.server, headers.resume, place, to_scn)
        schemas = self._reader.schemas
        take_answer(answer, self._columns, lambda: schemas(self._sources, is_again=True))
        # Nothing new, though the relay held the request for WAIT_MS.
        if headers.resume == place:
            waited_s = time.monotonic() - self._moved_at
            check_patience(answer.server, place[0], to_scn, waited_s, self._options.retry_seconds)
        # Within a window: note what is returned of it, as the ring may evict the rest.
        elif headers.resume[1] != WHOLE_WINDOW:
            yield from self._flush(headers.resume[0])
        elif self._columns.rows >= self._options.batch_rows:
            yield from self._flush()
        if headers.resume != place:
            self._moved_at = time.monotonic()
        return headers.resume

    def _grow(self, needed_bytes: int, server: str, scn: int) -> None:
        if needed_bytes > MAX_FETCH_BYTES:
            raise ServerError(
                server, f"an event of {needed_bytes} bytes after scn {scn} exceeds a response"
            )
        self._size_bytes = max(self._size_bytes, needed_bytes)

    def _flush(self, partial_scn: int = -1) -> Iterator[pa.RecordBatch]:
        """Yield the held rows; record which rows of window `partial_scn` are among them."""
        for batch in self._columns.flush():
            if partial_scn >= 0:
                self._note(batch, partial_scn)
            yield batch

    def _note(self, batch: pa.RecordBatch, scn: int) -> None:
        scns, indexes = _places(batch)
        last = pc.max(indexes.filter(pc.equal(scns, scn))).as_py()
        if last is not None:
            held = self._given[1] if self._given[0] == scn else -1
            self._given = (scn, max(held, last))

    def _not_given(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Yield a batch without the rows of a window that were returned before."""
        given_scn, given_index = self._given
        if given_scn >= 0:
            scns, indexes = _places(batch)
            again = pc.and_(pc.equal(scns, given_scn), pc.less_equal(indexes, given_index))
            batch = batch.filter(pc.invert(again))
        if batch.num_rows:
            yield batch


def _places(batch: pa.RecordBatch) -> tuple[pa.Array, pa.Array]:
    changes = batch.column(CHANGE_COLUMN)
    return pc.struct_field(changes, "scn"), pc.struct_field(changes, "index")


def check_resume(server: str, resume: tuple[int, int], place: tuple[int, int], to_scn: int) -> None:
    """Raise ServerError if a relay's resume place is outside the requested range."""
    end = place_order(to_scn, WHOLE_WINDOW)
    if not place_order(*place) <= place_order(*resume) <= end:
        raise ServerError(
            server,
            f"resumes at {resume[0]}, {resume[1]}; it was asked for events after "
            f"{place[0]}, {place[1]}, up to scn {to_scn}",
        )
