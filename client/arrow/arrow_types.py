"""The Arrow types of columns, and what a decoder yields: a `RowBatch` of the writer's own types."""

from __future__ import annotations

from decimal import Context, Decimal
from typing import Final, NamedTuple

import pyarrow as pa

from databus.schemas.columns.avro_columns import AvroColumn, Kind

CHANGE_COLUMN: Final = "_databus"  # the column that describes the change
KEY: Final = "databus.key"  # in a field's metadata: its place in the primary key, from 0
SQL_TYPE: Final = "databus.sqlType"  # in a field's metadata: the column's SQL type

# The end of the message for a table that cannot be followed.
LEAVE_OUT: Final = "leave the table out (among patterns: '!schema.table')"
NO_KEYS: Final = (
    "no key columns: the source has no known primary key, by which a target would find a row. "
    "Give the table a primary key, or follow it into a target of mode append_history, which has "
    f"a row for each change; or {LEAVE_OUT}; or, in a program of your own, name the columns that "
    "make a row unique with keys=[…]"
)

_EXACT = Context(prec=10_000)


class RowBatch(NamedTuple):
    """Rows of one schema version.

    `head` has the columns of HEAD_TYPES; `row` and `before` have the writer's order.
    `before` is None if no row has a before image. `before_valid` is the bitmap of
    the rows that have one; None: all.
    """

    rows: int
    head: tuple[pa.Array, ...]
    row: list[pa.Array]
    before: list[pa.Array] | None
    before_valid: pa.Buffer | None


HEAD_TYPES: Final = {
    "op": pa.string(),
    "scn": pa.int64(),
    "index": pa.int32(),
    "time": pa.timestamp("us", tz="UTC"),
    "gtid": pa.string(),
}

_STORED = {
    Kind.BOOLEAN: pa.bool_(),
    Kind.INT: pa.int32(),
    Kind.LONG: pa.int64(),
    Kind.FLOAT: pa.float32(),
    Kind.DOUBLE: pa.float64(),
    Kind.STRING: pa.string(),
    Kind.BYTES: pa.binary(),
    Kind.WIDE_DECIMAL: pa.string(),
    Kind.DATE: pa.date32(),
    Kind.TIME: pa.int64(),
    Kind.DATETIME: pa.timestamp("us"),
    Kind.TIMESTAMP: pa.timestamp("us", tz="UTC"),
    Kind.ANY: pa.string(),
}
# (from, to): every value of the first type is a value of the second.
_WIDENED = {
    (pa.int32(), pa.int64()),
    (pa.float32(), pa.float64()),
    (pa.int32(), pa.float64()),
}
# The digits of a decimal that holds every value of the type.
_DIGITS_OF = {pa.int32(): 10, pa.int64(): 19}


def stored_type(column: AvroColumn) -> pa.DataType:
    """Return the Arrow type of a column in its writer's schema."""
    if column.kind is Kind.DECIMAL:
        return pa.decimal128(column.precision, column.scale)
    return _STORED[column.kind]


def wide_decimal_text(data: bytes, scale: int) -> str:
    """Return the digits of a decimal of any size from its Avro bytes."""
    number = Decimal(int.from_bytes(data, "big", signed=True))
    return format(number.scaleb(-scale, _EXACT), "f")


def is_wider(stored: pa.DataType, target: pa.DataType) -> bool:
    """Return whether every value of `stored` is a value of `target`, another type."""
    if (stored, target) in _WIDENED:
        return True
    if not pa.types.is_decimal128(target):
        return False
    whole: int = target.precision - target.scale
    if pa.types.is_decimal128(stored):
        return bool(stored.scale <= target.scale and stored.precision - stored.scale <= whole)
    return _DIGITS_OF.get(stored, whole + 1) <= whole
