"""Changes as Parquet: the columns of the row, and `_databus`, which describes the change.

A value's type is always the same, whatever else a file has: a number is an int64, a decimal has 38
digits and the scale of its column. A column that has only nulls in a file is left out of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from databus.client.sinks.contract import Change
from databus.client.sinks.errors import SinkRefusedError

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
    names = list(dict.fromkeys(name for row in rows for name in row))
    columns = {}
    for name in names:
        values = [row.get(name) for row in rows]
        known = next((value for value in values if value is not None), None)
        if known is not None:
            columns[name] = _array(name, values, known, changes)
    described = [
        {
            "op": one.op.value,
            "scn": one.scn,
            "index": one.index,
            "time": one.timestamp_ns // 1000,
            "gtid": one.transaction.gtid,
        }
        for one in changes
    ]
    kind = pa.struct(
        [
            ("op", pa.string()),
            ("scn", pa.int64()),
            ("index", pa.int32()),
            ("time", pa.timestamp("us", tz="UTC")),
            ("gtid", pa.string()),
        ]
    )
    columns[CHANGE_COLUMN] = pa.array(described, kind)
    return pa.table(columns)


def _array(name: str, values: list[Any], known: Any, changes: Sequence[Change]) -> pa.Array:
    import pyarrow as pa

    kind = _type(known)
    try:
        return pa.array([_stored(value) for value in values], kind)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        problem = f"{changes[0].source}.{name}: no {kind}: {error}"
        raise SinkRefusedError(problem, changes[0] if len(changes) == 1 else None) from error


def _row(change: Change) -> dict[str, Any]:
    return dict(change.after if change.after is not None else change.before or {})


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
