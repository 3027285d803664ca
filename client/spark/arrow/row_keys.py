"""The keys of a DataFrame of changes, and updates that change a row's key."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from operator import or_

from pyspark.sql import Column, DataFrame, functions as sf
from pyspark.sql.types import StructField, StructType

from databus.client.arrow.arrow_types import NO_KEYS
from databus.client.spark.arrow.row_types import CHANGE_COLUMN, KEY
from databus.schemas.errors import SettingsError

# The path of a key column: its name, or in layout `structs` the source's name and its own.
Path = tuple[str, ...]


def key_columns(schema: StructType) -> tuple[str, ...]:
    """Return the primary key's columns in the key's order; () without a primary key."""
    keyed = [field for field in schema if KEY in field.metadata]
    return tuple(field.name for field in sorted(keyed, key=lambda field: field.metadata[KEY]))


def checked_keys(changes: DataFrame, keys: Sequence[str] | None) -> tuple[str, ...]:
    """Return the given keys, or else the primary key; raises SettingsError if there is neither."""
    found = tuple(keys or key_columns(changes.schema))
    if not found:
        raise SettingsError(NO_KEYS)
    missing = [key for key in found if key not in changes.columns]
    if missing:
        raise SettingsError(
            f"key column {', '.join(map(repr, missing))} is not in the batch; it has "
            f"{', '.join(changes.columns)} (select one of several sources with rows_of)"
        )
    return found


def key_paths(changes: DataFrame, keys: Sequence[str] | None = None) -> list[Path]:
    """Return the paths of all sources' key columns, in either layout.

    `keys` applies to layout `columns`. Raises SettingsError for a source without a key.
    """
    structs = [field for field in changes.schema if is_row(field)]
    if not structs:
        return [(key,) for key in checked_keys(changes, keys)]
    return [
        (field.name, key)
        for field in structs
        for key in checked_keys(changes.select(f"{quoted(field.name)}.*"), None)
    ]


def split_moves(changes: DataFrame, keys: Sequence[Path], *, as_inserts: bool) -> DataFrame:
    """Add a delete of the old key to each update that changes the key.

    `as_inserts`: the update then becomes an insert of the new key.
    """
    if "before" not in meta_type(changes).names:
        return changes
    meta = sf.col(CHANGE_COLUMN)
    before = meta["before"]
    # The image belonged to the update; the two rows that replace it have none.
    no_image = sf.lit(None).cast(meta_type(changes)["before"].dataType)
    moved = [~reduce(Column.getField, key, before).eqNullSafe(at(key)) for key in keys]
    is_moved = (meta["op"] == "update") & before.isNotNull() & reduce(or_, moved)
    gone = meta.withField("op", sf.lit("delete")).withField("before", no_image)
    come = meta.withField("op", sf.lit("insert")).withField("before", no_image)
    names = [name for name in changes.columns if name != CHANGE_COLUMN]
    row = [sf.col(quoted(name)) for name in names]
    now = sf.struct(*row, meta.alias(CHANGE_COLUMN))
    new = sf.struct(*row, come.alias(CHANGE_COLUMN)) if as_inserts else now
    old = sf.struct(
        *(before.getField(name).alias(name) for name in names), gone.alias(CHANGE_COLUMN)
    )
    parts = sf.when(is_moved, sf.array(old, new)).otherwise(sf.array(now))
    return changes.select(sf.explode(parts).alias("_row")).select("_row.*")


def meta_type(changes: DataFrame) -> StructType:
    """Return the type of `_databus`; raises SettingsError for a DataFrame without it."""
    if CHANGE_COLUMN not in changes.columns:
        raise SettingsError(
            f"no column {CHANGE_COLUMN}: these are not changes from format('databus')"
        )
    meta = changes.schema[CHANGE_COLUMN].dataType
    assert isinstance(meta, StructType)
    return meta


def is_row(field: StructField) -> bool:
    """Return whether a column is the row of one source, as in layout `structs`."""
    return isinstance(field.dataType, StructType) and field.name != CHANGE_COLUMN


def at(path: Path) -> Column:
    """Return the column at a path."""
    return reduce(Column.getField, path[1:], sf.col(quoted(path[0])))


def quoted(name: str) -> str:
    """Return a name as a quoted identifier of Spark SQL, whatever characters it has."""
    return f"`{name.replace('`', '``')}`"
