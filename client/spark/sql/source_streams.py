"""The stream of a job: its sources' changes in one shape, however many servers they come from.

<label of the feed>  struct<row: struct<columns>, before: struct<columns>>, for each feed;
                     null in rows of other feeds, `row` also in marks
_databus             as the stream has it, without `before`
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
from databus.client.spark.arrow.row_types import CHANGE_COLUMN, KEY
from databus.client.spark.options import parse_options
from databus.client.spark.source.change_stream import changes_type, make_measuring
from databus.client.spark.sql.job_file import Servers, SqlJob
from databus.client.spark.sql.plan import Feed, SourceColumns, quoted
from databus.schemas.errors import SettingsError


@dataclass(frozen=True, slots=True)
class FeedGroup:
    """Feeds that the same servers have, so that one stream reads them."""

    feeds: tuple[Feed, ...]
    options: dict[str, str]


def groups_of(job: SqlJob, feeds: Sequence[Feed]) -> list[FeedGroup]:
    """Return the streams that a job reads."""
    by_servers: dict[Servers, list[Feed]] = {}
    for feed in feeds:
        by_servers.setdefault(job.servers_of(feed.physical_source), []).append(feed)
    return [
        FeedGroup(tuple(among), _options(job, servers, among))
        for servers, among in by_servers.items()
    ]


def _options(job: SqlJob, servers: Servers, feeds: Sequence[Feed]) -> dict[str, str]:
    return {
        "mode": "changes",
        "layout": "structs",
        "start": "beginning",
        "sources": ",".join(dict.fromkeys(feed.source for feed in feeds)),
        "relays": ",".join(servers.relays),
        "bootstrapServers": ",".join(servers.bootstrap_servers),
        # What a SELECT does not name does not end its job.
        "onNewColumn": "ignore",
        "maxRowsPerTrigger": str(job.settings.max_rows_per_trigger),
    }


def types_of(job: SqlJob, feeds: Sequence[Feed]) -> dict[Feed, StructType]:
    """Ask the relays for the sources' columns; raises DatabusError, also for a wrong name."""
    found: dict[Feed, StructType] = {}
    for group in groups_of(job, feeds):
        schema = changes_type(group.options)
        named = [feed for feed in group.feeds if feed.physical_source]
        if named:
            with closing(make_measuring(parse_options(group.options))) as measuring:
                _check_physical(named, measuring.by_physical)
        for feed in group.feeds:
            row = schema[feed.source].dataType
            assert isinstance(row, StructType)
            found[feed] = row
    return found


def columns_of(row: StructType) -> SourceColumns:
    """Return a source's columns and key."""
    key = sorted(
        (field.metadata[KEY], field.name) for field in row if KEY in (field.metadata or {})
    )
    return SourceColumns(tuple(row.fieldNames()), tuple(name for _, name in key))


def read_feeds(spark: SparkSession, job: SqlJob, feeds: Sequence[Feed]) -> DataFrame:
    """Return the stream of all changes of the feeds."""
    register(spark)
    streams = [
        in_one_shape(
            spark.readStream.format("databus").options(**group.options).load(), group.feeds
        )
        for group in groups_of(job, feeds)
    ]
    return reduce(lambda left, right: left.unionByName(right, allowMissingColumns=True), streams)


def in_one_shape(changes: DataFrame, feeds: Sequence[Feed]) -> DataFrame:
    """Return changes of layout `structs` in the shape above."""
    meta = changes.schema[CHANGE_COLUMN].dataType
    assert isinstance(meta, StructType)
    has_before = "before" in meta.fieldNames()
    sides = [_both(feed, has_before=has_before) for feed in feeds]
    kept = [F.col(f"{CHANGE_COLUMN}.{name}") for name in meta.fieldNames() if name != "before"]
    return changes.select(*sides, F.struct(*kept).alias(CHANGE_COLUMN))


def is_of(feed: Feed) -> Column:
    """Return the condition that a change is one of a feed."""
    found = F.col(f"{CHANGE_COLUMN}.source") == feed.source
    if feed.physical_source:
        found &= F.col(f"{CHANGE_COLUMN}.physical_source") == feed.physical_source
    return found


def _both(feed: Feed, *, has_before: bool) -> Column:
    row = F.col(quoted(feed.source))
    # Without images the image is null, and still of the row's type.
    before = (
        F.col(f"{CHANGE_COLUMN}.before.{quoted(feed.source)}")
        if has_before
        else F.when(F.lit(False), row)
    )
    return F.struct(row.alias("row"), before.alias("before")).alias(feed.label)


def _check_physical(feeds: Sequence[Feed], known: Mapping[str, Sequence[str]]) -> None:
    for feed in feeds:
        if feed.source not in known.get(feed.physical_source, ()):
            have = "; ".join(f"{name}: {', '.join(of)}" for name, of in known.items())
            raise SettingsError(
                f"{feed.label}: these relays have no source {feed.source} of a physical source "
                f"{feed.physical_source}; they have {have}"
            )
