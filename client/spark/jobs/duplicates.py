"""Remove rows of a mirror that have the key of another row, before a load writes it again.

A merge finds rows by their key: of a key with several rows it removes all, but an update may leave
several. Such rows come from writers other than databus.
"""

from __future__ import annotations

from functools import reduce
from operator import and_

from pyspark.sql import SparkSession, functions as sf

from databus.client.spark.arrow.row_keys import quoted
from databus.client.spark.targets.changes import SOURCE
from databus.client.spark.targets.target import Target
from databus.client.sql.modes import WriteMode
from databus.schemas.errors import SettingsError

KEYS_AT_ONCE = 500_000
_ROWS = "_databus_rows"


def remove_duplicates(
    spark: SparkSession, target: Target, source: str, physical_source: str, scn: int
) -> int:
    """Remove all rows of a mirror whose key several rows have; return how many these were.

    Rows that are newer than `scn` stay. Nothing is done in a table that tells no key, or that
    cannot be read as plain files.
    """
    keys = target.keys
    if target.mode is not WriteMode.MIRROR or not keys:
        return 0
    try:
        rows = target.rows(spark)
    except SettingsError:
        # Partitions, or another writer's delete files: it is not compared with its source either.
        return 0
    if SOURCE in keys:
        rows = rows.where(sf.col(SOURCE) == source)
    columns = [sf.col(quoted(key)) for key in keys]
    # A row with a null in its key is none of any key; the end of the load removes it.
    rows = rows.where(reduce(and_, (column.isNotNull() for column in columns)))
    counted = rows.groupBy(*columns).agg(sf.count("*").alias(_ROWS)).where(f"{_ROWS} > 1")
    found = counted.toArrow()
    removed = 0
    for at in range(0, found.num_rows, KEYS_AT_ONCE):
        deletes = found.drop_columns([_ROWS]).slice(at, KEYS_AT_ONCE)
        put = target.put(deletes=deletes, physical_source=physical_source, scn=scn, source=source)
        removed += put.deleted
    return removed
