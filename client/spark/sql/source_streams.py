"""The input of a job: the changes of its sources in one shape, from any number of servers.

<label of a stream>  struct<row: struct<columns>, before: struct<columns>>, for each stream;
                     null in rows of other streams; `row` is also null in marks
_databus             as in format("databus"), without `before`
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import reduce

from pyspark.sql import (
    Column,
    DataFrame,
    SparkSession,
    functions as F,  # noqa: N812 - as everybody writes it
)
from pyspark.sql.types import StructType

from databus.client.spark import register
from databus.client.spark.arrow.row_keys import quoted
from databus.client.spark.arrow.row_types import CHANGE_COLUMN, KEY
from databus.client.spark.options import parse_options
from databus.client.spark.source.change_stream import changes_type, make_measure_client
from databus.client.spark.sql.job_file import Servers, SqlJob
from databus.client.spark.sql.plan import SourceColumns, SourceStream
from databus.schemas.errors import SettingsError


@dataclass(frozen=True, slots=True)
class StreamGroup:
    """Sources of the same servers, which one query input reads."""

    streams: tuple[SourceStream, ...]
    options: dict[str, str]


def groups_of(job: SqlJob, streams: Sequence[SourceStream]) -> list[StreamGroup]:
    """Return a job's sources, grouped by their servers."""
    by_servers: dict[Servers, list[SourceStream]] = {}
    for stream in streams:
        by_servers.setdefault(job.servers_of(stream.physical_source), []).append(stream)
    return [
        StreamGroup(tuple(among), _options(job, servers, among))
        for servers, among in by_servers.items()
    ]


def _options(job: SqlJob, servers: Servers, streams: Sequence[SourceStream]) -> dict[str, str]:
    return {
        "mode": "changes",
        "layout": "structs",
        "start": "beginning",
        "sources": ",".join(dict.fromkeys(stream.source for stream in streams)),
        "relays": ",".join(servers.relays),
        "bootstrapServers": ",".join(servers.bootstrap_servers),
        # A new column that the SELECT does not name must not end the job.
        "onNewColumn": "ignore",
        "maxRowsPerTrigger": str(job.settings.max_rows_per_trigger),
    }


def types_of(job: SqlJob, streams: Sequence[SourceStream]) -> dict[SourceStream, StructType]:
    """Return the sources' columns, from the relays; raises DatabusError, also for a wrong name."""
    found: dict[SourceStream, StructType] = {}
    for group in groups_of(job, streams):
        schema = changes_type(group.options)
        # The data source finds a source by its name alone, so the physical source is checked here.
        named = [stream for stream in group.streams if stream.physical_source]
        if named:
            with closing(make_measure_client(parse_options(group.options))) as measure_client:
                _check_physical(named, measure_client.by_physical)
        for stream in group.streams:
            row = schema[stream.source].dataType
            assert isinstance(row, StructType)
            found[stream] = row
    return found


def columns_of(row: StructType) -> SourceColumns:
    """Return a source's columns and key."""
    key = sorted(
        (field.metadata[KEY], field.name) for field in row if KEY in (field.metadata or {})
    )
    return SourceColumns(tuple(row.fieldNames()), tuple(name for _, name in key))


def read_streams(spark: SparkSession, job: SqlJob, streams: Sequence[SourceStream]) -> DataFrame:
    """Return one streaming DataFrame with the changes of all sources."""
    register(spark)
    frames = [
        in_one_shape(
            spark.readStream.format("databus").options(**group.options).load(), group.streams
        )
        for group in groups_of(job, streams)
    ]
    return reduce(lambda left, right: left.unionByName(right, allowMissingColumns=True), frames)


def in_one_shape(changes: DataFrame, streams: Sequence[SourceStream]) -> DataFrame:
    """Return changes of layout `structs` in the shape that the module describes."""
    meta = changes.schema[CHANGE_COLUMN].dataType
    assert isinstance(meta, StructType)
    has_before = "before" in meta.fieldNames()
    sides = [_both(stream, has_before=has_before) for stream in streams]
    kept = [F.col(f"{CHANGE_COLUMN}.{name}") for name in meta.fieldNames() if name != "before"]
    return changes.select(*sides, F.struct(*kept).alias(CHANGE_COLUMN))


def is_of(stream: SourceStream) -> Column:
    """Return the condition that a change belongs to a stream."""
    found = F.col(f"{CHANGE_COLUMN}.source") == stream.source
    if stream.physical_source:
        found &= F.col(f"{CHANGE_COLUMN}.physical_source") == stream.physical_source
    return found


def _both(stream: SourceStream, *, has_before: bool) -> Column:
    row = F.col(quoted(stream.source))
    # Without before images `before` is null, but has the row's type.
    before = (
        F.col(f"{CHANGE_COLUMN}.before.{quoted(stream.source)}")
        if has_before
        else F.when(F.lit(False), row)
    )
    return F.struct(row.alias("row"), before.alias("before")).alias(stream.label)


def _check_physical(streams: Sequence[SourceStream], known: Mapping[str, Sequence[str]]) -> None:
    for stream in streams:
        if stream.source not in known.get(stream.physical_source, ()):
            have = "; ".join(f"{name}: {', '.join(of)}" for name, of in known.items())
            raise SettingsError(
                f"{stream.label}: these relays have no source {stream.source} of a physical source "
                f"{stream.physical_source}; they have {have}; the name of a source that has three "
                "parts or more is written in backquotes"
            )
