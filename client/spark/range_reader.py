"""What a task does: read one range from the servers and give it as Arrow batches.

Windows come from a relay's ring; those that it evicted after the range was
planned come from a bootstrap server's log, which has the same events. A window
that was read in part by then is read again, without the rows that were given
already.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from databus.client.answers import (
    PENDING_EVENT_BYTES,
    PHASE_COMPLETED,
    RESUME,
    is_too_old,
    is_too_young,
    read_stream_headers,
)
from databus.client.spark.blocking import Answer, ServerPool
from databus.client.spark.event_columns import EventColumns, UnknownSchemaError
from databus.client.spark.options import SourceOptions, parse_options
from databus.client.spark.ranges import LogRange, Range, SnapshotEnd, SnapshotRange
from databus.client.spark.requests import catch_up, filters_text, online_at, sharded, snapshot
from databus.client.spark.row_types import CHANGE_COLUMN, Layout, WriterSchema
from databus.schemas.checkpoint import Checkpoint
from databus.schemas.errors import (
    DatabusError,
    ProtocolError,
    ScnNotFoundError,
    ServerError,
    SettingsError,
)

MAX_FETCH_BYTES = 16 << 20
WAIT_MS = 1000
MOST_READERS = 8
WHOLE_WINDOW = -1


class RangeReader:
    """Reads ranges of one query; a worker may keep it for its next task."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._relays = ServerPool(options.relays, options.retry_seconds)
        servers = options.bootstrap_servers
        self._bootstraps = ServerPool(servers, options.retry_seconds) if servers else None
        self._schemas: dict[str, list[WriterSchema]] = {}

    def close(self) -> None:
        """Let go of the connections."""
        self._relays.close()
        if self._bootstraps is not None:
            self._bootstraps.close()

    def read(self, one: Range, target: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Yield the range's rows as batches of exactly the target's schema.

        Raises DatabusError that says which windows or rows could not be read.
        """
        if isinstance(one, SnapshotEnd):
            yield from self._end_snapshot(one, target)
            return
        sources = one.sources if isinstance(one, LogRange) else (one.source,)
        reading = _Reading(self, one, sources, target)
        if isinstance(one, LogRange):
            yield from reading.windows(one)
        else:
            yield from reading.snapshot(one)

    def columns(
        self,
        one: Range,
        sources: Sequence[str],
        target: pa.Schema,
        *,
        takes_truncates: bool = True,
        as_snapshot: bool = False,
    ) -> EventColumns:
        """Return what makes batches of the range's events."""
        return EventColumns(
            target,
            self.schemas(sources),
            physical_source=one.physical_source,
            layout=layout_of(target),
            generation=one.generation,
            takes_truncates=takes_truncates,
            as_snapshot=as_snapshot,
            on_new_column=self._options.on_new_column,
            as_text=self._options.columns_as_text,
            batch_rows=self._options.batch_rows,
        )

    def schemas(self, sources: Sequence[str], is_again: bool = False) -> list[WriterSchema]:
        """Return all versions of the sources' schemas that the servers know."""
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
        """The bootstrap servers, if there are any."""
        return self._bootstraps

    def _end_snapshot(self, one: SnapshotEnd, target: pa.Schema) -> Iterator[pa.RecordBatch]:
        columns = self.columns(one, one.sources, target)
        for source in one.sources:
            columns.add_mark(one.at_scn, source)
        yield from columns.flush()


def layout_of(target: pa.Schema) -> Layout:
    """Return how rows lie in a schema of changes: no column of a table is a struct."""
    first = target.field(0)
    return (
        "structs" if first.name != CHANGE_COLUMN and pa.types.is_struct(first.type) else "columns"
    )


_readers: dict[str, RangeReader] = {}


def range_reader(options: Mapping[str, str]) -> RangeReader:
    """Return the reader of these options, one in each worker process: its connections are kept."""
    text = json.dumps(dict(options), sort_keys=True)
    if text not in _readers:
        if len(_readers) >= MOST_READERS:
            close_readers()
        _readers[text] = RangeReader(parse_options(options))
    return _readers[text]


def close_readers() -> None:
    """Let go of the connections of all readers of this process."""
    while _readers:
        _readers.popitem()[1].close()


class _Reading:
    """One range as it is read."""

    def __init__(
        self, reader: RangeReader, one: Range, sources: Sequence[str], target: pa.Schema
    ) -> None:
        assert not isinstance(one, SnapshotEnd)
        self._reader = reader
        self._sources = sources
        self._options = reader.options
        self._src_ids = reader.src_ids(sources)
        filters = sharded(self._options.filters, sources, one.shard, one.shards)
        self._filters = filters_text(filters, self._src_ids)
        self._columns = reader.columns(
            one,
            sources,
            target,
            takes_truncates=one.shard == 0,
            as_snapshot=isinstance(one, SnapshotRange),
        )
        self._size_bytes = self._options.fetch_bytes
        # Of a window that was given in part: its SCN, and the index of the last row given.
        self._given = (-1, -1)

    def windows(self, one: LogRange) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a log range."""
        place = (one.from_scn, WHOLE_WINDOW)
        end = (one.to_scn, WHOLE_WINDOW)
        while place != end:
            try:
                answer = self._ask_relay_after(place, one.to_scn)
            except ScnNotFoundError as error:
                self._need_bootstrap(one, place, error)
                break
            place = yield from self._take_windows(answer, place)
        yield from self._columns.flush()
        if place != end:
            yield from self._logged(one, place)

    def snapshot(self, one: SnapshotRange) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a snapshot range; nothing when that snapshot is no more."""
        assert self._reader.bootstraps is not None, "no snapshot is planned without a server"
        self._reader.bootstraps.prefer(one.server)
        row, more = one.from_row, {"untilRow": str(one.to_row)}
        while True:
            asked = snapshot(one.source, row, one.at_scn, one.since_scn, one.store)
            try:
                answer = self._ask_bootstrap(asked, more)
            except DatabusError as error:
                if is_too_young(error):
                    # The planner finds the same before it takes the snapshot for complete, and
                    # begins another: what is given here, and what not, comes again in it.
                    return
                raise
            checkpoint = yield from self._take_page(answer)
            if checkpoint is None:
                continue
            if answer.headers.get(PHASE_COMPLETED, "").upper() == "TRUE":
                break
            row = checkpoint.snapshot_offset
        yield from self._columns.flush()

    def _logged(self, one: LogRange, place: tuple[int, int]) -> Iterator[pa.RecordBatch]:
        scn, offset = place
        if offset != WHOLE_WINDOW:
            scn -= 1  # the window anew: servers count the events of a part of it differently
        checkpoint = catch_up(scn, one.to_scn)
        while True:
            answer = self._ask_bootstrap(checkpoint, {})
            after = yield from self._take_page(answer)
            if answer.headers.get(PHASE_COMPLETED, "").upper() == "TRUE":
                break
            checkpoint = after or checkpoint
        yield from self._flush()

    # Requests

    def _ask_relay_after(self, place: tuple[int, int], to_scn: int) -> Answer:
        try:
            return self._ask_relay(place, to_scn)
        except ScnNotFoundError:
            if place[1] != WHOLE_WINDOW:
                raise
            # The ring may begin with the very next window and not know what was before it.
            return self._ask_relay((place[0] + 1, 0), to_scn)

    def _ask_relay(self, place: tuple[int, int], to_scn: int) -> Answer:
        parameters = {
            "sources": ",".join(self._sources),
            "checkPoint": online_at(*place).to_json(),
            "size": str(self._size_bytes),
            "output": "binary",
            "maxev": "2",
            "untilScn": str(to_scn),
            "wait": str(WAIT_MS),
        }
        if self._filters is not None:
            parameters["filters"] = self._filters
        return self._reader.relays.get("/stream", parameters, place[0])

    def _ask_bootstrap(self, checkpoint: Checkpoint, more: Mapping[str, str]) -> Answer:
        assert self._reader.bootstraps is not None
        parameters = {
            "sources": ",".join(self._sources),
            "checkPoint": checkpoint.to_json(),
            "batchSize": str(self._size_bytes),
            "output": "binary",
            "maxev": "2",
            **more,
        }
        if self._filters is not None:
            parameters["filter"] = self._filters
        end = time.monotonic() + self._options.retry_seconds
        while True:
            try:
                return self._reader.bootstraps.get("/bootstrap", parameters, checkpoint.window_scn)
            except DatabusError as error:
                if not is_too_old(error) or time.monotonic() >= end:
                    raise
                time.sleep(0.2)

    def _need_bootstrap(
        self, one: LogRange, place: tuple[int, int], error: ScnNotFoundError
    ) -> None:
        if self._reader.bootstraps is None:
            raise SettingsError(
                f"{one.physical_source}: no relay holds the windows from scn {place[0]} to "
                f"{one.to_scn} any more, which a batch was planned of ({error}); give the option "
                "bootstrapServers, or start with another checkpoint folder"
            ) from error

    # Answers

    def _take_windows(
        self, answer: Answer, place: tuple[int, int]
    ) -> Iterator[pa.RecordBatch]:  # and returns the next place
        headers = read_stream_headers(answer.server, answer.headers)
        if headers.pending_event_bytes is not None and not answer.body:
            self._grow(headers.pending_event_bytes, answer.server, place[0])
            return place
        if headers.resume is None:
            raise ServerError(answer.server, f"/stream without {RESUME}: it is no databus relay")
        self._feed(answer)
        if headers.resume[1] != WHOLE_WINDOW:
            yield from self._flush(headers.resume[0])
        elif self._columns.rows >= self._options.batch_rows:
            yield from self._flush()
        return headers.resume

    def _take_page(self, answer: Answer) -> Iterator[pa.RecordBatch]:  # and returns the checkpoint
        pending = answer.headers.get(PENDING_EVENT_BYTES)
        if pending is not None and not answer.body:
            self._grow(int(pending), answer.server, -1)
            return None
        self._feed(answer)
        checkpoint = self._columns.checkpoint
        if checkpoint is None:
            raise ServerError(answer.server, "a page of nothing, not even its checkpoint")
        if self._columns.rows >= self._options.batch_rows:
            yield from self._flush()
        return checkpoint

    def _grow(self, needed_bytes: int, server: str, scn: int) -> None:
        if needed_bytes > MAX_FETCH_BYTES:
            raise ServerError(
                server, f"an event of {needed_bytes} bytes after scn {scn}: larger than an answer"
            )
        self._size_bytes = max(self._size_bytes, needed_bytes)

    def _feed(self, answer: Answer) -> None:
        """Give an answer's events to the columns, asking for schemas that are new."""
        data, is_asked_again = memoryview(answer.body), False
        while data:
            try:
                taken = self._columns.take(data)
            except UnknownSchemaError as unknown:
                if is_asked_again:
                    raise
                is_asked_again = True
                self._columns.add_schemas(self._reader.schemas(self._sources, is_again=True))
                data = data[unknown.consumed :]
                continue
            except ProtocolError as error:
                raise ServerError(answer.server, f"bad bytes: {error}") from error
            if taken != len(data):
                raise ServerError(
                    answer.server, f"an answer ends in an event, {len(data) - taken} bytes into it"
                )
            return

    def _flush(self, partial_scn: int = -1) -> Iterator[pa.RecordBatch]:
        """Yield what is held, without what was given; note how far window `partial_scn` is."""
        given_scn, given_index = self._given
        for batch in self._columns.flush():
            told = batch.column(CHANGE_COLUMN)
            scns, indexes = pc.struct_field(told, "scn"), pc.struct_field(told, "index")
            if partial_scn >= 0:
                last = pc.max(indexes.filter(pc.equal(scns, partial_scn))).as_py()
                if last is not None:
                    held = self._given[1] if self._given[0] == partial_scn else -1
                    self._given = (partial_scn, max(held, last))
            elif given_scn >= 0:
                again = pc.and_(pc.equal(scns, given_scn), pc.less_equal(indexes, given_index))
                batch = batch.filter(pc.invert(again))
            if batch.num_rows:
                yield batch
