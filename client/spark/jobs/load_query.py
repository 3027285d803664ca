"""The rows of a SELECT over tables as of one SCN, put in place of all rows of a target.

Tables are named as sources, `shop.orders`, in Spark SQL of any kind: Spark runs
it, over views of the tables. One commit takes all rows, so they come to the
driver together: what it has no memory for goes table by table, with `load`.
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
from databus.client.spark.jobs.load import Loaded, snapshot_meta
from databus.client.spark.jobs.load_source import BootstrapOrigin
from databus.client.spark.sql.table_references import table_places, with_views
from databus.client.spark.targets.target import open_target
from databus.schemas.errors import SettingsError

SOURCE_NAME = "query"  # what the rows of a target are of, that are of no one table


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
    """Run a SELECT and make its rows those of the target, at once.

    `keys`: the columns of the result that make a row unique. All tables are of
    one physical source and read as of one SCN. Raises DatabusError; SettingsError
    for arguments.
    """
    if not keys:
        raise SettingsError("name the columns of the query that make a row unique, with keys")
    register(spark)
    places = table_places(sql)
    if not places:
        raise SettingsError(f"no table in {sql!r}: they are named as sources, shop.orders")
    names = sorted({place.source for place in places})
    origins = [
        BootstrapOrigin(spark, name, bootstrap_servers, as_of=as_of, partitions=partitions)
        for name in names
    ]
    physical = {origin.physical_source for origin in origins}
    if len(physical) > 1:
        raise SettingsError(
            f"the tables are of {' and '.join(sorted(physical))}, whose SCNs have nothing to do "
            "with each other: load each table, and join the targets"
        )
    scn = min(origin.begin() for origin in origins)
    opened = open_target(target, keys)
    try:
        with _views(spark, origins, scn) as views:
            rows = spark.sql(with_views(sql, places, views))
            (name,) = physical
            # An app of its own, so that rows of an earlier load are older than its rows.
            app = f"load-{uuid4().hex}"
            batch = _as_snapshot(spark, rows, scn, name)
            applied = apply_changes(batch, 0, opened, keys=keys, app_id=app, takes_over=True)
        return Loaded(SOURCE_NAME, target, scn, applied.upserts, 1, 0)
    finally:
        opened.close()


@contextmanager
def _views(
    spark: SparkSession, origins: Sequence[BootstrapOrigin], scn: int
) -> Iterator[dict[str, str]]:
    views = {
        origin.source: f"databus_{number}_{re.sub('[^A-Za-z0-9]', '_', origin.source)}"
        for number, origin in enumerate(origins)
    }
    for origin in origins:
        origin.table(scn).createOrReplaceTempView(views[origin.source])
    try:
        yield views
    finally:
        for view in views.values():
            spark.catalog.dropTempView(view)


def _as_snapshot(spark: SparkSession, rows: DataFrame, scn: int, physical: str) -> DataFrame:
    """Return rows as those of a whole snapshot, with its end."""
    told = snapshot_meta(sf.lit(scn).cast("bigint"), scn, physical, SOURCE_NAME)
    batch = rows.withColumn(CHANGE_COLUMN, told)
    end = spark.range(1).select(
        *(sf.lit(None).cast(field.dataType).alias(field.name) for field in rows.schema),
        told.withField("op", sf.lit("snapshot_end")).alias(CHANGE_COLUMN),
    )
    return batch.unionByName(end)
