"""The stream of changes for Spark's streaming reader: offsets, batches, and ranges of tasks."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pyarrow as pa
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows
from pyspark.sql.types import StructType

from databus.client.spark.arrow.event_rows import events_schema
from databus.client.spark.arrow.row_types import (
    CHANGE_COLUMN,
    SCHEMAS,
    WriterSchema,
    arrow_schema,
    changes_schema,
    check_text_columns,
    row_schema,
)
from databus.client.spark.options import Mode, SourceOptions, need_relays, parse_options
from databus.client.spark.planning.archive_plan import find_log
from databus.client.spark.planning.capture_states import (
    Stopped,
    sources_behind,
    still_stopped_error,
    stopped_error,
)
from databus.client.spark.planning.joining import JoiningPlanner, moves
from databus.client.spark.planning.measure_client import LOOK_S, MeasureClient
from databus.client.spark.planning.offsets import (
    AtScn,
    Place,
    Proof,
    QueryOffset,
    check_physical,
    from_offset,
    to_offset,
)
from databus.client.spark.planning.partitions import PartitionPlanner
from databus.client.spark.planning.planner import Planner
from databus.client.spark.planning.ranges import ArchiveRange, range_from_text, range_to_text
from databus.client.spark.planning.server_pool import ServerPool
from databus.client.spark.source.archive_reader import read_archive
from databus.client.spark.source.range_reader import range_reader
from databus.client.subscription import chosen_sources
from databus.conf.named_places import ScnPlace
from databus.schemas.errors import SchemaNotFoundError, SettingsError

log = logging.getLogger(__name__)


class ChangeStream:
    """Plans one query, in Spark's planner process."""

    def __init__(
        self, options: Mapping[str, str], clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Raise SettingsError for wrong options; ask no server yet."""
        self._clock = clock
        self._stopped_at_s: dict[str, float] = {}  # since when, by physical source
        self._options = parse_options(options)
        if self._options.mode is not Mode.CHANGES:
            raise SettingsError(
                f"option mode = {self._options.mode} is only for spark.read: a stream reads changes"
            )
        for name in ("archive", "after", "until"):
            if getattr(self._options, name) is not None:
                raise SettingsError(
                    f"option {name} is only for spark.read: a stream reads from relays, from its "
                    "checkpoint or option start on"
                )
        self._measure_client = make_measure_client(self._options)
        self._planner = JoiningPlanner(
            self._measure_client,
            Planner(self._measure_client, self._options.start, Proof(self._options.start_mark)),
            self._options,
        )
        self._ranges = PartitionPlanner(self._measure_client, self._options.shards)
        self._targets: dict[str, int] | None = None
        # The sources that were not captured when the targets were set.
        self._stopped: Mapping[str, Stopped] = {}
        self._planned: dict[str, Any] | None = None
        self._await_until_s = 0.0

    def close(self) -> None:
        """Close the connections."""
        self._measure_client.close()

    def aim_at_newest(self) -> None:
        """Set the current newest SCNs as targets: batches read no further."""
        self._measure_client.await_opened()
        self._targets = self._measure_client.newest_scns()
        self._stopped = self._measure_client.stopped(at_once=True)
        self._await_until_s = time.monotonic() + self._options.retry_seconds

    def default_limit(self) -> ReadLimit:
        """Return the most rows of a batch."""
        return ReadMaxRows(self._options.max_rows_per_trigger)

    def initial_offset(self) -> dict[str, Any]:
        """Return the offset of a query that has read nothing; it is always the same."""
        return to_offset(QueryOffset(self._options.sources))

    def latest_offset(self, start: Mapping[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Return the end of the next batch; `start` itself if nothing is new.

        When everything is read up to a target, but a source is not captured, raises
        SourceStoppedError or logs a warning, by option `onStoppedSource`. Without a target
        it raises that once the source is not captured for `stoppedSourceSeconds`.
        """
        begun = from_offset(start)
        if self._targets is not None:
            self._await_read(self._goes_on_at(begun.places), self._targets)
        further = self._planner.next_offset(begun, _rows(limit), self._targets)
        if self._targets is None:
            newest = {name: at.scn for name, at in self._measure_client.newest.items()}
            behind = sources_behind(self._goes_on_at(begun.places), newest)
            self._stopped = {**behind, **self._measure_client.stopped()}
        states = {name: one.state for name, one in self._stopped.items()}
        self._planned = to_offset(further, states)
        if self._planned == start:
            self._idle(self._goes_on_at(begun.places))
        return self._planned

    def _goes_on_at(self, places: Mapping[str, Place]) -> Mapping[str, Place]:
        """Return the places, with the SCN at which a query begins that has not begun yet.

        What followed a target until then has read up to that SCN.
        """
        start = self._options.start
        if not isinstance(start, ScnPlace):
            return places
        return dict.fromkeys(self._measure_client.by_physical, AtScn(start.scn)) | dict(places)

    def _await_read(self, places: Mapping[str, Place], targets: dict[str, int]) -> None:
        """Wait, up to `retrySeconds` in all, for a relay that reads again what was read of it."""
        while behind := sources_behind(places, targets):
            if time.monotonic() >= self._await_until_s or behind.keys() <= self._stopped.keys():
                self._stopped = {**behind, **self._stopped}
                return
            time.sleep(LOOK_S)
            targets |= self._measure_client.newest_scns()

    def _idle(self, places: Mapping[str, Place]) -> None:
        if self._targets is None:
            self._check_patience(places)
            # Spark asks every 10 ms: without a pause, a hundred requests a second while idle.
            time.sleep(self._measure_client.idle_s)
            return
        report_stopped(self._options, self._stopped, places)
        for error in self._planner.waiting.values():
            # The query was to read all that there is.
            raise error

    def _check_patience(self, places: Mapping[str, Place]) -> None:
        """Raise SourceStoppedError if a source is not captured for longer than allowed."""
        most_s, now_s = self._options.stopped_source_seconds, self._clock()
        since = {name: self._stopped_at_s.get(name, now_s) for name in self._stopped}
        self._stopped_at_s = since
        if most_s is None:
            return
        for name, at_s in since.items():
            if now_s - at_s >= most_s:
                place = places.get(name)
                scn = place.scn if isinstance(place, AtScn) else -1
                raise still_stopped_error(name, self._stopped[name], scn, now_s - at_s)

    def newest_offset(self) -> dict[str, Any] | None:
        """Return the newest windows that relays have reported, to show the lag.

        With `rungs`: where the last planned batch is read from; and `waiting`: why sources
        are not read yet. Spark stores none of it.
        """
        newest, rungs = self._measure_client.newest, self._planner.rungs
        if not newest and not rungs and not self._planner.waiting:
            return None
        offset = to_offset(QueryOffset(self._options.sources, dict(newest)))
        waiting = {source: str(why) for source, why in sorted(self._planner.waiting.items())}
        return offset | {"rungs": dict(sorted(rungs.items()))} | _unless_empty("waiting", waiting)

    def partitions(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> list[str]:
        """Return the ranges between two offsets as texts; every call yields the same rows."""
        begun, further = from_offset(start), from_offset(end)
        by_physical = self._measure_client.by_physical
        check_physical({**begun.places, **further.places}, by_physical)
        homes = {source: name for name, sources in by_physical.items() for source in sources}
        # The rows of the newest plan were available a moment ago: no need to check again.
        is_planned_now = end == self._planned
        ranges = self._ranges.planned_now if is_planned_now else self._ranges.planned_before
        return [
            range_to_text(one)
            for group, after, until in moves(begun, further, homes)
            for one in ranges(group, after, until)
        ]


def _unless_empty(name: str, value: Mapping[str, str]) -> dict[str, Mapping[str, str]]:
    return {name: value} if value else {}


def report_stopped(
    options: SourceOptions, stopped: Mapping[str, Stopped], places: Mapping[str, Place]
) -> None:
    """Report sources that are not captured, by SourceStoppedError or a warning."""
    for name, one in stopped.items():
        place = places.get(name)
        error = stopped_error(name, one, place.scn if isinstance(place, AtScn) else -1)
        if options.on_stopped_source == "fail":
            raise error
        log.warning("%s", error)


def make_measure_client(options: SourceOptions) -> MeasureClient:
    """Return the measure client of a query; raises SettingsError."""
    need_relays(options)
    servers, retry_s = options.bootstrap_servers, options.retry_seconds
    return MeasureClient(
        options,
        ServerPool(options.relays, retry_s, options.access),
        ServerPool(servers, retry_s, options.access) if servers else None,
    )


def changes_type(options: Mapping[str, str]) -> StructType:
    """Return the columns of the sources' changes, over all schema versions of the relays.

    Raises SettingsError, UnknownSourceError, SchemaError, ServerError.
    """
    parsed = parse_options(options)
    found = known_schemas(parsed)
    if parsed.keeps_events:
        return events_schema()
    for source, versions in found.items():
        if not versions:
            raise SchemaNotFoundError(f"the relay has no schema of source {source} yet")
    check_text_columns([v for versions in found.values() for v in versions], parsed.columns_as_text)
    rows = {
        source: row_schema(versions, parsed.columns_as_text) for source, versions in found.items()
    }
    assert parsed.layout != "events"
    schema = changes_schema(rows, parsed.layout, parsed.before_images)
    # With these texts `apply_changes` converts rows of older versions.
    schema[CHANGE_COLUMN].metadata[SCHEMAS] = {
        source: {str(one.version): one.text for one in versions}
        for source, versions in found.items()
    }
    return schema


def read_changes(
    options: Mapping[str, str], schema: StructType, text: str
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a range as Arrow batches; runs in a task."""
    one, target = range_from_text(text), arrow_schema(schema)
    if isinstance(one, ArchiveRange):
        yield from read_archive(one, parse_options(options), target)
    else:
        yield from range_reader(options).read(one, target)


def known_schemas(options: SourceOptions) -> Mapping[str, list[WriterSchema]]:
    """Return all versions of the sources' schemas, from the relays or else from the archive."""
    if options.archive is not None and not options.relays:
        return find_log(options).schemas
    need_relays(options)
    pool = ServerPool(options.relays, options.retry_seconds, options.access)
    try:
        return pool.register(chosen_sources(options.sources, pool.offered()))
    finally:
        pool.close()


def _rows(limit: ReadLimit) -> int | None:
    """Return the row count of a limit; None = unlimited."""
    return limit.max_rows if isinstance(limit, ReadMaxRows) else None
