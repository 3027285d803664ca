"""The rows of a window as an Arrow table: the columns and types of the Spark reader.

The table has the columns of the row, and `_databus`, which describes each change. Rows
are in the order of the window, each run of one schema version in record batches of its
own. Their common columns are those that `merged_columns` makes of the versions that
occur: a window of one version, which nearly all are, has the columns of that version.

The compiled `_column_decoder` decodes plain rows; the others, and all where it was not
built, are decoded here by the same rules. So are rows that are read with a schema of the
application's.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING

import pyarrow as pa

from databus.client.arrow.arrow_types import (
    CHANGE_COLUMN,
    HEAD_TYPES,
    KEY,
    SQL_TYPE,
    RowBatch,
    is_wider,
    stored_type,
)
from databus.client.arrow.batch_builder import BatchBuilder, decoded_rows, head_arrays
from databus.client.arrow.merged_columns import merged_columns
from databus.client.arrow.row_heads import HeadMaker, before_of, check_row, checked_metadata, op_of
from databus.client.subscription import SourceBinding
from databus.schemas.avro_rows import RowCodec
from databus.schemas.columns.avro_columns import AvroColumn, WriterSchema, columns_of
from databus.schemas.errors import SchemaError
from databus.schemas.event.event import MD5_BYTES
from databus.schemas.event.metadata import Op
from databus.schemas.stream.row_event import NO_ROW_DIGEST, ROW_DIGEST, RowEvent, wire_bytes
from databus.schemas.stream.stream_reader import decode_event

if TYPE_CHECKING:
    from databus.client.arrow._column_decoder import ColumnDecoder

try:
    from databus.client.arrow import _column_decoder as column_decoder
except ImportError:  # not built: every event is decoded here
    new_decoder = None
else:
    new_decoder = column_decoder.ColumnDecoder

_BATCH_BYTES = 64 << 20  # of events, in one record batch
_DIGEST_OF = itemgetter(ROW_DIGEST)


def table_of(events: Sequence[RowEvent], source: SourceBinding) -> pa.Table:
    """Return the rows of one source as a table; without rows, an empty one of the newest version.

    Raises ProtocolError for a row that cannot be decoded, RowError for one of which only
    some columns were logged, SchemaError for rows of versions that have no common type
    and for a table that has a column `_databus` itself.
    """
    versions = _Versions(source)
    digests = {digest for digest in map(_DIGEST_OF, events) if digest != NO_ROW_DIGEST}
    target = versions.target(digests)
    heads = HeadMaker()
    batches = [
        _batch(target, source.name, version, rows, columns)
        for digest, run in groupby(events, _DIGEST_OF)
        for version, columns, rows in versions.decode(digest, list(run), heads)
    ]
    return pa.Table.from_batches(batches, target)


class _Versions:
    """The schema versions of a source as this client reads them."""

    def __init__(self, source: SourceBinding) -> None:
        self._source = source
        self._texts = {schema.version: schema.text for schema in source.schemas}

    def target(self, digests: Iterable[bytes]) -> pa.Schema:
        """Return the schema of a table with rows of these versions; none = the newest."""
        numbers = {self._source.versions[digest] for digest in digests}
        schemas = [self._schema(number) for number in sorted(numbers or {max(self._texts)})]
        newest, dropped = merged_columns(schemas)
        row = [_field(column) for column in newest]
        row += [_field(column._replace(key=None)) for column in dropped]
        if any(field.name == CHANGE_COLUMN for field in row):
            raise SchemaError(f"{self._source.name} has a column {CHANGE_COLUMN!r} itself")
        return pa.schema([*row, pa.field(CHANGE_COLUMN, _change_type(row))])

    def _schema(self, number: int) -> WriterSchema:
        """Return the schema in which rows of a version are read."""
        text = self._codec(number).text
        return WriterSchema(self._source.name, self._source.src_id, number, text)

    def _codec(self, number: int) -> RowCodec:
        return next(
            self._source.codecs[digest]
            for digest, version in self._source.versions.items()
            if version == number
        )

    def decode(
        self, digest: bytes, events: Sequence[RowEvent], heads: HeadMaker
    ) -> Iterator[tuple[int | None, tuple[AvroColumn, ...], RowBatch]]:
        """Yield version, columns and rows of events with one schema digest, in order."""
        if digest == NO_ROW_DIGEST:
            yield None, (), _truncates(events, heads)
            return
        number, codec = self._source.versions[digest], self._source.codecs[digest]
        columns = columns_of(self._schema(number))
        decoder, plan = None, 0
        # The compiled decoder knows digests of 16 bytes, and no schema but the writer's.
        if (
            new_decoder is not None
            and len(digest) == MD5_BYTES
            and codec.text == self._texts[number]
        ):
            decoder = new_decoder(
                has_before=True,
                as_snapshot=False,
                batch_rows=len(events) + 1,
                batch_bytes=_BATCH_BYTES,
            )
            plan = decoder.add(self._source.src_id, digest, columns)
        builder = BatchBuilder(codec.with_numbers, columns)
        for rows in _decoded(events, self._source.name, decoder, plan, builder, columns, heads):
            yield number, columns, rows


def _decoded(
    events: Sequence[RowEvent],
    source: str,
    decoder: ColumnDecoder | None,
    plan: int,
    builder: BatchBuilder,
    columns: tuple[AvroColumn, ...],
    heads: HeadMaker,
) -> Iterator[RowBatch]:
    data = b"".join(map(wire_bytes, events))
    offset, end = 0, len(data)
    while offset < end:
        if decoder is not None:
            # Rows are numbered within their windows; which SCN is open does not matter here.
            offset = decoder.take(data, offset, -1, True)[0]
            if decoder.rows(plan):
                if builder.rows:
                    yield builder.finish()
                yield decoded_rows(decoder, plan, columns)
                continue
        event, after = decode_event(data, offset)
        metadata = checked_metadata(event)
        row = check_row(event, metadata)
        before = before_of(metadata, source, columns, event.scn)
        head = heads.head(event, metadata, op_of(event, metadata))
        builder.append(head, row.data, before, after - offset)
        offset = after
        if builder.size_bytes >= _BATCH_BYTES:
            yield builder.finish()
    if builder.rows:
        yield builder.finish()


def _truncates(events: Sequence[RowEvent], heads: HeadMaker) -> RowBatch:
    decoded = [decode_event(wire_bytes(event), 0)[0] for event in events]
    made = [heads.head(event, checked_metadata(event), Op.TRUNCATE) for event in decoded]
    return RowBatch(len(made), head_arrays(made), [], None, None)


def _batch(
    target: pa.Schema,
    source: str,
    version: int | None,
    rows: RowBatch,
    columns: Sequence[AvroColumn],
) -> pa.RecordBatch:
    """Return rows as a record batch of the target."""
    change: pa.StructType = target.field(CHANGE_COLUMN).type
    before: pa.StructType = change.field("before").type
    fields = [field for field in target if field.name != CHANGE_COLUMN]
    n = rows.rows
    told = {
        **dict(zip(HEAD_TYPES, rows.head, strict=True)),
        "source": pa.repeat(pa.scalar(source, pa.string()), n),
        "schema_version": pa.repeat(pa.scalar(version, pa.int32()), n),
        "before": pa.nulls(n, before)
        if rows.before is None
        else pa.Array.from_buffers(
            before,
            n,
            [rows.before_valid],
            children=_cast(fields, source, columns, rows.before, n),
        ),
    }
    described = pa.Array.from_buffers(
        change, n, [None], 0, children=[told[field.name] for field in change]
    )
    return pa.RecordBatch.from_arrays(
        [*_cast(fields, source, columns, rows.row, n), described], schema=target
    )


def _cast(
    fields: Sequence[pa.Field],
    source: str,
    columns: Sequence[AvroColumn],
    arrays: Sequence[pa.Array],
    n: int,
) -> list[pa.Array]:
    """Return the arrays of `columns` as those of `fields`: other columns are null."""
    held: Mapping[str, pa.Array] = {
        column.name.lower(): array for column, array in zip(columns, arrays, strict=False)
    }
    cast = []
    for field in fields:
        array = held.get(field.name.lower())
        if array is None:
            array = pa.nulls(n, field.type)
        elif array.type != field.type:
            if not is_wider(array.type, field.type):
                raise SchemaError(
                    f"{source}, column {field.name!r}: rows of one window have {array.type} and "
                    f"{field.type}, and no type holds both: take to_pylist() or the events"
                )
            array = array.cast(field.type)
        cast.append(array)
    return cast


def _field(column: AvroColumn) -> pa.Field:
    metadata = {} if column.key is None else {KEY: str(column.key)}
    if column.sql_type:
        metadata[SQL_TYPE] = column.sql_type
    return pa.field(column.name, stored_type(column), metadata=metadata or None)


def _change_type(row: Sequence[pa.Field]) -> pa.StructType:
    """Return the type of `_databus`: Spark's, without what only a Spark query has."""
    told = list(HEAD_TYPES.items())
    told[4:4] = [("source", pa.string()), ("schema_version", pa.int32())]
    plain = [field.remove_metadata() for field in row]
    return pa.struct([*told, ("before", pa.struct(plain))])
