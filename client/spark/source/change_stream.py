"""The stream of changes as Spark asks for it: offsets, batches, and the ranges of their tasks."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows
from pyspark.sql.types import StructType

from databus.client.spark.arrow.row_types import (
    CHANGE_COLUMN,
    SCHEMAS,
    arrow_schema,
    changes_schema,
    check_text_columns,
    row_schema,
)
from databus.client.spark.options import Mode, SourceOptions, need_relays, parse_options
from databus.client.spark.planning.capture_states import Stopped, stopped_error
from databus.client.spark.planning.measure_client import Measuring
from databus.client.spark.planning.offsets import AtScn, Place, Places, from_offset, to_offset
from databus.client.spark.planning.partitions import TaskRanges
from databus.client.spark.planning.planner import Planner
from databus.client.spark.planning.ranges import range_from_text, range_to_text
from databus.client.spark.planning.server_pool import ServerPool
from databus.client.spark.source.range_reader import range_reader
from databus.schemas.errors import SchemaNotFoundError, SettingsError

log = logging.getLogger(__name__)

IDLE_S = 0.03


class ChangeStream:
    """One query's planning, in Spark's planner process."""

    def __init__(self, options: Mapping[str, str]) -> None:
        """Raise SettingsError for wrong options; ask no server yet."""
        self._options = parse_options(options)
        if self._options.mode is not Mode.CHANGES:
            raise SettingsError(
                f"option mode = {self._options.mode} is for spark.read: a stream has changes"
            )
        self._measuring = make_measuring(self._options)
        self._planner = Planner(self._measuring, self._options.start)
        self._ranges = TaskRanges(self._measuring, self._options.shards)
        self._targets: dict[str, int] | None = None
        # Those that were not captured when the targets were taken.
        self._stopped: Mapping[str, Stopped] = {}
        self._planned: dict[str, Any] | None = None

    def close(self) -> None:
        """Let go of the connections."""
        self._measuring.close()

    def aim_at_newest(self) -> None:
        """From now on read up to what is the newest now, and no farther."""
        self._measuring.await_opened()
        self._targets = self._measuring.newest_scns()
        self._stopped = self._measuring.stopped(at_once=True)

    def default_limit(self) -> ReadLimit:
        """Return how many rows a batch has at most."""
        return ReadMaxRows(self._options.max_rows_per_trigger)

    def initial_offset(self) -> dict[str, Any]:
        """Return the offset of a query that has read nothing: always the same one."""
        return to_offset({}, self._options.sources)

    def latest_offset(self, start: Mapping[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Return where the next batch ends; `start` itself where nothing is new.

        Raises SourceStoppedError when all is read up to a target that is not the
        newest, unless a warning is enough.
        """
        places = from_offset(start, self._options.sources)
        further = self._planner.next_places(places, _rows(limit), self._targets)
        if self._targets is None:
            self._stopped = self._measuring.stopped()
        states = {name: one.state for name, one in self._stopped.items()}
        self._planned = to_offset(further, self._options.sources, states)
        if self._planned == start:
            self._idle(places)
        return self._planned

    def _idle(self, places: Places) -> None:
        if self._targets is None:
            # Spark asks again after 10 ms, a hundred times a second on an idle source.
            time.sleep(IDLE_S)
        else:
            tell_of_stopped(self._options, self._stopped, places)

    def newest_offset(self) -> dict[str, Any] | None:
        """Return the newest windows that relays have spoken of, for who shows the lag."""
        newest = self._measuring.newest
        return to_offset(newest, self._options.sources) if newest else None

    def partitions(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> list[str]:
        """Return the ranges between two offsets as texts: the same rows, whenever it is asked."""
        begins = from_offset(start, self._options.sources)
        ends = from_offset(end, self._options.sources)
        # What was planned a moment ago was there then, too.
        is_planned_now = end == self._planned
        ranges = self._ranges.planned_now if is_planned_now else self._ranges.planned_before
        return [
            range_to_text(one)
            for name, place in ends.items()
            for one in ranges(name, begins.get(name), place)
        ]


def tell_of_stopped(
    options: SourceOptions, stopped: Mapping[str, Stopped], places: Mapping[str, Place]
) -> None:
    """Say that the newest was not known; raises SourceStoppedError unless a warning is enough."""
    for name, one in stopped.items():
        place = places.get(name)
        error = stopped_error(name, one, place.scn if isinstance(place, AtScn) else -1)
        if options.on_stopped_source == "fail":
            raise error
        log.warning("%s", error)


def make_measuring(options: SourceOptions) -> Measuring:
    """Return a query's servers, to be asked; raises SettingsError."""
    need_relays(options)
    servers, retry_s = options.bootstrap_servers, options.retry_seconds
    return Measuring(
        options,
        ServerPool(options.relays, retry_s, options.access),
        ServerPool(servers, retry_s, options.access) if servers else None,
    )


def changes_type(options: Mapping[str, str]) -> StructType:
    """Return the columns of the sources' changes, of all schema versions that the relays know.

    Raises SettingsError, UnknownSourceError, SchemaError, ServerError.
    """
    parsed = parse_options(options)
    need_relays(parsed)
    pool = ServerPool(parsed.relays, parsed.retry_seconds, parsed.access)
    try:
        found = pool.register(parsed.sources)
    finally:
        pool.close()
    for source, versions in found.items():
        if not versions:
            raise SchemaNotFoundError(f"the relay has no schema of source {source} yet")
    check_text_columns([v for versions in found.values() for v in versions], parsed.columns_as_text)
    rows = {
        source: row_schema(versions, parsed.columns_as_text) for source, versions in found.items()
    }
    schema = changes_schema(rows, parsed.layout, parsed.before_images)
    schema[CHANGE_COLUMN].metadata[SCHEMAS] = {
        source: {str(one.version): one.text for one in versions}
        for source, versions in found.items()
    }
    return schema


def read_changes(
    options: Mapping[str, str], schema: StructType, text: str
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a range as Arrow batches: what a task does."""
    yield from range_reader(options).read(range_from_text(text), arrow_schema(schema))


def _rows(limit: ReadLimit) -> int | None:
    """Return how many rows a limit allows; None = all there are."""
    return limit.max_rows if isinstance(limit, ReadMaxRows) else None
