"""Split a batch of many tables into a DataFrame for each, with the table's own columns.

book = SchemaBook.of(["http://127.0.0.1:11115"])

def consume(batch, batch_id):
    batch.persist()
    for source, changes in split_by_source(batch, book).items():
        apply_changes(changes, batch_id, targets[source])
    batch.unpersist()

spark.readStream.format("databus").options(…).load("shop.*").writeStream.foreachBatch(consume)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import pyarrow as pa
from pyspark.sql import DataFrame, functions as sf
from pyspark.sql.types import StructType

from databus.client.spark.arrow.event_rows import EVENT, events_schema
from databus.client.spark.arrow.row_keys import quoted
from databus.client.spark.arrow.row_types import (
    CHANGE_COLUMN,
    SCHEMAS,
    arrow_schema,
    changes_schema,
    row_schema,
)
from databus.client.spark.arrow.unpacked_events import unpacked
from databus.client.spark.consuming.schema_book import SchemaBook
from databus.schemas.columns.avro_columns import WriterSchema
from databus.schemas.errors import ReadAgainError, SchemaNotFoundError, SettingsError


def split_by_source(
    batch: DataFrame, book: SchemaBook, as_text: Sequence[str] = ()
) -> dict[str, DataFrame]:
    """Return the changes of each source in a batch of layout `events`, as `rows_of` does.

    The columns are those that all versions in use, and later ones, have in common types;
    `as_text`: columns to read as strings. Events are decoded by the tasks. The batch is
    read once to learn its sources: persist it first. Raises SettingsError for a batch of
    another layout, SchemaNotFoundError for a version that the servers do not list,
    SchemaError if no type holds all versions of a column.
    """
    if batch.columns != events_schema().names:
        raise SettingsError(
            "split_by_source needs a batch of layout events, as patterns have it; use rows_of"
        )
    used = versions_in(batch)
    return {name: of_source(batch, name, used[name], book, as_text) for name in sorted(used)}


def versions_in(batch: DataFrame) -> dict[str, set[int]]:
    """Return the sources in a batch, and the schema versions of their rows; reads the batch."""
    told = sf.col(CHANGE_COLUMN)
    used: dict[str, set[int]] = {}
    for row in batch.select(told["source"], told["schema_version"]).distinct().collect():
        used.setdefault(row[0], set()).update(() if row[1] is None else (row[1],))
    return used


def of_source(
    batch: DataFrame,
    source: str,
    used: set[int],
    book: SchemaBook,
    as_text: Sequence[str] = (),
) -> DataFrame:
    """Return the changes of one source, whose rows have the versions `used`; no action."""
    versions = book.versions(source, used)
    if missing := used - {one.version for one in versions}:
        raise SchemaNotFoundError(
            f"no server lists schema version {min(missing)} of {source}: try again later"
        )
    first = min(used, default=0)
    columns = row_schema([one for one in versions if one.version >= first], as_text)
    schema = changes_schema({source: columns}, "columns")
    mine = batch.where(sf.col(f"{CHANGE_COLUMN}.source") == source)
    rows = mine.mapInArrow(_decoder(versions, schema, as_text), schema)
    # With these texts `apply_changes` converts rows of older versions.
    texts = {SCHEMAS: {source: {str(one.version): one.text for one in versions}}}
    metadata = {field.name: field.metadata for field in schema} | {CHANGE_COLUMN: texts}
    return rows.select(
        *(sf.col(quoted(name)).alias(name, metadata=metadata[name]) for name in schema.names)
    )


def _decoder(
    versions: Sequence[WriterSchema], schema: StructType, as_text: Sequence[str]
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return what decodes a task's events."""

    def decode(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        target = arrow_schema(schema)
        for batch in batches:
            events = pa.Table.from_batches([batch]).select([EVENT, CHANGE_COLUMN])
            try:
                rows = unpacked(events, versions, as_text)
            except SchemaNotFoundError as error:
                # The block of a lost executor is read again; rows of a snapshot then come in
                # the columns of now.
                raise ReadAgainError(f"the batch was read again in part: {error}") from error
            # A task may have only newer versions than the batch, whose types may be smaller.
            missing = [field for field in target if field.name not in rows.column_names]
            for field in missing:
                rows = rows.append_column(field, pa.nulls(rows.num_rows, field.type))
            yield from rows.select(target.names).cast(target).to_batches()

    return decode
