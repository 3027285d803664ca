"""Build a `RowBatch` from rows of one schema version, in Python or from compiled buffers.

The Python builder handles every row: rows with notes, rows from relays that send
no metadata, types that the compiled `_column_decoder` skips, and all rows if that
module was not built.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import time
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import pyarrow as pa

from databus.client.arrow.arrow_types import (
    HEAD_TYPES,
    RowBatch,
    stored_type,
    wide_decimal_text,
)
from databus.schemas.columns.any_text import any_text
from databus.schemas.columns.avro_columns import AvroColumn, Kind
from databus.schemas.errors import ProtocolError
from databus.schemas.stream.packs import Buffers as PackedBuffers

if TYPE_CHECKING:
    from databus.client.arrow._column_decoder import Buffers, ColumnDecoder

    AnyBuffers = Buffers | PackedBuffers


class Head(NamedTuple):
    """The fields of one row's `_databus`. `time_us` is since the epoch."""

    op: str
    scn: int
    row_index: int | None  # in its window
    time_us: int | None
    gtid: str | None


class RowDecoder(Protocol):
    """Reads a row's bytes as values by column name, as a `RowCodec` does."""

    def decode(self, data: bytes) -> Mapping[str, Any]:
        """Return a row's values; raises ProtocolError."""
        ...


class BatchBuilder:
    """Collects rows. `columns` are those of `codec`'s schema, in its order."""

    def __init__(self, codec: RowDecoder, columns: tuple[AvroColumn, ...]) -> None:
        self._codec = codec
        self._columns = columns
        self._nulls = [None] * len(columns)
        self._begin()

    def _begin(self) -> None:
        self.rows = 0
        self.size_bytes = 0
        self._heads: list[Head] = []
        self._row: list[list[Any]] = [[] for _ in self._columns]
        self._before: list[list[Any]] = [[] for _ in self._columns]
        self._has_before: list[bool] = []

    def append(self, head: Head, row: bytes, before: bytes | None, size_bytes: int) -> None:
        """Add a row from its Avro bytes; if that raises ProtocolError, the row is not added.

        `size_bytes` is only counted.
        """
        # Decoded before anything is added: a row that fails leaves the batch as it was.
        values = self._values(row)
        values_before = None if before is None else self._values(before)
        self._heads.append(head)
        self._has_before.append(values_before is not None)
        for column, value in zip(self._row, values, strict=True):
            column.append(value)
        for column, value in zip(self._before, values_before or self._nulls, strict=True):
            column.append(value)
        self.rows += 1
        self.size_bytes += size_bytes

    def _values(self, data: bytes) -> list[Any]:
        row = self._codec.decode(data)
        return [_stored(column, row[column.name]) for column in self._columns]

    def finish(self) -> RowBatch:
        """Return the collected rows, and start an empty batch."""
        has_before, valid = any(self._has_before), None
        if has_before and not all(self._has_before):
            valid = pa.array(self._has_before, pa.bool_()).buffers()[1]
        batch = RowBatch(
            self.rows,
            head_arrays(self._heads),
            self._arrays(self._row),
            self._arrays(self._before) if has_before else None,
            valid,
        )
        self._begin()
        return batch

    def _arrays(self, columns: list[list[Any]]) -> list[pa.Array]:
        return [
            pa.array(values, stored_type(column))
            for column, values in zip(self._columns, columns, strict=True)
        ]


def head_arrays(heads: list[Head]) -> tuple[pa.Array, ...]:
    """Return the heads as columns of HEAD_TYPES."""
    columns = zip(*heads, strict=True) if heads else ((),) * len(HEAD_TYPES)
    return tuple(
        pa.array(values, data_type)
        for values, data_type in zip(columns, HEAD_TYPES.values(), strict=True)
    )


def decoded_rows(decoder: ColumnDecoder, number: int, columns: tuple[AvroColumn, ...]) -> RowBatch:
    """Return the rows of the decoder's plan `number`, without copying its buffers."""
    rows, head, row, before, before_valid = decoder.finish(number)
    return RowBatch(
        rows,
        tuple(map(_array, HEAD_TYPES.values(), [rows] * len(head), head)),
        arrays_of(columns, rows, row),
        None if before is None else arrays_of(columns, rows, before),
        None if before_valid is None else pa.py_buffer(before_valid),
    )


def arrays_of(
    columns: tuple[AvroColumn, ...], rows: int, decoded: Sequence[AnyBuffers]
) -> list[pa.Array]:
    """Return the arrays of columns, in the writer's types, from their buffers."""
    return [
        _wide_decimals(column, _array(pa.binary(), rows, buffers))
        if column.kind is Kind.WIDE_DECIMAL
        else _array(stored_type(column), rows, buffers)
        for column, buffers in zip(columns, decoded, strict=True)
    ]


def _array(data_type: pa.DataType, rows: int, buffers: AnyBuffers) -> pa.Array:
    valid, offsets, values = buffers
    held = [None if valid is None else pa.py_buffer(valid)]
    if offsets is not None:
        held.append(pa.py_buffer(offsets))
    held.append(pa.py_buffer(values))
    # -1: Arrow counts the nulls when it needs their number.
    return pa.Array.from_buffers(data_type, rows, held, 0 if valid is None else -1)


def _wide_decimals(column: AvroColumn, array: pa.Array) -> pa.Array:
    texts = [
        None if data is None else wide_decimal_text(data, column.scale)
        for data in array.to_pylist()
    ]
    return pa.array(texts, pa.string())


def _stored(column: AvroColumn, value: Any) -> Any:
    """Return a value in the column's Arrow type; raises ProtocolError if it does not fit."""
    if value is None:
        return None
    if column.kind in (Kind.ANY, Kind.WIDE_DECIMAL):
        return any_text(value)
    if column.kind is Kind.TIME and isinstance(value, time):  # from another project's relay
        seconds = (value.hour * 60 + value.minute) * 60 + value.second
        return seconds * 1_000_000 + value.microsecond
    if column.kind is Kind.DECIMAL:
        # Avro does not limit the digits; here the error can name the column.
        fits = not value or value.adjusted() < column.precision - column.scale
    elif (bits := _BITS.get(column.kind)) is not None:
        fits = -(1 << bits - 1) <= value < 1 << bits - 1
    else:
        fits = True
    if not fits:
        raise ProtocolError(
            f"column {column.name!r} has {value}, which does not fit {column.type_text}"
        )
    return value


_BITS = {Kind.INT: 32, Kind.LONG: 64, Kind.TIME: 64}
