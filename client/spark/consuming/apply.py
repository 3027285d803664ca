"""Functions for foreachBatch consumers: select a source's changes, and apply them to a target.

    def consume(batch, batch_id):
        apply_changes(rows_of(batch, "shop.orders"), batch_id, orders)
        apply_changes(rows_of(batch, "shop.person"), batch_id, person)

    orders, person = open_target("delta:/lake/orders"), open_target("delta:/lake/person")
    changes.writeStream.foreachBatch(consume).start()

Each Spark action on a batch reads it from the relay again. For several actions,
persist the batch first and unpersist it at the end. `apply_changes` is one action.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import partial
from typing import NamedTuple

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
from databus.client.spark.consuming.order_modes import ordered_groups
from databus.client.spark.session import is_connect
from databus.client.spark.targets.changes import (
    MARK_OPS,
    META,
    check_keys,
    check_names,
    check_sources,
    marks_in,
    positions_in,
    snapshots_in,
)
from databus.client.spark.targets.commit_log import CommitLog
from databus.client.spark.targets.executors import (
    ChangesFrame,
    Digest,
    Flatten,
    digest_of,
    flattened,
    persisted,
    unchanged,
)
from databus.client.spark.targets.following import SchemaFollower, Texts, key_in, widen
from databus.client.spark.targets.target import (
    Applied,
    Target,
    check_same_source,
    whole_key,
)
from databus.client.sql.modes import WriteMode
from databus.schemas.errors import SettingsError

__all__ = ["Applied", "apply_changes", "key_columns", "latest_per_key", "ordered_groups", "rows_of"]

# Set by Spark on the thread that runs a query's batches.
_QUERY_ID = "sql.streaming.queryId"
# The fields of `_databus` that are needed to apply a change; in other modes also its time.
_NEEDED = ("op", "scn", "index", "as_of", "source", "physical_source", "schema_version")


def rows_of(batch: DataFrame, source: str) -> DataFrame:
    """Return one source's changes with the table's columns at top level, then `_databus`.

    `batch` may have either layout. Raises SettingsError if layout `structs` has no
    column for the source.
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
    schemas = batch.schema[CHANGE_COLUMN].metadata
    return mine.select(*columns, meta.alias(CHANGE_COLUMN, metadata=schemas))


def latest_per_key(changes: DataFrame, keys: Sequence[str] | None = None) -> DataFrame:
    """Return the newest change of each key, with the same columns.

    `changes`: of one source, or of several with equal columns, as from `rows_of`.
    `keys`: the columns that make a row unique; the default is the primary key. An
    update that changed the key also yields a delete of the old key, unless that has
    a newer change. All truncates and ends of snapshots are kept, as they remove older
    rows.

    Raises SettingsError without keys.
    """
    keys = checked_keys(changes, keys)
    meta = sf.col(CHANGE_COLUMN)
    rows = split_moves(changes, [(key,) for key in keys], as_inserts=False)
    is_mark = meta["op"].isin(*MARK_OPS)
    place = sf.when(is_mark, sf.struct(meta["op"], meta["scn"], meta["index"]))
    # A snapshot row is the state at the end of its window, so it counts as the last change.
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
    """Apply a batch of one source (or of several with equal columns) to a table, exactly once.

    The batch is read once, and collected on the driver, which needs memory for one batch:
    `maxRowsPerTrigger` and `maxBytesPerTrigger` limit it. (`latest_per_key` shrinks a batch with
    few keys before.) A target of the form `delta+spark:` merges it on the executors instead.
    `keys`: the columns that make a row unique; the default is the target's key, or the primary
    key. `app_id` identifies the sequence of batch numbers, one for each checkpoint; the default is
    the id of the streaming query that runs the function; on Spark Connect, which does not tell it,
    it must be given. `takes_over`: the target belongs to the batch's source from now on, even if
    it has another source's rows; a snapshot that an app begins with replaces rows of any SCN.

    Raises SettingsError without keys or app_id, for columns whose names the target has itself,
    and for a target with the rows of another source; also the errors of `Target.apply`.
    """
    app = app_id or _app_id(batch)
    commit_log = target.commit_log()
    is_new = commit_log.applied(app) is None
    names = (name for name in batch.columns if name != CHANGE_COLUMN)
    check_names(names, target.mode, ", ".join(schemas_of(batch)) or "the source")
    # Asked for once, as a target may ask a catalog.
    held = tuple(key for key in target.keys if key in batch.columns)
    key = _key_of(batch, keys or held, target.mode)
    # A row of a history is of a delete, too, and has all of it.
    images = {*key, *held} if target.mode.has_keys else set(batch.columns)
    whole = _narrowed(batch, images, target.mode)
    if not target.merges_on_executors:
        table = whole.toArrow()
        if (done := skipped(commit_log, app, batch_id, table)) is not None:
            return done
        followed = _followed(batch, table, target, keys, key, takes_over=takes_over)
        changes = target.changes_of(followed.rows, followed.keys, followed.source)
        forget_as_of(target, table, is_new=is_new, takes_over=takes_over)
        return target.apply(app, batch_id, changes)
    with persisted(whole) as kept:
        digest = digest_of(kept)
        if (done := skipped(commit_log, app, batch_id, digest.batch)) is not None:
            return done
        followed = _followed(batch, digest.batch, target, keys, key, takes_over=takes_over)
        forget_as_of(target, digest.batch, is_new=is_new, takes_over=takes_over)
        frame = _frame(kept, digest, followed, source_column=target.source_column)
        return target.apply(app, batch_id, frame)


def skipped(commit_log: CommitLog, app_id: str, batch_id: int, batch: pa.Table) -> Applied | None:
    """Return what applying a batch does that a target has: Spark repeats one after a restart."""
    if not commit_log.has_all(app_id, batch_id, positions_in(batch)):
        return None
    return Applied(is_skipped=True, positions=commit_log.positions())


def forget_as_of(
    target: Target, batch: pa.Table, *, is_new: bool, takes_over: bool = False
) -> None:
    """Clear the as-of SCNs of sources whose snapshot a new checkpoint begins with.

    Its rows may be another selection: as-of SCNs that other checkpoints have set prove nothing.
    Rows that it takes over may be of another log, so their SCNs are cleared, too.
    """
    for source in snapshots_in(batch) if is_new else ():
        target.forget_as_of(source, also_scn=takes_over)


class _Followed(NamedTuple):
    """Rows converted for the target, which was reshaped to them, and how others are converted.

    The source is None if the target has a column for it.
    """

    rows: pa.Table
    keys: tuple[str, ...]
    source: str | None
    convert: Flatten = unchanged


def _frame(
    kept: DataFrame, digest: Digest, followed: _Followed, *, source_column: bool
) -> ChangesFrame:
    """Return a batch on the executors as changes, given its digest and what that was turned to."""
    check_sources(digest.batch, source_column)
    check_keys(followed.keys, [name for name in followed.rows.column_names if name != META])
    scns = pc.struct_field(digest.batch[CHANGE_COLUMN], "scn")
    return ChangesFrame(
        batch=kept,
        flatten=partial(flattened, convert=followed.convert, keys=followed.keys),
        columns=pa.schema([field for field in followed.rows.schema if field.name != META]),
        keys=whole_key(followed.keys, source_column),
        marks=marks_in(digest.batch),
        positions=positions_in(digest.batch),
        newest_scn=pc.max(scns).as_py() or -1,
        source=followed.source,
        count=digest.changes,
    )


def _key_of(batch: DataFrame, keys: Sequence[str], mode: WriteMode) -> tuple[str, ...]:
    return checked_keys(batch, keys) if mode.has_keys else tuple(keys) or key_columns(batch.schema)


def _narrowed(batch: DataFrame, keys: Collection[str], mode: WriteMode) -> DataFrame:
    """Return a batch with what is needed to apply it.

    Of before images only the columns that are in the key, now or in some version.
    """
    texts = [text for versions in schemas_of(batch).values() for text in versions.values()]
    images = {*keys, *(name for text in texts for name in key_in(text))}
    fields = _NEEDED if mode is WriteMode.MIRROR else (*_NEEDED, "time")
    columns = [name for name in batch.columns if name in images and name != CHANGE_COLUMN]
    return _needed(batch, columns, fields)


def _followed(
    batch: DataFrame,
    table: pa.Table,
    target: Target,
    keys: Sequence[str] | None,
    key: tuple[str, ...],
    *,
    takes_over: bool,
) -> _Followed:
    """Reshape the target to the schema of a batch's rows, and convert them.

    `table`: the rows, or their digest. `keys`: those that the caller gave; `key`: those
    of the target or of the batch where none were given.
    """
    schemas = schemas_of(batch)
    sources = pc.unique(pc.struct_field(table[CHANGE_COLUMN], "source")).to_pylist()
    source = sources[0] if len(sources) == 1 and not target.source_column else None
    if source is not None and not takes_over:
        check_same_source(target, source)
    if source in schemas:
        follower = SchemaFollower(source, schemas[source], table)
        rows, key = follower.lead(target, keys)
        return _Followed(rows, key, source, follower.converted)
    widen(target, table, key)
    return _Followed(table, key, source)


def _needed(batch: DataFrame, images: Sequence[str], fields: Sequence[str]) -> DataFrame:
    """Return a batch with the needed fields of `_databus`, and these columns of before images."""
    names = meta_type(batch).names
    meta = [
        sf.col(f"{CHANGE_COLUMN}.{name}")
        if name in names
        else sf.lit(None).cast("timestamp" if name == "time" else "int").alias(name)
        for name in fields
    ]
    if "before" in names:
        columns = (sf.col(f"{CHANGE_COLUMN}.before.{quoted(name)}") for name in images)
        before = sf.col(f"{CHANGE_COLUMN}.before")
        meta.append(sf.when(before.isNotNull(), sf.struct(*columns)).alias("before"))
    row = [sf.col(quoted(name)) for name in batch.columns if name != CHANGE_COLUMN]
    return batch.select(*row, sf.struct(*meta).alias(CHANGE_COLUMN))


def schemas_of(batch: DataFrame) -> dict[str, Texts]:
    """Return the schemas in a batch's metadata, by source and version."""
    schemas = batch.schema[CHANGE_COLUMN].metadata.get(SCHEMAS, {})
    return {
        source: {int(number): text for number, text in texts.items()}
        for source, texts in schemas.items()
    }


def query_id(batch: DataFrame) -> str:
    """Return the id of the streaming query that a batch is of; "" where Spark does not tell it."""
    session = batch.sparkSession
    return "" if is_connect(session) else session.sparkContext.getLocalProperty(_QUERY_ID) or ""


def _app_id(batch: DataFrame) -> str:
    if found := query_id(batch):
        return found
    if is_connect(batch.sparkSession):
        raise SettingsError(
            "on Spark Connect a batch does not tell its query: give apply_changes app_id, a name "
            "for each checkpoint folder, such as its path, that never changes"
        )
    raise SettingsError(
        "no streaming query runs here, so the batch's application is not known: give app_id, "
        "one for each sequence of batch numbers"
    )
