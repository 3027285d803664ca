"""What a foreachBatch consumer does with a batch of changes: sort it out, and apply it.

    def consume(batch, batch_id):
        apply_changes(rows_of(batch, "shop.orders"), batch_id, orders)
        apply_changes(rows_of(batch, "shop.person"), batch_id, person)

    orders, person = open_target("delta:/lake/orders"), open_target("delta:/lake/person")
    changes.writeStream.foreachBatch(consume).start()

Each action on a batch reads it from the relay again, so who has several for one
batch persists it first and lets go of it at the end. `apply_changes` has one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, functions as sf
from pyspark.sql.types import StructType

from databus.client.spark.arrow.row_keys import (
    checked_keys,
    is_row,
    key_columns,
    meta_type,
    quoted,
    split_moves,
)
from databus.client.spark.arrow.row_types import CHANGE_COLUMN, NOT_APPLIED, SCHEMAS, taken_name
from databus.client.spark.consuming.order_modes import stages
from databus.client.spark.targets.changes import MARK_OPS, changes_of, snapshots_in
from databus.client.spark.targets.following import Following, Texts, key_in, widen
from databus.client.spark.targets.target import Applied, Target, check_same_source
from databus.schemas.errors import SettingsError

__all__ = ["Applied", "apply_changes", "key_columns", "latest_per_key", "rows_of", "stages"]

# Set by Spark on the thread that runs a query's batches.
_QUERY_ID = "sql.streaming.queryId"
# What of `_databus` is needed to apply a change.
_NEEDED = ("op", "scn", "index", "as_of", "source", "physical_source", "schema_version")


def rows_of(batch: DataFrame, source: str) -> DataFrame:
    """Return one source's changes with the table's columns at top level, then `_databus`.

    `batch` has one of the two layouts; of `columns` only the source's rows are
    taken. Raises SettingsError for a source that the batch has no column of.
    """
    mine = batch.where(sf.col(f"{CHANGE_COLUMN}.source") == source)
    structs = [field.name for field in batch.schema if is_row(field)]
    if not structs:
        return mine
    if source not in structs:
        raise SettingsError(f"source {source!r} is not in the batch; it has {', '.join(structs)}")
    meta = sf.col(CHANGE_COLUMN)
    if "before" in meta_type(batch).names:
        meta = meta.withField("before", sf.col(f"{CHANGE_COLUMN}.before.{quoted(source)}"))
    row = batch.schema[source].dataType
    assert isinstance(row, StructType)
    if taken := taken_name(source, row):
        raise SettingsError(f"{taken}: {NOT_APPLIED}")
    columns = [
        sf.col(f"{quoted(source)}.{quoted(field.name)}").alias(field.name, metadata=field.metadata)
        for field in row
    ]
    told = batch.schema[CHANGE_COLUMN].metadata
    return mine.select(*columns, meta.alias(CHANGE_COLUMN, metadata=told))


def latest_per_key(changes: DataFrame, keys: Sequence[str] | None = None) -> DataFrame:
    """Return the newest change of each key, in the columns that it had before.

    `changes`: one source's, or several of equal columns, as `rows_of` gives
    them. `keys`: the columns that make a row unique; without them the primary
    key. An update that moved a row to another key gives a delete of the old one,
    too, unless that has something newer. Truncates and ends of snapshots are all
    kept: a row that is older than one of its source has to give way to it.

    Raises SettingsError without keys.
    """
    keys = checked_keys(changes, keys)
    meta = sf.col(CHANGE_COLUMN)
    rows = split_moves(changes, [(key,) for key in keys], as_inserts=False)
    is_mark = meta["op"].isin(*MARK_OPS)
    place = sf.when(is_mark, sf.struct(meta["op"], meta["scn"], meta["index"]))
    # A row of a snapshot is what its window left, whichever change of it that was.
    index = sf.when(meta["op"] != "snapshot", meta["index"])
    newest = sf.struct(meta["scn"], sf.coalesce(index, sf.lit(2**31 - 1)))
    grouped = rows.groupBy(*(sf.col(quoted(key)) for key in keys), meta["source"], place)
    row = sf.struct(*(sf.col(quoted(name)) for name in rows.columns))
    picked = grouped.agg(sf.max_by(row, newest).alias("_picked"))
    return picked.select(
        *(
            sf.col(f"_picked.{quoted(field.name)}").alias(field.name, metadata=field.metadata)
            for field in changes.schema
        )
    )


def apply_changes(
    batch: DataFrame,
    batch_id: int,
    target: Target,
    *,
    keys: Sequence[str] | None = None,
    app_id: str | None = None,
    takes_over: bool = False,
) -> Applied:
    """Apply a batch of one source (or several of equal columns) to a table, once.

    The batch is read once and comes to the driver, which needs memory for one
    batch: `maxRowsPerTrigger` and `maxBytesPerTrigger` are the bound. (A
    batch with few keys is made small with `latest_per_key` before.) `keys`: the
    columns that make a row unique; without them those of the target, or the
    primary key. `app_id`: whose batch numbers these are, one for each checkpoint;
    without it the id of the streaming query that this runs in. `takes_over`: the
    target is the batch's source's from now on, whosever it was.

    Raises SettingsError for keys or an app_id that are not to be found and for a
    target that has the rows of another source, and what `Target.apply` raises.
    """
    app = app_id or _query_id(batch)
    last = target.applied(app)
    if last is not None and last >= batch_id:
        return Applied(is_skipped=True, positions=target.positions())
    table, key, source = _followed(batch, target, keys, takes_over=takes_over)
    changes = changes_of(table, key, source_column=target.source_column)
    changes = replace(changes, source=source)
    if last is None:
        # Begins with a snapshot, of a selection of its own: what others saw says nothing.
        for source in snapshots_in(table):
            target.forget_as_of(source)
    return target.apply(app, batch_id, changes)


def _followed(
    batch: DataFrame, target: Target, keys: Sequence[str] | None, *, takes_over: bool
) -> tuple[pa.Table, tuple[str, ...], str | None]:
    """Return the batch's rows as they fit the target, which follows their schema, and the key.

    Third, their source, where the target has no column of it.
    """
    schemas = schemas_of(batch)
    held = tuple(key for key in target.keys if key in batch.columns)
    known = {name for texts in schemas.values() for text in texts.values() for name in key_in(text)}
    key = checked_keys(batch, keys or held)
    images = [name for name in batch.columns if name in {*key, *held, *known}]
    table = _read(batch, images)
    sources = pc.unique(pc.struct_field(table[CHANGE_COLUMN], "source")).to_pylist()
    source = sources[0] if len(sources) == 1 and not target.source_column else None
    if source is not None and not takes_over:
        check_same_source(target, source)
    if source in schemas:
        return *Following(source, schemas[source], table).lead(target, keys), source
    widen(target, table, key)
    return table, key, source


def _read(batch: DataFrame, images: Sequence[str]) -> pa.Table:
    """Return a batch with what of `_databus` is needed, and these columns of images before."""
    names = meta_type(batch).names
    meta = [
        sf.col(f"{CHANGE_COLUMN}.{name}") if name in names else sf.lit(None).cast("int").alias(name)
        for name in _NEEDED
    ]
    if "before" in names:
        columns = (sf.col(f"{CHANGE_COLUMN}.before.{quoted(name)}") for name in images)
        before = sf.col(f"{CHANGE_COLUMN}.before")
        meta.append(sf.when(before.isNotNull(), sf.struct(*columns)).alias("before"))
    row = [sf.col(quoted(name)) for name in batch.columns if name != CHANGE_COLUMN]
    return batch.select(*row, sf.struct(*meta).alias(CHANGE_COLUMN)).toArrow()


def schemas_of(batch: DataFrame) -> dict[str, Texts]:
    """Return the schemas that a batch says its rows have, by source and version."""
    told = batch.schema[CHANGE_COLUMN].metadata.get(SCHEMAS, {})
    return {
        source: {int(number): text for number, text in texts.items()}
        for source, texts in told.items()
    }


def _query_id(batch: DataFrame) -> str:
    found = batch.sparkSession.sparkContext.getLocalProperty(_QUERY_ID)
    if not found:
        raise SettingsError(
            "whose batch this is cannot be found out, for no streaming query runs here: "
            "give app_id, one for each run of batches that are numbered together"
        )
    return str(found)
