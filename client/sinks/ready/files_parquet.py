"""Changes as Parquet: the columns of the row, and `_databus`, which describes the change.

A column's type follows from the schema of the rows, whatever a file has: a number is an int64, a
decimal has 38 digits and the scale of its column. Where the schema does not say it (rows of an
application, a column of SQLite that takes anything), it is that of the first value, and a column of
nulls is left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from databus.client.sinks.contract import Change, Row
from databus.client.sinks.errors import SinkRefusedError
from databus.schemas.columns.avro_columns import AvroColumn, Kind, columns_of

if TYPE_CHECKING:
    import pyarrow as pa

CHANGE_COLUMN = "_databus"
_MICROSECOND = timedelta(microseconds=1)
_DIGITS = 38


def parquet_bytes(changes: Sequence[Change]) -> bytes:
    """Return a Parquet file of changes of one source; raise SinkRefusedError for a value."""
    import pyarrow as pa
    from pyarrow import parquet

    sink = pa.BufferOutputStream()
    parquet.write_table(_table(changes), sink, compression="zstd")
    data: bytes = sink.getvalue().to_pybytes()
    return data


def _table(changes: Sequence[Change]) -> pa.Table:
    import pyarrow as pa

    rows = [_row(one) for one in changes]
    types = _types(changes)
    columns = {}
    for name in _names(types, changes):
        values = [row.get(name) for row in rows]
        known = next((value for value in values if value is not None), None)
        kind = types.get(name) or (None if known is None else _type(known))
        if kind is not None:
            columns[name] = _array(name, values, kind, changes)
    columns[CHANGE_COLUMN] = _described(changes)
    return pa.table(columns)


def _described(changes: Sequence[Change]) -> pa.Array:
    import pyarrow as pa

    described = {
        "op": pa.array([one.op for one in changes], pa.string()),
        "scn": pa.array([one.scn for one in changes], pa.int64()),
        "index": pa.array([one.index for one in changes], pa.int32()),
        "time": pa.array(
            [one.timestamp_ns // 1000 for one in changes], pa.timestamp("us", tz="UTC")
        ),
        "gtid": pa.array([one.transaction.gtid for one in changes], pa.string()),
    }
    return pa.StructArray.from_arrays(list(described.values()), list(described))


def _types(changes: Sequence[Change]) -> dict[str, pa.DataType | None]:
    """Return the types of columns by the newest schema that has them; None: it does not say."""
    schemas = dict.fromkeys(one.schema for one in changes if one.schema is not None)
    return {one.name: _type_of(one) for schema in schemas for one in columns_of(schema)}


def _type_of(column: AvroColumn) -> pa.DataType | None:
    import pyarrow as pa

    if column.kind in (Kind.DECIMAL, Kind.WIDE_DECIMAL):
        return pa.decimal128(_DIGITS, column.scale)
    return {
        Kind.BOOLEAN: pa.bool_(),
        Kind.INT: pa.int64(),
        Kind.LONG: pa.int64(),
        Kind.TIME: pa.int64(),
        Kind.FLOAT: pa.float64(),
        Kind.DOUBLE: pa.float64(),
        Kind.STRING: pa.string(),
        Kind.BYTES: pa.binary(),
        Kind.DATE: pa.date32(),
        Kind.DATETIME: pa.timestamp("us"),
        Kind.TIMESTAMP: pa.timestamp("us", tz="UTC"),
    }.get(column.kind)


def _array(name: str, values: list[Any], kind: pa.DataType, changes: Sequence[Change]) -> pa.Array:
    import pyarrow as pa

    try:
        if kind == pa.int64() and any(isinstance(one, timedelta) for one in values):
            values = list(map(_stored, values))
        return pa.array(values, kind)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        problem = f"{changes[0].source}.{name}: no {kind}: {error}"
        raise SinkRefusedError(problem, changes[0] if len(changes) == 1 else None) from error


def _row(change: Change) -> Row:
    return change.after if change.after is not None else change.before or {}


def _names(types: Iterable[str], changes: Iterable[Change]) -> Iterable[str]:
    """Return the columns of the schemas, and those of rows without one."""
    found = dict.fromkeys(types)
    for one in changes:
        if one.schema is None:
            found |= dict.fromkeys(_row(one))
    return found


def _stored(value: Any) -> Any:
    return value // _MICROSECOND if isinstance(value, timedelta) else value


def _type(value: Any) -> pa.DataType:
    import pyarrow as pa

    if isinstance(value, Decimal):
        exponent = value.as_tuple().exponent
        return pa.decimal128(_DIGITS, -exponent if isinstance(exponent, int) else 0)
    if isinstance(value, datetime):
        return pa.timestamp("us", tz="UTC" if value.tzinfo else None)
    if isinstance(value, date):
        return pa.date32()
    plain = {bool: pa.bool_(), float: pa.float64(), str: pa.string(), bytes: pa.binary()}
    return plain.get(type(value), pa.int64())
