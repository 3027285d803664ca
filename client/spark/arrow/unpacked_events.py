"""Decode rows that stayed whole events (`event_rows`) into the columns of their source."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from databus.client.spark.arrow.event_batches import EventBatches
from databus.client.spark.arrow.event_rows import EVENT
from databus.client.spark.arrow.row_types import (
    CHANGE_COLUMN,
    arrow_schema,
    changes_schema,
    row_schema,
)
from databus.schemas.columns.avro_columns import WriterSchema
from databus.schemas.errors import ProtocolError, SchemaNotFoundError

# Events that are decoded at once: Arrow's offsets have 32 bits.
_MOST_BYTES = 256 << 20


def unpacked(
    events: pa.Table,
    schemas: Sequence[WriterSchema],
    as_text: Collection[str] = (),
    first: int | None = None,
) -> pa.Table:
    """Return rows of one source in the source's columns, then `_databus` with `before`.

    `events` has the columns of `events_schema()`; rows are grouped by schema version,
    in the order of `events` within it. `schemas`: the known versions of the source;
    columns have the types that hold the versions from `first` on, by default the oldest
    one in use. Raises SchemaNotFoundError for a version that is not among them;
    SchemaError if no type holds all versions in use.
    """
    versions = pc.struct_field(events[CHANGE_COLUMN].combine_chunks(), "schema_version")
    used = {number for number in pc.unique(versions).to_pylist() if number is not None}
    known = {schema.version: schema for schema in schemas}
    if missing := sorted(used - known.keys()):
        source = pc.struct_field(events[CHANGE_COLUMN], "source")[0].as_py()
        raise SchemaNotFoundError(f"no schema version {missing[0]} of {source} is known yet")
    # From the oldest version in use on: the newest names the columns, and the key.
    first = min(used, default=0) if first is None else first
    merged = [known[number] for number in sorted(known) if number >= first]
    source = merged[-1].source
    target = arrow_schema(changes_schema({source: row_schema(merged, as_text)}, "columns"))
    parts = [_marks(events.filter(pc.is_null(versions)), target)]
    for number in sorted(used):
        rows = events.filter(pc.equal(versions, number))
        parts += [_decoded(part, known[number], merged, target, as_text) for part in _cut(rows)]
    return pa.concat_tables([part for part in parts if part.num_rows] or parts[:1])


def _cut(rows: pa.Table) -> Iterator[pa.Table]:
    """Yield rows in parts whose events can be decoded at once."""
    if rows.num_rows < 2 or rows[EVENT].nbytes <= _MOST_BYTES:
        yield rows
        return
    half = rows.num_rows // 2
    yield from _cut(rows.slice(0, half))
    yield from _cut(rows.slice(half))


def _marks(rows: pa.Table, target: pa.Schema) -> pa.Table:
    """Return marks (truncates, ends of snapshots) with null columns."""
    arrays = [
        _change(rows[CHANGE_COLUMN].combine_chunks(), None, field.type)
        if field.name == CHANGE_COLUMN
        else pa.nulls(rows.num_rows, field.type)
        for field in target
    ]
    return pa.table(arrays, schema=target)


def _decoded(
    rows: pa.Table,
    schema: WriterSchema,
    known: Sequence[WriterSchema],
    target: pa.Schema,
    as_text: Collection[str],
) -> pa.Table:
    batches = EventBatches(
        target,
        known,
        physical_source="",
        layout="columns",
        as_text=as_text,
        batch_rows=max(1, rows.num_rows),
    )
    data = b"".join(rows[EVENT].to_pylist())
    taken = batches.take(data)
    found = pa.Table.from_batches(batches.flush(), target)
    if taken != len(data) or found.num_rows != rows.num_rows:
        raise ProtocolError(
            f"{schema.source}: {rows.num_rows} events of {len(data)} bytes were read as "
            f"{found.num_rows} rows of {taken} bytes"
        )
    change = _change(
        rows[CHANGE_COLUMN].combine_chunks(),
        pc.struct_field(found[CHANGE_COLUMN].combine_chunks(), "before"),
        target.field(CHANGE_COLUMN).type,
    )
    return found.set_column(target.names.index(CHANGE_COLUMN), target.field(CHANGE_COLUMN), change)


def _change(
    told: pa.StructArray, before: pa.StructArray | None, kind: pa.StructType
) -> pa.StructArray:
    """Return `_databus` with a before image; rows of a snapshot have none."""
    if before is None:
        before = pa.nulls(len(told), kind.field("before").type)
    is_update = pc.fill_null(pc.equal(pc.struct_field(told, "op"), "update"), False)
    before = pc.if_else(is_update, before, pa.scalar(None, before.type))
    arrays = [
        before if field.name == "before" else pc.struct_field(told, field.name) for field in kind
    ]
    return pa.StructArray.from_arrays(arrays, fields=list(kind))
