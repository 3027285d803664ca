"""Replace a target's rows with those of a SELECT over tables as of one SCN.

The SELECT may be any Spark SQL, and names tables as sources, `shop.orders`. Spark
runs it over views of the tables. All rows are written in one commit, so the driver
needs memory for them. Load larger results table by table, with `load`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from uuid import uuid4

from pyspark.sql import DataFrame, SparkSession, functions as sf

from databus.client.spark import register
from databus.client.spark.arrow.row_types import CHANGE_COLUMN
from databus.client.spark.consuming.apply import apply_changes
from databus.client.spark.jobs.load import Loaded, check_not_past, snapshot_meta
from databus.client.spark.jobs.load_source import BootstrapLoadSource
from databus.client.spark.sql.table_references import table_places, with_views
from databus.client.spark.targets.target import check_same_source, open_target
from databus.client.sql.modes import WriteMode
from databus.schemas.errors import SettingsError

SOURCE_NAME = "query"  # recorded as the source of rows that come from no single table


def load_query(
    spark: SparkSession,
    sql: str,
    target: str,
    *,
    keys: Sequence[str],
    bootstrap_servers: Sequence[str],
    as_of: int | None = None,
    partitions: int | None = None,
) -> Loaded:
    """Run a SELECT and replace the target's rows with its result, in one commit.

    `keys`: the columns of the result that make a row unique. All tables must be of one
    physical source; they are read as of one SCN. Raises DatabusError; SettingsError
    for wrong arguments.
    """
    if not keys:
        raise SettingsError("name the columns of the query that make a row unique, with keys")
    register(spark)
    places = table_places(sql)
    if not places:
        raise SettingsError(f"no table in {sql!r}: name tables as sources, shop.orders")
    names = sorted({place.source for place in places})
    load_sources = [
        BootstrapLoadSource(spark, name, bootstrap_servers, as_of=as_of, partitions=partitions)
        for name in names
    ]
    physical = {load_source.physical_source for load_source in load_sources}
    if len(physical) > 1:
        raise SettingsError(
            f"the tables are of {' and '.join(sorted(physical))}, whose SCNs cannot be compared: "
            "load each table, and join the targets"
        )
    # The oldest of the newest SCNs is one that every table can be read as of.
    scn = min(load_source.begin() for load_source in load_sources)
    opened = open_target(target, keys)
    (name,) = physical
    try:
        if opened.mode is not WriteMode.MIRROR:
            check_same_source(opened, SOURCE_NAME)
            check_not_past(opened, name, SOURCE_NAME, scn)
        with _views(spark, load_sources, scn) as views:
            rows = spark.sql(with_views(sql, places, views))
            # A new app id for each load, so that the batch is never skipped.
            app = f"load-{uuid4().hex}"
            batch = _as_snapshot(spark, rows, scn, name)
            applied = apply_changes(batch, 0, opened, keys=keys, app_id=app, takes_over=True)
        return Loaded(SOURCE_NAME, opened.uri, scn, applied.upserts, 1, 0)
    finally:
        opened.close()


@contextmanager
def _views(
    spark: SparkSession, load_sources: Sequence[BootstrapLoadSource], scn: int
) -> Iterator[dict[str, str]]:
    views = {
        load_source.source: f"databus_{number}_{re.sub('[^A-Za-z0-9]', '_', load_source.source)}"
        for number, load_source in enumerate(load_sources)
    }
    for load_source in load_sources:
        load_source.table(scn).createOrReplaceTempView(views[load_source.source])
    try:
        yield views
    finally:
        for view in views.values():
            spark.catalog.dropTempView(view)


def _as_snapshot(spark: SparkSession, rows: DataFrame, scn: int, physical: str) -> DataFrame:
    """Return rows as a complete snapshot, with its end."""
    meta = snapshot_meta(sf.lit(scn).cast("bigint"), scn, physical, SOURCE_NAME)
    batch = rows.withColumn(CHANGE_COLUMN, meta)
    end = spark.range(1).select(
        *(sf.lit(None).cast(field.dataType).alias(field.name) for field in rows.schema),
        meta.withField("op", sf.lit("snapshot_end")).alias(CHANGE_COLUMN),
    )
    return batch.unionByName(end)
